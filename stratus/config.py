"""The settings: read from the environment, `.env` and `stratus.toml`, in that order, and refused with one line that says the mend."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.sources import DotEnvSettingsSource

from stratus.domain.errors import BadSetting
from stratus.effects import Ids

PREFIX = "STRATUS_"
DOTENV, TOML = ".env", "stratus.toml"
KEY_LENGTH_MIN = 32
# Variables of ours that are not settings: the tests' database, the embedded server's programs and account, the terminal client's token.
OTHER_VARIABLES = frozenset({"STRATUS_TEST_DATABASE_URL", "STRATUS_PG_BIN", "STRATUS_PG_USER", "STRATUS_TOKEN"})

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)?")
_UNIT_SECONDS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104  # only compared with
# What Kubernetes adds to every pod beside a Service named stratus: https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(r"STRATUS_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?)")


def seconds(value: object) -> float:
    """Read a duration as people write it. Raises ValueError."""
    match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a duration is written 30s, 500ms, 2m or as a number of seconds")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _some_seconds(value: object) -> float:
    found = seconds(value)
    if found <= 0:
        raise ValueError("must be longer than 0")
    return found


def _switch(value: object) -> bool:
    found = _SWITCH.get(str(value).strip().lower())
    if found is None:
        raise ValueError("must be on or off")
    return found


def _count(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,4}", str(value).strip()):
        raise ValueError("must be a whole number from 1 to 99999")
    return int(str(value))


def _database(value: object) -> object:
    url = value.get_secret_value() if isinstance(value, SecretStr) else value
    if url is not None and not str(url).startswith(("postgresql://", "postgres://")):
        raise ValueError("must be an address such as postgresql://user:password@host:5432/stratus")
    return value


def _folder(value: object) -> Path:
    try:
        return Path(str(value)).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("there is no such home folder; give an absolute path") from error


def _address(value: object) -> str:
    host, _, port = str(value).strip().rpartition(":")
    if (
        not host
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or int(port) > 65535
        or (":" in host and not host.startswith("["))
    ):
        raise ValueError("must be HOST:PORT such as 127.0.0.1:8321 or [::1]:8321")
    return f"{host}:{int(port)}"


def _web_address(value: object) -> str:
    parts = urlsplit(str(value).strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("must be an address such as https://stratus.example.org")
    return str(value).strip().rstrip("/")


def _reached_at(values: Mapping[str, Any]) -> str:
    host, _, port = str(values["bind"]).rpartition(":")
    return f"http://{'127.0.0.1' if host.strip('[]') in _ANY_ADDRESS else host}:{port}"


def _keys(value: object) -> object:
    keys = value.split(",") if isinstance(value, str) else value
    if not isinstance(keys, list | tuple):
        raise ValueError("must be a list of keys, separated by commas")
    plain = [key.get_secret_value() if isinstance(key, SecretStr) else str(key).strip() for key in keys]
    if any(len(key) < KEY_LENGTH_MIN for key in plain):
        raise ValueError(f"each key needs at least {KEY_LENGTH_MIN} characters; `openssl rand -base64 32` makes one")
    return tuple(plain)


def _points(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = [part.strip().partition("=") for part in value.split(",") if part.strip() and value.strip() != "off"]
    if not all(name and action for name, _, action in pairs):
        raise ValueError("must be a list such as finish.before_commit=kill,claim.after_commit=stop, or off")
    return {name: action for name, _, action in pairs}


def default_home() -> Path:
    """Where Stratus keeps its things unless told otherwise.

    As root `/var/lib/stratus`, since the account that the embedded PostgreSQL runs as cannot enter root's own home; else the XDG data folder
    (https://specifications.freedesktop.org/basedir-spec/latest/). Raises ValueError when the account has no home.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/stratus")
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    if xdg.is_absolute():  # the specification: a relative one is ignored
        return xdg / "stratus"
    return _folder("~/.local/share/stratus")


Duration = Annotated[float, BeforeValidator(_some_seconds)]
Switch = Annotated[bool, BeforeValidator(_switch)]
DatabaseUrl = Annotated[SecretStr | None, BeforeValidator(_database)]


class Effective(NamedTuple):
    """One line of `stratus config`: the variable, its value with secrets masked, and where it was found."""

    name: str
    value: str
    source: str


class Settings(BaseSettings):
    """Every setting; durations in seconds. `load` makes it, so that a fault is one line; its `repr` masks secrets."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=DOTENV,
        toml_file=TOML,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    database_url: DatabaseUrl = None
    listen_url: DatabaseUrl = None
    home: Annotated[Path, BeforeValidator(_folder)] = Field(default_factory=default_home)
    bind: Annotated[str, BeforeValidator(_address)] = "127.0.0.1:8321"
    public_url: Annotated[str, BeforeValidator(_web_address)] = Field(default_factory=_reached_at)
    channel_lease: Switch = True
    run_worker: Switch = True
    workers: Annotated[int, BeforeValidator(_count)] = 64
    model_concurrency: Annotated[int, BeforeValidator(_count)] = 64
    lease_ttl: Duration = 30.0
    channel_ttl: Duration = 30.0
    sweep: Duration = 5.0
    poll: Duration = 0.5
    send_budget: Duration = 20.0
    send_grace: Duration = 8.0
    drain: Annotated[float, BeforeValidator(seconds)] = 25.0
    secret_key: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_keys)] = ()
    test_channels: Switch = False
    failpoints: Annotated[dict[str, str], NoDecode, BeforeValidator(_points)] = Field(default_factory=dict)

    _found_in: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The order in which a setting is looked for."""
        return init_settings, env_settings, dotenv_settings, TomlConfigSettingsSource(settings_cls)

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        if self.database_url is not None and not self.secret_key:
            raise ValueError(
                "STRATUS_SECRET_KEY: is required with STRATUS_DATABASE_URL, the same on every replica; `openssl rand -base64 32` makes one"
            )
        if self.send_budget + self.send_grace >= self.channel_ttl:
            raise ValueError(
                f"STRATUS_SEND_BUDGET: together with STRATUS_SEND_GRACE ({self.send_budget:g}s + {self.send_grace:g}s) it must be shorter "
                f"than STRATUS_CHANNEL_TTL ({self.channel_ttl:g}s); lower them or raise that"
            )
        if self.failpoints and not (self.test_channels and self.host in _LOOPBACK):
            raise ValueError(
                "STRATUS_FAILPOINTS: is for tests only and needs STRATUS_TEST_CHANNELS=on and STRATUS_BIND on 127.0.0.1; unset it"
            )
        return self

    @property
    def host(self) -> str:
        """The address to listen on, an IPv6 one without its brackets."""
        return self.bind.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The TCP port to listen on."""
        return int(self.bind.rpartition(":")[2])

    @property
    def dsn(self) -> str:
        """The database's address, with its password. Raises BadSetting when there is none yet (embedded, not started)."""
        if self.database_url is None:
            raise BadSetting("STRATUS_DATABASE_URL is not set")
        return self.database_url.get_secret_value()

    @property
    def listen_dsn(self) -> str:
        """The address for LISTEN."""
        return self.dsn if self.listen_url is None else self.listen_url.get_secret_value()

    def effective(self) -> list[Effective]:
        """Every setting as it now is, for people to see."""
        return [
            Effective(variable(name), _shown(getattr(self, name)), self._found_in.get(name, "default"))
            for name in type(self).model_fields
        ]


def variable(field: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{field.upper()}"


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this process; `overrides` (field names) come before the environment.

    Raises BadSetting with one line that names the setting and the mend.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        dotenv = DotEnvSettingsSource(Settings)
        found = {
            TOML: _toml(),
            DOTENV: dotenv(),
            "environment": EnvSettingsSource(Settings)(),
            "command line": given,
        }
        _refuse_unknown({*os.environ, *(name.upper() for name in dotenv.env_vars)}, found[TOML])
        settings = Settings(**given)
    except ValidationError as error:
        raise BadSetting(_explain(error)) from None  # the cause would print what was set, secrets included
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{TOML}: {error}; mend or remove it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{DOTENV} or {TOML} in {Path.cwd()} cannot be read: {error}") from error
    except ValueError as error:
        raise BadSetting(f"STRATUS_HOME: {error}") from error
    for source, values in found.items():
        settings._found_in.update({name: source for name in values if name in Settings.model_fields})
    return settings


def ensure_secret_key(settings: Settings) -> Settings:
    """The same settings with a key: the one given, or that of `secret.key` under the home, made once (mode 0600) however many start at once.

    Raises BadSetting when the file cannot be made or read, or holds no key.
    """
    if settings.secret_key:
        return settings
    path = settings.home / "secret.key"
    try:
        if not path.exists():
            _make_key(path)
        keys = _keys(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"STRATUS_SECRET_KEY: {path} cannot be used ({error}); restore it, or set the variable"
        ) from error
    assert isinstance(keys, tuple)
    complete = settings.model_copy(update={"secret_key": tuple(SecretStr(key) for key in keys)})
    complete._found_in.update({**settings._found_in, "secret_key": str(path)})
    return complete


def _make_key(path: Path) -> None:
    ids = Ids()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{ids.uuid()}")
    with open(draft, "x", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f"{ids.secret()}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # unlike a rename it never replaces the key that another process has just made
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _toml() -> dict[str, Any]:
    return dict(TomlConfigSettingsSource(Settings)()) if Path(TOML).exists() else {}


def _refuse_unknown(written: set[str], toml: Mapping[str, Any]) -> None:
    known = {variable(name) for name in Settings.model_fields} | OTHER_VARIABLES
    for name in sorted(written):
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(name):
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0)[0]
            raise BadSetting(f"{name} is not a setting; the nearest one is {near}. Correct or unset it")
    for name in sorted(toml):
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=0)[0]
            raise BadSetting(f"{TOML}: {name} is not a setting; the nearest one is {near}. Correct or remove it")


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    text = str(first["msg"]).removeprefix("Value error, ")
    return f"{variable(str(first['loc'][0]))}: {text}" if first["loc"] else text


def _shown(value: object) -> str:
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, SecretStr):
        return without_password(value.get_secret_value())
    if isinstance(value, tuple):
        return ", ".join("***" for _ in value)
    if isinstance(value, dict):
        return ",".join(f"{name}={action}" for name, action in value.items())
    return f"{value:g}s" if isinstance(value, float) else str(value)


def without_password(url: str) -> str:
    """The address without password and parameters, which may hold one too (libpq's `password=`)."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit((parts.scheme, f"{name}{':***' if colon else ''}{at}{place}", parts.path, "", ""))

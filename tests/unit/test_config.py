"""The settings: where they are found, what is refused and in which words, and that secrets stay hidden."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from stratus.config import Settings, default_home, ensure_secret_key, load, seconds
from stratus.domain.errors import BadSetting

KEY = "k" * 32
SECRET = "s3cret-password-nobody-may-see"
DATABASE = f"postgresql://stratus:{SECRET}@db.example.org:5432/stratus"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("STRATUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _source(settings: Settings, name: str) -> str:
    [source] = [one.source for one in settings.effective() if one.name == name]
    return source


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = load()
    assert (settings.bind, settings.host, settings.port) == ("127.0.0.1:8321", "127.0.0.1", 8321)
    assert settings.public_url == "http://127.0.0.1:8321"
    assert (settings.lease_ttl, settings.channel_ttl, settings.sweep, settings.poll) == (30, 30, 5, 0.5)
    assert (settings.send_budget, settings.send_grace, settings.drain, settings.workers) == (20, 8, 25, 64)
    assert (settings.channel_lease, settings.run_worker, settings.test_channels) == (True, True, False)
    assert (settings.failpoints, settings.secret_key, settings.database_url) == ({}, (), None)
    assert settings.home == default_home()


def test_the_environment_comes_before_dotenv_and_dotenv_before_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("stratus.toml").write_text('workers = 1\nsweep = "1s"\npoll = "100ms"\n')
    Path(".env").write_text("STRATUS_WORKERS=2\nSTRATUS_SWEEP=2s\nOTHER=x\n")
    monkeypatch.setenv("STRATUS_WORKERS", "3")
    settings = load()
    assert (settings.workers, settings.sweep, settings.poll) == (3, 2.0, 0.1)
    assert _source(settings, "STRATUS_WORKERS") == "environment"
    assert _source(settings, "STRATUS_SWEEP") == ".env"
    assert _source(settings, "STRATUS_POLL") == "stratus.toml"
    assert _source(settings, "STRATUS_DRAIN") == "default"
    assert load({"workers": 4}).workers == 4


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATUS_DATABASE_URL", "")
    assert load().database_url is None


@pytest.mark.parametrize(("text", "value"), [("30s", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1.5", 1.5)])
def test_a_duration_is_read(text: str, value: float) -> None:
    assert seconds(text) == value


def test_a_list_of_keys_and_a_list_of_failpoints_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATUS_SECRET_KEY", f"{KEY}, {KEY}2")
    monkeypatch.setenv("STRATUS_TEST_CHANNELS", "on")
    monkeypatch.setenv("STRATUS_FAILPOINTS", "finish.before_commit=kill*1,claim.after_commit=sleep:2")
    settings = load()
    assert [key.get_secret_value() for key in settings.secret_key] == [KEY, f"{KEY}2"]
    assert settings.failpoints == {"finish.before_commit": "kill*1", "claim.after_commit": "sleep:2"}


@pytest.mark.parametrize("bind", ["0.0.0.0:80", "[::]:80"])
def test_browsers_reach_a_listener_on_all_addresses_by_loopback(monkeypatch: pytest.MonkeyPatch, bind: str) -> None:
    monkeypatch.setenv("STRATUS_BIND", bind)
    assert load().public_url == "http://127.0.0.1:80"


REFUSED = [
    ({"STRATUS_WORKERS": "0"}, "STRATUS_WORKERS: must be a whole number"),
    ({"STRATUS_BIND": "8321"}, "STRATUS_BIND: must be HOST:PORT"),
    ({"STRATUS_BIND": ":8321"}, "STRATUS_BIND: must be HOST:PORT"),
    ({"STRATUS_BIND": "::1:8321"}, "STRATUS_BIND: must be HOST:PORT"),
    ({"STRATUS_BIND": "127.0.0.1:99999"}, "STRATUS_BIND: must be HOST:PORT"),
    ({"STRATUS_PUBLIC_URL": "stratus.example.org"}, "STRATUS_PUBLIC_URL: must be an address"),
    ({"STRATUS_LEASE_TTL": "0s"}, "STRATUS_LEASE_TTL: must be longer than 0"),
    ({"STRATUS_CHANNEL_TTL": "soon"}, "STRATUS_CHANNEL_TTL: a duration is written"),
    ({"STRATUS_RUN_WORKER": "maybe"}, "STRATUS_RUN_WORKER: must be on or off"),
    ({"STRATUS_SEND_BUDGET": "25s"}, "STRATUS_SEND_BUDGET: together with STRATUS_SEND_GRACE (25s + 8s)"),
    ({"STRATUS_SEND_GRACE": "10s"}, "STRATUS_SEND_BUDGET: together with STRATUS_SEND_GRACE (20s + 10s)"),
    ({"STRATUS_DATABASE_URL": "mysql://x", "STRATUS_SECRET_KEY": KEY}, "STRATUS_DATABASE_URL: must be an address"),
    ({"STRATUS_DATABASE_URL": DATABASE}, "STRATUS_SECRET_KEY: is required with STRATUS_DATABASE_URL"),
    ({"STRATUS_SECRET_KEY": f"{KEY},short"}, "STRATUS_SECRET_KEY: each key needs at least 32 characters"),
    ({"STRATUS_FAILPOINTS": "a=kill"}, "STRATUS_FAILPOINTS: is for tests only"),
    (
        {"STRATUS_FAILPOINTS": "a=kill", "STRATUS_TEST_CHANNELS": "on", "STRATUS_BIND": "0.0.0.0:1"},
        "STRATUS_FAILPOINTS: is for tests only",
    ),
    ({"STRATUS_FAILPOINTS": "kill"}, "STRATUS_FAILPOINTS: must be a list such as"),
    (
        {"STRATUS_DATABSE_URL": DATABASE},
        "STRATUS_DATABSE_URL is not a setting; the nearest one is STRATUS_DATABASE_URL",
    ),
]


@pytest.mark.parametrize(("variables", "said"), REFUSED, ids=[said.split(":")[0] for _, said in REFUSED])
def test_what_is_wrong_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadSetting) as refused:
        load()
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None, "the cause would print what was set"
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("stratus.toml", "worker = 2", "stratus.toml: worker is not a setting; the nearest one is workers"),
        ("stratus.toml", "workers = = 2", "stratus.toml: "),
        (".env", "STRATUS_WORKER=2", "STRATUS_WORKER is not a setting; the nearest one is STRATUS_WORKERS"),
    ],
)
def test_files_are_held_to_the_same(file: str, text: str, said: str) -> None:
    Path(file).write_text(f"{text}\n")
    with pytest.raises(BadSetting, match="^" + said.replace(".", r"\.")) as refused:
        load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "STRATUS_SERVICE_HOST",
        "STRATUS_PORT_8321_TCP_ADDR",
        "STRATUS_PG_SERVICE_PORT_HTTP",
        "STRATUS_TOKEN",
        "STRATUS_PG_BIN",
    ],
)
def test_variables_that_are_no_settings_are_let_be(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    load()


def test_secrets_are_masked_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATUS_DATABASE_URL", f"{DATABASE}?password={SECRET}")
    monkeypatch.setenv("STRATUS_SECRET_KEY", SECRET * 2)
    settings = load()
    shown = {one.name: one.value for one in settings.effective()}
    assert shown["STRATUS_DATABASE_URL"] == "postgresql://stratus:***@db.example.org:5432/stratus"
    assert shown["STRATUS_SECRET_KEY"] == "***"
    assert SECRET not in repr(settings) + str(settings) + repr(shown) + settings.model_dump_json()
    assert settings.dsn == f"{DATABASE}?password={SECRET}" == settings.listen_dsn


def test_without_a_database_there_is_no_address() -> None:
    with pytest.raises(BadSetting, match="STRATUS_DATABASE_URL is not set"):
        _ = load().dsn


def test_the_key_is_made_once_however_many_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = load({"home": tmp_path / "home"})
    keys: list[str] = []

    def start() -> None:
        keys.append(ensure_secret_key(settings).secret_key[0].get_secret_value())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8 and len(set(keys)) == 1 and len(keys[0]) >= 32
    assert [file.name for file in (tmp_path / "home").iterdir()] == ["secret.key"]
    assert stat.S_IMODE((tmp_path / "home/secret.key").stat().st_mode) == 0o600
    assert _source(ensure_secret_key(settings), "STRATUS_SECRET_KEY").endswith("secret.key")


def test_a_damaged_key_file_is_named_and_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("short")
    with pytest.raises(BadSetting, match=r"STRATUS_SECRET_KEY: .*secret\.key cannot be used"):
        ensure_secret_key(load({"home": tmp_path}))
    assert (tmp_path / "secret.key").read_text() == "short"


def test_a_given_key_needs_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATUS_SECRET_KEY", KEY)
    settings = load({"home": tmp_path})
    assert ensure_secret_key(settings) is settings
    assert not list(tmp_path.iterdir())

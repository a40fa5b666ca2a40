"""What an agent file says of its MCP servers: a command to run, or an address to call. Secrets are named, never written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import Url

# No underscore, so that the name given to a model can be told apart again: see agents/toolsets.py.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_SECRET = re.compile(r"authorization|cookie|token|secret|password|passwd|credential|api[-_]?key|private[-_]?key", re.I)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
CALL_LIMIT_SECONDS = 60.0


def _no_references(command: Sequence[str]) -> Sequence[str]:
    if any(_REFERENCE.search(word) for word in command):
        raise ValueError("other users of the machine can read a command; name the variable in `env` instead")
    if not command or not command[0]:
        raise ValueError("names no program")
    return command


def _environment(values: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an environment variable")
        _check(name, value)
    return values


def _headers(values: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in values.items():
        if not _HEADER.fullmatch(name) or not value.isprintable():
            raise ValueError(f"{name!r} is not a header with a printable value")
        _check(name, value)
    return values


def _check(name: str, value: str) -> None:
    for variable in _REFERENCE.findall(value):
        if not _VARIABLE.fullmatch(variable):
            raise ValueError(f"${{{variable}}} does not name an environment variable")
        if variable.startswith("STRATUS_"):
            raise ValueError(f"${{{variable}}} is a setting of Stratus, which no tool server may have")
    if _SECRET.search(name) and not _REFERENCE.search(value):
        raise ValueError(f"{name} looks like a secret: write ${{VARIABLE}} and set that variable for the replicas")
    if "\0" in value:
        raise ValueError(f"{name} contains a NUL")


def _address(url: str) -> str:
    said = "is not an address such as https://example.org/mcp"
    try:
        parts = Url(url)
    except ValueError as error:
        raise ValueError(said) from error
    if parts.scheme not in ("http", "https"):
        raise ValueError(said)
    if parts.username or parts.password:
        raise ValueError("contains a password; send a header instead")
    return url


class _Server(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    time_limit_seconds: float = Field(default=CALL_LIMIT_SECONDS, gt=0, le=3600)


class CommandServer(_Server):
    """A server that speaks over its standard input and output. `env` is all it gets besides PATH, HOME and the locale."""

    command: Annotated[Sequence[str], AfterValidator(_no_references)]
    env: Annotated[Mapping[str, str], AfterValidator(_environment)] = Field(default_factory=dict)
    cwd: str | None = None


class UrlServer(_Server):
    """A server that speaks over HTTP."""

    url: Annotated[str, AfterValidator(_address)]
    headers: Annotated[Mapping[str, str], AfterValidator(_headers)] = Field(default_factory=dict)


McpServerConfig = CommandServer | UrlServer


def mcp_servers(written: Mapping[str, Any]) -> dict[str, McpServerConfig]:
    """The servers of an agent's `mcp`, by name. Raises ValueError that says which entry is wrong, and in what."""
    return {str(name): _server(str(name), entry) for name, entry in written.items()}


def resolved(values: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The values with each ${VARIABLE} replaced. Raises ValueError that names the first variable that is not set."""

    def look_up(match: re.Match[str]) -> str:
        value = environment.get(match[1])
        if value is None:
            raise ValueError(f"the environment variable {match[1]} is not set on this replica")
        return value

    return {name: _REFERENCE.sub(look_up, value) for name, value in values.items()}


def _server(name: str, entry: Any) -> McpServerConfig:
    if not _NAME.fullmatch(name):
        raise ValueError(f"mcp: {name!r} is not a name; use up to 32 lower-case letters, digits and hyphens")
    kind: type[CommandServer] | type[UrlServer]
    match entry:
        case {"command": _, "url": _}:
            raise ValueError(f"mcp.{name}: has both `command` and `url`; keep one")
        case {"command": _}:
            kind = CommandServer
        case {"url": _}:
            kind = UrlServer
        case _:
            raise ValueError(f"mcp.{name}: needs a `command: [program, …]` or a `url: https://…`")
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join([f"mcp.{name}", *(str(part) for part in first["loc"])])
        raise ValueError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error

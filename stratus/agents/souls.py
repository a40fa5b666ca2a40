"""Agent files: Markdown, the soul, under YAML front matter that says what the agent runs on (interfaces.md §3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import BadInput
from stratus.domain.mcp import mcp_servers

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)(?:^|\n)---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h)?")
_DURATIONS = frozenset({"idle_limit", "first_token_limit", "approval_window"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNIT_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}
_MEND = {
    "id": "up to 64 lower-case letters, digits, dots, underscores and hyphens, such as `id: blair`",
    "model": "`demo`, or a provider and a name such as `model: anthropic:claude-sonnet-5-5`",
    "name": "a text; quote what looks like a number",
    "tools": "a list of names such as `tools: [current_time, mcp:files/*]`",
    "approve": "a list of names such as `approve: [mcp:files/write_*]`",
    "approval_window": "a duration such as `30m` or `24h`",
    "delegates": "a list of agent ids such as `delegates: [researcher]`",
    "busy": "one of queue, steer, interrupt, reject",
    "idle_limit": "a duration such as `120s`, `2m` or a number of seconds",
    "first_token_limit": "a duration such as `60s`, `2m` or a number of seconds",
    "max_concurrent": "a whole number above 0",
    "max_steps": "a whole number above 0",
    "base_url": "an address such as `base_url: http://127.0.0.1:11434/v1`",
    "api_key_env": "the name of an environment variable, such as `api_key_env: TEAM_OPENAI_API_KEY`, and never the key itself",
    "settings": "a mapping such as `settings: {temperature: 0.2}`",
    "mcp": "a mapping such as `mcp: {files: {command: [uvx, mcp-server-files, /data]}}`",
    "effects": "what a repeat of a tool does, one of read, idempotent, once, such as `effects: {mcp:files/read_*: read}`",
}


def parse(text: str, *, source: str) -> AgentDefinition:
    """Read one agent file. White space around the soul does not count.

    Raises BadInput that names `source`, the field, and what is expected there; a field that is not known is refused by
    name.
    """
    match = _FRONT_MATTER.match(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if match is None:
        raise BadInput(f"{source}: an agent file begins with front matter: a line `---`, its fields, and a line `---`")
    fields = _fields(match[1], source)
    for name in _DURATIONS & fields.keys():
        fields[f"{name}_seconds"] = _seconds(name, fields.pop(name), source)
    if not _VARIABLE.fullmatch(str(fields.get("api_key_env", "A"))):
        raise BadInput(f"{source}: `api_key_env` is not acceptable: expected {_MEND['api_key_env']}")
    try:
        definition = AgentDefinition.model_validate({**fields, "soul": match.string[match.end() :].strip()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]).removesuffix("_seconds")
        problem = "is missing" if first["type"] == "missing" else "is not acceptable"
        raise BadInput(f"{source}: `{field}` {problem}: expected {_MEND[field]}") from error
    try:
        mcp_servers(definition.mcp)
    except ValueError as error:
        raise BadInput(f"{source}: {error}") from error
    return definition


def render(definition: AgentDefinition) -> str:
    """The agent file that `parse` reads as `definition`; fields that have their default are left out."""
    fields = definition.model_dump(mode="json", exclude_defaults=True, exclude={"v", "soul"})
    # A list read back from JSON is not equal to the default tuple, but as empty.
    fields = {name: value for name, value in fields.items() if value not in ([], {})}
    for name in sorted(_DURATIONS):
        if (value := fields.pop(f"{name}_seconds", None)) is not None:
            fields[name] = f"{value:.12g}s"
    front = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100)
    return f"---\n{front}---\n{definition.soul}\n"


def read_folder(path: Path) -> list[AgentDefinition]:
    """The agents of all `*.md` files in `path`, by file name; hidden files are an editor's and are passed over.

    Blocks on the disk. Raises BadInput for a bad file, and for an id that two files claim.
    """
    found: dict[str, tuple[str, AgentDefinition]] = {}
    for file in sorted(path.glob("*.md")):
        if file.name.startswith("."):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{file}: is not UTF-8 text") from error
        definition = parse(text, source=str(file))
        if definition.id in found:
            raise BadInput(f"{file}: `id` {definition.id!r} is taken by {found[definition.id][0]}; give it another")
        found[definition.id] = (str(file), definition)
    return [definition for _, definition in found.values()]


def _fields(front: str, source: str) -> dict[str, Any]:
    try:
        fields = yaml.safe_load(front) or {}
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is an impossible date
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 2}" if mark is not None else ""  # the front matter starts on the second line
        raise BadInput(f"{source}{where}: the front matter is not valid YAML; quote special signs") from error
    if not isinstance(fields, Mapping):
        raise BadInput(f"{source}: the front matter is not a list of `field: value` lines")
    unknown = [str(name) for name in fields if name not in _MEND]
    if unknown:
        raise BadInput(f"{source}: unknown field `{unknown[0]}`; known are {', '.join(sorted(_MEND))}")
    return {str(name): value for name, value in fields.items() if value is not None}


def _seconds(name: str, value: Any, source: str) -> float:
    match = _DURATION.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise BadInput(f"{source}: `{name}` is not acceptable: expected {_MEND[name]}")
    return float(match[1]) * _UNIT_SECONDS[match[2]]

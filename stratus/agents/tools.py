"""The tool seam, and function tools: annotated Python functions that a model may call, with bounded time and size,
found by entry point.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol, get_type_hints, runtime_checkable
from uuid import UUID

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from stratus.agents.model import ToolSpec
from stratus.domain.agent import TOOL_NAME, ToolEffect
from stratus.domain.errors import BadSetting

TIME_LIMIT_SECONDS = 60.0
SIZE_LIMIT_BYTES = 100_000
_ERROR_CHARACTERS = 500
_WILDCARDS = frozenset("*?[")

log = structlog.get_logger(__name__)


class AgentRows(Protocol):
    """What a tool may read of the database: the rows of the agent that calls it, whatever the SQL says."""

    async def fetch(self, sql: str, *args: str | int | float | bool | None) -> list[dict[str, Any]]:
        """The rows of one SELECT, as JSON has them. See StoredRows in stratus/store/rows.py for its bounds and errors."""


@dataclass(frozen=True)
class ToolContext:
    """Who calls: passed to a function that has a parameter annotated with this class. `call_id` is the provider's.

    `progress` reports output on the way: watchers see it, and a turn that reports is not taken for one that hangs. It
    must be called on the event loop's thread.
    """

    session_id: str
    run: UUID
    call_id: str
    agent_id: str
    rows: AgentRows
    progress: Callable[[str], None] = lambda _text: None


@dataclass(frozen=True)
class ProducedFile:
    """A file for the person who asked."""

    name: str
    mime: str
    data: bytes


@dataclass(frozen=True)
class Notice:
    """A message for the person who asked, sent at once; on the channel of that name, or where they are.

    With a `key` it is sent once in a day, whichever run says it. A `reaction` is set on the message that began the turn.
    """

    text: str
    channel: str | None = None
    key: str | None = None
    reaction: bool = False


@dataclass(frozen=True)
class ToolOutcome:
    """What the model is told. `failed` marks an error, which is a result like any other.

    `files` and `notices` are for the person; they are stored and planned by the transaction that commits the result.
    """

    content: str
    failed: bool = False
    files: Sequence[ProducedFile] = ()
    notices: Sequence[Notice] = ()


@runtime_checkable
class Tool(Protocol):
    """What a turn can call, whatever does the work."""

    @property
    def spec(self) -> ToolSpec:
        """How the model and the agent's policy know it."""

    async def run(self, args: str, context: ToolContext) -> ToolOutcome:
        """Act on the arguments, a JSON text as the model wrote it. What goes wrong is a failed outcome: raises nothing
        but CancelledError.
        """


@dataclass(frozen=True)
class FunctionTool:
    """A tool that calls a function with validated arguments."""

    spec: ToolSpec
    function: Callable[..., Any]
    arguments: type[BaseModel]
    context_parameter: str | None = None
    time_limit_seconds: float = TIME_LIMIT_SECONDS

    async def run(self, args: str, context: ToolContext) -> ToolOutcome:
        """Call the function. A coroutine is cancelled at the time limit; a thread cannot be, and runs on unheard."""
        try:
            values = self.arguments.model_validate_json(args or "{}")
        except ValidationError as error:
            return bounded(f"The arguments of {self.spec.name} are not valid. {_problems(error)}", failed=True)
        given = {field.alias or "": getattr(values, name) for name, field in self.arguments.model_fields.items()}
        if self.context_parameter is not None:
            given[self.context_parameter] = context
        limit = asyncio.timeout(self.time_limit_seconds)
        try:
            async with limit:
                value = await self._call(given)
            if isinstance(value, ToolOutcome):
                return replace(value, content=bounded(value.content, failed=value.failed).content)
            return bounded(value if isinstance(value, str) else to_json(value, indent=None).decode(), failed=False)
        except TimeoutError as error:
            if limit.expired():
                said = f"{self.spec.name} did not end within {self.time_limit_seconds:g} seconds and was abandoned."
                return bounded(said, failed=True)
            return self._failed(error, context)
        except Exception as error:  # whatever a tool raises is a result that the model may react to
            return self._failed(error, context)

    async def _call(self, given: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**given)
        return await asyncio.to_thread(self.function, **given)

    def _failed(self, error: Exception, context: ToolContext) -> ToolOutcome:
        log.warning("tool.failed", tool=self.spec.name, call=context.call_id, error=type(error).__name__)
        said = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS]
        return bounded(f"{self.spec.name} failed: {said}", failed=True)


def tool(
    *, effect: ToolEffect, name: str | None = None, time_limit_seconds: float = TIME_LIMIT_SECONDS
) -> Callable[[Callable[..., Any]], FunctionTool]:
    """Decorator: make a tool of an annotated function, async or not (then it runs in a thread). Its docstring tells the
    model what it does.

    `effect` states what a repeat does, see ToolSpec. A function that returns a ToolOutcome says all of it itself. Raises
    TypeError for a parameter that has no annotation or no name, and for a name that no provider takes.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        own_name = name or function.__name__
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        contexts = [parameter.name for parameter in parameters if hints.get(parameter.name) is ToolContext]
        arguments = _arguments(own_name, [item for item in parameters if item.name not in contexts], hints)
        if not TOOL_NAME.fullmatch(own_name):
            raise TypeError(f"{own_name!r} is no name for a tool: use up to 64 of a-z, A-Z, 0-9, _ and -")
        schema = arguments.model_json_schema()
        spec = ToolSpec(own_name, inspect.getdoc(function) or "", _untitled(schema), effect)
        return FunctionTool(spec, function, arguments, contexts[0] if contexts else None, time_limit_seconds)

    return make


class ToolRegistry:
    """Tools by name, each made when it is first selected. Selecting raises BadSetting for a tool that
    cannot be loaded.
    """

    def __init__(self, sources: Mapping[str, Callable[[], Any]]) -> None:
        self._sources = dict(sources)
        self._loaded: dict[str, Tool] = {}

    def names(self) -> list[str]:
        """All names, sorted; loads nothing."""
        return sorted(self._sources)

    def select(self, patterns: Sequence[str]) -> list[Tool]:
        """Tools whose name matches one of `patterns` (names, or wildcards as in fnmatch), by name. Unknown names select
        nothing.
        """
        wanted = [name for name in self.names() if any(fnmatchcase(name, pattern) for pattern in patterns)]
        return [self._load(name) for name in wanted]

    def unknown(self, patterns: Sequence[str]) -> list[str]:
        """The exact names among `patterns` that are no tool here, to be reported; a wildcard may match nothing."""
        return [item for item in patterns if not _WILDCARDS & set(item) and item not in self._sources]

    def _load(self, name: str) -> Tool:
        if name not in self._loaded:
            try:
                made = self._sources[name]()
            except Exception as error:  # a stranger's module may raise anything when it is imported
                raise BadSetting(f"the tool {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
            if not isinstance(made, Tool) or made.spec.name != name:
                raise BadSetting(f"the entry point {name!r} of stratus.tools is not a tool of that name")
            self._loaded[name] = made
        return self._loaded[name]


def installed_tools() -> ToolRegistry:
    """The tools of the entry point group `stratus.tools`."""
    return ToolRegistry({point.name: partial(_load_point, point) for point in entry_points(group="stratus.tools")})


def _load_point(point: Any) -> Any:
    return point.load()


def _arguments(name: str, parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not plain or parameter.name not in hints:
            raise TypeError(f"the tool {name!r} needs a plain, annotated parameter instead of {parameter}")
        default = ... if parameter.default is parameter.empty else parameter.default
        # The alias lets a parameter have any name, also one that a BaseModel keeps for itself.
        fields[f"field{number}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _untitled(value: Any) -> Any:
    """The schema without pydantic's titles, which only repeat names at the cost of tokens; a property may itself be
    named title.
    """
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {
        key: {name: _untitled(item) for name, item in value[key].items()}
        for key in ("properties", "$defs")
        if isinstance(value.get(key), dict)
    }
    kept = {key: inner for key, inner in value.items() if not (key == "title" and isinstance(inner, str))}
    return {key: named[key] if key in named else _untitled(inner) for key, inner in kept.items()}


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in problems[:10])


def bounded(content: str, *, failed: bool) -> ToolOutcome:
    """The outcome with at most SIZE_LIMIT_BYTES of `content`; a note says what was cut."""
    octets = content.encode("utf-8", "replace")
    if len(octets) <= SIZE_LIMIT_BYTES:
        return ToolOutcome(content, failed)
    notice = f"\n[cut: the result has {len(octets)} bytes, at most {SIZE_LIMIT_BYTES} are shown]"
    kept = octets[: SIZE_LIMIT_BYTES - len(notice)].decode("utf-8", "ignore")
    return ToolOutcome(kept + notice, failed)

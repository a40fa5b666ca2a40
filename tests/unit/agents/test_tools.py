"""Function tools: their schema, their limits, that nothing a function does escapes as an exception, and how they are
found.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import Field

from stratus.agents.tools import (
    SIZE_LIMIT_BYTES,
    Notice,
    Tool,
    ToolContext,
    ToolOutcome,
    ToolRegistry,
    installed_tools,
    tool,
)
from stratus.domain.errors import BadSetting
from tests.unit.agents.rows import NO_ROWS

CONTEXT = ToolContext(session_id="s", run=UUID(int=7), call_id="c1", agent_id="a", rows=NO_ROWS)


@tool(effect="read")
async def add(a: int, b: Annotated[int, Field(ge=0, description="The second")] = 1) -> int:
    """Adds two numbers.

    The second is not negative.
    """
    return a + b


async def run(made: Tool, args: str = "{}") -> tuple[str, bool]:
    outcome = await made.run(args, CONTEXT)
    return outcome.content, outcome.failed


def test_the_spec_comes_from_the_function() -> None:
    assert add.spec.name == "add"
    assert add.spec.effect == "read"
    assert add.spec.description == "Adds two numbers.\n\nThe second is not negative."
    assert add.spec.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer", "minimum": 0, "default": 1, "description": "The second"},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


async def test_runs_with_validated_arguments() -> None:
    assert await run(add, '{"a": 2, "b": 3}') == ("5", False)
    assert await run(add, '{"a": 2}') == ("3", False)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", "a: Field required"),
        ("{", "Invalid JSON"),
        ("[1]", "arguments:"),
        ('{"a": "x"}', "a: Input should be a valid integer"),
        ('{"a": 1, "b": -1}', "b: Input should be greater than or equal to 0"),
        ('{"a": 1, "c": 1}', "c: Extra inputs are not permitted"),
    ],
)
async def test_bad_arguments_are_a_failed_result_that_says_why(args: str, said: str) -> None:
    content, failed = await run(add, args)
    assert failed
    assert content.startswith("The arguments of add are not valid.")
    assert said in content


def test_a_parameter_may_have_any_name_even_title_or_schema() -> None:
    @tool(effect="read")
    def find(title: str, schema: str, model_config: int = 1) -> str:
        """Finds."""
        return f"{title}{schema}{model_config}"

    assert list(find.spec.parameters["properties"]) == ["title", "schema", "model_config"]


async def test_a_sync_function_runs_in_a_thread_and_gets_the_context() -> None:
    @tool(effect="once", name="who")
    def anything(context: ToolContext, prefix: str) -> str:
        """Who?"""
        return f"{prefix}{context.session_id}/{context.call_id}/{threading.current_thread() is threading.main_thread()}"

    assert list(anything.spec.parameters["properties"]) == ["prefix"]
    assert await run(anything, '{"prefix": ">"}') == (">s/c1/False", False)


@pytest.mark.parametrize(
    "error", [ValueError("no such thing"), TimeoutError("theirs"), KeyError("k"), RecursionError()]
)
async def test_an_exception_is_a_failed_result(error: Exception) -> None:
    @tool(effect="read")
    async def broken() -> str:
        """Breaks."""
        raise error

    content, failed = await run(broken)
    assert failed
    assert content == f"broken failed: {type(error).__name__}: {error}"


async def test_a_result_that_is_no_json_is_a_failed_result() -> None:
    @tool(effect="read")
    def thing() -> Any:
        """Returns a thing."""
        return object()

    content, failed = await run(thing)
    assert failed
    assert content.startswith("thing failed: PydanticSerializationError")


async def test_a_slow_function_is_cancelled_at_its_limit() -> None:
    ended = []

    @tool(effect="read", time_limit_seconds=0.01)
    async def slow() -> str:
        """Sleeps."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return "never"

    assert await run(slow) == ("slow did not end within 0.01 seconds and was abandoned.", True)
    assert ended == [True]


async def test_cancellation_passes_through() -> None:
    entered = asyncio.Event()

    @tool(effect="read")
    async def waits() -> str:
        """Waits."""
        entered.set()
        await asyncio.Event().wait()
        return "never"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(waits.run("{}", CONTEXT))
        await entered.wait()
        task.cancel()
    assert task.cancelled()


async def test_a_large_result_is_cut_visibly() -> None:
    @tool(effect="read")
    def large(character: str) -> str:
        """Much."""
        return character * SIZE_LIMIT_BYTES

    assert await run(large, '{"character": "x"}') == ("x" * SIZE_LIMIT_BYTES, False)
    content, failed = await run(large, '{"character": "й"}')
    assert not failed
    assert len(content.encode()) <= SIZE_LIMIT_BYTES
    assert content.endswith(
        f"\n[cut: the result has {2 * SIZE_LIMIT_BYTES} bytes, at most {SIZE_LIMIT_BYTES} are shown]"
    )


@pytest.mark.parametrize("bad", [lambda x: x, lambda *args: args, lambda **named: named])
def test_a_parameter_without_annotation_is_a_programmers_error(bad: Any) -> None:
    with pytest.raises(TypeError, match="needs a plain, annotated parameter"):
        tool(effect="read")(bad)


def test_selects_by_name_and_wildcard_and_loads_only_what_is_selected() -> None:
    loaded: list[str] = []

    def source(name: str) -> Any:
        def load() -> Tool:
            loaded.append(name)

            @tool(effect="read", name=name)
            def function() -> str:
                """Nothing."""
                return ""

            return function

        return load

    registry = ToolRegistry({name: source(name) for name in ("web_get", "web_post", "time")})
    assert registry.names() == ["time", "web_get", "web_post"]
    assert [made.spec.name for made in registry.select(["web_*", "web_get", "nothing", "n*"])] == [
        "web_get",
        "web_post",
    ]
    assert [made.spec.name for made in registry.select(["web_get"])] == ["web_get"]
    assert loaded == ["web_get", "web_post"]
    assert registry.unknown(["web_*", "time", "nothing", "mcp:files/*", "delegate"]) == ["nothing", "delegate"]


def test_a_tool_that_cannot_be_loaded_is_named() -> None:
    def broken() -> Any:
        raise ImportError("no module")

    registry = ToolRegistry({"broken": broken, "thing": lambda: 7, "other": lambda: add})
    with pytest.raises(BadSetting, match="the tool 'broken' cannot be loaded: ImportError: no module"):
        registry.select(["broken"])
    for name in ("thing", "other"):
        with pytest.raises(BadSetting, match=f"the entry point '{name}' of stratus.tools is not a tool of that name"):
            registry.select([name])


def test_installed_tools_can_be_listed() -> None:
    assert installed_tools().names() == sorted(installed_tools().names())


def test_policy_knows_a_tool_by_its_own_name_where_a_provider_cannot() -> None:
    assert add.spec.policy_name == "add"
    assert replace(add.spec, name="mcp_files_read", known_as="mcp:files/read").policy_name == "mcp:files/read"


def test_anything_with_a_spec_and_run_is_a_tool() -> None:
    class Remote:
        spec = replace(add.spec, name="remote")

        async def run(self, args: str, context: ToolContext) -> ToolOutcome:
            return ToolOutcome(f"{context.call_id} {args}")

    assert [made.spec.name for made in ToolRegistry({"remote": Remote}).select(["*"])] == ["remote"]


async def test_a_function_may_say_the_whole_outcome_and_its_text_is_bounded() -> None:
    @tool(effect="once")
    async def both() -> ToolOutcome:
        """Does both."""
        return ToolOutcome("x" * (SIZE_LIMIT_BYTES + 1), failed=True, notices=[Notice("told")])

    outcome = await both.run("{}", CONTEXT)
    assert (outcome.failed, list(outcome.notices)) == (True, [Notice("told")])
    assert len(outcome.content) == SIZE_LIMIT_BYTES


@pytest.mark.parametrize("name", ["read file", "mcp:files/read", "x" * 65, "größe"])
def test_a_name_that_no_provider_takes_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="is no name for a tool"):
        tool(effect="read", name=name)(lambda: "x")

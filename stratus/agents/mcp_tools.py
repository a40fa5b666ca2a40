"""The tools of a tool server as a turn calls them: arguments checked, time and size bounded, whatever happens a result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from jsonschema import Draft202012Validator
from mcp import MCPError
from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, EmbeddedResource, ResourceLink, TextContent
from mcp_types import Tool as Offer
from pydantic_core import to_json
from referencing import Registry

from stratus.agents.mcp_server import McpServer, ServerDown
from stratus.agents.model import ToolSpec
from stratus.agents.tools import ToolContext, ToolOutcome, bounded
from stratus.domain.agent import ToolEffect

SCHEMA_LIMIT_BYTES = 50_000
DESCRIPTION_CHARACTERS = 4_000
_PROBLEMS, _PROBLEM_CHARACTERS = 10, 200
_ERROR_CHARACTERS = 500

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class McpTool:
    """One tool of one server. `own_name` is the server's name for it."""

    spec: ToolSpec
    server: McpServer
    own_name: str
    time_limit_seconds: float

    async def run(self, args: str, context: ToolContext) -> ToolOutcome:
        """See Tool.run."""
        try:
            values = json.loads(args or "{}")
            problems = _problems(values, self.spec.parameters)
        except (ValueError, RecursionError) as error:
            problems = f"Invalid JSON: {error}"
        if problems:
            return bounded(f"The arguments of {self.spec.name} are not valid. {problems}", failed=True)
        limit = asyncio.timeout(self.time_limit_seconds)
        try:
            async with limit:
                result = await self.server.call(self.own_name, values, context.progress)
            return bounded(_content(result), failed=result.is_error)
        except ServerDown as error:
            return bounded(str(error), failed=True)
        except TimeoutError as error:
            if limit.expired():
                said = f"{self.spec.name} did not end within {self.time_limit_seconds:g} seconds and was abandoned."
                return bounded(said, failed=True)
            return self._failed(error, context)
        except Exception as error:  # whatever a server's answer makes the library raise is a result
            return self._failed(error, context)

    def _failed(self, error: Exception, context: ToolContext) -> ToolOutcome:
        log.warning("tool.failed", tool=self.spec.name, call=context.call_id, error=type(error).__name__)
        kind = "" if isinstance(error, MCPError) else f"{type(error).__name__}: "
        return bounded(f"{self.spec.name} failed: {kind}{error}"[:_ERROR_CHARACTERS], failed=True)


def effect_hinted(offer: Offer) -> ToolEffect:
    """What a repeat does, by what the server says: nothing said means that it must not happen twice."""
    hints = offer.annotations
    if hints is not None and hints.read_only_hint:
        return "read"
    return "idempotent" if hints is not None and hints.idempotent_hint else "once"


def fault(offer: Offer) -> str | None:
    """Why this offer cannot be handed to a model, if so."""
    schema = offer.input_schema
    if schema.get("type") != "object":
        return "its parameters are not an object"
    if len(to_json(schema)) > SCHEMA_LIMIT_BYTES:
        return f"its parameters take more than {SCHEMA_LIMIT_BYTES} bytes to describe"
    try:
        Draft202012Validator.check_schema(schema)
    except Exception as error:  # a schema can be wrong in ways that the check itself falls over
        return f"its parameters are not described by a valid schema ({type(error).__name__})"
    return None


def _problems(values: Any, schema: Any) -> str:
    """What is wrong with the arguments. References lead nowhere but into the schema itself."""
    if not isinstance(values, dict):
        return "They have to be an object."
    validator = Draft202012Validator(schema, registry=Registry())
    try:
        found = [
            f"{'.'.join(map(str, error.absolute_path)) or 'arguments'}: {error.message[:_PROBLEM_CHARACTERS]}"
            for _, error in zip(range(_PROBLEMS), validator.iter_errors(values), strict=False)
        ]
    except Exception as error:  # a reference that leads nowhere, a pattern that is none
        return f"Its parameters are described wrongly, so they cannot be checked ({type(error).__name__})."
    return "; ".join(found)


def _content(result: CallToolResult) -> str:
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return to_json(result.structured_content).decode()
    return "\n".join(parts) or "(no output)"


def _part(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ResourceLink):
        return f"[resource {block.uri}]"
    if not isinstance(block, EmbeddedResource):
        return f"[{block.type} {block.mime_type}, not shown]"
    if isinstance(block.resource, BlobResourceContents):
        return f"[resource {block.resource.uri}, {block.resource.mime_type or 'binary'}, not shown]"
    return block.resource.text


def described(offer: Offer) -> str:
    """What the model is told that it does."""
    said = offer.description or offer.title or ""
    return said if len(said) <= DESCRIPTION_CHARACTERS else said[:DESCRIPTION_CHARACTERS] + " [cut]"


def offered(offers: Sequence[Offer], server: str) -> list[Offer]:
    """Those that can be handed to a model, each name once; the others are left out, with a line in the log."""
    kept: dict[str, Offer] = {}
    for offer in offers:
        why = "its name is taken" if offer.name in kept else fault(offer)
        if why is None:
            kept[offer.name] = offer
        else:
            log.warning("mcp.tool_left_out", server=server, tool=offer.name[:64], why=why)
    return list(kept.values())

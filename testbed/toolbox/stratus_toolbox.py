"""Tools that leave a trace: installed for a replica by putting this folder on its PYTHONPATH.

Each call writes lines to the file that TOOLBOX_LEDGER names: `begin` when it acts, `end` when it is over.
"""

from __future__ import annotations

import asyncio
import os
import time

from stratus.agents.tools import ToolContext, tool


def _write(what: str, tool_name: str, argument: str, call_id: str) -> None:
    line = f"{what}\t{tool_name}\t{argument}\t{call_id}\t{os.getpid()}\n".encode()
    ledger = os.open(os.environ["TOOLBOX_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, line)  # one write of a short line is whole, whatever other processes do
    finally:
        os.close(ledger)


@tool(effect="once")
async def ledger_charge(what: str, context: ToolContext) -> str:
    """Charge for something: must never happen twice."""
    _write("begin", "ledger_charge", what, context.call_id)
    _write("end", "ledger_charge", what, context.call_id)
    return f"charged {what}"


@tool(effect="once")
async def ledger_gated(what: str, context: ToolContext) -> str:
    """Charge for something that a person has to allow."""
    _write("begin", "ledger_gated", what, context.call_id)
    _write("end", "ledger_gated", what, context.call_id)
    return f"charged {what}"


@tool(effect="idempotent")
async def ledger_put(what: str, context: ToolContext) -> str:
    """Put something in its place: a repeat does no harm."""
    _write("begin", "ledger_put", what, context.call_id)
    _write("end", "ledger_put", what, context.call_id)
    return f"put {what}"


@tool(effect="read")
async def ledger_look(what: str, context: ToolContext) -> str:
    """Look at something."""
    _write("begin", "ledger_look", what, context.call_id)
    _write("end", "ledger_look", what, context.call_id)
    return f"{what} is there"


@tool(effect="once", time_limit_seconds=600)
async def ledger_block(seconds: float, context: ToolContext) -> str:
    """Block the whole process, as a badly written tool does."""
    _write("begin", "ledger_block", str(seconds), context.call_id)
    time.sleep(seconds)  # noqa: ASYNC251  # what this tool is for
    _write("end", "ledger_block", str(seconds), context.call_id)
    return "done"


@tool(effect="once", time_limit_seconds=600)
def ledger_sleep(seconds: float, context: ToolContext) -> str:
    """Sleep in a thread."""
    _write("begin", "ledger_sleep", str(seconds), context.call_id)
    time.sleep(seconds)
    _write("end", "ledger_sleep", str(seconds), context.call_id)
    return "done"


@tool(effect="once", time_limit_seconds=600)
async def ledger_hang(context: ToolContext) -> str:
    """Never end by itself."""
    _write("begin", "ledger_hang", "", context.call_id)
    await asyncio.Event().wait()
    return ""

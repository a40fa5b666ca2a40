"""A tool server of an earlier protocol, written by hand so that it can answer what no library would send.

`python -m testbed.mcp_old_server` speaks 2025-06-18 over stdio. Its calls do what their tool's name says. `broken` as an argument makes
its list of tools invalid.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_OBJECT = {"type": "object"}
_OFFERS: list[dict[str, Any]] = [
    {"name": "good", "inputSchema": _OBJECT, "description": "d" * 10_000},
    {"name": "good", "inputSchema": _OBJECT, "description": "Another of that name."},
    {"name": "with.dots and spaces", "inputSchema": _OBJECT},
    {"name": "no-schema", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
    {"name": "huge", "inputSchema": {"type": "object", "description": "x" * 100_000}},
    {
        "name": "elsewhere",
        "inputSchema": {"type": "object", "properties": {"a": {"$ref": os.environ.get("ELSEWHERE", "urn:nowhere")}}},
    },
    {"name": "malformed", "inputSchema": _OBJECT},
    {"name": "wrong-shape", "inputSchema": _OBJECT},
    {"name": "error", "inputSchema": _OBJECT},
    {"name": "picture", "inputSchema": _OBJECT},
    {"name": "grow", "inputSchema": _OBJECT},
    {"name": "quit", "inputSchema": _OBJECT},
    {"name": "promised", "inputSchema": _OBJECT, "outputSchema": {"type": "object", "required": ["a"]}},
]


def _say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def _call(number: int, name: str) -> None:
    text = {"type": "text", "text": name}
    if name == "malformed":
        print(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"content": [', flush=True)
    elif name == "wrong-shape":
        _say(id=number, result={"content": "not a list"})
    elif name == "quit":
        sys.exit(5)
    elif name == "error":
        _say(id=number, error={"code": -32000, "message": "the disk is full"})
    elif name == "picture":
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        _say(id=number, result={"content": [text, image]})
    elif name == "grow":
        _OFFERS.append({"name": "grown", "inputSchema": _OBJECT})
        _say(method="notifications/tools/list_changed")
        _say(id=number, result={"content": [text]})
    else:
        _say(id=number, result={"content": [text]})


def main() -> None:
    """Answer until the input ends."""
    if "broken" in sys.argv:
        _OFFERS.append({"name": "an-array", "inputSchema": {"type": "array"}})
    for line in sys.stdin:
        message = json.loads(line)
        number = message.get("id")
        match message.get("method"):
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                about = {"name": "old", "version": "1"}
                _say(
                    id=number,
                    result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": about},
                )
            case "tools/list":
                _say(id=number, result={"tools": _OFFERS})
            case "tools/call":
                _call(number, message["params"]["name"])
            case str() if number is not None:
                _say(id=number, error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main()

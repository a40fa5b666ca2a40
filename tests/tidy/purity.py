"""What a pure module may import and name: an allow-list, because the list of impure things never ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.tree import Source, dotted

PURE = frozenset(
    """__future__ abc base64 bisect collections copy dataclasses datetime decimal enum fractions functools hashlib heapq
    fnmatch hmac html itertools json math operator orjson pydantic pydantic_core re regex string struct textwrap types typing
    unicodedata uuid""".split()
)
# Cron arithmetic, and the zones that it needs: data of a release, the same for every call. Neither reads the time.
PURE |= {"cronsim", "zoneinfo"}
_BUILTINS = frozenset("__import__ breakpoint compile eval exec hash id input open print".split())
_TIME_AND_LUCK = frozenset(
    "now utcnow today fromtimestamp utcfromtimestamp astimezone getnode uuid1 uuid4 uuid6 uuid7".split()
)


def impurities(source: Source, own: tuple[str, ...]) -> Iterator[str]:
    """Everything in `source` that reads a clock, luck or the outside; `own` are packages of ours that are pure too."""
    for node in ast.walk(source.tree):
        for name in _imported(node):
            if name.split(".")[0] not in PURE and not any(f"{name}.".startswith(f"{package}.") for package in own):
                yield f"{source.path}:{_line(node)}: imports {name}"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in _TIME_AND_LUCK:
                    yield f"{source.path}:{node.lineno}: imports {alias.name}"
        if isinstance(node, ast.Attribute) and node.attr in _TIME_AND_LUCK:
            yield f"{source.path}:{node.lineno}: names {dotted(node)}"
        if isinstance(node, ast.Call) and dotted(node.func) in _BUILTINS:
            yield f"{source.path}:{node.lineno}: calls {dotted(node.func)}()"
        if isinstance(node, ast.AsyncFunctionDef) and any(isinstance(inner, ast.Await) for inner in ast.walk(node)):
            yield f"{source.path}:{node.lineno}: awaits"


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "." * node.level + (node.module or "")


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))

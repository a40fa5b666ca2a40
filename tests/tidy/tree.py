"""The project's own Python files, parsed once: what every house rule is asked about."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("stratus", "adapters", "migrations", "testbed", "tests", "bench", "scripts")


@dataclass(frozen=True)
class Source:
    """One file: `path` is relative to the repository and uses slashes, `text` its content."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def comments(self) -> tuple[tuple[int, str], ...]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return tuple((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)

    def under(self, *prefixes: str) -> bool:
        return any(self.path == prefix or self.path.startswith(f"{prefix.rstrip('/')}/") for prefix in prefixes)

    def strings(self) -> Iterator[tuple[int, str]]:
        """Line and value of every string constant (parts of f-strings too) that is no docstring."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        prose = {
            id(node.body[0].value)
            for node in ast.walk(self.tree)
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield node.lineno, node.value

    def calls(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of every call; an unnamed receiver is left out: `f().begin()` is `.begin`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node.lineno, dotted(node.func)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the project."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)

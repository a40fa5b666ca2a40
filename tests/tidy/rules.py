"""The house rules as functions: each takes one file and yields `path:line: what is wrong, and the mend`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tests.tidy.tree import Source

Rule = Callable[[Source], Iterator[str]]

MODULE_LINES = 400
FUNCTION_LINES = 60
DOCSTRING_LINES = 5
PURPOSE_WORDS = 4
_SHAPELESS = {"utils.py", "util.py", "common.py", "helpers.py", "helper.py", "base.py", "misc.py"}
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_IGNORED_TYPE = re.compile(r"#\s*type:\s*ignore|#\s*mypy:")
_TRANSACTION_TIME = re.compile(r"(?<![\w.])(now\s*\(|current_timestamp|localtimestamp|transaction_timestamp)", re.I)
_SESSION_LOCK = re.compile(r"pg_(try_)?advisory_(un)?lock(?!_all)", re.I)  # unlock_all only frees
_STATEMENT = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH)\s+\S")
_SPEAKS_SQL = ("stratus/store", "stratus/embedded", "stratus/embedded.py", "migrations", "testbed", "tests", "bench")


def module_is_short(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > MODULE_LINES:
        yield f"{source.path}:1: {lines} lines, {MODULE_LINES} are the limit: split it by reason to exist"


def functions_are_short(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{source.path}:{node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES} are the limit"


def module_says_its_purpose(source: Source) -> Iterator[str]:
    if not source.text.strip():
        return
    docstring = ast.get_docstring(source.tree) or ""
    if len(docstring.split()) < PURPOSE_WORDS:
        yield f"{source.path}:1: open with a docstring that says what this is and its one reason to exist"
    if sum(1 for line in docstring.splitlines() if line.strip()) > DOCSTRING_LINES:
        yield f"{source.path}:1: the opening docstring has more than {DOCSTRING_LINES} lines"


def nothing_is_unfinished(source: Source) -> Iterator[str]:
    for line, comment in source.comments:
        if _UNFINISHED.search(comment):
            yield f"{source.path}:{line}: unfinished work is an issue, not a comment"


def types_are_checked(source: Source) -> Iterator[str]:
    if source.under("stratus", "adapters"):
        for line, comment in source.comments:
            if _IGNORED_TYPE.search(comment):
                yield f"{source.path}:{line}: give the value its type where it enters"


def file_has_a_reason(source: Source) -> Iterator[str]:
    if source.path.rsplit("/", 1)[-1] in _SHAPELESS:
        yield f"{source.path}:1: name the file after the one thing it is for"


def sql_takes_time_from_its_door(source: Source) -> Iterator[str]:
    if source.under("stratus/store"):
        for line, text in source.strings():
            if _TRANSACTION_TIME.search(text):
                yield f"{source.path}:{line}: transaction time; scans use stratus_now(), fences clock_timestamp()"


def advisory_locks_end_with_the_transaction(source: Source) -> Iterator[str]:
    if source.under("stratus", "adapters", "migrations"):
        for line, text in source.strings():
            if _SESSION_LOCK.search(text):
                yield f"{source.path}:{line}: a session lock leaks through a pooler; use pg_advisory_xact_lock"


def transactions_open_in_one_place(source: Source) -> Iterator[str]:
    if source.under("stratus", "adapters") and source.path != "stratus/store/database.py":
        for line, name in source.calls():
            if name.rpartition(".")[1:] in {(".", "transaction"), (".", "begin")}:
                yield f"{source.path}:{line}: open transactions through stratus/store/database.py"


def only_the_store_speaks_sql(source: Source) -> Iterator[str]:
    if not source.under(*_SPEAKS_SQL):
        for line, text in source.strings():
            if _STATEMENT.match(text):
                yield f"{source.path}:{line}: a statement outside of stratus/store; give it a function there"


RULES: tuple[Rule, ...] = (
    module_is_short,
    functions_are_short,
    module_says_its_purpose,
    nothing_is_unfinished,
    types_are_checked,
    file_has_a_reason,
    sql_takes_time_from_its_door,
    advisory_locks_end_with_the_transaction,
    transactions_open_in_one_place,
    only_the_store_speaks_sql,
)

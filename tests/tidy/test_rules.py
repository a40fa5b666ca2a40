"""Holds every file of the project to the house rules, and shows of each rule that it can fail."""

from __future__ import annotations

import pytest

from tests.tidy.rules import FUNCTION_LINES, MODULE_LINES, RULES, Rule
from tests.tidy.tree import Source, sources

_DOC = '"""A file that breaks one rule on purpose."""\n'

BROKEN = {
    "module_is_short": Source("stratus/a.py", _DOC + "\n" * MODULE_LINES),
    "functions_are_short": Source("tests/a.py", _DOC + "async def f():\n" + "    f()\n" * FUNCTION_LINES),
    "module_says_its_purpose": Source("adapters/a.py", '"""A module."""\n'),
    "nothing_is_unfinished": Source("testbed/a.py", _DOC + "x = 1  # TODO: more\n"),
    "types_are_checked": Source("stratus/a.py", _DOC + "x = 1  # type: ignore[assignment]\n"),
    "file_has_a_reason": Source("testbed/utils.py", _DOC),
    "sql_takes_time_from_its_door": Source("stratus/store/a.py", _DOC + 'x = f"UPDATE {t} SET at = now()"\n'),
    "advisory_locks_end_with_the_transaction": Source(
        "stratus/store/a.py", _DOC + 'x = "SELECT pg_try_advisory_lock($1)"\n'
    ),
    "transactions_open_in_one_place": Source("stratus/store/a.py", _DOC + "c.acquire().transaction()\n"),
    "only_the_store_speaks_sql": Source("stratus/http/a.py", _DOC + 'x = """\n  SELECT 1"""\n'),
}

FINE = {
    "module_says_its_purpose": Source("stratus/__init__.py", ""),
    "nothing_is_unfinished": Source("testbed/a.py", _DOC + "x = 'TODO'\n"),
    "types_are_checked": Source("tests/a.py", _DOC + "x = 1  # type: ignore[assignment]\n"),
    "sql_takes_time_from_its_door": Source("stratus/store/a.py", '"""Never says now()."""\nx = "stratus_now()"\n'),
    "advisory_locks_end_with_the_transaction": Source("stratus/store/a.py", 'x = "pg_advisory_xact_lock($1)"\n'),
    "transactions_open_in_one_place": Source("stratus/store/database.py", "c.transaction()\n"),
    "only_the_store_speaks_sql": Source("stratus/store/a.py", 'x = "SELECT 1"\n'),
}


def _name(rule: Rule) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_the_tree_keeps(rule: Rule) -> None:
    found = [finding for source in sources() for finding in rule(source)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_a_broken_file_is_found_by(rule: Rule) -> None:
    assert len(list(rule(BROKEN[_name(rule)]))) == 1


@pytest.mark.parametrize("rule", [rule for rule in RULES if _name(rule) in FINE], ids=_name)
def test_a_fine_file_passes(rule: Rule) -> None:
    assert not list(rule(FINE[_name(rule)]))


def test_the_rules_see_the_whole_project() -> None:
    seen = {source.path for source in sources()}
    assert {"stratus/domain/machine.py", "stratus/channel/protocol.py", "tests/tidy/test_rules.py"} <= seen

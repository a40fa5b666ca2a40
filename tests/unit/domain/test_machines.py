"""Every machine is whole: reachable, used, closed at its ends, and its SQL says exactly what its table says."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from enum import StrEnum
from typing import Any

import pytest

from stratus.domain.errors import IllegalTransition
from stratus.domain.machine import Machine
from stratus.domain.machines import MACHINES
from stratus.domain.run import RUN, RunEvent, RunState

each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: str(machine.name))


def _states(machine: Machine[Any, Any]) -> list[StrEnum]:
    states: type[StrEnum] = machine.states
    return list(states)


def _events(machine: Machine[Any, Any]) -> list[StrEnum]:
    events: type[StrEnum] = type(next(iter(machine.moves))[1])
    return list(events)


def unreachable(machine: Machine[Any, Any]) -> set[Any]:
    """States that no path from an initial state leads to."""
    reached: set[Any] = set(machine.initial)
    while True:
        further = {new for (old, _), new in machine.moves.items() if old in reached} - reached
        if not further:
            return set(_states(machine)) - reached
        reached |= further


def unused(machine: Machine[Any, Any]) -> set[Any]:
    """Events that move nothing."""
    return set(_events(machine)) - {event for _, event in machine.moves}


@each_machine
def test_every_state_is_reachable_and_every_event_used(machine: Machine[Any, Any]) -> None:
    assert not unreachable(machine)
    assert not unused(machine)


def test_an_unreachable_state_and_an_unused_event_are_found() -> None:
    moves = {move: new for move, new in RUN.moves.items() if move[1] is not RunEvent.MERGE}
    broken = replace(RUN, moves=moves)
    assert unreachable(broken) == {RunState.MERGED}
    assert unused(broken) == {RunEvent.MERGE}


@each_machine
def test_a_machine_ends_and_its_ends_have_no_exit(machine: Machine[Any, Any]) -> None:
    assert machine.terminal()
    assert not [old for old, _ in machine.pairs() if old in machine.terminal()]


@each_machine
def test_every_state_and_event_pair_moves_by_the_table_or_is_refused(machine: Machine[Any, Any]) -> None:
    for state, event in itertools.product(_states(machine), _events(machine)):
        if (state, event) in machine.moves:
            assert machine.after(state, event) is machine.moves[state, event]
        else:
            with pytest.raises(IllegalTransition, match=f"^{machine.name}: no {event} from {state}$"):
                machine.after(state, event)


@each_machine
def test_the_sources_of_an_event_are_the_states_that_it_may_leave(machine: Machine[Any, Any]) -> None:
    for event in _events(machine):
        assert set(machine.sources(event)) == {
            str(state) for state in machine.states if (state, event) in machine.moves
        }


@each_machine
def test_the_state_check_names_exactly_the_states(machine: Machine[Any, Any]) -> None:
    assert re.findall(r"'(\w+)'", machine.check_states()) == sorted(str(state) for state in machine.states)


@each_machine
def test_dependent_columns_name_known_states_and_their_checks_exactly_those(machine: Machine[Any, Any]) -> None:
    checks = machine.check_columns()
    assert checks.keys() == machine.columns.keys()
    for column, states in machine.columns.items():
        assert states
        assert states < set(_states(machine))
        assert re.findall(r"'(\w+)'", checks[column]) == sorted(str(state) for state in states)
        assert checks[column].endswith(f"= ({column} IS NOT NULL)")


@each_machine
def test_the_trigger_knows_exactly_the_pairs_of_the_table(machine: Machine[Any, Any]) -> None:
    function = machine.trigger_function()
    allowed = set(re.findall(r"'(\w+)>(\w+)'", function))
    for old, new in itertools.product(_states(machine), repeat=2):
        moves = old != new and any(left == old and to == new for (left, _), to in machine.moves.items())
        assert ((str(old), str(new)) in allowed) == moves
    assert "ERRCODE = 'ST001'" in function
    assert f"BEFORE UPDATE OF state ON {machine.table} " in machine.trigger()


@each_machine
def test_the_chart_draws_every_move(machine: Machine[Any, Any]) -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", machine.mermaid(), re.MULTILINE))
    assert drawn == {(str(old), str(new), str(event)) for (old, event), new in machine.moves.items()}


def test_names_and_tables_are_unique() -> None:
    assert len({machine.name for machine in MACHINES}) == len({machine.table for machine in MACHINES}) == len(MACHINES)

"""A state machine as a table: CHECKs, guards, the move trigger, diagrams and all-pairs tests are derived from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from stratus.domain.errors import IllegalTransition

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True)
class Machine(Generic[S, E]):
    """`moves` maps (state, event) to the next state; `columns` says in which states a column is set, and only then.

    `table` and `column` name where the state is kept, for the constraints derived from it.
    """

    name: str
    table: str
    states: type[S]
    initial: frozenset[S]
    moves: Mapping[tuple[S, E], S]
    columns: Mapping[str, frozenset[S]]

    def after(self, state: S, event: E) -> S:
        """The state that `event` leads to. Raises IllegalTransition."""
        try:
            return self.moves[state, event]
        except KeyError:
            raise IllegalTransition(f"{self.name}: no {event} from {state}") from None

    def sources(self, event: E) -> tuple[str, ...]:
        """The states that `event` may leave, for a compare-and-set guard."""
        return tuple(sorted(str(state) for state, on in self.moves if on == event))

    def target(self, event: E) -> S:
        """The one state that `event` leads to, wherever it comes from. Raises IllegalTransition for an event with several."""
        found = {new for (_, on), new in self.moves.items() if on == event}
        if len(found) != 1:
            raise IllegalTransition(f"{self.name}: {event} leads to {len(found)} states")
        return found.pop()

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every (old, new) that the database may write; staying in a state is always allowed."""
        return tuple(sorted({(str(old), str(new)) for (old, _), new in self.moves.items() if old != new}))

    def terminal(self) -> tuple[str, ...]:
        """States that nothing leaves."""
        left = {old for old, _ in self.moves}
        return tuple(sorted(str(state) for state in self.states if state not in left))

    def check_states(self) -> str:
        """SQL of the CHECK on the state column."""
        return f"state IN ({_quoted(str(s) for s in self.states)})"

    def check_columns(self) -> dict[str, str]:
        """SQL of one CHECK for each dependent column."""
        return {
            column: f"(state IN ({_quoted(str(s) for s in states)})) = ({column} IS NOT NULL)"
            for column, states in sorted(self.columns.items())
        }

    def trigger_function(self) -> str:
        """SQL of the move trigger's function: refuses a move that the table does not have, with SQLSTATE ST001."""
        pairs = ", ".join(f"'{old}>{new}'" for old, new in self.pairs())
        return (
            f"CREATE OR REPLACE FUNCTION {self.table}_move() RETURNS trigger LANGUAGE plpgsql AS $$\n"
            "BEGIN\n"
            "  IF OLD.state IS DISTINCT FROM NEW.state\n"
            f"     AND (OLD.state || '>' || NEW.state) NOT IN ({pairs}) THEN\n"
            f"    RAISE EXCEPTION '{self.table}: % > % is no move of the machine', OLD.state, NEW.state\n"
            "      USING ERRCODE = 'ST001';\n"
            "  END IF;\n"
            "  RETURN NEW;\n"
            "END $$"
        )

    def trigger(self) -> str:
        """SQL of the move trigger."""
        return (
            f"CREATE TRIGGER {self.table}_move BEFORE UPDATE OF state ON {self.table} "
            f"FOR EACH ROW EXECUTE FUNCTION {self.table}_move()"
        )

    def mermaid(self) -> str:
        """The chart in docs/machines/."""
        lines = ["stateDiagram-v2", *(f"    [*] --> {state}" for state in sorted(self.initial))]
        lines += [f"    {old} --> {new}: {event}" for (old, event), new in sorted(self.moves.items())]
        lines += [f"    {state} --> [*]" for state in self.terminal()]
        return "\n".join(lines) + "\n"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))

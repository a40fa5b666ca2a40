"""Sorts what asyncpg raises: refused by the server for good, worth another try, or not known to have been carried out."""

from __future__ import annotations

from enum import Enum, auto

import asyncpg

from stratus.domain.errors import Broken, DatabaseAway, IllegalTransition, StratusError, TooLarge

# What a connection raises that breaks, or had broken before: in the middle of an exchange that is an InternalClientError at its next use.
BREAKS = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
FAULTS = (*BREAKS, asyncpg.PostgresError)


class Fault(Enum):
    """What is known of a statement that raised."""

    REFUSED = auto()  # the server said no; repeating it changes nothing
    TRY_AGAIN = auto()  # the server said not now, and did nothing
    LOST = auto()  # the connection went away: if COMMIT had been sent, nobody knows


# SQLSTATE classes and codes with which the server says that it did nothing, now: lock timeouts, deadlocks, statement timeouts, full disks or slots.
_TRY_AGAIN_CODES = frozenset(
    {"55P03", "40P01", "40001", "57014", "53000", "53100", "53200", "53300", "53400", "25006", "0A000"}
)
_LOST_CODES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

# Errors that our own SQL raises (S9 of the house rules): one table from code to class.
RAISED_IN_SQL: dict[str, type[StratusError]] = {"ST001": IllegalTransition, "ST002": TooLarge}


def classify(error: BaseException) -> Fault:
    """What is known after `error`."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        if code in _LOST_CODES or code.startswith("08"):
            return Fault.LOST
        return Fault.TRY_AGAIN if code in _TRY_AGAIN_CODES else Fault.REFUSED
    if isinstance(error, BREAKS):
        return Fault.LOST
    return Fault.REFUSED


def translate(error: BaseException) -> BaseException:
    """The error that callers outside of the store see."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in RAISED_IN_SQL:
        return RAISED_IN_SQL[error.sqlstate](str(error))
    if classify(error) is not Fault.REFUSED:
        return DatabaseAway(f"the database did not answer: {type(error).__name__}")
    if isinstance(error, asyncpg.PostgresError):
        return Broken(f"{type(error).__name__}: {error}")
    return error

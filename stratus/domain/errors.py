"""Every error that Stratus raises on purpose: one root, three branches that decide what happens next."""

from __future__ import annotations


class StratusError(Exception):
    """Root. `code` is stable and machine-readable; the message is for a person."""

    code = "error"


class Rejected(StratusError):
    """The caller's fault: answered with a 4xx or exit code 1, never retried."""

    code = "rejected"


class Temporary(StratusError):
    """May succeed later; `retry_after` in seconds."""

    code = "temporary"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Broken(StratusError):
    """An invariant does not hold: the step stops, somebody must look."""

    code = "broken"


class BadSetting(Rejected):
    """A setting is wrong or contradicts another; the message names it and the mend."""

    code = "bad_setting"


class BadInput(Rejected):
    """A request's content is not acceptable."""

    code = "bad_input"


class NotFound(Rejected):
    """Not there, or not yours: both answer alike."""

    code = "not_found"


class Forbidden(Rejected):
    """Known, but not allowed to do this."""

    code = "forbidden"


class Unauthenticated(Rejected):
    """No valid token or session."""

    code = "unauthenticated"


class Conflict(Rejected):
    """The object's present state forbids it."""

    code = "conflict"


class KeyReused(Rejected):
    """The idempotency key was used before with another body."""

    code = "idempotency_key_reused"


class KeyMissing(Rejected):
    """An idempotency key is required and missing or malformed."""

    code = "idempotency_key_required"


class TooLarge(Rejected):
    """Over a stated size limit."""

    code = "too_large"


class CursorExpired(Rejected):
    """The cursor is older than what is kept, or from a history that no longer exists: fetch the transcript, start from its cursor."""

    code = "cursor_expired"


class BadCursor(Rejected):
    """The cursor is not of the form `<run uuid>:<seq>`."""

    code = "bad_cursor"


class AgentMismatch(Rejected):
    """A session keeps its agent for life; another one was named."""

    code = "agent_mismatch"


class Busy(Rejected):
    """The agent's busy policy refuses a message while a turn is running."""

    code = "busy"


class AlreadyDecided(Rejected):
    """Somebody else was first, or the turn is over."""

    code = "already_decided"


class ApprovalExpired(Rejected):
    """The question's time is over."""

    code = "approval_expired"


class ArgumentsDiffer(Rejected):
    """What would be called is not what the decider was shown."""

    code = "arguments_changed"


class IllegalTransition(Broken):
    """A state machine has no such move."""

    code = "illegal_transition"


class LeaseLost(StratusError):
    """The lease is another's, has expired, or cannot be verified: stop, write nothing, send nothing."""

    code = "lease_lost"


class CancelAsked(StratusError):
    """Somebody asked to cancel the run: it must end instead of waiting."""

    code = "cancel_asked"


class NotApproved(StratusError):
    """A call's approval is gone, or was given for other arguments: it must not start."""

    code = "not_approved"


class DatabaseAway(Temporary):
    """PostgreSQL cannot be reached or did not answer in time."""

    code = "database_away"

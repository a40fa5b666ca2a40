"""What a provider's error means for the turn and for the person who waits.

The classes are pydantic-ai's (its `exceptions` module); pydantic-ai.md §8 lists which fault was seen as which.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratus.agents.model import ErrorCode, ModelError
from stratus.domain.values import Usage

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

# The first class that fits decides, so a subclass comes before its base.
_CLASSES: tuple[tuple[str, ErrorCode], ...] = (
    ("ModelRateLimitError", "rate_limited"),
    ("ModelQuotaExceededError", "quota"),
    ("ModelOverloadedError", "overloaded"),
    ("ModelUnavailableError", "unavailable"),
    ("ModelServerError", "unavailable"),
    ("ModelContextWindowExceededError", "context_overflow"),
    ("ModelAuthenticationError", "auth"),
    ("ModelNotFoundError", "not_found"),
    ("ModelRequestRejectedError", "rejected"),
    ("ModelRequestTimeout", "timeout"),
    ("ModelTimeoutError", "timeout"),
    ("ModelConnectionError", "connect"),
)
_SENTENCES: dict[ErrorCode, str] = {
    "rate_limited": "The provider of {model} is limiting our requests. Please try again later.",
    "overloaded": "The provider of {model} is overloaded. Please try again later.",
    "unavailable": "The provider of {model} has a fault on its side. Please try again later.",
    "timeout": "The provider of {model} did not answer in time. Please try again.",
    "connect": "The connection to the provider of {model} failed. Please try again.",
    "auth": "The provider of {model} refused the API key. An operator has to check it, and `api_key_env`.",
    "not_found": "The provider does not know {model}. An operator has to check the agent's `model` and `base_url`.",
    "rejected": "The provider of {model} refused the request.",
    "context_overflow": "What {model} would have to read for this is too long for it. Start a new conversation with /new, or send less at once.",
    "quota": "The account at the provider of {model} has no credit left. An operator has to see to it.",
    "bad_response": "The provider of {model} sent an answer that could not be read. Please try again.",
}


# How a prompt that is too long is refused where no class says it: Anthropic (its API's errors page, and seen), and servers that
# speak its wire.
_TOO_LONG = ("prompt is too long", "exceed context limit", "context window", "context length", "request_too_large")


def failure(code: ErrorCode, model: str, *, retry_after: float | None = None, usage: Usage | None = None) -> ModelError:
    """The error with its sentence; `model` is `provider:name`."""
    return ModelError(code, _SENTENCES[code].format(model=model), retry_after=retry_after, usage=usage)


@contextmanager
def provider_errors(model: str) -> Iterator[None]:
    """Raise what a provider, its SDK or pydantic-ai raises in the block as ModelError, chained."""
    from httpx2 import HTTPError, InvalidURL, StreamError
    from pydantic_ai.exceptions import AgentRunError, ModelAPIError, UserError

    try:
        yield
    except ModelAPIError as error:
        raise failure(_code(error), model, retry_after=error.retry_after, usage=_usage(error)) from error
    except (UserError, NotImplementedError, InvalidURL) as error:  # refused before anything was sent
        raise failure("rejected", model) from error
    except (AgentRunError, HTTPError, StreamError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last four are how parsers stumble over an answer that has not the promised shape.
        raise failure("bad_response", model) from error


def _code(error: ModelAPIError) -> ErrorCode:
    from pydantic_ai import exceptions

    status = getattr(error, "status_code", None) or 0
    # The SDK's own number: pydantic-ai has another one, or none, for an answer that leads elsewhere.
    if 300 <= getattr(error.__cause__, "status_code", status) < 400:
        return "not_found"
    for name, code in _CLASSES:
        if isinstance(error, getattr(exceptions, name)):
            return "context_overflow" if code == "rejected" and _too_long(error) else code
    if status == 413 or _too_long(error):
        return "context_overflow"
    return "bad_response" if status < 400 else "timeout" if status == 408 else "rejected"


def _too_long(error: ModelAPIError) -> bool:
    told = str(error).lower()
    return any(phrase in told for phrase in _TOO_LONG)


def _usage(error: ModelAPIError) -> Usage:
    """Nothing for a request that was refused or never sent; unknown for one that broke off after it was sent."""
    from pydantic_ai.exceptions import ModelConnectionError

    sent = error.in_stream or (isinstance(error, ModelConnectionError) and error.phase not in ("connect", "pool"))
    return Usage.unknown() if sent else Usage()

"""The one table from an error's class to its HTTP answer, an RFC 9457 problem document; what is not in it shows nothing of the inside."""

from __future__ import annotations

import math

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from stratus.domain import errors
from stratus.observe import sse

# A browser's EventSource gives up for good at any status but 200 (WHATWG HTML §9.2.3), so an outage is told as an empty stream.
AWAY_RETRY_MS = 5_000


class AgentNotFound(errors.NotFound):
    """The named agent is not there; unlike sessions, agents are no secret."""

    code = "agent_not_found"


STATUS: dict[type[errors.StratusError], tuple[int, str]] = {
    errors.StratusError: (500, "Internal error"),
    errors.Rejected: (400, "Not acceptable"),
    errors.Temporary: (503, "Not available now"),
    errors.Broken: (500, "Internal error"),
    errors.BadSetting: (500, "Internal error"),
    errors.BadInput: (400, "Bad input"),
    errors.NotFound: (404, "Not found"),
    AgentNotFound: (404, "No such agent"),
    errors.Forbidden: (403, "Not allowed"),
    errors.Unauthenticated: (401, "Not signed in"),
    errors.Conflict: (409, "Conflict"),
    errors.KeyReused: (422, "Idempotency key reused"),
    errors.KeyMissing: (400, "Idempotency key required"),
    errors.TooLarge: (413, "Too large"),
    errors.CursorExpired: (409, "Cursor expired"),
    errors.BadCursor: (400, "Malformed cursor"),
    errors.AgentMismatch: (409, "Another agent's session"),
    errors.Busy: (409, "Busy"),
    errors.AlreadyDecided: (409, "Decided already"),
    errors.ApprovalExpired: (410, "Too late"),
    errors.ArgumentsDiffer: (409, "Arguments changed"),
    errors.IllegalTransition: (500, "Internal error"),
    errors.CancelAsked: (409, "To be canceled"),
    errors.NotApproved: (409, "Not approved"),
    errors.LeaseLost: (503, "Not available now"),
    errors.DatabaseAway: (503, "Database away"),
}
_INTERNAL = 500
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}}
_HTTP_CODES = {400: "bad_input", 404: "not_found", 405: "method_not_allowed", 408: "too_slow", 413: "too_large"}

log = structlog.get_logger(__name__)


def answer(error: errors.StratusError) -> JSONResponse:
    """The problem document of an error."""
    status, title = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    if status == _INTERNAL:
        return problem(status, title, "internal", "Something is wrong on our side; an operator finds it in the log.")
    headers = dict(_HEADERS.get(status, {}))
    if isinstance(error, errors.Temporary):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return problem(status, title, error.code, str(error), headers)


def problem(status: int, title: str, code: str, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem document with a stable `code` beside the standard's members."""
    content = {"type": f"urn:stratus:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return JSONResponse(content, status, headers, media_type="application/problem+json")


def wants_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events."""
    return "text/event-stream" in request.headers.get("accept", "").lower()


def install(app: FastAPI) -> None:
    """Answer every error of the app by the table."""

    @app.exception_handler(errors.StratusError)
    async def _ours(request: Request, error: errors.StratusError) -> Response:
        if isinstance(error, errors.DatabaseAway) and request.method == "GET" and wants_stream(request):
            return Response(
                sse.retry(AWAY_RETRY_MS), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
            )
        response = answer(error)
        if response.status_code == _INTERNAL:
            log.error("http.internal", path=request.url.path, code=error.code, exc_info=error)
        return response

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return problem(400, "Bad input", "bad_input", f"{place}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> Response:
        code = _HTTP_CODES.get(error.status_code, "rejected")
        return problem(error.status_code, str(error.detail), code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def _unknown(_request: Request, _error: Exception) -> Response:
        return answer(errors.Broken("unexpected"))

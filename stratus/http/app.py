"""The HTTP application: one router a noun, one error table, one place for limits."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from stratus.http import (
    agents,
    approvals,
    auth,
    channels,
    console,
    errors,
    hooks,
    messages,
    notifications,
    operations,
    outbox,
    runs,
    schedules,
    sessions,
    tokens,
)
from stratus.http.limits import Limits
from stratus.http.services import Services

_ROUTERS = (
    auth,
    messages,
    runs,
    sessions,
    approvals,
    agents,
    channels,
    notifications,
    outbox,
    schedules,
    tokens,
    hooks,
    operations,
)


def create_app(services: Services) -> FastAPI:
    """The application on one replica's services. It owns nothing: closing is the composition root's."""
    app = FastAPI(title="Stratus", version=version("stratus"), docs_url=None, redoc_url=None)
    app.state.services = services
    app.state.metrics = operations.Metrics(services)
    for module in _ROUTERS:
        app.include_router(module.router)
    console.mount(app)
    errors.install(app)
    app.add_middleware(Limits)
    return app

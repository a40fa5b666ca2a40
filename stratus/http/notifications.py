"""Notifications: an operator's or a program's message to a person, on whichever of their chats reaches them, once a key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from stratus.channel.registry import adapter_class
from stratus.channel.text import clean
from stratus.domain.chain import PlannedOp, notification
from stratus.http.auth import Admin
from stratus.http.ids import idempotency_key
from stratus.http.services import Here
from stratus.store import notification as notifications
from stratus.store.notification import Order, Target

TEXT_CHARACTERS_MAX = 40_000

router = APIRouter(tags=["notifications"])


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    user: UUID | None = None
    session: str | None = Field(default=None, min_length=1, max_length=256)
    channel: str | None = None
    text: Annotated[str, AfterValidator(clean)] = Field(max_length=TEXT_CHARACTERS_MAX)

    @model_validator(mode="after")
    def _to_somebody(self) -> _Body:
        if (self.user is None) == (self.session is None):
            raise ValueError("give either user or session")
        if not self.text.strip():
            raise ValueError("the text is empty")
        return self


def pieces(text: str, platform: str, key: str) -> Sequence[PlannedOp]:
    """The ops of a text on a platform. Raises UnknownPlatform."""
    return notification(text, adapter_class(platform).limits, key)


@router.post("/notifications", status_code=202)
async def notify(
    body: _Body, here: Here, me: Admin, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None
) -> dict[str, Any]:
    """Tell a person, or a session's chat, something. The same Idempotency-Key within a day says how the first one stands."""
    target = Target(body.user, body.session, body.channel)
    order = Order(here.ids.uuid(), target, idempotency_key(key), body.text, partial(pieces, body.text))
    made = await notifications.notify(here.db, order)
    here.hints.send("outbox", str(made.channel_id))
    return {"id": str(made.id), "repeated": made.repeated, "ops": list(made.ops)}

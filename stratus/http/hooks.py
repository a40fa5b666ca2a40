"""Platform webhooks: the raw request goes to the channel's adapter, and the answer waits for the commit."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from stratus.channel.values import RawRequest
from stratus.domain.errors import DatabaseAway
from stratus.http.ids import public_id
from stratus.http.services import Here

_RETRY_SECONDS = 5.0

router = APIRouter(tags=["hooks"])


@router.post("/hooks/{channel}")
async def receive(channel: str, request: Request, here: Here) -> Response:
    """Anything but 2xx means that nothing was stored, and the platform sends it again."""
    raw = RawRequest(method=request.method, headers=dict(request.headers), body=await request.body())
    try:
        reply = await here.webhooks(public_id(channel), raw)
    except DatabaseAway as error:
        raise DatabaseAway("nothing was stored; send it again", retry_after=_RETRY_SECONDS) from error
    return Response(reply.body, reply.status, media_type=reply.content_type)

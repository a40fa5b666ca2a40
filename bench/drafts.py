"""Live drafts: how many edits an answer costs that takes a while, at each platform's rate."""

from __future__ import annotations

from bench.ground import stage
from stratus.embedded import EmbeddedPostgres
from testbed.eventually import eventually
from testbed.sides import SIDES, Side, add_side, sides_on
from testbed.stage import Stage

_ANSWER = " ".join(f"word{number:03}" for number in range(100))
_CHUNK = 4
_ENDED = "SELECT count(*) FROM channel_outbox WHERE channel_id = $1 AND kind = 'send_reply' AND state = 'sent'"
_DRAFTS = "SELECT count(*) FROM channel_outbox WHERE channel_id = $1 AND kind = 'draft_update' AND state = 'sent'"


async def draft_figures(server: EmbeddedPostgres, quick: bool) -> dict[str, float]:
    """The figures of this module by their names: draft sends of one answer on each platform."""
    seconds = 5.0 if quick else 20.0
    figures: dict[str, float] = {}
    async with stage(server) as ground, sides_on(ground) as sides, ground.replicas(1):
        await ground.add_agent(model="fake")
        for name in SIDES:
            drafts = await _drafts(ground, await sides.make(name), seconds)
            figures[f"drafts shown of an answer that takes {seconds:.0f} s, {name}"] = drafts
    return figures


async def _drafts(ground: Stage, side: Side, seconds: float) -> float:
    chat = side.chat(1)
    channel = await add_side(ground, side)
    ground.model.script(
        {"text": _ANSWER}, match=f"for {side.name}", chunk=_CHUNK, delay=seconds * _CHUNK / len(_ANSWER)
    )
    await eventually(lambda: _owned(ground, channel), timeout=30, what="the channel owned")
    await side.say(f"for {side.name}", chat)
    await eventually(lambda: ground.value(_ENDED, channel), timeout=60, what="the answer sent")
    return float(await ground.value(_DRAFTS, channel))


async def _owned(ground: Stage, channel: int) -> bool:
    return bool(await ground.value("SELECT health ->> 'state' = 'connected' FROM channel WHERE id = $1", channel))

"""Schedules: what an agent is asked at set times, and what became of each time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from stratus.domain.agent import AGENT_ID_PATTERN
from stratus.domain.schedule import asked, catch_up_of
from stratus.http import agents
from stratus.http.auth import Admin
from stratus.http.ids import public_id
from stratus.http.services import Here, Services
from stratus.store import schedule as schedules
from stratus.store.schedule import NewSchedule, ScheduleRow

router = APIRouter(prefix="/schedules", tags=["schedules"])


class _New(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    agent: str = Field(pattern=AGENT_ID_PATTERN)
    cron: str
    time_zone: str = "UTC"
    text: str = Field(max_length=100_000)
    catch_up: str = "one"
    session: str | None = None
    channel: str | None = None
    chat: str | None = None
    thread: str | None = None


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid")
    enabled: bool


@router.get("")
async def listing(here: Here, me: Admin) -> dict[str, Any]:
    """All schedules by name, each with its next time."""
    return {"schedules": [row.shown() for row in await schedules.listing(here.db)]}


@router.post("", status_code=201)
async def create(body: _New, here: Here, me: Admin) -> dict[str, Any]:
    """Add a schedule. It answers into the chat of `channel`, `chat` and `thread`, or without those into its session only."""
    await agents.required(here, body.agent)
    new = NewSchedule(
        public_id=here.ids.uuid(),
        name=body.name,
        agent_id=body.agent,
        owner_id=me.principal.id,
        cron=body.cron,
        time_zone=body.time_zone,
        input=asked(body.text),
        catch_up=catch_up_of(body.catch_up),
        session_id=body.session,
        reply_to=await schedules.answer_to(here.db, body.channel, body.chat, body.thread),
    )
    made = await schedules.create(here.db, new)
    here.hints.send("schedules")
    return made.shown()


@router.get("/{schedule}")
async def read(
    schedule: str, here: Here, me: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 20
) -> dict[str, Any]:
    """One schedule, with what became of its last occurrences."""
    row = await _found(here, schedule)
    last = await schedules.occurrences(here.db, row.id, limit)
    return {**row.shown(), "occurrences": [asdict(one) for one in last]}


@router.patch("/{schedule}")
async def change(schedule: str, body: _Change, here: Here, me: Admin) -> dict[str, Any]:
    """Switch it off, or on again from the next occurrence."""
    row = await _found(here, schedule)
    await schedules.set_enabled(here.db, row.id, body.enabled)
    here.hints.send("schedules")
    return (await _found(here, schedule)).shown()


@router.delete("/{schedule}", status_code=204)
async def delete(schedule: str, here: Here, me: Admin) -> None:
    """Remove it and the record of its occurrences. Its session and runs stay."""
    await schedules.remove(here.db, (await _found(here, schedule)).id)


async def _found(here: Services, schedule: str) -> ScheduleRow:
    return await schedules.get(here.db, str(public_id(schedule)))

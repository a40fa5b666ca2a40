"""`stratus approvals`: what turns ask people, and the operator's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stratus.cli.opened import Opened, on_database, operator
from stratus.cli.output import Json, print_fields, print_rows

if TYPE_CHECKING:
    from stratus.store.decision import Verdict

app = typer.Typer(name="approvals", help="What agents ask before they act.", no_args_is_help=True)
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id, or the code that the chat shows.")]
Note = Annotated[str | None, typer.Option(help="Why; the agent is told.")]


@app.command("list")
def list_(
    state: Annotated[str, typer.Option(help="pending, approved, denied, expired, consumed or closed.")] = "pending",
    session: Annotated[str | None, typer.Option(help="Only of this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List what is asked, newest first, with the arguments that an approval lets through."""
    from stratus.domain.approval import ApprovalState

    if state not in set(ApprovalState):
        raise typer.BadParameter(f"one of {', '.join(ApprovalState)}", param_hint="--state")

    async def work(opened: Opened) -> None:
        from stratus.store import decision

        found = await decision.listing(opened.db, state=state, session_id=session, principal_id=None, limit=limit)
        print_rows(
            [one.shown() for one in found],
            ["id", "agent", "session", "name", "args", "state", "expires_at", "decided_by", "note"],
            as_json=as_json,
            empty="nothing there",
        )

    on_database(work)


@app.command()
def approve(approval: ApprovalId, note: Note = None, as_json: Json = False) -> None:
    """Let a call be made, with the arguments that `list` shows."""
    _decide(approval, "approve", note, as_json)


@app.command()
def deny(approval: ApprovalId, note: Note = None, as_json: Json = False) -> None:
    """Do not let a call be made."""
    _decide(approval, "deny", note, as_json)


def _decide(key: str, verdict: Verdict, note: str | None, as_json: bool) -> None:
    async def work(opened: Opened) -> None:
        from stratus.store import decision, principal, server

        owner = await principal.ensure_owner(opened.db)  # whoever has the database has the owner's rights
        by = decision.Decider(owner.id, owner.role, operator(), knows=True)
        decided = await decision.decide(opened.db, await decision.named(opened.db, key), verdict, by, note=note)
        await server.hint(opened.db, "session", decided.session_id)
        await server.hint(opened.db, "runs", "")
        await server.hint(opened.db, "outbox", "")
        print_fields(
            {"id": decided.public_id, "name": decided.call, "state": decided.state, "by": decided.by}, as_json=as_json
        )

    on_database(work)

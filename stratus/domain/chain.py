"""Plans the outbox ops of an answer: a chain in which each op is one platform call and waits for the one before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratus.channel.values import Attachment, Limits, OpKind
from stratus.domain.split import split
from stratus.domain.values import FilePart, ReplyTo

NO_ANSWER = "(no answer)"
# In an op's payload: it takes over the message in which its run's drafts were shown, with its own text or with what is shown there.
PREVIEW = "preview"
ANSWERS, SETTLES = "answer", "settle"


@dataclass(frozen=True)
class PlannedOp:
    """An op to enqueue. `depends_on` is the index of the op before it in its chain.

    `payload` has `text` and `markdown`, or `attachment` (a channel Attachment as JSON, which names its bytes); `reply_to` is
    the message that is answered, on a chain's first op only; an answer's first text has `preview`.
    """

    kind: OpKind
    payload: Mapping[str, Any]
    delivery_key: str
    depends_on: int | None = None


def reply_chain(
    text: str, files: Sequence[FilePart], reply_to: ReplyTo, limits: Limits, *, key: str
) -> list[PlannedOp]:
    """The chain of an answer (state-machines.md §7): `send_reply` (in a group `send_group_reply`), a `send_text`
    per overflow piece, a `send_attachment` per file.

    A text of white space counts as none: then the chain begins with its first file, or, without files, is the one op
    `(no answer)`, because a person who asked must see that the turn is over; in a group there is no op: an agent may stay
    silent there. A file above the platform's limit becomes a line that says so. `key` makes the delivery keys
    (`key:0`, `key:1` …): the same input gives the same chain.
    """
    links = list(_links(text, files, limits))
    if not links and not reply_to.group:
        links = [_text("send_reply", NO_ANSWER, markdown=False)]
    if reply_to.group and links and links[0][0] == "send_reply":
        links[0] = ("send_group_reply", links[0][1])
    return [
        PlannedOp(
            kind=kind,
            payload={**payload, **_first(kind, reply_to)} if index == 0 else {**payload, "reply_to": None},
            delivery_key=f"{key}:{index}",
            depends_on=index - 1 if index else None,
        )
        for index, (kind, payload) in enumerate(links)
    ]


def notice(text: str, reply_to: ReplyTo, key: str) -> PlannedOp:
    """A short plain-text message about a turn (it failed, it was stopped), in answer to the message that began it."""
    kind, payload = _text("notify", text, markdown=False)
    return PlannedOp(kind, {**payload, "reply_to": reply_to.message_id}, key)


def notification(text: str, limits: Limits, key: str) -> list[PlannedOp]:
    """A message of an agent's own accord, an op for each piece that the platform takes; it answers nothing."""
    pieces = split(text, limits) or [NO_ANSWER]
    return [
        PlannedOp("notify", {"text": piece, "markdown": True}, f"{key}:{index}", index - 1 if index else None)
        for index, piece in enumerate(pieces)
    ]


def reaction(emoji: str, message_id: str, key: str) -> PlannedOp:
    """An emoji set on a message."""
    return PlannedOp("reaction", {"text": emoji, "message_id": message_id}, key)


def _links(text: str, files: Sequence[FilePart], limits: Limits) -> Iterator[tuple[OpKind, dict[str, Any]]]:
    for index, piece in enumerate(split(text, limits)):
        yield _text("send_text" if index else "send_reply", piece, markdown=True)
    for file in files:
        size = file.octets()
        if size > limits.attachment_bytes_max:
            yield _text("send_text", _too_large(file.name, size, limits), markdown=False)
        else:
            yield "send_attachment", {"attachment": _attachment(file, size).model_dump(mode="json")}


def _text(kind: OpKind, text: str, *, markdown: bool) -> tuple[OpKind, dict[str, Any]]:
    return kind, {"text": text, "markdown": markdown}


def _first(kind: OpKind, reply_to: ReplyTo) -> dict[str, Any]:
    takes_over = {} if kind == "send_attachment" else {PREVIEW: ANSWERS}
    return {"reply_to": reply_to.message_id, **takes_over}


def _too_large(name: str, size: int, limits: Limits) -> str:
    shown = name[:100]
    return f"[file {shown}: {size} bytes are more than this platform takes ({limits.attachment_bytes_max})]"


def _attachment(file: FilePart, size: int) -> Attachment:
    data = file.data if file.sha256 is None else None
    kind = _attachment_kind(file.mime)
    return Attachment(kind=kind, name=file.name, mime=file.mime, size=size, data=data, sha256=file.sha256)


def _attachment_kind(mime: str) -> Any:
    kind = mime.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"

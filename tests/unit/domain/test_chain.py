"""The chain of an answer: what it sends, in which order, and that a retry can name each link."""

from __future__ import annotations

import base64

from stratus.channel.values import Attachment, Limits
from stratus.domain.chain import NO_ANSWER, notice, reply_chain
from stratus.domain.values import FilePart, ReplyTo

LIMITS = Limits(text_max=40)
TO = ReplyTo(channel_id=1, platform="testchan", chat="c", thread="t", message_id="m1")


def _file(name: str = "a.png", mime: str = "image/png", data: bytes = b"bytes") -> FilePart:
    return FilePart(name=name, mime=mime, data=base64.b64encode(data).decode())


def test_one_piece_is_one_reply() -> None:
    [op] = reply_chain("**hello**", [], TO, LIMITS, key="run7")
    assert (op.kind, op.delivery_key, op.depends_on) == ("send_reply", "run7:0", None)
    assert op.payload == {"text": "**hello**", "markdown": True, "reply_to": "m1", "preview": "answer"}


def test_overflow_and_files_each_wait_for_the_one_before() -> None:
    chain = reply_chain("word " * 20, [_file(), _file("b.pdf", "application/pdf")], TO, LIMITS, key="k")
    assert [op.kind for op in chain] == ["send_reply", "send_text", "send_text", "send_attachment", "send_attachment"]
    assert [op.depends_on for op in chain] == [None, 0, 1, 2, 3]
    assert [op.delivery_key for op in chain] == ["k:0", "k:1", "k:2", "k:3", "k:4"]
    assert [op.payload["reply_to"] for op in chain] == ["m1", None, None, None, None]
    assert "".join(op.payload["text"] for op in chain[:3]) == "word " * 20
    assert ["preview" in op.payload for op in chain] == [True, False, False, False, False]


def test_attachments_carry_bytes_kind_and_size() -> None:
    for data in (b"", b"1", b"12", b"123"):
        [op] = reply_chain("", [_file(data=data)], TO, LIMITS, key="k")
        attachment = Attachment.model_validate(op.payload["attachment"])
        assert attachment.size == len(data)
        assert base64.b64decode(attachment.data or "") == data
        assert (attachment.kind, attachment.name, attachment.mime) == ("image", "a.png", "image/png")
    [op] = reply_chain("", [_file("b.pdf", "application/pdf")], TO, LIMITS, key="k")
    assert op.payload["attachment"]["kind"] == "document"


def test_a_stored_file_is_only_named() -> None:
    file = FilePart(name="a.png", mime="image/png", sha256="ab" * 32, size=70_000_000)
    [told] = reply_chain("", [file], TO, LIMITS, key="k")
    assert told.kind == "send_text" and "70000000 bytes" in told.payload["text"]
    [op] = reply_chain("", [file.model_copy(update={"size": 3})], TO, LIMITS, key="k")
    attachment = Attachment.model_validate(op.payload["attachment"])
    assert (attachment.sha256, attachment.size, attachment.data) == ("ab" * 32, 3, None)


def test_a_chain_of_files_alone_begins_with_the_first_file() -> None:
    chain = reply_chain(" \n ", [_file()], TO, LIMITS, key="k")
    assert [(op.kind, op.payload["reply_to"]) for op in chain] == [("send_attachment", "m1")]
    assert "preview" not in chain[0].payload


def test_an_empty_answer_is_told() -> None:
    [op] = reply_chain("\n\n", [], TO, LIMITS, key="k")
    assert (op.kind, op.payload["text"], op.payload["markdown"]) == ("send_reply", NO_ANSWER, False)


def test_a_file_above_the_limit_is_told() -> None:
    limits = Limits(text_max=4096, attachment_bytes_max=4)
    chain = reply_chain("see", [_file(), _file(data=b"1234")], TO, limits, key="k")
    assert [op.kind for op in chain] == ["send_reply", "send_text", "send_attachment"]
    assert "a.png" in chain[1].payload["text"]
    assert chain[1].payload["markdown"] is False


def test_a_notice_is_plain_text_in_answer() -> None:
    op = notice("The turn was *stopped*.", TO, "run7:notice")
    assert (op.kind, op.delivery_key, op.depends_on) == ("notify", "run7:notice", None)
    assert op.payload == {"text": "The turn was *stopped*.", "markdown": False, "reply_to": "m1"}

"""From Discord's messages and interactions to events: who is meant, what is a command, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.discord.convert import Me, event_from_dispatch, event_from_history
from adapters.discord.interactions import event_from_interaction
from adapters.discord.standing import CHATS_MAX, Standing
from stratus.channel import Event
from testbed.fakes.discord_bot import FakeBot

BOT = FakeBot("42")
ME = Me("42", frozenset({"88"}))
OURS = BOT.user()


def event(text: str = "hello", **fields: Any) -> Event | None:
    return event_from_dispatch("MESSAGE_CREATE", {**BOT.message(text, "7000", "4711"), **fields}, ME)


def known(text: str = "hello", **fields: Any) -> Event:
    made = event(text, **fields)
    assert made is not None
    return made


def test_a_direct_message_is_always_for_us() -> None:
    made = known("hello")
    assert (made.kind, made.direct, made.addressed, made.sender.id) == ("message", True, True, "4711")
    assert made.key == f"7000:message:{made.message_id}"


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({}, False),
        ({"content": "<@42> hi"}, False),  # without Discord's own mark it is only text
        ({"mentions": [OURS]}, True),
        ({"mention_roles": ["88"]}, True),
        ({"mention_roles": ["77"]}, False),
        ({"mention_everyone": True}, False),
        ({"referenced_message": {"author": OURS}, "message_reference": {"message_id": "5"}, "type": 19}, True),
        ({"referenced_message": None, "message_reference": {"message_id": "5"}, "type": 19}, False),
    ],
)
def test_in_a_server_only_what_names_or_answers_us_is_for_us(fields: dict[str, Any], meant: bool) -> None:
    made = known(guild_id="9", **fields)
    assert (made.direct, made.addressed) == (False, meant)


def test_all_who_are_meant_are_named_in_order() -> None:
    other = {"id": "5", "username": "ann"}
    answered = {"author": {"id": "6"}}
    made = known("<@5> and <@42>, not <@9>", mentions=[OURS, other], guild_id="9", referenced_message=answered)
    assert (list(made.mentions), made.shared_id) == (["5", "42", "6"], True)
    assert list(known("<@&88>", mention_roles=["88"], guild_id="9").mentions) == ["42"]


def test_our_name_at_the_start_goes_and_others_are_readable() -> None:
    other = {"id": "5", "username": "ann"}
    assert known("<@42> ask <@5> and <@6>", mentions=[OURS, other], guild_id="9").text == "ask @ann and <@6>"


@pytest.mark.parametrize(
    ("text", "fields", "command"),
    [
        ("/stop", {}, "stop"),
        ("<@42> /new blair", {"mentions": [OURS], "guild_id": "9"}, "new"),
        ("/stop", {"guild_id": "9"}, None),
        ("please /stop", {}, None),
        ("/etc/hosts is a file", {}, None),
        ("/stop", {"message_reference": {"type": 1, "message_id": "5"}}, None),
        ("/stop", {"attachments": [{"id": "1", "filename": "a", "url": "https://x"}]}, None),
    ],
)
def test_a_typed_command_is_one_only_when_it_is_for_us(text: str, fields: dict[str, Any], command: str | None) -> None:
    assert known(text, **fields).command == command


def test_what_has_nothing_to_read_is_never_given_to_a_model() -> None:
    assert known("").kind == "other"
    assert known("", type=7).kind == "member"
    assert known("pinned", type=6).kind == "other"
    assert known("", sticker_items=[{"id": "1", "name": "wave"}]).kind == "message"
    forwarded = {"message_snapshots": [{"message": {"content": "told"}}], "message_reference": {"type": 1}}
    assert known("", **forwarded).text == "told"


def test_an_edit_by_a_person_is_one_and_a_preview_is_none() -> None:
    edited = BOT.message("new", "7000", "4711", edited_timestamp="2026-01-01T00:00:01+00:00")
    made = event_from_dispatch("MESSAGE_UPDATE", edited, ME)
    assert made is not None and made.kind == "edit" and made.key.endswith(":2026-01-01T00:00:01+00:00")
    assert event_from_dispatch("MESSAGE_UPDATE", {**edited, "edited_timestamp": None}, ME) is None
    assert event_from_dispatch("MESSAGE_UPDATE", {"id": "1", "channel_id": "2", "embeds": []}, ME) is None


def test_a_deletion_is_kept_as_other() -> None:
    made = event_from_dispatch("MESSAGE_DELETE", {"id": "5", "channel_id": "7000"}, ME)
    assert made is not None and (made.kind, made.message_id) == ("other", "5")


def test_files_come_by_their_link() -> None:
    files = [
        {"id": "1", "filename": "v.ogg", "url": "https://c/v", "content_type": "audio/ogg", "size": 9, "waveform": "x"},
        {"id": "2", "filename": "a.txt", "url": "https://c/a", "content_type": "text/plain; charset=utf-8"},
    ]
    voice, text = known("", attachments=files).attachments
    assert (voice.kind, voice.size, voice.ref) == ("voice", 9, "https://c/v")
    assert (text.kind, text.mime) == ("document", "text/plain")


def test_a_webhooks_message_is_a_bots() -> None:
    made = known("x", webhook_id="77", author={"id": "42", "username": "hook"})
    assert (made.sender.id, made.sender.is_bot) == ("webhook:77", True)


def test_our_own_messages_say_nothing_but_their_nonce() -> None:
    assert event("x", author=OURS) is None
    made = known("x", author=OURS, nonce="k1")
    assert (made.kind, made.echo, made.text) == ("other", "k1", "")


def test_the_history_makes_the_same_key() -> None:
    message = BOT.message("hi", "7000", "4711", guild_id="9", mentions=[OURS])
    live = event_from_dispatch("MESSAGE_CREATE", message, ME)
    told = event_from_history({k: v for k, v in message.items() if k != "guild_id"}, ME, "9")
    assert live == told


@pytest.mark.parametrize("broken", [None, [], {}, {"id": 5}, {"id": "5", "channel_id": "7", "author": None}])
def test_the_malformed_becomes_other_and_blocks_nothing(broken: Any) -> None:
    made = event_from_dispatch("MESSAGE_CREATE", broken, ME)
    assert made is not None and made.kind == "other"
    command = event_from_interaction(broken if broken is not None else {"type": 2})
    assert command is None or (command.kind == "other" and "token" not in command.payload)


def test_what_we_did_not_ask_for_is_left_alone() -> None:
    assert event_from_dispatch("TYPING_START", {}, ME) is None
    assert event_from_interaction({"type": 4, "id": "1"}) is None


def test_the_cursor_comes_back_as_it_was_and_stays_small() -> None:
    standing = Standing(session="s", seq=5, url="wss://x", application="42", roles=frozenset({"88"}))
    for number in range(CHATS_MAX + 20):
        standing = standing.seen(event_from_dispatch("MESSAGE_CREATE", BOT.message("x", str(number + 1), "4711"), ME))
    assert len(standing.last) == CHATS_MAX and str(CHATS_MAX + 20) in standing.last
    assert Standing.of(standing.cursor()) == standing
    assert Standing.of({"seq": "x"}) == Standing() == Standing.of(None)


def test_an_older_message_does_not_turn_the_cursor_back() -> None:
    standing = Standing()
    old, new = (BOT.message("x", "7000", "4711", id=str(number)) for number in (5, 6))
    for message in (new, old):
        standing = standing.seen(event_from_dispatch("MESSAGE_CREATE", message, ME))
    assert standing.last["7000"][0] == "6"

"""From Telegram's updates to events: identity, addressing by entities, commands, threads, senders, files, hostile
shapes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.telegram.convert import Me, event_from_garbage, event_from_update, update_id
from stratus.channel import Event

ME = Me(42, "OurBot")
GROUP = {"id": -5, "type": "supergroup", "title": "G"}
PERSON = {"id": 7, "is_bot": False, "first_name": "Una", "last_name": "U", "username": "una"}


def message(kind: str = "message", **fields: Any) -> dict[str, Any]:
    content = {"message_id": 3, "date": 1, "chat": {"id": 7, "type": "private"}, "from": PERSON, **fields}
    return {"update_id": 900, kind: content}


def entity(kind: str, offset: int, length: int, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "offset": offset, "length": length, **fields}


def command(text: str, **fields: Any) -> Event:
    word = text.split()[0]
    return event_from_update(
        message(text=text, entities=[entity("bot_command", 0, len(word))], chat=GROUP, **fields), ME
    )


# -- identity --


def test_a_message_is_known_by_chat_kind_and_number() -> None:
    event = event_from_update(message(text="hi"), ME)
    assert (event.key, event.kind, event.chat, event.thread) == ("7:message:3", "message", "7", "")
    assert (event.message_id, event.sender.id, event.sender.name) == ("3", "7", "Una U")
    assert event.direct and event.addressed


def test_the_key_does_not_depend_on_the_update_of_a_message() -> None:
    first, second = message(text="hi"), message(text="hi") | {"update_id": 901}
    assert event_from_update(first, ME).key == event_from_update(second, ME).key


def test_edits_are_told_apart() -> None:
    edits = [
        message("edited_message", text="a", edit_date=5),
        message("edited_message", text="b", edit_date=6) | {"update_id": 901},
        message("edited_message", text="c", edit_date=6) | {"update_id": 902},
    ]
    events = [event_from_update(edit, ME) for edit in edits]
    assert [event.kind for event in events] == ["edit"] * 3
    assert len({event.key for event in events}) == 3
    assert "7:edited_message:3:5" in events[0].key


def test_a_tap_is_known_by_its_query() -> None:
    shown = {"message_id": 9, "date": 0, "chat": GROUP, "message_thread_id": 4, "is_topic_message": True}
    update = {"update_id": 1, "callback_query": {"id": "q", "from": PERSON, "data": "approve:1", "message": shown}}
    event = event_from_update(update, ME)
    assert (event.key, event.kind, event.callback, event.chat, event.thread) == (
        "cb:q",
        "callback",
        "approve:1",
        "-5",
        "4",
    )
    assert (event.sender.id, event.message_id, event.addressed) == ("7", "9", True)


@pytest.mark.parametrize(
    "update",
    [
        {"update_id": 5, "novelty": {"chat": {"id": 1}}},
        {"update_id": 5},
        {"update_id": 5, "message": None},
        {"update_id": 5, "message": {"message_id": "3", "chat": {"id": 7, "type": "private"}}},
        {"update_id": 5, "message": {"message_id": 3, "chat": {"id": True, "type": "private"}}},
        {"update_id": 5, "message": {"message_id": 3, "chat": {"id": 7}}},
        {"update_id": 5, "callback_query": {"id": "q", "from": PERSON, "game_short_name": "g"}},
        {"update_id": 5, "business_message": {"message_id": 3, "chat": {"id": 7, "type": "private"}}},
        message(text=5) | {"update_id": 5},
        message(text="x", entities=[{"type": "mention"}], chat=GROUP) | {"update_id": 5},
        message(photo=[{"file_id": "f"}]) | {"update_id": 5},
    ],
)
def test_what_is_unknown_or_malformed_is_kept_as_other(update: Any) -> None:
    event = event_from_update(update, ME)
    assert (event.kind, event.key, event.addressed) == ("other", "update:5", False)
    assert event.payload == json.loads(json.dumps(update))


@pytest.mark.parametrize("update", [None, 5, "x", [], {}, {"update_id": True}, [[[]]]])
def test_what_is_no_update_at_all_is_known_by_its_digest(update: Any) -> None:
    event = event_from_update(update, ME)
    assert event.kind == "other" and event.key.startswith("digest:")
    assert event.key == event_from_update(update, ME).key
    assert update_id(update) is None


def test_garbage_is_known_by_its_digest() -> None:
    assert event_from_garbage(b"{").key == event_from_garbage(b"{").key != event_from_garbage(b"[").key


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_PARTS = ["text", "caption", "entities", "chat", "from", "photo", "document", "reply_to_message", "location", "sticker"]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(_PARTS), _JSON), st.sampled_from(["message", "edited_message", "channel_post"]))
def test_no_update_ever_raises_and_every_event_can_be_stored(parts: dict[str, Any], kind: str) -> None:
    event = event_from_update(message(kind, **parts), ME)
    stored = event.model_dump_json()
    stored.encode()
    assert "\\u0000" not in stored.replace("\\\\", "")
    json.loads(stored, parse_constant=pytest.fail)


# -- commands --


@pytest.mark.parametrize("text", ["/new x  y", "/NEW@ourbot x  y", "/new@OURBOT\u00a0x  y"])
def test_a_command_for_us_has_its_name_and_arguments(text: str) -> None:
    event = command(text)
    assert (event.kind, event.command, event.text, event.addressed) == ("command", "new", "x  y", True)


def test_a_command_for_another_bot_is_neither_command_nor_ours() -> None:
    event = command("/new@OtherBot @OurBot")
    assert (event.kind, event.command, event.addressed) == ("message", None, False)
    direct = event_from_update(message(text="/new@Other", entities=[entity("bot_command", 0, 10)]), ME)
    assert (direct.command, direct.addressed) == (None, False)


def test_a_command_by_name_is_nobodys_while_our_name_is_unknown() -> None:
    update = message(text="/new@OurBot", entities=[entity("bot_command", 0, 11)], chat=GROUP)
    assert event_from_update(update, Me(42)).command is None


@pytest.mark.parametrize(
    "update",
    [
        message(text="/stop"),
        message(text=" /stop", entities=[entity("bot_command", 1, 5)]),
        message(text="/stop", entities=[entity("code", 0, 5)]),
        message(caption="/stop", caption_entities=[entity("bot_command", 0, 5)]),
        message(text="/stop", entities=[entity("bot_command", 0, 5)], forward_origin={"type": "user"}),
        message(text="/stop", entities=[entity("bot_command", 0, 5)], forward_date=1),
        message("edited_message", edit_date=2, text="/stop", entities=[entity("bot_command", 0, 5)]),
    ],
)
def test_what_only_looks_like_a_command_is_none(update: dict[str, Any]) -> None:
    event = event_from_update(update, ME)
    assert event.command is None and event.kind != "command"
    assert event.text.strip() == "/stop"


# -- addressing --


@pytest.mark.parametrize(
    ("fields", "addressed"),
    [
        ({"text": "hi"}, False),
        ({"text": "hi @ourBOT", "entities": [entity("mention", 3, 7)]}, True),
        ({"text": "\U0001f600\U0001f600 @OurBot", "entities": [entity("mention", 5, 7)]}, True),
        ({"text": "hi @OurBotX", "entities": [entity("mention", 3, 8)]}, False),
        ({"text": "hi @OurBot", "entities": [entity("code", 3, 7)]}, False),
        ({"text": "hi @OurBot"}, False),
        ({"caption": "@OurBot", "caption_entities": [entity("mention", 0, 7)]}, True),
        ({"text": "hi bot", "entities": [entity("text_mention", 3, 3, user={"id": 42})]}, True),
        ({"text": "hi bot", "entities": [entity("text_mention", 3, 3, user={"id": 43})]}, False),
        ({"text": "a", "reply_to_message": {"message_id": 2, "from": {"id": 42}}}, True),
        ({"text": "a", "reply_to_message": {"message_id": 2, "from": {"id": 43, "is_bot": True}}}, False),
        ({"text": "a", "reply_to_message": {"message_id": 2, "from": {"id": 42}, "forum_topic_created": {}}}, False),
    ],
)
def test_in_a_group_only_entities_and_replies_address_us(fields: dict[str, Any], addressed: bool) -> None:
    event = event_from_update(message(chat=GROUP, **fields), ME)
    assert (event.direct, event.addressed) == (False, addressed)


# -- threads, replies, senders --


@pytest.mark.parametrize(
    ("fields", "thread"),
    [
        ({"message_thread_id": 33, "is_topic_message": True}, "33"),
        ({"message_thread_id": 33}, ""),
        ({"message_thread_id": 1, "is_topic_message": True}, ""),
        ({}, ""),
    ],
)
def test_a_thread_is_one_only_in_a_topic(fields: dict[str, Any], thread: str) -> None:
    assert event_from_update(message(text="x", chat=GROUP, **fields), ME).thread == thread


def test_a_reply_names_its_message_but_a_topics_opening_is_no_reply() -> None:
    reply = {"message_id": 2, "from": PERSON}
    assert event_from_update(message(text="x", reply_to_message=reply), ME).reply_to == "2"
    opening = {**reply, "forum_topic_created": {"name": "t"}}
    assert event_from_update(message(text="x", reply_to_message=opening), ME).reply_to is None


def test_those_who_speak_as_a_chat_are_that_chat() -> None:
    anonymous = message(text="x", chat=GROUP, sender_chat=GROUP)
    anonymous["message"]["from"] = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    assert event_from_update(anonymous, ME).sender.id == "chat:-5"
    post = message("channel_post", text="x", chat={"id": -9, "type": "channel", "title": "News"})
    del post["channel_post"]["from"]
    sender = event_from_update(post, ME).sender
    assert (sender.id, sender.name, sender.is_bot) == ("chat:-9", "News", False)


# -- contents --


def test_of_a_photo_the_largest_is_taken_and_albums_are_marked() -> None:
    sizes = [{"file_id": "s", "width": 90, "height": 90}, {"file_id": "l", "width": 900, "height": 800, "file_size": 5}]
    event = event_from_update(message(photo=sizes, caption="look", media_group_id="g1"), ME)
    (file,) = event.attachments
    assert (file.kind, file.ref, file.mime, file.size, event.text, event.album) == (
        "image",
        "l",
        "image/jpeg",
        5,
        "look",
        "g1",
    )


@pytest.mark.parametrize(
    ("fields", "kind", "mime"),
    [
        ({"voice": {"file_id": "f"}}, "voice", "audio/ogg"),
        ({"audio": {"file_id": "f", "mime_type": "audio/flac"}}, "audio", "audio/flac"),
        ({"video": {"file_id": "f"}}, "video", "video/mp4"),
        ({"document": {"file_id": "f", "file_name": "a\x00.pdf"}}, "document", "application/octet-stream"),
        ({"animation": {"file_id": "f"}, "document": {"file_id": "f"}}, "video", "video/mp4"),
    ],
)
def test_a_file_comes_by_reference(fields: dict[str, Any], kind: str, mime: str) -> None:
    (file,) = event_from_update(message(**fields), ME).attachments
    assert (file.kind, file.mime, file.ref, file.data) == (kind, mime, "f", None)
    assert "\x00" not in file.name


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sticker": {"file_id": "f", "emoji": "\U0001f44d"}}, "\U0001f44d"),
        ({"location": {"latitude": 1.5, "longitude": 2}}, "1.5, 2.0"),
        ({"contact": {"first_name": "A", "phone_number": "1"}}, "A 1"),
        ({"poll": {"question": "Q?"}}, "Q?"),
        ({"dice": {"value": 3}}, ""),
    ],
)
def test_contents_without_text_are_put_into_words(fields: dict[str, Any], text: str) -> None:
    event = event_from_update(message(**fields), ME)
    assert (event.kind, event.text) == ("message", text)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"new_chat_members": [PERSON]}, "member"),
        ({"left_chat_member": PERSON}, "member"),
        ({"pinned_message": {}}, "other"),
        ({"forum_topic_created": {"name": "t"}}, "other"),
    ],
)
def test_service_messages_are_not_messages(fields: dict[str, Any], kind: str) -> None:
    event = event_from_update(message(chat=GROUP, **fields), ME)
    assert (event.kind, event.addressed, event.chat) == (kind, False, "-5")


def test_both_tellings_of_a_migration_say_the_same() -> None:
    old, new = {"id": -5, "type": "group"}, {"id": -1005, "type": "supergroup"}
    told = [message(chat=old, migrate_to_chat_id=-1005), message(chat=new, migrate_from_chat_id=-5)]
    events = [event_from_update(update, ME) for update in told]
    assert [(event.kind, event.chat, event.text) for event in events] == [("migrate", "-5", "-1005")] * 2


def test_a_change_of_our_own_membership_is_told() -> None:
    change = {"chat": {"id": 7, "type": "private"}, "from": PERSON, "new_chat_member": {"status": "kicked"}}
    event = event_from_update({"update_id": 8, "my_chat_member": change}, ME)
    assert (event.kind, event.key, event.chat, event.sender.id) == ("member", "update:8", "7", "7")


@pytest.mark.parametrize(
    ("author", "sender"),
    [({"user": {"id": 7, "first_name": "Una"}}, "7"), ({"actor_chat": {"id": -9, "title": "A group"}}, "chat:-9")],
)
def test_a_reaction_is_told_with_its_message_and_who_it_is_from(author: dict[str, Any], sender: str) -> None:
    change = {
        "chat": {"id": -5, "type": "supergroup"},
        "message_id": 3,
        "old_reaction": [],
        "new_reaction": [{"type": "emoji", "emoji": "👍"}, {"type": "custom_emoji", "custom_emoji_id": "1"}],
        **author,
    }
    event = event_from_update({"update_id": 9, "message_reaction": change}, ME)
    assert (event.kind, event.chat, event.message_id, event.text, event.sender.id) == ("other", "-5", "3", "👍", sender)
    assert not event.addressed


def test_offsets_hold_in_text_that_had_to_be_cleaned() -> None:
    event = event_from_update(message(text="/a\x00\ud83d b", entities=[entity("bot_command", 0, 2)]), ME)
    assert (event.command, event.text) == ("a", "\ufffd\ufffd b")

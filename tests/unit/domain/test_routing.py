"""What an event means, and to whom: pure judgement."""

from __future__ import annotations

import pytest

from stratus.channel.values import Attachment, Event, Sender
from stratus.domain.errors import BadInput
from stratus.domain.routing import Access, Ignore, Obey, Refuse, Speak, meaning, refusal, session_id_for, whoami

OPEN = Access(mode="open")
LISTED = Access(allow=("7",))


def event(**fields: object) -> Event:
    given = {
        "key": "k",
        "kind": "message",
        "chat": "c",
        "sender": Sender(id="7", name="Ann"),
        "text": "hello",
        **fields,
    }
    return Event.model_validate(given)


def test_nobody_is_heard_unless_somebody_says_so() -> None:
    assert isinstance(meaning(event(), Access.of({})), Refuse)
    assert isinstance(meaning(event(command="new"), Access.of({})), Refuse)


def test_the_list_goes_by_id_never_by_name() -> None:
    assert isinstance(meaning(event(), LISTED), Speak)
    renamed = Sender(id="8", name="7", username="7")
    assert isinstance(meaning(event(sender=renamed), LISTED), Refuse)


@pytest.mark.parametrize(
    ("given", "mode", "allow"),
    [
        ({}, "allowlist", ()),
        ({"access": "open"}, "open", ()),
        ({"access": {"mode": "open"}}, "open", ()),
        ({"access": {"allow": ["7"]}}, "allowlist", ("7",)),
    ],
)
def test_access_is_read_from_the_channels_options(given: dict[str, object], mode: str, allow: tuple[str, ...]) -> None:
    access = Access.of(given)
    assert (access.mode, tuple(access.allow)) == (mode, allow)


@pytest.mark.parametrize("given", ["everybody", {"mode": "closed"}, {"allow": 7}, ["7"]])
def test_an_access_that_cannot_be_judged_by_is_refused(given: object) -> None:
    with pytest.raises(BadInput, match="the option access must be"):
        Access.of({"access": given})


def test_commands_keep_their_arguments_and_whoami_is_for_everybody() -> None:
    assert meaning(event(command="new", text=" blair "), OPEN) == Obey("new", "blair")
    assert meaning(event(command="whoami", text=""), Access()) == Obey("whoami", "")


@pytest.mark.parametrize("kind", ["edit", "callback", "member", "migrate", "other"])
def test_what_asks_nothing_is_ignored_with_a_reason(kind: str) -> None:
    verdict = meaning(event(kind=kind, command="stop"), OPEN)
    assert isinstance(verdict, Ignore) and verdict.reason


def test_groups_are_heard_when_they_speak_to_us_and_bots_never() -> None:
    assert isinstance(meaning(event(direct=False, addressed=False), OPEN), Ignore)
    assert isinstance(meaning(event(direct=False, addressed=False, command="whoami"), OPEN), Ignore)
    assert isinstance(meaning(event(direct=False, addressed=True), OPEN), Speak)
    assert isinstance(meaning(event(sender=Sender(id="7", is_bot=True)), OPEN), Ignore)


def test_an_empty_message_asks_nothing_but_a_file_alone_does() -> None:
    assert isinstance(meaning(event(text=" \n"), OPEN), Ignore)
    assert isinstance(meaning(event(text="", attachments=[Attachment(name="a.txt")]), OPEN), Speak)


def test_people_are_told_their_id_and_why() -> None:
    assert "7" in refusal(event())
    assert "not on this channel's list" in whoami(event(), Access(), "blair")
    assert "blair answers" in whoami(event(), LISTED, "blair")
    assert "only read what is addressed" in whoami(event(direct=False), LISTED, "blair")


def test_session_ids_are_stable_distinct_and_never_too_long() -> None:
    assert session_id_for("ch", "c", "", 1) == "ch:c:1"
    assert session_id_for("ch", "c", "t", 2) == "ch:c/t:2"
    long = [session_id_for("c" * 12, "x" * 200, thread, 1) for thread in ("y" * 200, "z" * 200)]
    assert long[0] != long[1] and all(len(one) <= 256 for one in long)

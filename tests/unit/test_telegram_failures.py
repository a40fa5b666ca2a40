"""What the causes behind python-telegram-bot's exceptions mean for a send, those too that loopback cannot bring about."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import httpx
import pytest
from telegram import error as tg

from adapters.telegram.failures import seconds, send_error
from stratus.channel import SendFailure
from stratus.channel.errors import CHAT_REFUSES


def caused(error: Exception, cause: Exception | None) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "cause", "kind"),
    [
        (tg.NetworkError("x"), httpx.ConnectError("refused"), SendFailure.RETRYABLE),
        (tg.TimedOut(), httpx.ConnectTimeout("x"), SendFailure.RETRYABLE),
        (tg.TimedOut(), httpx.PoolTimeout("x"), SendFailure.RETRYABLE),
        (tg.TimedOut(), httpx.ReadTimeout("x"), SendFailure.UNKNOWN),
        (tg.TimedOut(), httpx.WriteTimeout("x"), SendFailure.UNKNOWN),
        (tg.TimedOut(), None, SendFailure.UNKNOWN),
        (tg.NetworkError("x"), httpx.WriteError("x"), SendFailure.UNKNOWN),
        (tg.NetworkError("x"), httpx.RemoteProtocolError("x"), SendFailure.UNKNOWN),
        (tg.NetworkError("Request Entity Too Large"), None, SendFailure.PERMANENT),
        (tg.NetworkError("Request Entity Too Large (413). Parsing failed"), ValueError(), SendFailure.PERMANENT),
        (tg.NetworkError("Content Too Large (413)"), None, SendFailure.PERMANENT),
        (tg.NetworkError("Internal Server Error"), None, SendFailure.UNKNOWN),
        (tg.Conflict("x"), None, SendFailure.UNKNOWN),
        (tg.TelegramError("Invalid server response"), None, SendFailure.UNKNOWN),
        (KeyError("message_id"), None, SendFailure.UNKNOWN),
    ],
)
def test_the_cause_decides(error: Exception, cause: Exception | None, kind: SendFailure) -> None:
    assert send_error(caused(error, cause)).kind is kind


def test_periods_come_in_either_form() -> None:
    assert (seconds(3), seconds(timedelta(seconds=2.5))) == (3.0, 2.5)


def test_looking_at_an_adapter_loads_no_platform_library() -> None:
    check = (
        "import sys, adapters.telegram, adapters.testchan; "
        "print(sorted({'telegram', 'httpx', 'asyncpg'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "Forbidden: bot was blocked by the user",
        "Forbidden: user is deactivated",
        "Forbidden: bot was kicked from the supergroup chat",
        "Forbidden: bot is not a member of the channel chat",
        "Forbidden: bot can't initiate conversation with a user",
        "Forbidden: not enough rights to send text messages to the chat",
        "Forbidden: words that nobody has seen",
    ],
)
def test_a_chat_that_forbids_the_bot_is_one_that_notifications_tell_of(text: str) -> None:
    assert send_error(tg.Forbidden(text)).code in CHAT_REFUSES

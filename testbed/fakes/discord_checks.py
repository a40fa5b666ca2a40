"""What Discord checks of a message before it takes it, and whom a message would ping.

Rules: https://discord.com/developers/docs/resources/message#create-message, #allowed-mentions-object, components/reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TEXT_MAX = 2000
_NONCE_MAX = 25
_MENTION = re.compile(r"@everyone|@here|<@!?\d+>|<@&\d+>")


class Refused(Exception):
    """The call is answered with this status, Discord's code and text."""

    def __init__(self, status: int, code: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.more = more


def check_message(params: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Raises Refused for too long a text, an empty message, a bad nonce, and broken components."""
    text = str(params.get("content") or "")
    if "\x00" in text:
        raise _invalid("content must not contain NUL")
    if len(text.encode("utf-16-le", "surrogatepass")) // 2 > TEXT_MAX:  # strict: Discord's unit is not documented
        raise _invalid("Must be 2000 or fewer in length.")
    if not text.strip() and not files and "components" not in params:
        raise Refused(400, 50006, "Cannot send an empty message")
    if len(str(params.get("nonce") or "")) > _NONCE_MAX:
        raise _invalid("nonce: Must be 25 or fewer in length.")
    rows = params.get("components") or []
    if len(rows) > 5:
        raise _invalid("components: Must be 5 or fewer in length.")
    for row in rows:
        _check_row(row)


def pings(params: Mapping[str, Any], message: Mapping[str, Any]) -> list[str]:
    """Whom the message notifies: everything it names, where mentions are not switched off; and who is answered."""
    allowed = params.get("allowed_mentions")
    found = _MENTION.findall(str(message.get("content") or "")) if allowed is None or allowed.get("parse") else []
    if params.get("message_reference") and (allowed is None or allowed.get("replied_user")):
        found.append("replied user")
    return found


def _check_row(row: Mapping[str, Any]) -> None:
    buttons = row.get("components") or []
    if row.get("type") != 1 or not 1 <= len(buttons) <= 5:
        raise _invalid("components: an action row has 1 to 5 buttons")
    for button in buttons:
        fits = 1 <= len(button.get("custom_id", "")) <= 100 and 1 <= len(button.get("label", "")) <= 80
        if button.get("type") != 2 or not fits:
            raise _invalid("components: a button needs a label of 1 to 80 and a custom_id of 1 to 100 characters")


def _invalid(text: str) -> Refused:
    return Refused(400, 50035, f"Invalid Form Body: {text}")

"""One op, one Bot API call: how an Op becomes sendMessage, editMessageText, sendDocument and the like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from adapters.telegram.convert import GENERAL_TOPIC
from adapters.telegram.failures import not_modified, parse_refused, send_error
from adapters.telegram.render import to_html
from stratus.channel import Attachment, Limits, Op, Receipt, SendError, SendFailure
from stratus.channel.files import bytes_to_send
from stratus.channel.protocol import Guard
from stratus.channel.text import clean, length

if TYPE_CHECKING:
    from telegram import Bot, InlineKeyboardMarkup

_PHOTOS = frozenset({"image/jpeg", "image/png", "image/webp"})
_PHOTO_BYTES_MAX = 10_000_000
_CALLBACK_BYTES_MAX = 64  # https://core.telegram.org/bots/api#inlinekeyboardbutton
_BUTTONS_A_ROW = 2

Call = Callable[[str, str | None], Awaitable[Any]]


async def send(bot: Bot, limits: Limits, op: Op, guard: Guard) -> Receipt:
    """Send the op's text, or its file with the text as caption. Raises SendError."""
    if op.attachment is not None:
        return await _send_file(bot, limits, op, op.attachment, guard)
    _check_length(op.text, limits.text_max, limits)
    address, markup = _address(op), _keyboard(op)

    async def call(text: str, parse_mode: str | None) -> Any:
        from telegram import LinkPreviewOptions

        return await bot.send_message(
            text=text,
            parse_mode=parse_mode,
            link_preview_options=LinkPreviewOptions(is_disabled=True),
            reply_markup=markup,
            **address,
        )

    return await _formatted(op, guard, call)


async def edit(bot: Bot, limits: Limits, op: Op, guard: Guard) -> Receipt:
    """Give the op's message a new text and new buttons, none included. A message that is so already is a success.

    Raises SendError.
    """
    _check_length(op.text, limits.text_max, limits)
    chat, message, markup = _chat(op.chat), _message(op), _keyboard(op)

    async def call(text: str, parse_mode: str | None) -> Any:
        from telegram import LinkPreviewOptions

        return await bot.edit_message_text(
            text=text,
            chat_id=chat,
            message_id=message,
            parse_mode=parse_mode,
            link_preview_options=LinkPreviewOptions(is_disabled=True),
            reply_markup=markup,
        )

    return await _formatted(op, guard, call)


async def react(bot: Bot, op: Op) -> Receipt:
    """Set our reaction on the op's message to the emoji in its text; an empty text takes it away. Raises SendError."""
    chat, message = _chat(op.chat), _message(op)
    try:
        await bot.set_message_reaction(chat, message, reaction=op.text or None)
    except Exception as error:
        raise send_error(error) from error
    return Receipt(message_id=op.message_id)


async def remove_buttons(bot: Bot, op: Op) -> Receipt:
    """Take the buttons off the op's message and leave its text. Raises SendError."""
    chat, message = _chat(op.chat), _message(op)
    try:
        await bot.edit_message_reply_markup(chat_id=chat, message_id=message)
    except Exception as error:
        if not not_modified(error):
            raise send_error(error) from error
    return Receipt(message_id=op.message_id)


async def _send_file(bot: Bot, limits: Limits, op: Op, file: Attachment, guard: Guard) -> Receipt:
    data = bytes_to_send(file, limits)
    _check_length(op.text, limits.caption_max, limits)
    address, markup, name = _address(op), _keyboard(op), clean(file.name) or "file"

    async def call(text: str, parse_mode: str | None) -> Any:
        fields = {**address, "caption": text or None, "parse_mode": parse_mode, "reply_markup": markup}
        if file.mime in _PHOTOS and len(data) <= _PHOTO_BYTES_MAX:
            return await bot.send_photo(photo=data, filename=name, **fields)
        return await bot.send_document(document=data, filename=name, **fields)

    return await _formatted(op, guard, call)


async def _formatted(op: Op, guard: Guard, call: Call) -> Receipt:
    """Make the call, with the text rendered where it is Markdown, and once more in plain text where Telegram cannot
    read that.
    """
    plain = clean(op.text)
    rendered = to_html(plain) if op.markdown else ""
    try:
        sent = await call(rendered, "HTML") if rendered else await call(plain, None)
    except Exception as error:
        if not (rendered and parse_refused(error)):
            return _settled(op, error)
    else:
        return _receipt(op, sent)
    await guard()
    try:
        return _receipt(op, await call(plain, None))
    except Exception as error:
        return _settled(op, error)


def _settled(op: Op, error: Exception) -> Receipt:
    if op.message_id is not None and not_modified(error):
        return Receipt(message_id=op.message_id)
    raise send_error(error) from error


def _receipt(op: Op, sent: Any) -> Receipt:
    number = getattr(sent, "message_id", None)
    return Receipt(message_id=op.message_id if number is None else str(number))


def _address(op: Op) -> dict[str, Any]:
    from telegram import ReplyParameters

    fields: dict[str, Any] = {"chat_id": _chat(op.chat)}
    if op.thread and op.thread != GENERAL_TOPIC:  # sending to topic 1 fails: tdlib/telegram-bot-api#447
        fields["message_thread_id"] = _number(op.thread, "thread")
    if op.reply_to is not None:
        message = _number(op.reply_to, "reply_to")
        fields["reply_parameters"] = ReplyParameters(message, allow_sending_without_reply=True)
    return fields


def _keyboard(op: Op) -> InlineKeyboardMarkup | None:
    from telegram import InlineKeyboardButton, InlineKeyboardMarkup

    if not op.buttons:
        return None
    if any(not 1 <= len(data.encode()) <= _CALLBACK_BYTES_MAX for _, data in op.buttons):
        raise SendError(SendFailure.PERMANENT, "bad_button", "a button's data must have 1 to 64 bytes")
    made = [InlineKeyboardButton(clean(label), callback_data=data) for label, data in op.buttons]
    return InlineKeyboardMarkup([made[at : at + _BUTTONS_A_ROW] for at in range(0, len(made), _BUTTONS_A_ROW)])


def _chat(chat: str) -> int | str:
    return chat if chat.startswith("@") else _number(chat, "chat")


def _message(op: Op) -> int:
    if op.message_id is None:
        raise SendError(SendFailure.PERMANENT, "no_message", "the op names no message")
    return _number(op.message_id, "message_id")


def _number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise SendError(SendFailure.PERMANENT, "bad_address", f"{what} is no Telegram id") from error


def _check_length(text: str, most: int, limits: Limits) -> None:
    if length(text, limits.text_unit) > most:
        raise SendError(SendFailure.PERMANENT, "too_long", f"text is longer than {most} UTF-16 units")

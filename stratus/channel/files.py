"""A file on its way to a platform: its bytes, checked before any call."""

from __future__ import annotations

import base64

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.values import Attachment, Limits


def bytes_to_send(file: Attachment, limits: Limits) -> bytes:
    """The file's bytes. Raises SendError (permanent) where there are none, they cannot be read, or the platform takes no such size."""
    if file.data is None:
        raise SendError(SendFailure.PERMANENT, "no_data", "the attachment has no bytes")
    try:
        data = base64.b64decode(file.data, validate=True)
    except ValueError as error:
        raise SendError(SendFailure.PERMANENT, "bad_data", "the attachment is no base64") from error
    if len(data) > limits.attachment_bytes_max:
        raise SendError(SendFailure.PERMANENT, "too_large", "the platform takes no file of this size from a bot")
    return data

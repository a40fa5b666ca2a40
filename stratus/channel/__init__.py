"""What an adapter is: its protocol, values, errors, registry and conformance suite. All that adapters may import."""

from stratus.channel.errors import AccountStopped, BadCredentials, PollConflict, SendError, SendFailure
from stratus.channel.protocol import Adapter, Deliver, Guard
from stratus.channel.values import (
    Attachment,
    Blob,
    ChannelConfig,
    Event,
    Limits,
    Op,
    RawRequest,
    Receipt,
    Sender,
    WebhookReply,
)

__all__ = [
    "AccountStopped",
    "Adapter",
    "Attachment",
    "BadCredentials",
    "Blob",
    "ChannelConfig",
    "Deliver",
    "Event",
    "Guard",
    "Limits",
    "Op",
    "PollConflict",
    "RawRequest",
    "Receipt",
    "SendError",
    "SendFailure",
    "Sender",
    "WebhookReply",
]

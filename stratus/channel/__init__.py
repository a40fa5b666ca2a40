"""What an adapter is: its protocol, values, errors, registry and conformance suite. All that adapters may import."""

from stratus.channel.errors import (
    AccountStopped,
    BadCredentials,
    Misconfigured,
    PollConflict,
    SendError,
    SendFailure,
    StartRefused,
)
from stratus.channel.protocol import Adapter, Budget, Deliver, Guard
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
    "Budget",
    "ChannelConfig",
    "Deliver",
    "Event",
    "Guard",
    "Limits",
    "Misconfigured",
    "Op",
    "PollConflict",
    "RawRequest",
    "Receipt",
    "SendError",
    "SendFailure",
    "Sender",
    "StartRefused",
    "WebhookReply",
]

"""What a channel's adapter is made from, for whoever runs one: the owner's runtime, and any replica that takes its webhooks."""

from __future__ import annotations

from pydantic import SecretStr

from stratus.channel.values import ChannelConfig
from stratus.store.channel import ChannelRow
from stratus.store.vault import Vault


def adapter_config(row: ChannelRow, vault: Vault, public_url: str) -> ChannelConfig:
    """The configuration, with its credentials opened. Raises CredentialsUnreadable."""
    credentials = {} if row.credentials is None else vault.open(row.public_id, row.credentials)
    return ChannelConfig(
        channel_id=str(row.public_id),
        name=row.name,
        options=row.config,
        credentials={name: SecretStr(value) for name, value in credentials.items()},
        webhook_url=f"{public_url}/hooks/{row.public_id}",
    )

"""Adapter for Discord bots: a gateway connection that any replica can go on with, and discord.py's REST routes."""

from adapters.discord.adapter import DiscordAdapter

__all__ = ["DiscordAdapter"]

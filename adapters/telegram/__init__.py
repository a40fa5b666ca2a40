"""Adapter for Telegram bots: long polling or webhook, through python-telegram-bot's Bot."""

from adapters.telegram.adapter import TelegramAdapter

__all__ = ["TelegramAdapter"]

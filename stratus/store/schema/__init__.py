"""The tables, declared once: migrations must equal them, and a drift test compares both, CHECKs, functions and triggers included."""

from stratus.store.schema import channels, groups, people, schedules, sessions
from stratus.store.schema.columns import EXECUTION_TOKEN, metadata

__all__ = ["EXECUTION_TOKEN", "channels", "groups", "metadata", "people", "schedules", "sessions"]

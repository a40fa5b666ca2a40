"""Finds adapters by the entry point group `stratus.adapters`, loading a platform's module only when it is asked for."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import cast

from stratus.channel.protocol import Adapter


class UnknownPlatform(Exception):
    """No installed adapter serves the platform."""


@cache
def platforms() -> tuple[str, ...]:
    """Names of the installed platforms."""
    return tuple(sorted(point.name for point in entry_points(group="stratus.adapters")))


@cache
def adapter_class(platform: str) -> type[Adapter]:
    """The adapter's class. Raises UnknownPlatform, with the installed names."""
    for point in entry_points(group="stratus.adapters"):
        if point.name == platform:
            return cast("type[Adapter]", point.load())
    raise UnknownPlatform(f"no adapter for platform {platform!r}; installed: {', '.join(platforms()) or 'none'}")

"""Chance for spreading load (jitter), never for secrets."""

from __future__ import annotations

import random


class Chance:
    """Jitter from its own generator; seedable."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def spread(self, seconds: float, share: float = 0.25) -> float:
        """`seconds`, more or less by up to `share` of it."""
        return seconds * (1 + share * (2 * self._random.random() - 1))

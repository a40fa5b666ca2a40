"""The rows of an agent that has none, for tools that are called without a database."""

from __future__ import annotations

from typing import Any


class NoRows:
    """Answers every query with nothing."""

    async def fetch(self, sql: str, *args: str | int | float | bool | None) -> list[dict[str, Any]]:
        return []


NO_ROWS = NoRows()

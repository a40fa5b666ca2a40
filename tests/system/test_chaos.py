"""A short campaign of random faults, so that the long ones (`make chaos`) are known to run and to judge."""

from __future__ import annotations

import pytest

from testbed.chaos import campaign


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_short_campaign_holds(dsn: str) -> None:
    async with campaign(dsn, seed=11) as one:
        assert await one.run(12.0, faults=3) == []
        assert one.said >= 20

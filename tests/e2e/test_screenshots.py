"""Takes the pictures of the user guide (docs/img), only when STRATUS_SCREENSHOTS=1 asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from testbed.replicas import Replica
from testbed.stage import Stage
from tests.e2e.desk import Desk, seated

pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(os.environ.get("STRATUS_SCREENSHOTS") != "1", reason="STRATUS_SCREENSHOTS=1 asks for them"),
]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "img"
LIGHT = {"viewport": {"width": 1120, "height": 760}, "color_scheme": "light"}
DARK = {
    "viewport": {"width": 390, "height": 780},
    "color_scheme": "dark",
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 1,
}


@pytest.mark.parametrize(("name", "options"), [("console-light", LIGHT), ("console-dark-phone", DARK)])
async def test_pictures(browser: Browser, stage: Stage, replica: Replica, name: str, options: dict[str, Any]) -> None:
    async with seated(browser, stage, replica, **options) as desk:
        await desk.send("Where do I see what is running?")
        await desk.ended(1)
        await desk.page.goto(f"{desk.url}/ui/#/new")
        await desk.send("markdown and a plan for the week")
        await desk.ended(1)
        await desk.send("think tool")
        await desk.ended(2)
        await desk.send("slow 30 what does a turn look like while it is being written?")
        await expect(desk.turns("running").locator(".text")).to_contain_text("I am the")
        await desk.send("and this one waits")
        await desk.ended(1, "queued")
        await desk.page.wait_for_function("document.querySelector('#threads a[aria-current] [data-state=running]')")
        await _picture(desk, name)


async def _picture(desk: Desk, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    await desk.page.screenshot(path=FOLDER / f"{name}.png")

"""Where Stratus keeps its things when nobody says so."""

import os
from pathlib import Path

import pytest

from stratus.config import default_home


def test_default_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_home() == Path("/var/lib/stratus")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path("/data/stratus")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_home() == Path("/home/somebody/.local/share/stratus")

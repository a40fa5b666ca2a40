"""`stratus config`: the settings as this process sees them."""

from __future__ import annotations

from stratus.cli.output import Json, print_rows


def config(as_json: Json = False) -> None:
    """Print every setting with its value (secrets masked) and where it comes from."""
    from stratus.config import load

    rows = [setting._asdict() for setting in load().effective()]
    print_rows(rows, ["name", "value", "source"], as_json=as_json, empty="")

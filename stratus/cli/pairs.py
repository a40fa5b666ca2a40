"""Reads `KEY=VALUE` arguments, and secrets from where a list of processes does not show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer


def read_options(pairs: Sequence[str]) -> dict[str, object]:
    """Options: a value that is JSON is taken as such, any other as text. Raises typer.BadParameter."""
    import json

    options: dict[str, object] = {}
    for pair in pairs:
        key, value = _split(pair, "--option")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def read_credentials(pairs: Sequence[str]) -> dict[str, str]:
    """Credentials: `-` asks (hidden) or reads one line of stdin, `env:NAME` reads a variable. Raises typer.BadParameter."""
    credentials = {}
    for pair in pairs:
        key, value = _split(pair, "--credential")
        if value == "-":
            value = _ask(key)
        elif value.startswith("env:"):
            value = os.environ.get(value.removeprefix("env:"), "")
        if not value:
            raise typer.BadParameter(f"{key} is empty", param_hint="--credential")
        credentials[key] = value
    return credentials


def _ask(key: str) -> str:
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"{key}: ").strip()
    return sys.stdin.readline().strip()


def _split(pair: str, option: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not key or not equals:
        raise typer.BadParameter("must be KEY=VALUE", param_hint=option)  # not repeated: it may be a secret
    return key, value

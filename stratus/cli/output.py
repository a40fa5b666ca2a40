"""How commands print: a table or a line for people, JSON for programs, faults on stderr.

What comes from chats and models is made harmless first: a terminal obeys control characters.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

WIDTH_WITHOUT_TERMINAL = 10_000  # a program reads it: nothing is folded

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: object) -> None:
    """One JSON document."""
    import orjson

    typer.echo(orjson.dumps(value, default=_plain_value, option=orjson.OPT_INDENT_2).decode())


def print_json_line(value: object) -> None:
    """One JSON document on one line, for NDJSON."""
    import orjson

    typer.echo(orjson.dumps(value, default=_plain_value).decode())


def print_rows(rows: Sequence[Any], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Rows (dataclasses or mappings): all their fields as JSON, or `columns` as a table; `empty` is said when there are none."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        typer.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(_field(row, column))) for column in columns))
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    Console(width=width, markup=False, highlight=False).print(table)


def print_fields(value: Any, *, as_json: bool) -> None:
    """One object: as JSON, or a line for each field."""
    if as_json:
        print_json(value)
        return
    fields = value if isinstance(value, Mapping) else vars(value)
    width = max(len(name) for name in fields)
    for name, content in fields.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {shown(content)}")


def complain(text: str) -> None:
    """One line on stderr."""
    typer.echo(f"stratus: {printable(text)}", err=True)


def shown(value: object) -> str:
    """A value for a person's eyes, on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """The text on one line, its control characters replaced."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text)


def printable_lines(text: str) -> str:
    """The text with its line ends and tabs, other control characters replaced."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)


def _field(row: Any, name: str) -> object:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def _plain_value(value: Any) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) or hasattr(value, "_asdict"):
        return vars(value) if is_dataclass(value) else value._asdict()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)

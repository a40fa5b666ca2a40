"""Cuts a Markdown text into pieces that a platform takes, so that every piece reads well alone.

Nothing is rewritten: the bodies of the pieces, joined, are the text. Only a code fence that a cut falls into is closed
and opened again around the cut, within the same limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from re import MULTILINE
from re import compile as compile_re

import regex

from stratus.channel.text import length
from stratus.channel.values import Limits

_CLUSTER = regex.compile(r"\X")
# A fence is as CommonMark has it: https://spec.commonmark.org/0.31.2/#fenced-code-blocks
_FENCE_LINE = compile_re(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})(.*)$", MULTILINE)
_FENCE_START = compile_re(r" {0,3}(?:`{3}|~{3})")
_INFO_MAX = 32
_MARKS_MAX = 16
# From best to worst: the end of a paragraph, of a line, of a sentence, of a word. All are cuts after white space.
_BREAKS = tuple(
    compile_re(pattern)
    for pattern in (
        r"\n(?:[ \t\r]*\n)+",
        r"\n",
        r"[.!?…][\"'”’)\]]*[^\S\n]+|[。！？]",
        r"(?<=\S)[^\S\n]+",
    )
)


@dataclass(frozen=True)
class Piece:
    """A part of the text, with the fence lines put around it: `str()` is what is sent."""

    body: str
    opener: str = ""
    closer: str = ""

    def __str__(self) -> str:
        return self.opener + self.body + self.closer


@dataclass(frozen=True)
class _Fence:
    marks: str
    info: str


def split(text: str, limits: Limits) -> list[str]:
    """`text` in pieces of at most `limits.text_max` units each, in order.

    White space stays where it is, at the end of the piece before a cut; only a piece of nothing but white space is left
    out, since no platform sends one. So a text of white space gives no pieces. A grapheme cluster is broken only if it
    alone exceeds the limit. Fences are balanced in every piece, at the end of the text too; one of more marks than fit
    twice into a quarter of the limit (at most 16) counts as text, and an info string of more than 32 characters is not
    repeated.
    """
    return [str(piece) for piece in cut(text, limits) if piece.body.strip()]


def cut(text: str, limits: Limits) -> list[Piece]:
    """The pieces before any is left out: their bodies, joined, are `text`."""
    pieces = []
    start, opener = 0, ""
    while start < len(text):
        piece = _next_piece(text, start, opener, limits)
        pieces.append(piece)
        start += len(piece.body)
        fence = _open_fence(piece.opener + piece.body, limits)
        opener = "" if fence is None else _opener(fence, limits)
    return pieces


def _next_piece(text: str, start: int, opener: str, limits: Limits) -> Piece:
    end = _reach(text, start, limits.text_max - length(opener, limits.text_unit), limits)
    if end == len(text):
        piece = _piece(text[start:end], opener, limits)
        if _fits(piece, limits):
            return piece
    for position in _positions(text, start, end):
        piece = _piece(text[start:position], opener, limits)
        if _fits(piece, limits):
            return _with_closing_line(text, start, piece, limits)
    return Piece(text[start : max(end, start + 1)])


def _with_closing_line(text: str, start: int, piece: Piece, limits: Limits) -> Piece:
    """The piece with the fence's own closing line, if that is what follows: alone in the next piece it would close
    nothing.
    """
    if not piece.closer or not piece.body.endswith("\n"):
        return piece
    closing = compile_re(rf" {{0,3}}{piece.closer}{piece.closer[0]}*[ \t]*(\r?\n|\Z)")
    match = closing.match(text, start + len(piece.body))
    for position in (match.end(), match.start(1)) if match else ():
        longer = _piece(text[start:position], piece.opener, limits)
        if _fits(longer, limits):
            return longer
    return piece


def _positions(text: str, start: int, end: int) -> Iterator[int]:
    """Where the piece that starts at `start` may end, from best to worst."""
    clusters = _cluster_ends(text, start, end)
    whole = set(clusters)
    for pattern in _BREAKS:
        cuts = [match.end() for match in pattern.finditer(text, start, end)]
        for position in reversed(cuts):
            if position - start < (end - start) // 2:
                break
            if position in whole and _clean(text, start, position):
                yield position
    backwards = clusters[::-1]
    yield from (position for position in backwards if _clean(text, start, position))
    yield from backwards
    yield from range(end, start, -1)


def _cluster_ends(text: str, start: int, end: int) -> list[int]:
    """Ends of the grapheme clusters from `start` to `end`; one more character is looked at, to see whether the last is
    whole.
    """
    stop = end + 1
    ends = (match.end() for match in _CLUSTER.finditer(text, start, stop))
    return [position for position in ends if position < stop]


def _clean(text: str, start: int, position: int) -> bool:
    """Whether a cut here leaves fence lines whole and makes no new one of what follows."""
    if position == len(text) or text[position - 1] == "\n":
        return True
    line = max(text.rfind("\n", start, position) + 1, start)
    return not (
        _FENCE_START.match(text, line)
        or _FENCE_START.match(text, position)
        or text[position - 1] == text[position] in "`~"
    )


def _reach(text: str, start: int, budget: int, limits: Limits) -> int:
    """The furthest end of a body of at most `budget` units; at least one character is taken."""
    low, high = start + 1, max(start + 1, min(len(text), start + budget))
    while low < high:
        middle = (low + high + 1) // 2
        if length(text[start:middle], limits.text_unit) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _piece(body: str, opener: str, limits: Limits) -> Piece:
    fence = _open_fence(opener + body, limits)
    if fence is None:
        return Piece(body, opener)
    return Piece(body, opener, fence.marks if body.endswith("\n") else f"\n{fence.marks}")


def _fits(piece: Piece, limits: Limits) -> bool:
    return length(str(piece), limits.text_unit) <= limits.text_max


def _open_fence(text: str, limits: Limits) -> _Fence | None:
    """The fence that is still open at the end of `text`."""
    most = min(_MARKS_MAX, limits.text_max // 8)
    fence: _Fence | None = None
    for match in _FENCE_LINE.finditer(text):
        marks, info = match[1], match[2].strip()
        if fence is None:
            if len(marks) <= most:
                fence = _Fence(marks, info)
        elif marks.startswith(fence.marks) and not info:
            fence = None
    return fence


def _opener(fence: _Fence, limits: Limits) -> str:
    full = f"{fence.marks}{fence.info}\n"
    fits = len(fence.info) <= _INFO_MAX and length(full, limits.text_unit) <= limits.text_max // 4
    return full if fits else f"{fence.marks}\n"

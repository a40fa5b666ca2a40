"""Splitting: every piece within the limit and balanced, no grapheme broken, nothing lost."""

from __future__ import annotations

import re

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratus.channel.text import length
from stratus.channel.values import Limits, TextUnit
from stratus.domain.split import cut, split

FAMILY = "👨‍👩‍👧‍👦"
BITS = [
    "a", "word ", "A sentence. ", "\n", "\n\n", "\r\n", " ", "\t", "😀", FAMILY, "🇺🇦", "✌🏽", "e\u0301",
    "\u200b", "中文。", "\u2028", "\0",
    "```", "```py\n", "\n```\n", "~~~\n", "\n~~~", "````\n", "`", "~", "    ", "  ```\n", "- item\n", "<b>&",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(BITS), max_size=120).map("".join) | st.text(max_size=300)
LIMITS = st.builds(Limits, text_max=st.integers(24, 200), text_unit=st.sampled_from(TextUnit))


def open_fence(text: str) -> str | None:
    """An independent reading of CommonMark's fences, line by line; the marks that are open at the end."""
    marks = None
    for line in text.split("\n"):
        match = re.match(r" {0,3}(`{3,}|~{3,})(.*)", line)
        if match is None:
            continue
        if marks is None:
            if match[1][0] == "~" or "`" not in match[2]:
                marks = match[1]
        elif match[1].startswith(marks) and not match[2].strip():
            marks = None
    return marks


def longest_marks(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+|~+", text)), default=0)


@given(TEXTS, LIMITS)
@example("```" + "x" * 3000 + "\ncode\n```", Limits(text_max=2000))
@example("```py\n" + "line of code\n" * 300, Limits(text_max=2000))
@example("e" + "\u0301" * 500, Limits(text_max=100))
@example("😀" * 4096, Limits(text_max=4096))
@settings(deadline=None)
def test_nothing_is_lost_and_every_piece_fits(text: str, limits: Limits) -> None:
    pieces = cut(text, limits)
    assert "".join(piece.body for piece in pieces) == text
    assert split(text, limits) == [str(piece) for piece in pieces if piece.body.strip()]
    for piece in pieces:
        assert piece.body
        assert length(str(piece), limits.text_unit) <= limits.text_max


@given(TEXTS, LIMITS)
@example("````\n```\n" + "x\n" * 200 + "```\n````", Limits(text_max=100))
@settings(deadline=None)
def test_fences_are_balanced_in_every_piece(text: str, limits: Limits) -> None:
    if longest_marks(text) > min(16, limits.text_max // 8):
        return
    for piece in split(text, limits):
        assert open_fence(piece) is None


@given(TEXTS, LIMITS)
@example(FAMILY * 60, Limits(text_max=100))
@example("word \u0301" * 60, Limits(text_max=50, text_unit=TextUnit.CODEPOINTS))
@settings(deadline=None)
def test_a_grapheme_is_broken_only_if_it_exceeds_the_limit(text: str, limits: Limits) -> None:
    clusters = regex.findall(r"\X", text)
    if any(length(cluster, limits.text_unit) > limits.text_max // 2 for cluster in clusters):
        return
    edges, position = {0}, 0
    for cluster in clusters:
        position += len(cluster)
        edges.add(position)
    position = 0
    for piece in cut(text, limits):
        position += len(piece.body)
        assert position in edges


@pytest.mark.parametrize("text", ["", " ", "\n" * 100_000, "\u3000\t\r\n"])
def test_white_space_alone_gives_nothing(text: str) -> None:
    assert split(text, Limits(text_max=4096)) == []


def test_what_fits_is_left_alone() -> None:
    text = " leading, trailing \n\n```py\nx = 1\n```\n"
    assert split(text, Limits(text_max=4096)) == [text]


@pytest.mark.parametrize(
    ("unit", "sizes"), [(TextUnit.UTF16, [50, 50]), (TextUnit.CODEPOINTS, [100]), (TextUnit.BYTES, [25, 25, 25, 25])]
)
def test_counts_in_the_platforms_unit(unit: TextUnit, sizes: list[int]) -> None:
    assert [len(piece) for piece in split("😀" * 100, Limits(text_max=100, text_unit=unit))] == sizes


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One two.\n\nThree four. Five six\nseven eight", "One two.\n\n"),
        ("One two three\nfour. five six seven", "One two three\n"),
        ("One two three. Four five six seven", "One two three. "),
        ("One two three four five six seven", "One two three four five "),
        ("o" * 30, "o" * 24),
    ],
)
def test_prefers_paragraph_line_sentence_word(text: str, first: str) -> None:
    limit = 16 if "\n\n" in text else 24
    assert split(text, Limits(text_max=limit))[0] == first


def test_a_fence_goes_on_in_the_next_piece() -> None:
    text = "```py\n" + "".join(f"line {n}\n" for n in range(20)) + "```\nafter"
    pieces = split(text, Limits(text_max=50))
    assert len(pieces) > 2
    assert all(piece.startswith("```py\nline ") for piece in pieces[:-1])
    assert all(piece.rstrip().endswith("\n```") for piece in pieces[:-1])
    assert [line for piece in pieces for line in piece.split("\n") if line.startswith("line")] == [
        f"line {n}" for n in range(20)
    ]


def test_no_piece_is_an_empty_block() -> None:
    for end in ("```", "```\n", "```\nafter", "```\r\nafter"):
        text = "```py\n" + "".join(f"line {n}\n" for n in range(20)) + end
        for limit in range(24, 120):
            assert not any(re.match(r"```py\s*```", piece) for piece in split(text, Limits(text_max=limit)))


def test_indented_code_keeps_its_indentation() -> None:
    text = "```py\n" + "if x:\n        return 1\n" * 12 + "```"
    for piece in split(text, Limits(text_max=60)):
        body = piece.removeprefix("```py\n")
        assert body.startswith(("if x:", "        return"))


def test_a_text_that_ends_in_an_open_fence_is_closed() -> None:
    assert split("see:\n~~~\ncode", Limits(text_max=100)) == ["see:\n~~~\ncode\n~~~"]
    assert split("```", Limits(text_max=100)) == ["```\n```"]


def test_a_long_info_string_is_not_repeated() -> None:
    for info, repeated in (("x" * 32, True), ("x" * 33, False)):
        second = split(f"```{info}\n" + "code\n" * 1000 + "```", Limits(text_max=4096))[1]
        assert second.startswith(f"```{info}\n") is repeated
    pieces = split("```" + "x" * 3000 + "\ncode\n```", Limits(text_max=1000))
    assert all(piece.startswith("```\n") for piece in pieces[1:])


def test_text_that_only_looks_like_a_fence_after_the_cut_stays_text() -> None:
    for pad in range(60, 100):
        text = "x" * pad + " ``` and ~~~ are marks " + "y" * 60
        assert not any(re.match(r"```|~~~", piece) for piece in split(text, Limits(text_max=100)))


def test_a_megabyte_is_split_in_reasonable_time() -> None:
    text = "x" * 1_000_000
    pieces = split(text, Limits(text_max=4096))
    assert "".join(pieces) == text

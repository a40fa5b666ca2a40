"""Text at the edges: what cannot be stored is replaced one for one, and length is the platform's."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratus.channel.text import clean, clean_json, length
from stratus.channel.values import TextUnit


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\\u0000", "\\u0000"),
        ("\ud83d", "\ufffd"),
        ("\ude00x", "\ufffdx"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ufeff\u202e \U0001f468\u200d\U0001f469", "\ufeff\u202e \U0001f468\u200d\U0001f469"),
    ],
)
def test_only_what_cannot_be_stored_is_replaced(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@given(st.text(st.characters(categories=["Cs", "L", "So", "Cc"])))
def test_cleaning_keeps_utf16_offsets_and_is_final(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert length(cleaned, TextUnit.UTF16) == length(text, TextUnit.UTF16)
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(("unit", "expected"), [(TextUnit.UTF16, 4), (TextUnit.CODEPOINTS, 3), (TextUnit.BYTES, 7)])
def test_length_is_in_the_platforms_unit(unit: TextUnit, expected: int) -> None:
    assert length("a\u00e9\U0001f600", unit) == expected


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        ({"a\x00": ["\ud83d", True, None, 1, 1.5]}, {"a\ufffd": ["\ufffd", True, None, 1, 1.5]}),
        ([math.nan, math.inf, -math.inf], [None, None, None]),
        ([10**30, 2**63 - 1, -(10**30)], [str(10**30), 2**63 - 1, str(-(10**30))]),
    ],
)
def test_json_becomes_what_every_store_takes(value: Any, cleaned: Any) -> None:
    assert clean_json(value) == cleaned
    json.dumps(clean_json(value), allow_nan=False)


def test_deep_json_is_cut() -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    assert json.dumps(clean_json(deep)).count("[") == 100


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        clean_json({"a": b"x"})

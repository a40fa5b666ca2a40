"""Markdown to Telegram's HTML: what is known is formatted, the rest stays as written, and the output is always
balanced.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.telegram.render import to_html
from stratus.channel.text import length
from stratus.channel.values import TextUnit
from testbed.fakes.telegram_checks import visible_text


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**b** *i* _i_ ~~s~~ `c`", "<b>b</b> <i>i</i> <i>i</i> <s>s</s> <code>c</code>"),
        ("***bi*** **a *b* c**", "<b><i>bi</i></b> <b>a <i>b</i> c</b>"),
        ("**over\ntwo lines**", "<b>over\ntwo lines</b>"),
        ("# Head *x*\ntext", "<b>Head <i>x</i></b>\ntext"),
        ("> a\n> **b**\nc", "<blockquote>a\n<b>b</b></blockquote>\nc"),
        ("- a\n* *b*\n1. c", "- a\n* <i>b</i>\n1. c"),
        ("```py\nif a < b:\n```\nx", '<pre><code class="language-py">if a &lt; b:</code></pre>\nx'),
        ("~~~\n```\n~~~", "<pre>```</pre>"),
        ("````\n```\n````", "<pre>```</pre>"),
        ("```\nopen", "<pre>open</pre>"),
        ("``a ` b``", "<code>a ` b</code>"),
        ("[t](https://e.org/a_b_(c)?x=1&y)", '<a href="https://e.org/a_b_(c)?x=1&amp;y">t</a>'),
        ("\\*no\\* \\x", "*no* \\x"),
    ],
)
def test_what_is_known_is_formatted(markdown: str, html: str) -> None:
    assert to_html(markdown) == html


@pytest.mark.parametrize(
    "text",
    [
        "snake_case_word",
        "__init__.py",
        "2*3*4",
        "a ** b ** c",
        "[x](",
        "[x](javascript:alert(1))",
        "[x](tg://user?id=1)",
        "`",
        "**",
        "*",
        "C++ <T> & x",
        '<a href="javascript:x">',
        "#no heading",
        "| a | b |",
    ],
)
def test_the_rest_stays_as_written(text: str) -> None:
    assert visible_text(to_html(text), "HTML") == text
    assert "<" not in to_html(text)


_PIECES = st.sampled_from(
    [
        "**",
        "*",
        "_",
        "__",
        "~~",
        "`",
        "```",
        "~~~",
        "\n",
        "> ",
        "# ",
        "- ",
        "[",
        "](https://e.org)",
        "\\",
        "<b>",
        "&",
        " ",
    ]
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=40).map("".join))
def test_the_output_is_balanced_and_never_longer_than_what_was_written(markdown: str) -> None:
    seen = visible_text(to_html(markdown), "HTML")
    assert length(seen, TextUnit.UTF16) <= length(markdown, TextUnit.UTF16)


@pytest.mark.parametrize("piece", ["`", "*", " *a", "_a *b ", "**a*b_c", "[a", "[x](http://", "` `` ", "> ", "~"])
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * 20_000)[:20_000]  # long enough for a quadratic search to take many seconds
    start = time.process_time()
    to_html(text)
    assert time.process_time() - start < 2

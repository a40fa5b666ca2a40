"""Markdown, as models write it, to the HTML that Telegram takes: https://core.telegram.org/bots/api#html-style.

Not a Markdown implementation: what it does not know stays as it was written. Its output is always balanced and escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*$")
_QUOTE = re.compile(r" {0,3}> ?(.*)$")
_LANGUAGE = re.compile(r"[\w+#.-]{1,40}")
_ITEM = re.compile(r"[ \t]*[*+-][ \t]+")
# only links that leave Telegram: tg://user?id=… would ping a person
_LINK = re.compile(r"\[([^\[\]\n]{1,1000})\]\(((?:https?://|mailto:)[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)\)")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# not `__`: models write it in names such as __init__ far more often than for bold
_MARKS = (("***", ("b", "i")), ("**", ("b",)), ("~~", ("s",)), ("*", ("i",)), ("_", ("i",)))
_DEPTH_MAX = 6


def to_html(markdown: str) -> str:
    """`markdown` with bold, italic, strike, code, fenced code, http and mailto links, headings (bold) and quotes as
    Telegram HTML.
    """
    return "\n".join(_blocks(markdown.split("\n")))


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        if fence := _FENCE.match(lines[at]):
            end = _fence_end(lines, at + 1, fence[1])
            yield _code_block(lines[at + 1 : end], fence[2])
            at = end + 1
        elif heading := _HEADING.match(lines[at]):
            yield f"<b>{_inline(heading[1])}</b>" if heading[1] else _escape(lines[at])
            at += 1
        else:
            quoted = _QUOTE.match(lines[at]) is not None
            end = at + 1
            while end < len(lines) and _continues(lines[end], quoted=quoted):
                end += 1
            yield _quote(lines[at:end]) if quoted else _paragraph(lines[at:end])
            at = end


def _continues(line: str, *, quoted: bool) -> bool:
    if _QUOTE.match(line):
        return quoted
    return not quoted and not any(start.match(line) for start in (_FENCE, _HEADING, _ITEM)) and bool(line.strip())


def _fence_end(lines: list[str], start: int, fence: str) -> int:
    close = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
    return next((at for at in range(start, len(lines)) if close.match(lines[at])), len(lines))


def _code_block(lines: list[str], info: str) -> str:
    body = _escape("\n".join(lines))
    if language := _LANGUAGE.match(info):
        return f'<pre><code class="language-{_escape(language[0])}">{body}</code></pre>'
    return f"<pre>{body}</pre>"


def _quote(lines: list[str]) -> str:
    bare = [match[1] for line in lines if (match := _QUOTE.match(line))]
    return f"<blockquote>{_inline(chr(10).join(bare))}</blockquote>"


def _paragraph(lines: list[str]) -> str:
    item = _ITEM.match(lines[0])
    marker = item[0] if item else ""
    return _escape(marker) + _inline("\n".join(lines)[len(marker) :])


def _inline(text: str, depth: int = 0) -> str:
    out: list[str] = []
    dead: set[str] = set()  # marks that nothing further on closes, lest each of them searches the whole rest
    at = 0
    while at < len(text):
        made, after = _span(text, at, depth, dead)
        out.append(made)
        at = after
    return "".join(out)


def _span(text: str, at: int, depth: int, dead: set[str]) -> tuple[str, int]:
    """The HTML of what begins at `at`, and where the next thing begins."""
    here = text[at]
    if here == "\\" and text[at + 1 : at + 2] in _PUNCTUATION:
        return _escape(text[at + 1]), at + 2
    if here == "`":
        return _code_span(text, at)
    if depth < _DEPTH_MAX and here == "[" and (link := _LINK.match(text, at)):
        return f'<a href="{_escape(link[2])}">{_inline(link[1], _DEPTH_MAX)}</a>', link.end()
    if depth < _DEPTH_MAX and here in "*_~":
        for mark, tags in _MARKS:
            if text.startswith(mark, at) and (end := _closing(text, at, mark, dead)) is not None:
                inner = _inline(text[at + len(mark) : end], depth + 1)
                opened, closed = ("".join(f"<{tag}>" for tag in tags), "".join(f"</{tag}>" for tag in reversed(tags)))
                return f"{opened}{inner}{closed}", end + len(mark)
        run = len(text) - at - len(text[at:].lstrip(here))
        return text[at : at + run], at + run
    return _escape(here), at + 1


def _code_span(text: str, at: int) -> tuple[str, int]:
    after = at
    while text[after : after + 1] == "`":
        after += 1
    run = text[at:after]
    close = re.compile(rf"(?<!`){run}(?!`)").search(text, after)
    if close is None or not (code := text[after : close.start()]).strip():
        return run, after
    padded = len(code) > 2 and code[0] == code[-1] == " "
    return f"<code>{_escape(code[1:-1] if padded else code)}</code>", close.end()


def _closing(text: str, at: int, mark: str, dead: set[str]) -> int | None:
    """Where the emphasis that opens at `at` closes: around something, not next to its own character, and a single mark
    never within a word.
    """
    start = at + len(mark)
    single = len(mark) == 1
    if mark in dead or not text[start : start + 1].strip() or text[start] == mark[0]:
        return None
    if single and at > 0 and (text[at - 1].isalnum() or text[at - 1] == mark):
        return None
    end = text.find(mark, start + 1)
    while end != -1:
        before, after = text[end - 1], text[end + len(mark) : end + len(mark) + 1]
        if before.strip() and before not in (mark[0], "\\") and after != mark[0] and not (single and after.isalnum()):
            return end
        end = text.find(mark, end + 1)
    dead.add(mark)
    return None


def _escape(text: str) -> str:
    return html.escape(text, quote=True).replace("&#x27;", "'")

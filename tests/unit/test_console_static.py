"""The console's files obey the content policy and each other, and never make markup out of text: read from the files alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stratus.http.console import FOLDER

MODULES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.js"))}
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.html"))}
ENTRIES = {"index.html": "main.js", "operations.html": "operations.js"}
STYLE = (FOLDER / "app.css").read_text(encoding="utf-8")
LINES_MAX = 400
PURE = {"reducer.js", "turn.js", "markdown.js", "sse.js"}

_IMPORT = re.compile(r"^import .*? from '\./([\w.]+)';$", re.MULTILINE)
_NAMES = re.compile(r"^import \{ (.*?) \} from '\./([\w.]+)';$", re.MULTILINE)
_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|\beval\b|new Function|cssText"
)
_OUTSIDE = re.compile(
    r"\b(document|window|location|navigator|fetch|localStorage|sessionStorage|Date|setTimeout)\b|Math\.random|\bcrypto\."
)


def markup_makers(text: str) -> Iterator[str]:
    """Ways to turn text into markup or code."""
    for line in text.splitlines():
        if _MARKUP.search(line):
            yield line.strip()


def impurities(text: str) -> Iterator[str]:
    """What a pure module reaches for outside; comments and strings aside."""
    for line in text.splitlines():
        if found := _OUTSIDE.search(re.sub(r"//.*|'[^'\n]*'", "", line)):
            yield found[0]


class Elements(HTMLParser):
    """A page's elements, as (name, attributes)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def inline_code(text: str) -> Iterator[str]:
    """What the content policy would refuse: inline scripts, styles and handlers, and anything from elsewhere."""
    for tag, attributes in Elements(text).found:
        if tag == "style" or (tag == "script" and not attributes.get("src")):
            yield tag
        yield from (name for name in attributes if name.startswith("on") or name == "style")
        yield from (
            str(value)
            for name, value in attributes.items()
            if name in ("src", "href") and re.match(r"\w+:|//", value or "")
        )


def test_modules_never_make_markup_of_text() -> None:
    assert {name: list(markup_makers(text)) for name, text in MODULES.items()} == {name: [] for name in MODULES}
    assert list(markup_makers("node.innerHTML = text")) != []


def imported_by(entry: str) -> set[str]:
    """The modules of the page that begins with `entry`."""
    found, new = {entry}, {entry}
    while new:
        new = {name for module in new for name in _IMPORT.findall(MODULES[module])} - found
        found |= new
    return found


def test_the_pages_hold_nothing_that_the_policy_refuses() -> None:
    assert {name: list(inline_code(page)) for name, page in PAGES.items()} == {name: [] for name in ENTRIES}
    assert not re.search(r"@import|url\(", STYLE)
    bad = (
        '<style></style><script>1</script><p onclick="1" style="x"></p><img src="//cdn.example/x"><a href="https://x/">'
    )
    assert len(list(inline_code(bad))) == 6


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_modules_reach_for_nothing_outside(name: str) -> None:
    assert list(impurities(MODULES[name])) == []
    assert list(impurities("x = Math.random() + location.hash // document")) == ["Math.random"]


def test_every_module_is_there_and_used() -> None:
    assert set(PAGES) == set(ENTRIES)
    for page, entry in ENTRIES.items():
        assert f'src="{entry}"' in PAGES[page]
    used = set(ENTRIES.values()) | {name for text in MODULES.values() for name in _IMPORT.findall(text)}
    assert used == set(MODULES)
    for name, text in MODULES.items():
        for names, source in _NAMES.findall(text):
            missing = [one for one in names.split(", ") if not re.search(rf"export .*\b{one}\b", MODULES[source])]
            assert not missing, f"{name} imports {missing} from {source}"


def test_modules_say_their_purpose_and_are_short() -> None:
    for name, text in MODULES.items():
        assert text.startswith("// "), f"{name} opens with what it is for"
        assert text.count("\n") <= LINES_MAX, name


@pytest.mark.parametrize(("page", "labelled"), [("index.html", {"message", "agent"}), ("operations.html", {"state"})])
def test_elements_that_modules_name_are_on_their_page(page: str, labelled: set[str]) -> None:
    elements = Elements(PAGES[page]).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    used = "".join(MODULES[name] for name in imported_by(ENTRIES[page]))
    assert set(re.findall(r"part\('([\w-]+)'\)", used)) <= set(ids)
    assert labelled <= {attributes.get("for") for tag, attributes in elements if tag == "label"}


def test_the_style_knows_both_themes() -> None:
    light, dark = (
        set(re.findall(r"--[\w-]+(?=:)", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    )
    assert dark <= light and {"--page", "--ink", "--quiet", "--line", "--accent", "--link", "--bad"} <= dark
    assert set(re.findall(r"var\((--[\w-]+)\)", STYLE)) <= light


def test_files_are_served_by_types_that_browsers_take() -> None:
    assert {path.suffix for path in Path(FOLDER).iterdir()} <= {".html", ".css", ".js", ".svg"}

"""The console's pure modules, run in a real browser without a gateway: the reducer, the stream decoder, and Markdown."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from stratus.http.console import FOLDER
from tests.unit.test_cli_stream import STREAM
from tests.view_vectors import VIEW, vectors

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

ORIGIN = "http://console.test"
A, B, C = (f"{n}0000000-0000-4000-8000-000000000000" for n in "abc")
FOLD = "const m = await import('/reducer.js'); return actions.reduce(m.reduce, m.EMPTY)"
Event = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """An empty page of an origin that has the modules."""

    async def serve(route: Route) -> None:
        path = FOLDER / route.request.url.removeprefix(f"{ORIGIN}/")
        body = path.read_bytes() if path.is_file() else b"<!doctype html>"
        await route.fulfill(body=body, content_type=mimetypes.guess_type(path.name)[0] or "text/html")

    made = await browser.new_page()
    await made.route("**/*", serve)
    await made.goto(ORIGIN)
    yield made
    await made.close()


def events(run: str, first: int, *kinds: tuple[str, Event]) -> list[Event]:
    """Event actions of a run with seqs from `first` on."""
    return [event(run, first + n, kind, **payload) for n, (kind, payload) in enumerate(kinds)]


def event(run: str | None, seq: int, kind: str, **payload: Any) -> Event:
    return {
        "type": "event",
        "id": f"{run}:{seq}" if run else "",
        "event": {"run": run, "seq": seq, "attempt": 1, "kind": kind, **payload},
    }


def begun(text: str = "hello") -> list[tuple[str, Event]]:
    return [("run.queued", {"turn": 1, "text": text}), ("run.started", {}), ("message.user", {"text": text})]


def answered(text: str) -> list[tuple[str, Event]]:
    half = len(text) // 2
    return [
        ("text.delta", {"part": 0, "text": text[:half]}),
        ("text.delta", {"part": 0, "text": text[half:]}),
        ("text.completed", {"part": 0, "text": text}),
        ("message.assistant", {"text": text}),
        ("run.completed", {}),
    ]


def transcript(
    cursor: str | None, *messages: tuple[str, str, list[Event]], opened: str | None = None, failed: str | None = None
) -> Event:
    error = {"code": "internal", "message": "It broke."}
    shown = [
        {"position": n, "run": run, "role": role, "parts": parts}
        | ({"state": "failed", "error": error} if run == failed else {"state": "completed", "error": None})
        for n, (run, role, parts) in enumerate(messages, 1)
    ]
    running = None if opened is None else {"run": opened, "state": "running"}
    page = {"messages": shown, "before": None, "cursor": cursor, "open": running}
    return {"type": "transcript", "page": page}


def text(value: str) -> list[Event]:
    return [{"kind": "text", "text": value}]


async def fold(page: Page, actions: Sequence[Event]) -> dict[str, Any]:
    state: dict[str, Any] = await page.evaluate(f"async (actions) => {{ {FOLD} }}", list(actions))
    return state


def seen(state: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """What a person sees: question, state and texts of each turn."""
    return [(one["asked"]["text"], one["state"], [b["text"] for b in one["blocks"]]) for one in state["turns"]]


async def test_a_repeated_event_changes_nothing(page: Page) -> None:
    log = events(A, 1, *begun(), *answered("the answer"))
    once = await fold(page, log)
    assert seen(once) == [("hello", "completed", ["the answer"])]
    assert await fold(page, [one for n in range(len(log)) for one in log[: n + 1]]) == once
    assert once["cursor"] == f"{A}:8"


async def test_a_reload_at_any_event_shows_what_a_live_page_shows(page: Page) -> None:
    first = events(A, 1, *begun("one"), *answered("first"))
    second = events(B, 9, *begun("two"), *answered("second"))
    live = seen(await fold(page, [*first, *second]))
    old = [(A, "user", text("one")), (A, "assistant", text("first"))]
    for n in range(len(second)):
        asked = [(B, "user", text("two"))] if n >= 2 else []
        reload = transcript(f"{B}:8", *old, *asked, opened=B)
        assert seen(await fold(page, [*first, *second[:n], reload, *second])) == live
    done = transcript(f"{B}:16", *old, (B, "user", text("two")), (B, "assistant", text("second")))
    assert seen(await fold(page, [done, *first, *second])) == live


async def test_events_of_what_the_transcript_has_are_passed_over(page: Page) -> None:
    """B was queued while A ran, so the cursor before B lies before A's last events."""
    two_steps = [(A, "assistant", text("I look.")), (A, "assistant", text("first"))]
    page_then = transcript(f"{B}:3", (A, "user", text("one")), *two_steps, opened=B)
    queued = event(B, 4, "run.queued", turn=2, text="two")
    steps = [*answered("I look.")[:-1], *answered("first")]
    late = [event(A, n, kind, **payload) for n, (kind, payload) in enumerate(steps, 5)]
    assert seen(await fold(page, [page_then, queued, *late])) == [
        ("one", "completed", ["I look.", "first"]),
        ("two", "queued", []),
    ]


async def test_a_resumed_attempt_writes_its_unfinished_message_anew(page: Page) -> None:
    call = {"call_id": "c1", "name": "clock", "args": "{}"}
    state = await fold(
        page,
        events(
            A,
            1,
            *begun(),
            ("thinking.delta", {"part": 0, "text": "hm"}),
            ("text.delta", {"part": 1, "text": "I look."}),
            ("message.assistant", {"text": "I look.", "calls": ["c1"]}),
            ("tool.proposed", call),
            ("tool.started", call),
            ("tool.done", {**call, "outcome": "ok", "content": "noon", "truncated": False}),
            ("text.delta", {"part": 0, "text": "It is no"}),
            ("run.resumed", {}),
            ("text.delta", {"part": 0, "text": "It is noon."}),
        ),
    )
    blocks = state["turns"][0]["blocks"]
    assert [(one["type"], one.get("text", one.get("content"))) for one in blocks] == [
        ("thinking", "hm"),
        ("text", "I look."),
        ("tool", "noon"),
        ("resumed", None),
        ("text", "It is noon."),
    ]
    assert len({one["id"] for one in blocks}) == len(blocks)


async def test_a_run_s_view_is_as_the_shared_vectors_say(page: Page) -> None:
    wanted = vectors()
    module = f"async (all) => {{ const turn = await import('/turn.js'); const view = {VIEW}; return all.map((events) => view(events, turn)); }}"
    views = await page.evaluate(module, [one["events"] for one in wanted.values()])
    assert dict(zip(wanted, views, strict=True)) == {name: one["view"] for name, one in wanted.items()}


async def test_a_message_that_a_turn_took_up_is_shown_there_once(page: Page) -> None:
    log = events(A, 1, *begun())
    queued = event(B, 4, "run.queued", turn=2, text="and hurry")
    merged = event(B, 6, "run.merged", into=A)
    taken = event(A, 5, "message.user", text="and hurry", merged=B)
    shown = "const m = await import('/reducer.js'); return m.shownTurns(actions.reduce(m.reduce, m.EMPTY)).map((one) => one.run)"

    async def runs(*actions: Event) -> list[str]:
        found: list[str] = await page.evaluate(f"async (actions) => {{ {shown} }}", list(actions))
        return found

    assert await runs(*log, queued) == [A, B]
    assert await runs(*log, queued, taken, merged) == [A]
    assert await runs(*log, queued, merged) == [A, B], "nothing of it is lost where the turn does not show it"
    rows = [
        (A, "user", text("hello")),
        (A, "assistant", text("I look.")),
        (A, "user", text("and hurry")),
        (A, "assistant", text("done")),
    ]
    state = await fold(page, [transcript(f"{B}:9", *rows)])
    assert [(one["type"], one["text"]) for one in state["turns"][0]["blocks"]] == [
        ("text", "I look."),
        ("asked", "and hurry"),
        ("text", "done"),
    ]
    newer, older = transcript(f"{B}:9", *rows[2:]), transcript(None, *rows[:2])
    state = await fold(page, [newer, {"type": "earlier", "page": older["page"]}])
    assert [one["asked"]["text"] for one in state["turns"]] == ["hello"]
    assert [one["text"] for one in state["turns"][0]["blocks"]] == ["I look.", "and hurry", "done"]
    state = await fold(page, [transcript(f"{A}:0", *rows[:3], opened=A), *log, taken])
    assert [one["text"] for one in state["turns"][0]["blocks"]] == ["and hurry"], "an open run's come as events"


async def test_completed_text_stands_for_deltas_that_are_gone(page: Page) -> None:
    ended: list[tuple[str, Event]] = [
        ("text.completed", {"part": 0, "text": "a"}),
        ("message.assistant", {"text": "a"}),
        ("run.completed", {}),
    ]
    assert seen(await fold(page, events(A, 1, *begun(), *ended))) == [("hello", "completed", ["a"])]


@pytest.mark.parametrize("answer_first", [True, False])
async def test_a_send_is_shown_once_however_its_news_arrive(page: Page, answer_first: bool) -> None:
    sends = [{"type": "send", "key": key, "text": "same"} for key in ("k1", "k2")]
    heard = [event(run, n, "run.queued", turn=n, text="same") for n, run in enumerate((A, B, C), 1)]
    told = [
        {"type": "accepted", "key": key, "run": run, "cursor": f"{run}:{n}"}
        for key, run, n in (("k1", A, 1), ("k2", C, 3))
    ]
    actions = [*sends, *told, *heard] if answer_first else [*sends, *heard, *told]
    state = await fold(page, actions)
    assert [one["run"] for one in state["turns"]] == [A, B, C]
    assert state["pending"] == []
    half = await fold(page, [*sends, heard[0]])
    assert [one["run"] for one in half["pending"]] == [A, None]


async def test_a_refused_send_stays_until_it_is_taken_back(page: Page) -> None:
    send = {"type": "send", "key": "k", "text": "x"}
    refused = {"type": "refused", "key": "k", "error": "too large"}
    state = await fold(page, [send, refused, event(A, 1, "run.queued", turn=1, text="x")])
    assert [(one["state"], one["run"]) for one in state["pending"]] == [("refused", None)]
    assert (await fold(page, [send, refused, {"type": "withdrawn", "key": "k"}]))["pending"] == []


async def test_a_gap_after_a_break_asks_for_the_transcript(page: Page) -> None:
    log = events(A, 1, *begun(), *answered("x"))
    broken = [*log[:3], {"type": "connected", "resumed": True}, *log[5:]]
    assert (await fold(page, broken))["missed"] is True
    assert (await fold(page, [*broken, transcript(f"{A}:0", opened=A), *log]))["missed"] is False
    assert (await fold(page, [transcript(f"{A}:0", opened=A), log[0], *log[3:]]))["missed"] is False, "no loop"


async def test_pages_join_between_a_call_and_its_result(page: Page) -> None:
    call = {"kind": "tool_call", "call_id": "c", "name": "clock", "args": "{}"}
    result = {"kind": "tool_result", "call_id": "c", "name": "clock", "content": "noon", "outcome": "ok"}
    newer = transcript(f"{A}:9", (A, "tool", [result]), (A, "assistant", text("It is noon.")))
    before = (B, "user", text("before"))
    older = transcript(None, before, (A, "user", text("when?")), (A, "assistant", [call]), failed=B)
    state = await fold(page, [newer, {"type": "earlier", "page": older["page"]}])
    assert [one["run"] for one in state["turns"]] == [B, A]
    turn = state["turns"][1]
    assert turn["asked"]["text"] == "when?" and turn["state"] == "completed"
    assert [(one["type"], one.get("content")) for one in turn["blocks"]] == [("tool", "noon"), ("text", None)]
    assert (state["turns"][0]["state"], state["turns"][0]["error"]["message"]) == ("failed", "It broke.")


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
async def test_the_stream_is_read_however_its_bytes_are_cut(page: Page, size: int) -> None:
    decode = """async ([text, size]) => {
        const { Decoder } = await import('/sse.js');
        const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
        const decoder = new Decoder();
        const events = [];
        for (let at = 0; at < bytes.length; at += size) events.push(...decoder.feed(bytes.slice(at, at + size)));
        return [events.map((event) => [event.id, event.kind, event.data]), decoder.retry];
    }"""
    assert await page.evaluate(decode, [base64.b64encode(STREAM).decode(), size]) == [
        [
            ["r:1", "text.delta", '{"text": "a\u2028b\x85\u00e9"}'],
            ["r:1", "x", "one\ntwo"],
            ["r:2", "message", "3"],
        ],
        2000,
    ]


MARKDOWN = [
    ("a *b* **c** _d_ __e__ ~~f~~", "<p>a <em>b</em> <strong>c</strong> <em>d</em> <strong>e</strong> <s>f</s></p>"),
    ("snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("`a*b*` ``c`d`` `open", "<p><code>a*b*</code> <code>c`d</code> `open</p>"),
    (r"\*a\* \<b\>", "<p>*a* &lt;b&gt;</p>"),
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    ("# a #\n### b\n#c", "<h3>a</h3><h5>b</h5><p>#c</p>"),
    ("- a\n- b\n  more\n\n  far\n- c", "<ul><li>a</li><li>b<br>more<p>far</p></li><li>c</li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("- a\n  - b\n    1. c\n- d", "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ul>"),
    ("1. a\n\n2. b", "<ol><li>a</li><li>b</li></ol>"),
    ("said in\n1984. A year", "<p>said in<br>1984. A year</p>"),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
    ("```py x\na\n\n  b\n", "<pre>py|a\n\n  b\n</pre>"),
    ("~~~\n```\n~~~\nc", "<pre>text|```</pre><p>c</p>"),
    ("- a\n  ```\n  x\n  ```", "<ul><li>a<pre>text|x</pre></li></ul>"),
    ("[a *b*](https://x.example/y_(z)?q=1)", '<p><a href="https://x.example/y_(z)?q=1">a <em>b</em></a></p>'),
    ("(see https://x.example/a_b.)", '<p>(see <a href="https://x.example/a_b">https://x.example/a_b</a>.)</p>'),
    ("[a](mailto:b@x.example)", '<p><a href="mailto:b@x.example">a</a></p>'),
    ("![alt](https://x.example/p.png)", '<p><a href="https://x.example/p.png">alt</a></p>'),
    ("[a](javascript:b) [c](/d) [e](//f.g) [h](data:,i)", "<p>[a](javascript:b) [c](/d) [e](//f.g) [h](data:,i)</p>"),
    ("[a [b](https://x.example/) c](https://y.example/)", '<p><a href="https://y.example/">a [b](https://x.example/) c</a></p>'),
    ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"),
]  # fmt: skip
SHOW = """async (pieces) => {
    const { showMarkdown } = await import('/markdown_view.js');
    const node = document.createElement('div');
    for (const piece of pieces) showMarkdown(node, piece);
    for (const code of node.querySelectorAll('.code')) {
        const pre = document.createElement('pre');
        pre.textContent = code.querySelector('span').textContent + '|' + code.querySelector('pre').textContent;
        code.replaceWith(pre);
    }
    for (const one of node.querySelectorAll('*')) for (const name of ['dir', 'rel', 'target']) one.removeAttribute(name);
    for (const one of node.querySelectorAll('[start="1"]')) one.removeAttribute('start');
    return node.innerHTML;
}"""


@pytest.mark.parametrize(("source", "html"), MARKDOWN)
async def test_markdown_is_shown_and_grows_to_the_same(page: Page, source: str, html: str) -> None:
    assert await page.evaluate(SHOW, [source]) == html
    assert await page.evaluate(SHOW, [source[:n] for n in range(len(source) + 1)]) == html


@pytest.mark.parametrize(
    "piece", ["*a ", "**a ", "_a", "`", "``a`", "[", "[a](", "![", "> ", "- ", "* ", "1. a\n", "<http://", "https://", "\\", "~~a", "a\n\n"]
)  # fmt: skip
async def test_hostile_markdown_takes_no_time(page: Page, piece: str) -> None:
    source = piece * (100_000 // len(piece))
    took = """async (text) => {
        const { parse } = await import('/markdown.js');
        const start = performance.now();
        parse(text);
        return performance.now() - start;
    }"""
    assert await page.evaluate(took, source) < 5_000

"""The view of a run in Chromium: strip, tree and pane, by keyboard, live, with long and hostile texts, as a file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph, Run
from tests.asgi_server import served
from tests.inspector.desk import HOSTILE, LONG, Stepping, fill
from tests.inspector.watching import TOKEN, Tab, fits, until

SELECTED = "document.querySelector('[role=treeitem][aria-selected=true]')"
FOCUSED = "document.activeElement?.getAttribute('role')"
LONGEST = 60_000
WIDTH = 40
IN_SIGHT = """() => {
  const box = (one) => document.querySelector(one).getBoundingClientRect();
  const [node, view] = [box(".gnode.current .box"), box(".canvas")];
  return node.left >= view.left && node.right <= view.right;
}"""


SEEN = [
    *(("failed trunk:2", view) for view in ("prompt", "changes", "state", "graph")),
    ("failed trunk:4", "changes"),
    ("nested trunk:1/trunk:1", "items"),
    (f"long trunk:{LONG}", "changes"),
]
AXE_VIEWS = ("prompt", "state", "items")
"""Those that axe reads on a phone, in the dark; the others in a window, in the light."""


class Served(NamedTuple):
    address: str
    program: CompiledGraph
    long: Run
    path: Path
    stepping: Stepping


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One store and one server for all tests; each test acts on threads of its own."""
    path = tmp_path_factory.mktemp("desk") / "runs.db"
    program, long = fill(path)
    nested().compile(store=str(path)).thread("nested").run({"words": ["a", "fail", "b"]})
    wide().compile(store=str(path)).thread("wide").run({"n": 1})
    stepping = Stepping(path)
    with served(dspyer.inspector.app(str(path), program, token=TOKEN)) as address:
        yield Served(address, program, long, path, stepping)
    stepping.end()


@pytest.fixture
def tab(page: Any, chromium: Any, desk: Served) -> Iterator[Tab]:
    """The page, which asks no other server for anything."""
    one = Tab(page, desk.address)
    yield one
    one.clean()
    assert [url for url in chromium.asked if not url.startswith((desk.address, "data:", "blob:", "file:"))] == []


def raising(text: str) -> dict[str, Any]:
    raise ValueError(text)


def spell(word: str) -> str:
    if word == "fail":
        raise ValueError(f"cannot spell {HOSTILE}")
    return word.upper()


def nested() -> Graph:
    """A graph with a map in it, of which an item fails."""
    inner = Graph(name="Inner", inputs=["words"])
    inner.add_map("spell", spell, over="words", item="word", into="spelt", failures="odd")
    inner.add_path(START, "spell", END)
    graph = Graph(name="Nested", inputs=["words"])
    return graph.add_node("inner", inner).add_path(START, "inner", END)


def wide() -> Graph:
    """A graph that is much wider than the page."""
    graph = Graph(name="Wide", inputs=["n"])
    names = [f"node_{number}" for number in range(WIDTH)]
    for name in names:
        graph.add_node(name, lambda n: {}, writes=[f"{name}_done"])
    return graph.add_edge(START, names).add_node("last", lambda n: {}).add_edge(names, "last").add_edge("last", END)


def head(page: Any, name: str) -> None:
    """Wait until the pane shows a step."""
    until(page, "document.querySelector('.pane h2')?.textContent === value", name)


def test_a_run_is_read_by_keyboard_alone(tab: Tab) -> None:
    """S004-22: the state over time, step by step, with the node that wrote each field."""
    page = tab.run("waits-2")
    assert TOKEN not in page.url
    keys = page.keyboard
    head(page, "ask")  # what waits is shown first
    assert "Send a card?" in page.inner_text(".asks")
    keys.press("ArrowUp")
    head(page, "draft")
    page.get_by_role("tab", name="Changes").click()
    page.wait_for_selector("#panel ins:has-text('dear a card')")
    keys.press("]")
    page.locator("#panel .field", has_text="both").get_by_text("by weigh").wait_for()  # and not by what wrote later
    keys.press("]")
    page.wait_for_selector(".gnode.current [data-node=draft]")
    idle = page.locator(".gnode.idle [data-node]").evaluate_all("found => found.map((one) => one.dataset.node)")
    assert idle == ["send", "END"]
    page.locator("[data-node=look]").press("Enter")
    head(page, "look")
    keys.press("[")
    keys.press("[")
    page.get_by_text("looked at a card").first.wait_for()  # a post to a live field
    page.get_by_label("bookkeeping").check()
    page.locator("[role=treeitem]", has_text="join draft").click()
    page.wait_for_selector(".conflict:has-text('amount'), .conflict:has-text('both')")
    keys.press("Escape")
    until(page, f"{FOCUSED} === 'tree'")
    keys.press("Home")
    head(page, "inputs")
    keys.press("End")
    keys.press("/")
    keys.type("DEAR A c")
    until(page, "document.querySelectorAll('[role=treeitem]').length === 1")
    keys.press("Enter")
    head(page, "draft")
    keys.press("Enter")  # to what stands beside the tree
    until(page, "document.activeElement?.matches('.right')")
    keys.press("Escape")
    keys.press("?")
    page.wait_for_selector("dialog[open]")
    keys.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    wide = page.locator(".left").bounding_box()["width"]
    page.get_by_role("separator").focus()
    keys.press("ArrowRight")
    assert page.locator(".left").bounding_box()["width"] > wide


def test_steps_in_steps_unfold_and_the_strip_zooms(tab: Tab) -> None:
    page = tab.run("nested")
    head(page, "inner")
    page.locator("[role=tree]").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        until(page, "true")
    head(page, "spell[1]")
    assert HOSTILE in page.inner_text(".pane")
    page.keyboard.press("ArrowLeft")
    head(page, "spell")
    page.wait_for_selector("#panel:has-text('2 of 3 items done')")
    page.get_by_role("button", name="1 failed").click()
    until(page, "document.querySelectorAll('#panel .field').length === 1")
    page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="inner", exact=True).click()
    head(page, "inner")
    page.get_by_text("traceback").wait_for()  # of the failure of the item, a model: nothing but its fields
    assert "$" not in page.inner_text(".pane")
    page.get_by_role("tab", name="Graph").click()
    page.get_by_role("button", name="Open the graph of inner").click()
    page.locator("[data-node=spell]").click()
    head(page, "spell")

    tab.run("wide", step=f"wide.1/{WIDTH - 1}:0", tab="graph")
    page.locator(f".gnode.current [data-node=node_{WIDTH - 1}]").wait_for()
    assert page.evaluate(IN_SIGHT)

    tab.run("nested")
    box = page.locator(".stripbox").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
    page.mouse.up()
    page.get_by_role("button", name="Whole run").click()
    page.keyboard.press("z")  # to what is selected
    page.get_by_role("button", name="Whole run").wait_for()
    page.keyboard.press("z")
    page.get_by_role("button", name="Whole run").wait_for(state="detached")
    page.locator(".strip .sbar").first.click()
    head(page, "inner")


def test_a_run_of_another_process_is_watched(tab: Tab, desk: Served) -> None:
    desk.stepping.ready()
    desk.stepping.go()
    while desk.program.thread("watched").status == "new":
        time.sleep(0.01)
    page = tab.run("watched")
    page.wait_for_selector(".pill.live:has-text('running')")
    page.wait_for_selector("[role=treeitem].runs")  # what it works on now
    page.keyboard.press("Home")
    head(page, "inputs")
    took = []
    for number in range(1, 4):
        begun = time.monotonic()
        desk.stepping.go()
        until(page, "document.querySelectorAll('[role=treeitem]:not(.runs)').length === value", number + 1)
        took.append(time.monotonic() - begun)
    head(page, "inputs")  # the selection stays
    desk.stepping.go("fail")
    page.wait_for_selector(".bar .pill.bad:has-text('failed')")
    until(page, "document.querySelector('#news').textContent === 'The run is now failed'")
    page.keyboard.press("End")
    page.wait_for_selector(".pane .note.bad:has-text('told to fail')")
    fits(page, "a run that goes on", axe=False)
    assert min(took) < 0.5, took


def test_long_and_hostile_texts_blank_nothing(tab: Tab, desk: Served, tmp_path: Path) -> None:
    store = str(desk.path)
    failing = (
        Graph(name="Failing", inputs=["text"]).add_node("read", raising, writes=["n"]).add_path(START, "read", END)
    )
    failed = failing.compile(store=store).thread("long-failure").run({"text": "e" * LONGEST})
    asking = Graph(name="Asking", inputs=["text"]).add_interrupt("ask", question="{text}!", answer=bool, into="ok")
    asking.add_path(START, "ask", END).compile(store=store).thread("long-question").run({"text": "q" * LONGEST})
    page = tab.run("long-failure")
    files = [failed.to_html(tmp_path / "run.html").as_uri()]
    for place in ("inspector", *files):
        if place != "inspector":
            page.goto(place)
        head(page, "read")
        assert len(page.inner_text("body")) < 5_000
        page.locator("summary", has_text="Traceback").click()
        page.locator(".trace").get_by_role("button", name="show all").click()
        until(page, "document.querySelector('.trace').textContent.includes('attempt 1)')")  # cut in the middle
        assert page.locator("[role=treeitem]").count() == 2
    tab.run("long-question")
    head(page, "ask")
    page.locator(".asks").get_by_role("button", name="show all").first.click()
    until(page, f"document.querySelector('.asks').textContent.includes('q'.repeat({LONGEST}) + '!')")

    for thread in (HOSTILE, "hostile-error"):
        tab.run(thread)
        seen = ""
        for _ in range(page.locator("[role=treeitem]").count()):
            for name in page.get_by_role("tab").all_inner_texts():
                page.get_by_role("tab", name=name).click()
                until(page, "document.querySelector('#panel').textContent.length > 0")
                seen += page.inner_text(".right")
            page.keyboard.press("Escape")
            page.keyboard.press("ArrowUp")
        assert HOSTILE in seen

    # A damaged row is a step that says so.
    desk.program.thread("damaged").run({"text": "a note"})
    row = "run = (SELECT id FROM run WHERE thread = 'damaged') AND seq = 2"
    with closing(sqlite3.connect(desk.path)) as file, file:
        assert file.execute(f"UPDATE entry SET body = x'1234' WHERE {row}").rowcount == 1
    tab.run("damaged")
    page.locator("[role=treeitem]", has_text="unreadable").first.click()
    page.get_by_text("This step cannot be read").wait_for()
    assert page.locator("[role=treeitem]").count() > 3

    # What cannot be read says so where it stands; the rest is shown, and it is asked for again.
    page.route("**/api/values*", lambda route: route.fulfill(status=503, json={"error": {"message": "no store"}}))
    tab.run("waits-1", step="waits-1.1/trunk:2", tab="state")
    page.get_by_text("no store").first.wait_for()
    head(page, "draft")
    page.unroute("**/api/values*")
    page.locator("#panel .field", has_text="text").first.get_by_role("button", name="Try again").click()
    page.locator("#panel .field", has_text="a letter").first.wait_for()


@pytest.mark.slow("axe reads each tab")
def test_the_view_fits_nothing_moves_and_axe_finds_nothing_serious(tab: Tab) -> None:
    page = tab.page
    for (place, view), (width, scheme) in product(SEEN, ((380, "dark"), (1440, "light"))):
        page.set_viewport_size({"width": width, "height": 760})
        page.emulate_media(color_scheme=scheme)
        thread, _, step = place.partition(" ")
        tab.run(thread, step=f"{thread}.1/{step}", tab=view)
        page.wait_for_selector(f"#tab-{view}[aria-selected=true]")
        until(page, "!document.querySelector('.pane [aria-busy=true]')")
        fits(page, f"{place} {view} {scheme}", axe=(view in AXE_VIEWS) == (width == 380))
        page.set_viewport_size({"width": 1024, "height": 760})
        fits(page, f"{place} {view}", axe=False, moves=True)
    page.set_viewport_size({"width": 380, "height": 760})  # a step is a page of its own
    tab.run("long", step=f"long.1/trunk:{LONG}")
    page.get_by_role("button", name="Steps").click()
    page.locator("[role=treeitem]", has_text=f"×{LONG}").wait_for()
    assert page.locator(".pane").count() == 0
    page.locator("[role=treeitem]").last.click()
    page.locator(".page .pane h2").wait_for()
    page.go_back()
    page.locator("[role=treeitem]").last.wait_for()
    page = tab.open("run", thread="long")
    page.wait_for_selector("[role=treeitem]")
    page.evaluate("document.querySelector('[role=tree]').scrollTop = 300 * 30")
    page.locator("[role=treeitem]", has_text="×303").wait_for()
    assert page.locator("[role=treeitem]").count() < 60
    assert page.locator(".strip svg *").count() < 200
    fits(page, "long", axe=False)

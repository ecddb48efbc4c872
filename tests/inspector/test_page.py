"""The page in a browser: keyboard, live updates, hostile values, acting in two tabs, widths, shifts, accessibility."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph, Run
from tests.asgi_server import served
from tests.inspector.desk import HOSTILE, LONG, Stepping, fill

TOKEN = "token-of-the-browser-tests"
AXE = Path(__file__).parents[2] / "inspector" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("steps", "graph", "timeline", "live", "conflicts", "stats", "repairs")
SELECT = """(step) => {
  location.hash = location.hash.replace(/&step=.*|$/, `&step=${encodeURIComponent(step)}`);
}"""
ASK_FROM_ELSEWHERE = """async ([address, token]) => {
  const body = '{"thread":"waits-1"}';
  const tries = [
    fetch(`${address}/api/runs`, { headers: { "X-Dspyer-Token": token } }).then((found) => found.status),
    fetch(`${address}/api/resume`, { method: "POST", mode: "no-cors", body }).then((found) => found.type),
  ];
  return Promise.all(tries.map((one) => one.catch((error) => error.name)));
}"""
CHECK = """axe.run(document, { resultTypes: ["violations"], preload: false }).then((result) => result.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.map((node) => node.html)]))"""
UNFOLD = """() => {
  for (let round = 0; round < 4; round += 1) {
    for (const button of document.querySelectorAll(".panebody [aria-expanded=false]")) button.click();
  }
}"""
PARTS = ("bar", "runhead", "tabs", "listbar", "scroller", "panehead", "panebody")
REACHED = """(parts) => {
  window.reached = new Set();
  const part = (element) => parts.find((name) => element.closest(`.${name}`));
  document.addEventListener("focusin", (event) => window.reached.add(part(event.target)));
}"""
LAID_OUT = """async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
  const widths = [document.documentElement, document.querySelector("main")].map((one) => one.scrollWidth);
  return [window.shifts, Math.max(...widths)];
}"""


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
    stepping = Stepping(path)
    with served(dspyer.inspector.app(str(path), program, token=TOKEN)) as address:
        yield Served(address, program, long, path, stepping)
    stepping.end()


class Tab:
    """A tab of the page.

    Attributes:
        page: Playwright's page.
    """

    number = itertools.count()

    def __init__(self, page: Any, desk: Served) -> None:
        self.page = page
        self.desk = desk

    def open(self, route: str = "/runs") -> Any:
        """Open an address of the page as a link from outside: a document of its own."""
        self.page.goto(f"{self.desk.address}/?{next(self.number)}#token={TOKEN}{route}")
        return self.page

    def thread(self, name: str, **params: str) -> Any:
        """Open the last run of a thread and wait until it is shown."""
        more = "".join(f"&{key}={quote(value)}" for key, value in params.items())
        self.open(f"/run?thread={quote(name)}{more}")
        self.page.wait_for_selector("main.run .runhead")
        return self.page

    def clean(self) -> None:
        """Nothing ran or was blocked."""
        assert self.page.evaluate("[window.hacked, window.violations]") == [None, []]


@pytest.fixture
def tab(page: Any, chromium: Any, desk: Served) -> Iterator[Tab]:
    """The page, which asks no other server for anything."""
    one = Tab(page, desk)
    yield one
    one.clean()
    assert [url for url in chromium.asked if not url.startswith((desk.address, "data:", "blob:"))] == []


def until(page: Any, expression: str, value: Any = None) -> None:
    """Wait until JavaScript is true. Playwright's own waiting needs `eval`, which the policy of the page forbids."""
    wait = f"if ({expression}) return true; await new Promise((done) => setTimeout(done, 5));"
    script = f"async (value) => {{ const end = Date.now() + 30_000; while (Date.now() < end) {{ {wait} }} }}"
    assert page.evaluate(script, value), expression


def rows(page: Any, number: int) -> None:
    """Wait until a list has so many rows."""
    until(page, f"document.querySelectorAll('a.row').length === {number}")


def status(page: Any, name: str) -> None:
    """Wait until the head of the run says a status."""
    page.wait_for_selector(f".runhead .status.s-{name}")


def test_the_lists_filter_search_and_lead_to_a_run(tab: Tab) -> None:
    page = tab.open()
    page.wait_for_selector("a.row")
    assert TOKEN not in page.url
    page.get_by_label("Status").select_option("failed")
    rows(page, 2)
    page.get_by_label("Search").fill("CANNOT send fail <img")
    rows(page, 1)
    page.get_by_role("link", name="Threads").click()
    page.wait_for_selector("a.row:nth-of-type(1)")
    page.get_by_label("Graph").fill("Long")
    rows(page, 1)
    page.click("a.row")
    status(page, "completed")
    page.go_back()
    rows(page, 1)
    assert page.get_by_label("Graph").input_value() == "Long"


def test_every_page_works_by_keyboard(tab: Tab) -> None:
    page = tab.open()
    page.wait_for_selector("a.row")
    keys = page.keyboard
    keys.press("/")
    keys.type("long")
    rows(page, 1)
    keys.press("Escape")
    keys.press("j")
    keys.press("Enter")
    status(page, "completed")
    page.wait_for_selector("[role=row][aria-selected=true]")
    keys.press("k")
    keys.press("k")
    until(page, f"document.querySelector('.panehead')?.textContent.includes('trunk:{LONG - 2}')")
    for number, view in enumerate(VIEWS, 1):
        if view != "live":
            keys.press(str(number if number < 4 else number - 1))
            page.wait_for_selector(f".view-{view}")
    keys.press("1")
    keys.press("Escape")  # to the list
    until(page, "document.activeElement?.getAttribute('role') === 'grid'")
    keys.press("Home")
    until(page, "document.querySelector('.panehead h2')?.textContent === 'START'")
    keys.press("ArrowDown")
    keys.press("Enter")  # to the step
    until(page, "document.activeElement?.tagName === 'H2'")
    keys.press("/")
    keys.type("no such field")
    page.wait_for_selector("text=0 of")
    keys.press("Escape")
    keys.press("?")
    page.wait_for_selector("dialog[open]")
    keys.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.evaluate(REACHED, PARTS)
    for _ in range(60):
        keys.press("Tab")
    assert set(page.evaluate("[...window.reached]")) >= {*PARTS}


def test_a_step_shows_what_it_changed_read_and_asked(tab: Tab) -> None:
    """S004-22: the state over time, step by step."""
    page = tab.thread("waits-2", step="waits-2.1/trunk:2")
    page.wait_for_selector(".panehead h2:text-is('draft')")
    assert "dear a card" in page.locator("#changes ins").inner_text()
    writers = page.locator(".state > div", has_text="both").first.inner_text()
    assert "by weigh" in writers  # and not by what wrote later
    page.get_by_role("button", name="Previous step").click()
    page.wait_for_selector(".panehead h2:text-is('join:draft')")
    assert "chosen" in page.locator(".conflict").inner_text()
    page.get_by_role("tab", name="Graph").click()
    page.wait_for_selector(".gnode.current[data-node=draft]")
    page.locator(".gnode[data-node=look]").click()
    page.wait_for_selector(".panehead h2:text-is('look')")
    assert page.locator(".gnode.idle").evaluate_all("found => found.map((one) => one.dataset.node)") == ["send", "END"]


def test_a_failed_run_says_at_once_what_it_was_doing_and_goes_on_as_a_corrected_copy(tab: Tab, desk: Served) -> None:
    page = tab.thread("failed")
    status(page, "failed")
    assert "send failed: ValueError: cannot send fail" in page.locator(".says").inner_text()
    page.wait_for_selector(".panehead h2:has-text('send failed')")
    page.wait_for_selector(".state dt:has-text('reply')")
    page.get_by_role("button", name="show the traceback").click()
    assert "in send" in page.locator(".traceback").inner_text()

    page.get_by_role("button", name="Copy…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the new thread").fill("mended")
    dialog.get_by_role("button", name="text").click()
    dialog.get_by_label("text, as JSON").fill('"better"')
    dialog.get_by_role("button", name="Copy and run").click()
    status(page, "completed")
    assert desk.program.thread("mended").state["text"] == "better"
    assert desk.program.thread("failed").status == "failed"


def test_ten_thousand_rows_scroll_and_few_are_elements(tab: Tab) -> None:
    page = tab.thread("long", step="long.1/trunk:0")
    page.wait_for_selector("[role=row] .nodename")
    page.evaluate("document.querySelector('.scroller').scrollTop = 300 * 34")
    until(page, "document.querySelector('[aria-rowindex=\"310\"] .nodename')")
    assert page.locator("[role=row]").count() < 60
    assert page.get_by_role("grid").get_attribute("aria-rowcount") == str(LONG + 1)


def test_a_run_is_watched_while_another_process_executes_it(tab: Tab, desk: Served) -> None:
    desk.stepping.ready()
    desk.stepping.go()
    while desk.program.thread("watched").status == "new":
        time.sleep(0.01)
    page = tab.thread("watched")
    status(page, "running")
    page.wait_for_selector("[role=row]")
    took = []
    for number in range(1, 4):
        begun = time.monotonic()
        desk.stepping.go()
        page.wait_for_selector(f"[aria-rowindex='{number + 1}'] .nodename")
        took.append(time.monotonic() - begun)
    desk.stepping.go("fail")
    status(page, "failed")
    assert "told to fail" in page.locator(".says").inner_text()
    until(page, "document.querySelector('#news').textContent === 'The run is now failed'")  # read aloud after the step
    assert min(took) < 5, took  # 0.1 s without other work on the machine; a page that is not told asks after 15 s


def test_hostile_values_are_only_text(tab: Tab) -> None:
    page = tab.open()
    for name in (HOSTILE, "hostile-error"):
        page.locator("a.row .name", has_text=name).click()
        page.wait_for_selector(".pane h2")
        for view, key in reversed([*zip(VIEWS, "1234567", strict=True)]):
            page.keyboard.press(key)
            page.wait_for_selector(f".view-{view}")
        for step in ("trunk:0", "0:0", "1:0", "trunk:1", "trunk:2"):
            label = f"{name}.1/{step}"
            page.evaluate(SELECT, label)
            until(page, "document.querySelector('.panehead p')?.textContent.startsWith(value)", label)
            page.evaluate(UNFOLD)
        assert HOSTILE in page.inner_text(".panebody")
        page.get_by_role("link", name="Runs", exact=True).click()


def test_a_foreign_page_is_refused(tab: Tab, desk: Served, chromium: Any) -> None:
    page = tab.page
    page.route("http://evil.test/", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
    page.goto("http://evil.test/")
    found = page.evaluate(ASK_FROM_ELSEWHERE, [desk.address, TOKEN])
    assert found[0] == "TypeError"
    assert desk.program.thread("waits-1").status == "interrupted"
    chromium.asked.clear()
    page.goto(f"{desk.address}/#token=wrong/runs")
    page.wait_for_selector("text=This tab has no token")
    page.get_by_label("Address or token").fill(f"{desk.address}/#token={TOKEN}")
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector("a.row")


def test_two_tabs_answer_copy_and_rerun(tab: Tab, desk: Served) -> None:
    page = tab.thread("waits-1")
    page.wait_for_selector("form.answer")
    # A link without a token, in a tab of its own: the other tab has it.
    other = Tab(page.context.new_page(), desk)
    other.page.goto(page.url)
    other.page.wait_for_selector("form.answer")

    page.bring_to_front()  # Chromium draws the others once a second, and a click waits until what it hits stands still
    page.get_by_label("Yes").check()
    page.get_by_role("button", name="Answer and resume").click()
    status(page, "completed")
    status(other.page, "completed")
    assert desk.program.thread("waits-1").state["sent"] == "sent 8"
    other.page.get_by_label("Yes")

    other.page.bring_to_front()
    second = other.thread("waits-1", step="waits-1.1/trunk:2")
    second.get_by_role("button", name="Copy…").click()
    dialog = second.get_by_role("dialog")
    dialog.get_by_label("Name of the new thread").fill("try-1")
    dialog.get_by_role("button", name="amount").click()
    dialog.get_by_label("amount, as JSON").fill("-7")
    dialog.get_by_role("button", name="Copy and run").click()
    dialog.locator(".edit.wrong").wait_for()
    assert "greater than or equal to 0" in dialog.locator(".edit.wrong .bad").inner_text()
    dialog.get_by_label("amount, as JSON").fill("{")
    dialog.get_by_role("button", name="Copy and run").click()
    dialog.locator(".edit.wrong", has_text="no JSON").wait_for()
    dialog.get_by_label("amount, as JSON").fill("99")

    page.bring_to_front()
    page = tab.thread("waits-1", step="waits-1.1/trunk:2")
    page.get_by_role("button", name="Rerun from here").click()
    first_dialog = page.get_by_role("dialog")
    first_dialog.get_by_text("After this step the run made 2 steps with 0 LM calls").wait_for()
    dialog.get_by_role("button", name="Copy and run").click()  # while the other tab asks
    first_dialog.get_by_role("button", name="Rerun", exact=True).click()
    status(page, "interrupted")
    status(second, "interrupted")
    second.bring_to_front()
    second.wait_for_selector("form.answer")
    second.get_by_label("Yes").check()
    second.get_by_role("button", name="Answer and resume").click()
    status(second, "completed")
    assert desk.program.thread("try-1").state["sent"] == "sent 99"
    assert desk.program.thread("waits-1").status == "interrupted"
    other.clean()


def pages_of(tab: Tab) -> Iterator[tuple[str, Any]]:
    """Each page and view."""
    for route in ("/runs", "/threads"):
        page = tab.open(route)
        page.wait_for_selector("a.row")
        yield route, page
    for view in VIEWS:
        page = tab.thread("failed", view=view)
        page.wait_for_selector(f".view-{view} :is([role=row], svg, table, .empty, .posts, .conflict)")
        yield view, page
    for step in ("failed.1/trunk:2", "!failed.1/trunk:4"):
        page = tab.thread("failed", step=step)
        page.wait_for_selector(".panebody .part")
        yield step, page
    page = tab.thread("waits-2", step="?waits-2.1/trunk:3/ask")
    page.wait_for_selector("form.answer")
    yield "question", page


@pytest.mark.slow("axe reads each page")
@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1280, "light")])
def test_pages_fit_nothing_moves_and_axe_finds_nothing_serious(tab: Tab, width: int, scheme: str) -> None:
    tab.page.set_viewport_size({"width": width, "height": 760})
    tab.page.emulate_media(color_scheme=scheme)
    axe = AXE.read_text() if AXE.exists() else None
    for name, page in pages_of(tab):
        shifts, wide = page.evaluate(LAID_OUT)
        assert shifts == [], name
        assert wide <= width, name
        if axe is not None and (scheme == "light" or name in ("/runs", "graph", "failed.1/trunk:2", "question")):
            page.evaluate(axe)
            assert page.evaluate(CHECK) == [], name
    if axe is None:
        pytest.skip("axe-core is not installed: accessibility was not checked; npm ci in inspector/")


EMOJI = "\N{PARTY POPPER}"


class Node(BaseModel):
    """An answer that may contain itself."""

    name: str
    inside: Node | None = None


def raising(text: str) -> dict[str, Any]:
    raise ValueError(text)


def test_long_texts_are_shown_and_loaded_whole(tab: Tab, desk: Served, chromium: Any, tmp_path: Path) -> None:
    failing = (
        Graph(name="Failing", inputs=["text"]).add_node("read", raising, writes=["n"]).add_path(START, "read", END)
    )
    failing.compile(store=str(desk.path)).thread("long-failure").run({"text": "e" * 40_000})
    page = tab.thread("long-failure")
    page.wait_for_selector(".panehead h2:has-text('read failed')")
    page.get_by_role("button", name="show the traceback").click()
    page.get_by_role("button", name="more characters").click()
    until(page, "document.querySelector('.traceback').textContent.endsWith('attempt 1)\\n')")

    asking = Graph(name="Asking", inputs=["text"]).add_interrupt("ask", question="{text}!", answer=Node, into="node")
    asking.add_path(START, "ask", END)
    run = asking.compile(store=str(desk.path)).thread("long-question").run({"text": EMOJI * 21_000})
    whole = f"document.querySelector('.question .text').textContent === '{EMOJI}'.repeat(21000) + '!'"
    for address in ("inspector", "file"):
        page = tab.thread("long-question") if address == "inspector" else page
        if address == "file":
            page.goto(run.to_html(tmp_path / "run.html").as_uri())
            chromium.asked.clear()
        page.locator(".question").get_by_role("button", name="show all 21,001 characters").click()
        if address == "inspector":
            assert page.locator("form.answer fieldset").count() == 4  # of a model in itself in itself, then JSON
            page.locator(".question").get_by_role("button", name="load 1,001 more characters").click()
        until(page, whole)
    page = tab.open()
    page.wait_for_selector("a.row")
    assert EMOJI in page.locator("a.row", has_text="long-question").inner_text()
    for thread in ("long-failure", "long-question"):
        desk.program.thread(thread).delete()


def test_only_fields_that_a_step_has_changed_are_its_changes(tab: Tab, desk: Served) -> None:
    """Of a large state what is sent of each value differs before and after the step."""
    fields = [f"field-{number}" for number in range(30)]
    graph = Graph(name="Wide").add_node("fill", lambda: {name: ["v" * 19_000] for name in fields}, writes=fields)
    graph.add_node("mend", lambda: {"field-7": ["w"]}, writes=["field-7"]).add_path(START, "fill", "mend", END)
    graph.compile(store=str(desk.path)).thread("wide").run({})
    page = tab.thread("wide")
    page.wait_for_selector(".panehead h2:text-is('mend')")
    assert page.locator("#changes h4").all_inner_texts() == ["field-7"]
    assert page.locator(".part", has_text="State after").locator("dt code").all_inner_texts() == fields
    desk.program.thread("wide").delete()


def test_a_view_that_fails_says_so_and_asks_nothing(tab: Tab, chromium: Any) -> None:
    page = tab.page
    for broken, words, view, shown in (
        ("run", "This page cannot be shown", "steps", ".panehead h2:text-is('draft')"),
        ("commit", "The step waits-2.1/trunk:2 cannot be shown", "steps", ".panehead h2:text-is('draft')"),
        ("stats", "The view Statistics cannot be shown", "stats", ".view-stats table"),
    ):
        chromium.asked.clear()
        page.route(f"**/api/{broken}?*", lambda route: route.fulfill(json={"nodes": [None], "info": {}}))
        tab.open(f"/run?thread=waits-2&step=waits-2.1/trunk:2&view={view}")
        page.get_by_text(words).wait_for()
        page.wait_for_timeout(100)
        assert len([url for url in chromium.asked if f"/api/{broken}?" in url]) <= 2
        if broken != "run":
            page.get_by_role("tab", name="Graph").click()
            page.wait_for_selector(".gnode")
            page.locator(f"#tab-{view}").click()
            page.get_by_text(words).wait_for()
        page.unroute(f"**/api/{broken}?*")
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector(shown)
        page.get_by_role("link", name="Threads").click()
        page.wait_for_selector("a.row")


def test_rows_that_cannot_be_read_are_not_asked_for_in_a_loop(tab: Tab, chromium: Any) -> None:
    page = tab.page
    page.route("**/api/commits?*", lambda route: route.fulfill(status=503, json={"error": {"message": "disk gone"}}))
    tab.open("/run?thread=long")
    page.locator(".steplist .problem", has_text="disk gone").wait_for()
    for _ in range(5):
        page.mouse.move(200, 500)
        page.mouse.wheel(0, -3000)
        page.wait_for_timeout(30)
    assert len([url for url in chromium.asked if "/api/commits?" in url]) <= 4
    page.unroute("**/api/commits?*")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("[role=row] .nodename")
    assert page.locator(".problem").count() == 0


def test_a_run_as_a_file_opens_from_disk(page: Any, chromium: Any, desk: Served, tmp_path: Path) -> None:
    address = desk.long.to_html(tmp_path / "run.html").as_uri()
    page.goto(address)
    page.wait_for_selector(f"text={LONG + 1 - 500} between them are left out")
    page.wait_for_selector(f".panehead p:has-text('trunk:{LONG}')")
    page.evaluate(UNFOLD)
    assert HOSTILE in page.inner_text(".panebody")
    for number in range(1, 7):
        page.keyboard.press(str(number))
    page.wait_for_selector(".view-repairs")
    assert [url for url in chromium.asked if not url.startswith("data:")] == [address]
    assert page.evaluate("[window.hacked, window.violations]") == [None, []]
    assert page.get_by_role("button", name="Resume").count() == 0

"""The views that list, in Chromium: runs with their overview, two runs compared, questions, data sets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph
from dspyer.testing import ScriptedLM
from tests.asgi_server import served
from tests.inspector.desk import HOSTILE
from tests.inspector.watching import TOKEN, Tab, fits, until

LONG = "Is this letter right? " + "word " * 11_990 + "the end"
TOMORROW = "() => { const now = Date.now; Date.now = () => now() + 86_400_000; }"
WORDS = ["kind", "short"]

REACHED = """() => {
  window.reached = new Set();
  const part = (element) => (element.closest("form.answer") ? "form" : element.tagName);
  document.addEventListener("focusin", ({ target }) => window.reached.add(part(target)));
}"""


class Verdict(BaseModel):
    ok: bool
    words: list[str] = []
    weight: int | None = None
    tone: Literal["warm", "cold"] = "warm"


class Letter(BaseModel):
    text: str
    tone: str = "warm and long"
    reply: str = ""
    verdict: Verdict | None = None
    sent: str = ""


def send(text: str, reply: str) -> dict[str, Any]:
    if "fail" in text:
        raise ValueError(f"cannot send {text}")
    return {"sent": f"sent {reply}"}


def letters(store: str, name: str = "Letters", **options: Any) -> CompiledGraph:
    graph = Graph(Letter, name=name).add_node("draft", dspy.Predict("text, tone -> reply"))
    graph.add_interrupt("ask", question=lambda text: text, answer=Verdict, into="verdict")
    graph.add_node("send", send, writes=["sent"]).add_path(START, "draft", "ask", "send", END)
    return graph.compile(store=store, record_lm_calls="full", **options)


def fill(path: str) -> CompiledGraph:
    """Runs: one that failed, a copy with an edited field, one that hides, some that wait."""
    program = letters(path)
    yes = {"ask": {"ok": True}}
    answer = ScriptedLM(lambda prompt: {"reply": f"Dear {prompt.inputs['text'][:40]}, {prompt.inputs['tone']}."})
    with dspy.context(lm=answer):
        for number, text in ((17, "fail 17"), (18, "an old card")):
            late = program.thread(f"late-{number}")
            late.run({"text": text})
            late.resume(yes)
        origin = program.thread("origin")
        origin.run({"text": "a card from the sea"})
        time.sleep(0.05)  # so long that the page shows it
        origin.resume(yes, by="ada", comment="nice")
        copy = origin.copy("origin-short", at=0, patch={"tone": "short"})
        copy.resume()
        copy.resume(yes)
        secret = letters(path, name="Secrets", redact=["text"]).thread("secret")
        secret.run({"text": "a secret of the sea"})
        for name, text in (("waits-long", LONG), ("waits-2", "a card"), (HOSTILE, HOSTILE)):
            program.thread(name).run({"text": text})
    return program


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, CompiledGraph, str]]:
    """The address of one server, its program and its store."""
    path = str(tmp_path_factory.mktemp("lists") / "runs.db")
    program = fill(path)
    with served(dspyer.inspector.app(path, program, token=TOKEN)) as address:
        yield address, program, path


class Lists(Tab):
    """A tab of the page that shows a list."""

    def open(self, view: str = "runs", **params: str) -> Any:
        """Open a view, and wait until it is there."""
        super().open(view, **params)
        self.page.wait_for_selector("main#main:not([aria-busy=true])")
        return self.page

    def rows(self, count: int) -> None:
        """Wait until the list has so many rows."""
        until(self.page, "document.querySelectorAll('.listrow, .example').length === value", count)


@pytest.fixture
def tab(page: Any, desk: Any) -> Iterator[Lists]:
    one = Lists(page, desk[0])
    yield one
    one.clean()


def test_a_failed_run_of_yesterday_is_found(tab: Lists) -> None:
    page = tab.open("runs")
    tab.rows(8)
    assert TOKEN not in page.url
    page.evaluate(TOMORROW)
    page.get_by_role("button", name="failed").click()
    tab.rows(1)
    page.get_by_role("button", name="Today").click()
    page.get_by_text("Nothing fits").wait_for()
    page.get_by_role("button", name="7 days").click()
    tab.rows(1)
    page.get_by_role("button", name="any status").click()
    page.get_by_label("Contains").fill("CANNOT Send")
    tab.rows(1)
    page.get_by_label("Seconds from").fill("100000")
    page.get_by_text("Nothing fits").wait_for()
    page.get_by_label("Seconds from").fill("-1")
    page.get_by_role("alert").wait_for()
    page.get_by_label("Seconds from").fill("")
    tab.rows(1)
    assert "send: ValueError: cannot send fail 17" in page.locator(".listrow").inner_text()
    page.locator(".listrow").click()
    page.get_by_role("heading", name="late-17").first.wait_for()
    page.go_back()
    tab.rows(1)
    assert page.get_by_label("Contains").input_value() == "CANNOT Send"
    # The same by its cause, and the figures above the list.
    page.get_by_role("link", name="Show every run").or_(page.get_by_role("link", name="Runs")).first.click()
    tab.rows(8)
    assert page.locator(".chart .sumfigure").first.inner_text() == "8"
    page.locator("#panel a", has_text="cannot send").click()
    tab.rows(1)
    page.get_by_role("tab", name="Nodes").click()
    page.locator("#panel a", has_text="draft").click()
    assert "node=draft" in page.url


def test_a_copy_is_compared_with_its_origin(tab: Lists) -> None:
    page = tab.open("runs", contains="card from the sea")
    tab.rows(2)
    keys = page.keyboard
    for key in ("j", "x", "j", "x"):  # the newest one is above: B is the one chosen last
        keys.press(key)
    page.get_by_role("region", name="Runs to compare").get_by_text("origin-short").wait_for()
    keys.press("c")
    page.get_by_role("region", name="Run A").get_by_text("copy of B after").wait_for()
    page = tab.open("compare", thread="origin", other_thread="origin-short")
    page.get_by_text("copy of A after inputs, with tone edited").wait_for()
    assert page.locator(".kpi").count() >= 4
    edit = page.locator(".pairline", has_text="edited by hand")
    assert edit.locator("del").inner_text() == "warm and long"
    assert edit.locator("ins").inner_text() == "short"
    page.get_by_text("1 equal step: inputs").wait_for()
    draft = page.locator(".pairline", has_text="draft")
    assert "reply, prompt: tone" in draft.inner_text()
    keys.press("Home")
    keys.press("ArrowRight")
    until(page, "document.querySelectorAll('.pair').length > 4")
    keys.press("ArrowLeft")
    page.get_by_role("button", name="Open all").click()
    answered = page.locator(".pairline", has_text="ask").locator(".pairbody")
    answered.get_by_text("by ada: “nice”").wait_for()
    page.get_by_role("link", name="Open B").click()
    page.get_by_role("heading", name="origin-short").first.wait_for()
    page = tab.open("compare", thread="origin", other_thread="origin")
    said = [page.locator(".kpi", has_text=name).locator("b").inner_text() for name in ("work", "waited")]
    page = tab.open("run", thread="origin")
    page.get_by_text("of work").first.wait_for()
    assert page.locator(".figs").inner_text().startswith(f"{said[0]} of work\n{said[1]} waited")
    page = tab.open("compare", thread="origin")  # without a second run, those of its graph
    page.get_by_role("link", name="origin-short").click()
    page.get_by_role("region", name="Run B").wait_for()


def test_a_long_question_is_answered_while_another_tab_drafts(tab: Lists, desk: Any) -> None:
    _, program, path = desk
    page = tab.open("questions")
    page.locator(".ask", has_text="waits-long").click()
    page.get_by_role("button", name="show all").click()
    until(page, "document.querySelector('.quote').textContent.includes('the end')")
    form = page.locator("form.answer")
    form.get_by_role("button", name="Answer and resume").click()
    form.get_by_text("an answer is needed").first.wait_for()
    form.get_by_role("button", name="Add an item").click()
    form.get_by_role("textbox", name="Words 1").fill("kind")
    form.get_by_label("Comment").fill("still thinking")
    page.locator(".ask", has_text="waits-2").click()
    page.locator(".quote", has_text="a card").wait_for()
    assert page.locator("form.answer").get_by_label("Comment").input_value() == ""
    page.reload()
    page.locator(".ask", has_text="waits-long").click()
    assert form.get_by_role("textbox", name="Words 1").input_value() == "kind"

    other = Lists(page.context.new_page(), tab.address)
    there = other.open("questions")
    there.locator(".ask", has_text="waits-long").click()
    answer = there.locator("form.answer")
    answer.locator(".choice", has_text="Yes").click()
    for number, word in enumerate(WORDS, 1):
        answer.get_by_role("button", name="Add an item").click()
        answer.get_by_role("textbox", name=f"Words {number}").fill(word)
    answer.get_by_label("Weight").fill("seven")
    answer.get_by_label("Given by").fill("ada")
    answer.get_by_role("button", name="Answer and resume").click()
    answer.get_by_text("this is no number").wait_for()
    answer.get_by_label("Weight").fill("7")
    answer.get_by_role("button", name="Answer and resume").click()
    there.get_by_text("You have answered").wait_for()
    begun = time.monotonic()
    page.get_by_text("Answered elsewhere by ada").wait_for()
    assert time.monotonic() - begun < 2  # half a second on a machine with nothing else to do
    assert "still thinking" in page.get_by_role("region", name="Your draft").inner_text()
    verdict = program.thread("waits-long").state["verdict"]
    assert (verdict.ok, list(verdict.words), verdict.weight, verdict.tone) == (True, WORDS, 7, "warm")
    there.close()

    with served(dspyer.inspector.app(path, token=TOKEN)) as reading:
        page = Lists(page, reading).open("questions")
        page.get_by_text("--program module:graph").wait_for()
        assert page.locator("form.answer").count() == 0


def test_examples_are_corrected_and_exported(tab: Lists, desk: Any) -> None:
    _, program, _ = desk
    (step,) = [commit.id for commit in program.thread("origin").history() if commit.node == "draft"]
    page = tab.open("data", node="draft", contains="from the sea", step=step)
    tab.rows(2)  # of the copy too, which made another draft
    page.get_by_text("1 of 2 chosen").wait_for()
    page.get_by_label("reply").fill("Dear sea.")
    page.get_by_text("corrected").first.wait_for()
    page.get_by_role("link", name="Runs").click()
    tab.rows(8)
    page = tab.open("data", node="draft", contains="from the sea")  # the draft stays
    with page.expect_download() as found:
        page.get_by_role("button", name="Export 1 as JSONL").click()
    lines = [json.loads(line) for line in Path(found.value.path()).read_text().splitlines()]
    inputs = {"text": "a card from the sea", "tone": "warm and long"}
    assert [(one["inputs"], one["outputs"]) for one in lines] == [(inputs, {"reply": "Dear sea."})]
    assert (lines[0]["corrected"], lines[0]["step"]) == (True, step)
    page = tab.open("data")
    page.get_by_role("region", name="Letters").get_by_role("link", name="draft").click()
    until(page, "document.querySelectorAll('.example').length > 5")
    page = tab.open("data", node="draft")
    page.get_by_text("1 example left out").wait_for()
    page = tab.open("data", node="no such node")
    page.get_by_role("alert").get_by_text("draft").wait_for()


VIEWS: dict[str, tuple[str, dict[str, str], str]] = {
    "runs": ("runs", {}, ".listrow"),
    "compare": ("compare", {"thread": "origin", "other_thread": "origin-short"}, ".pair"),
    "hostile compare": ("compare", {"thread": "origin", "other_thread": HOSTILE}, ".pair"),
    "questions": ("questions", {}, ".ask"),
    "data": ("data", {"node": "draft"}, ".example"),
}


def test_every_view_fits_every_width_in_both_themes(tab: Lists) -> None:
    page = tab.page
    for (name, (view, params, part)), wide in product(VIEWS.items(), (True, False)):
        page.emulate_media(color_scheme="light" if wide else "dark")
        page.set_viewport_size({"width": 1440 if wide else 380, "height": 800})
        tab.open(view, **params)
        page.wait_for_selector(part)
        fits(page, f"{name} {wide=}")
        page.set_viewport_size({"width": 380 if wide else 1024, "height": 800})
        fits(page, f"{name} {wide=}, another width", moves=True, axe=False)


def test_the_lists_work_by_keyboard_alone(tab: Lists) -> None:
    page = tab.open("runs")
    tab.rows(8)
    keys = page.keyboard
    keys.press("/")
    keys.type("late-18")
    tab.rows(1)
    keys.press("Escape")
    keys.press("j")
    keys.press("Enter")
    page.get_by_role("heading", name="late-18").first.wait_for()
    page = tab.open("questions")
    page.wait_for_selector(".ask")
    keys.press("End")
    until(page, "document.activeElement?.classList.contains('ask')")
    keys.press("Home")
    until(page, "document.activeElement === document.querySelector('.ask')")
    keys.press("j")
    page.locator("form.answer").wait_for()
    page.evaluate(REACHED)
    for _ in range(12):
        keys.press("Tab")
    assert "form" in page.evaluate("[...window.reached]")

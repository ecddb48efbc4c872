"""A tab of the page in the tests: opening its views, waiting in it, and what must hold of every view."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

TOKEN = "token-of-the-browser-tests"
AXE = Path(__file__).parents[2] / "inspector" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """axe.run(document, { resultTypes: ["violations"], preload: false }).then((result) => result.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 300))]))"""
LAID_OUT = """async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 40)));
  const parts = [document.documentElement, ...document.querySelectorAll("main, .pane, .left, .reading, .asklist")];
  return [window.shifts, Math.max(...parts.map((one) => one.scrollWidth - one.clientWidth))];
}"""


class Tab:
    """A tab of the page.

    Attributes:
        page: Playwright's page.
        address: that of the inspector.
    """

    number = itertools.count()

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address

    def open(self, view: str = "runs", **params: Any) -> Any:
        """Open a view as a link from outside: a document of its own."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        self.page.goto(f"{self.address}/?{next(self.number)}#token={TOKEN}/{view}{query}")
        return self.page

    def run(self, thread: str, **params: Any) -> Any:
        """Open the last run of a thread and wait until its steps are shown."""
        self.open("run", thread=thread, **params)
        self.page.wait_for_selector(".pane h2" if params else "[role=tree][aria-busy=false] [role=treeitem]")
        return self.page

    def clean(self) -> None:
        """Nothing ran or was blocked."""
        assert self.page.evaluate("[window.hacked, window.violations]") == [None, []]


def until(page: Any, expression: str, value: Any = None) -> None:
    """Wait until JavaScript is true. Playwright's own waiting needs `eval`, which the policy of the page forbids."""
    wait = f"if ({expression}) return true; await new Promise((done) => setTimeout(done, 5));"
    script = f"async (value) => {{ const end = Date.now() + 30_000; while (Date.now() < end) {{ {wait} }} }}"
    assert page.evaluate(script, value), expression


def fits(page: Any, name: str, axe: bool = True, moves: bool = False) -> None:
    """Nothing has moved, unless it may, nothing is wider than its place, and axe finds nothing serious."""
    shifts, wide = page.evaluate(LAID_OUT)
    assert moves or shifts == [], (name, shifts)
    assert wide <= 0, name
    if axe and AXE.exists():
        page.evaluate(AXE.read_text())
        assert page.evaluate(SERIOUS) == [], name

"""Chromium for the tests of pages: one browser for the session, and one page in it that the tests use in turn.

A page of its own for each test costs a second: Chromium begins a profile and a process with it.
Without a Chromium the tests fail: a page that nothing reads is not tested. `DSPYER_NO_BROWSER=1` skips them.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("DSPYER_CHROMIUM", "/usr/bin/chromium")
# All pages are in one process, which has run their script before; nothing here asks what keeps pages apart.
LIGHT = ("--renderer-process-limit=1", "--disable-site-isolation-trials")
SIZE = {"width": 1280, "height": 720}

# What each document must not do is noted: what its policy forbids, and what moves without a reader's doing.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
});
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (!entry.hadRecentInput) window.shifts.push(entry.sources.map((one) => one.node?.outerHTML?.slice(0, 120)));
  }
}).observe({ type: "layout-shift", buffered: true });
"""
# Pauses of the page that begin from here on are a twentieth as long.
HURRY = "() => { const wait = setTimeout; window.setTimeout = (then, pause) => wait(then, pause / 20); }"
FORGET = "() => { try { localStorage.clear(); sessionStorage.clear(); } catch { return; } }"  # a file has none


class Chromium:
    """The browser of the session. Its pages must exist only while `switch(True)`.

    Attributes:
        page: Playwright's page.
        asked: the addresses that its tabs have asked for in this test.
        errors: what their scripts have thrown.
    """

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self.asked: list[str] = []
        self.errors: list[str] = []
        self._playwright = sync_playwright().start()
        self._loop = asyncio.get_running_loop()
        try:
            chromium = self._playwright.chromium
            self._browser: Any = chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *LIGHT])
            self.page = self._opened()
        finally:
            self.switch(False)

    def switch(self, on: bool) -> None:
        """Makes Playwright's event loop the running one of this thread, or no loop.

        As long as it counts as running, `asyncio.run` refuses to run in the other tests of the session.
        """
        asyncio._set_running_loop(self._loop if on else None)

    def clean(self) -> None:
        """Leaves the page to the next test: nothing is stored, intercepted or open beside it."""
        context = self.page.context
        for tab in context.pages:
            if tab != self.page:
                tab.close()
        self.page.unroute_all()
        self.page.emulate_media(color_scheme="light")
        if self.page.viewport_size != SIZE:
            self.page.set_viewport_size(SIZE)
        self.page.evaluate(FORGET)
        context.clear_cookies()
        self.page.goto("about:blank")  # the page of this test asks its server again and again

    def renew(self) -> None:
        """Another page, after a test that may have left this one in any state."""
        broken, self.page = self.page.context, self._opened()
        broken.close()

    def stop(self) -> None:
        """Ends it."""
        self.switch(True)
        self._browser.close()
        self._playwright.stop()
        self.switch(False)

    def _opened(self) -> Any:
        context = self._browser.new_context(viewport=SIZE, color_scheme="light")
        context.add_init_script(WATCH)
        context.set_default_timeout(30_000)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        context.on("request", lambda request: self.asked.append(request.url))
        return context.new_page()


_started = functools.cache(Chromium)


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> Chromium:
    """One Chromium for all tests of the session. It ends after the last one, whose cost it would be otherwise."""
    if os.environ.get("DSPYER_NO_BROWSER") == "1":
        pytest.skip("DSPYER_NO_BROWSER=1")
    if not Path(CHROMIUM).exists():
        pytest.fail(
            f"no Chromium at {CHROMIUM}: apt-get install chromium, or set DSPYER_CHROMIUM or DSPYER_NO_BROWSER=1"
        )
    if not _started.cache_info().currsize:
        pytestconfig.add_cleanup(lambda: _started().stop())
    return _started()


@pytest.fixture
def page(chromium: Chromium, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, with empty storage. What its script throws fails the test.

    A test with a page cannot call `asyncio.run`: what runs async, as a server, is in a thread.
    """
    chromium.switch(True)
    failed = request.session.testsfailed
    try:
        chromium.asked.clear()
        chromium.errors.clear()
        yield chromium.page
        if request.session.testsfailed > failed:
            chromium.renew()
        else:
            chromium.clean()
            assert not chromium.errors
    finally:
        chromium.switch(False)

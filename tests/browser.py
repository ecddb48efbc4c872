"""Chromium for the tests of pages: `page` is a fresh page in one browser per session.

Without a Chromium the tests fail: a page that nothing reads is not tested. `DSPYER_NO_BROWSER=1` skips them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CHROMIUM = os.environ.get("DSPYER_CHROMIUM", "/usr/bin/chromium")


class Chromium(NamedTuple):
    """The browser of the session.

    Attributes:
        browser: Playwright's browser.
        switch: makes Playwright's event loop the running one of this thread, or no loop.
    """

    browser: Any
    switch: Callable[[bool], None]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """One Chromium for all tests of the session."""
    if os.environ.get("DSPYER_NO_BROWSER") == "1":
        pytest.skip("DSPYER_NO_BROWSER=1")
    if not Path(CHROMIUM).exists():
        pytest.fail(
            f"no Chromium at {CHROMIUM}: apt-get install chromium, or set DSPYER_CHROMIUM or DSPYER_NO_BROWSER=1"
        )
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    # Playwright's loop counts as running in this thread from here on, so `asyncio.run` would refuse to run in the other
    # tests of the session.
    loop = asyncio.get_running_loop()

    def switch(on: bool) -> None:
        asyncio._set_running_loop(loop if on else None)

    try:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        switch(False)
        yield Chromium(browser, switch)
        switch(True)
        browser.close()
    finally:
        switch(True)
        playwright.stop()


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Any]:
    """A page of its own, with empty storage. What its script throws fails the test.

    A test with a page cannot call `asyncio.run`: what runs async, as a server, is in a thread.
    """
    chromium.switch(True)
    try:
        context = chromium.browser.new_context()
        page = context.new_page()
        page.set_default_timeout(30_000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        context.close()
        assert not errors
    finally:
        chromium.switch(False)

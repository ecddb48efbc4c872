"""The browser of the tests leaves the other tests of its session alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

STORE = "document.cookie = 'a=1'; localStorage.a = sessionStorage.a = 1"


@pytest.mark.parametrize("number", [1, 2])
def test_each_page_begins_empty(page: Any, chromium: Any, number: int) -> None:
    assert len(page.context.pages) == 1
    page.route("http://a.test/*", lambda route: route.fulfill(body=f"<p>page {number}</p>", content_type="text/html"))
    page.goto("http://a.test/")
    assert page.inner_text("p") == f"page {number}"
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    page.evaluate(STORE)
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["a=1", 1, 1]
    page.context.new_page()
    assert chromium.asked == ["http://a.test/"]


def test_a_test_after_it_may_run_a_loop(chromium: Any) -> None:
    asyncio.run(asyncio.sleep(0))
    assert chromium

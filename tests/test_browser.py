"""The browser of the tests leaves the other tests of its session alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_each_page_begins_empty(page: Any, number: int) -> None:
    page.set_content(f"<p>page {number}</p>")
    assert page.inner_text("p") == f"page {number}"
    assert page.context.cookies() == []


def test_a_test_after_it_may_run_a_loop(chromium: Any) -> None:
    asyncio.run(asyncio.sleep(0))

"""The page that says where each promise about information flow is shown tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "words.md"
ROW = re.compile(r"^\| (S00\d): ([^|]+) \| `([^`]+)` \|$", re.MULTILINE)


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


def test_each_promise_is_in_the_test_that_the_page_names() -> None:
    promised: dict[str, set[int]] = {}
    for document, text, path in ROW.findall(PAGE.read_text()):
        source = (ROOT / path).read_text()
        for number in numbers(text):
            assert re.search(rf"\b{document}-{number}\b", source), f"{path} does not name {document}-{number}"
            promised.setdefault(document, set()).add(number)
    assert promised["S000"] == set(range(1, 34))
    assert promised["S001"] == set(range(1, 21))
    assert promised["S002"] == set(range(1, 38))
    assert promised["S003"] == set(range(1, 31))
    assert promised["S004"] == set(range(1, 31))

"""The README and the pages: their blocks of code, and the outputs that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*?$", re.MULTILINE | re.DOTALL
)
PART = re.compile(r"^ *--8<-- \"examples/(\w+\.py):\w+\"$", re.MULTILINE)  # of a program that the page includes


class Block(NamedTuple):
    line: int  # of the block's first line of code in the page
    code: str
    shown: str | None  # the output that the page shows, None for none


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    for number, fence in enumerate(fences):
        if fence["language"] != "python" or PART.search(fence["body"]):
            continue
        indent = len(fence["indent"])
        code = "".join(line[indent:] if line.strip() else "\n" for line in fence["body"].splitlines(keepends=True))
        yield Block(text.count("\n", 0, fence.start("body")) + 1, code, shown_output(text, fences, number, code))


def shown_output(text: str, fences: list[re.Match[str]], number: int, code: str) -> str | None:
    comments = re.findall(r"^ *#> ?(.*)$", code, re.MULTILINE)
    if comments:
        return "\n".join(comments)
    following = fences[number + 1] if number + 1 < len(fences) else None
    if following and following["language"] == "text" and not text[fences[number].end() : following.start()].strip():
        return following["body"]
    return None


def shown_of_programs() -> dict[str, list[str]]:
    """What pages say that the programs print whose parts they include, by the names of the programs."""
    shown: dict[str, list[str]] = {}
    for page in PAGES:
        fences = [*FENCE.finditer(page.read_text())]
        for name in {name for fence in fences for name in PART.findall(fence["body"])}:
            outputs = [fence["body"] for fence in fences if fence["language"] == "text"]
            outputs += [
                "\n".join(re.findall(r"^ *#> ?(.*)$", f["body"], re.MULTILINE))
                for f in fences
                if PART.search(f["body"])
            ]
            shown.setdefault(name, []).extend(filter(None, outputs))
    return shown

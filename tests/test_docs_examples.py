"""Every Python block of the README and of the documentation runs, offline, and prints what the page shows.

The blocks of a page run in order in one module. What a block prints is compared with its `#>` lines, or with the `text`
block that follows it. Outputs beside parts of a program of `examples/` are looked for in what the program
prints, by test_examples.py.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import dspy
import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as meters
from opentelemetry.util._once import Once

from tests.pages import FENCE, PAGES, ROOT, blocks, name_of
from tests.rows import each


def as_a_module(page: Path) -> tuple[int, None, list[str], str]:
    """The entry of a page in `linecache`: its code in its lines and nothing else, so that sources can be read."""
    lines = ["\n"] * (page.read_text().count("\n") + 1)
    for block in blocks(page):
        code = block.code.splitlines(keepends=True)
        lines[block.line - 1 : block.line - 1 + len(code)] = code
    return sum(map(len, lines)), None, lines, str(page)


DURATION = re.compile(r"[\d.]+ (µs|ms|s)\b")
TIME = re.compile(r'("at": )[\d.]+')  # of an event
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
PROGRESS = re.compile(r"^Bootstrapp(ed|ing) |\d+%\|")  # what DSPy's optimizers print on their way


def tidy(output: str) -> str:
    lines = [TIME.sub(r"\1...", DURATION.sub("...", line.rstrip())) for line in output.strip().splitlines()]
    return "\n".join(line for line in lines if not PROGRESS.search(line)).strip()


@pytest.fixture
def settings() -> Iterator[None]:
    """Puts DSPy's settings back afterwards, and OpenTelemetry's: a program sets each provider once."""
    yield
    dspy.configure(lm=None, adapter=None, callbacks=[])
    for module, name in ((trace, "_TRACER_PROVIDER"), (meters, "_METER_PROVIDER")):
        if (provider := getattr(module, name)) is not None:
            provider.shutdown()
            setattr(module, name, None)
            setattr(module, f"{name}_SET_ONCE", Once())


@pytest.fixture
def namespace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, settings: None) -> ModuleType:
    """A module of the page's own, which its classes can be pickled from."""
    module = ModuleType("page_" + re.sub(r"\W", "_", request.node.callspec.id))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


SLOW = {"optimizing": "five optimizers", "tuning": "two optimizers"}
WITH_CODE = [
    pytest.param(page, marks=[pytest.mark.slow(SLOW[page.stem])] * (page.parent.name == "guides"))
    if page.stem in SLOW
    else page
    for page in PAGES
    if any(blocks(page))
]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_page(page: Path, namespace: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(linecache.cache, str(page), as_a_module(page))
    for block in blocks(page):
        place = f"{name_of(page)}:{block.line}"
        # Empty lines before the code make the lines of a traceback, and the sources that are read, those of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace.__dict__)
        assert tidy(printed.getvalue()) == tidy(block.shown or ""), f"{place} prints something else"


DRAW = runpy.run_path(str(ROOT / "docs" / "pictures" / "draw.py"))


@pytest.mark.parametrize("file", DRAW["DRAWN"])
@pytest.mark.usefixtures("settings")
def test_pictures_drawn_by_the_library_are_up_to_date(file: str) -> None:
    shown = (ROOT / "docs" / "img" / f"{file}.svg").read_text()
    drawn = DRAW["drawn"](*DRAW["DRAWN"][file])
    assert STYLE.sub("", drawn) == STYLE.sub("", shown), "run docs/pictures/draw.py"


def anchors(page: Path) -> set[str]:
    """The anchors of a page, made from its headings as Markdown renderers do."""
    found = set()
    for heading in re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower())
        found.add(re.sub(r"[\s]+", "-", words.strip()))
    return found


@each("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    targets = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", prose)
    for target in targets:
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{name_of(page)} links to {target}"
        if anchor and goal.suffix == ".md":
            assert anchor in anchors(goal), f"{name_of(page)} links to {target}"

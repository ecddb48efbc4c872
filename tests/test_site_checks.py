"""The checks that `make docs` makes of the site which it has built. Building it is no test: it takes as long as 500."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

HOOK = Path(__file__).parent.parent / "docs" / "build" / "site_checks.py"
CHECKS: dict[str, Any] = runpy.run_path(str(HOOK))
SITE = "https://example.org/dspyer/"
REPO = "https://example.org/owner/dspyer"
FILES = {
    "why.html": f'<a href="concepts/state.html">state</a> <a href="{REPO}">code</a> <a href="https://dspy.ai">DSPy</a>',
    "concepts/state.html": '<script src="../assets/file-search.js"></script><a href="#top">top</a>',
    "assets/file-search.js": "",
    "search/search_index.js": "var __index = {}",
    "404.html": '<link href="/dspyer/main.css" rel="stylesheet">',
    "main.css": "",
    "sitemap.xml": f"<loc>{SITE}guides/serving.html</loc><loc>{SITE}why.html</loc>",
}


def problems(folder: Path, name: str = "why.html", text: str | None = None) -> list[str]:
    """What is found in a site of these files, of which one may have another text."""
    for file, usual in FILES.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(usual if text is None or file != name else text)
    return [*CHECKS["open_ends"](folder, SITE), *CHECKS["published"](folder, SITE, REPO, 2)]


def test_a_site_without_open_ends(tmp_path: Path) -> None:
    assert not problems(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("why.html", f'{FILES["why.html"]}<a href="gone.html">', "why.html links to gone.html, which is not there"),
        ("why.html", f'{FILES["why.html"]}<a href="{SITE}gone.html">', f"why.html links to {SITE}gone.html"),
        ("why.html", f'{FILES["why.html"]}<a href="/dspyer/gone.html">', "why.html links to /dspyer/gone.html"),
        ("why.html", f'{FILES["why.html"]}<img src="https://example.net/a.png">', "loads something from another host"),
        ("why.html", "nothing", f"why.html has no link to {REPO}"),
        ("concepts/state.html", "nothing", "concepts/state.html does not load assets/file-search.js"),
        ("search/search_index.js", "{}", "search/search_index.js is not what the theme reads"),
        ("404.html", '<link href="main.css" rel="stylesheet">', "404.html is shown at any depth"),
        ("sitemap.xml", f"<loc>{SITE}why.html</loc>", "sitemap.xml lists 1 pages of 2"),
    ],
)
def test_an_open_end_is_named(name: str, text: str, found: str, tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, name, text)
    assert found in problem

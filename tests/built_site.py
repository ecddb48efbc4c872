"""The built site as its readers see it, in a browser and from disk. `make docs` runs this."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser import Chromium

SITE = Path(__file__).parent.parent / "site"
PAGES = [page for page in sorted(SITE.rglob("*.html")) if page.name != "404.html"]
SITE_URL = os.environ.get("SITE_URL", "")
WIDTH, TEXT, SCREENS = 1280, 780, 14  # pixels, pixels, of 720 pixels
TABS = ["Start", "Tutorials", "Build", "Tune", "Run", "Reference", "Project"]
HERE = ("file:", "data:", "blob:", "about:")
GENERATED = ("api/", "command-line", "errors")  # as long as what they are made of

MEASURE = """() => {
  const seen = (all) => [...all].filter((one) => one.offsetParent);
  const shown = (one) => one.innerText.trim().slice(0, 60);
  const text = seen(document.querySelectorAll(".md-content :is(p, li, h1, h2, h3)"));
  return {
    clipped: seen(document.querySelectorAll("pre > code"))
      .filter((one) => one.scrollWidth > one.clientWidth).map(shown),
    long: text.filter((one) => [...one.childNodes].some((inner) => inner.nodeType === 3 && inner.data.trim())
      && one.clientWidth > LIMIT).map(shown),
    broken: [...document.images].filter((one) => one.complete && !one.naturalWidth).map((one) => one.src),
    sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    height: document.documentElement.scrollHeight,
    links: [...document.querySelectorAll("a[href], link[href], script[src], img[src]")]
      .map((one) => one.href || one.src),
    sidebar: seen(document.querySelectorAll(".md-sidebar--primary .md-nav__link[href]")).length,
    tabs: seen(document.querySelectorAll(".md-tabs__link")).map((one) => one.innerText.trim()),
  };
}""".replace("LIMIT", str(TEXT))


def name_of(page: Path) -> str:
    return page.relative_to(SITE).as_posix()


def faults(name: str, found: dict[str, Any], width: int) -> Iterator[str]:
    """What is wrong with a page; on a phone a wide block scrolls, the page never does."""
    if found["sideways"]:
        yield f"scrolls sideways at {width} px"
    if width < WIDTH:
        return
    yield from (f"clipped: {text}" for text in found["clipped"])
    yield from (f"longer lines than {TEXT} px: {text}" for text in found["long"])
    yield from (f"broken picture: {source}" for source in found["broken"])
    if found["height"] > SCREENS * 720 and not name.startswith(GENERATED):
        yield f"{found['height'] / 720:.1f} screens"
    if found["tabs"] != TABS:
        yield f"has the tabs {found['tabs']}"
    if found["sidebar"] > 24:
        yield f"{found['sidebar']} links in the sidebar"
    for link in map(urlsplit, found["links"]):
        if link.scheme == "file" and not Path(link.path).exists():
            yield f"leads nowhere: {link.path}"


@pytest.mark.parametrize("width", [WIDTH, 390])
def test_pages(page: Any, chromium: Chromium, width: int) -> None:
    assert len(PAGES) > 40
    page.set_viewport_size({"width": width, "height": 720})
    wrong = []
    for path in PAGES:
        page.goto(path.as_uri())
        wrong += [f"{name_of(path)}: {fault}" for fault in faults(name_of(path), page.evaluate(MEASURE), width)]
    wrong += [f"loaded from another host: {address}" for address in chromium.asked if not address.startswith(HERE)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_first_screen_of_home(page: Any, width: int, scheme: str) -> None:
    """Title, promise, two buttons with 8 pixels between them, and the first lines of code."""
    height = 844 if width == 390 else 720
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": height})
    page.goto((SITE / "index.html").as_uri())
    boxes = [page.locator(one).first.bounding_box() for one in (".hero h1", ".hero p", ".hero pre")]
    first, second = (page.locator(".hero .md-button").nth(number).bounding_box() for number in (0, 1))
    assert all(box["y"] + 60 < height for box in [*boxes, first, second])
    beside, below = second["x"] - first["x"] - first["width"], second["y"] - first["y"] - first["height"]
    assert max(beside, below) == pytest.approx(8, abs=1)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("RAG", "tutorials/documents.html"),
        ("chatbot", "tutorials/support-chat.html"),
        ("tutorial", "tutorials/index.html"),
        ("checkpoint", "guides/threads.html"),
        ("reset state between turns", "guides/threads.html"),
        ("human in the loop", "guides/approval.html"),
        ("retry", "guides/failures.html"),
        ("cost", "guides/rate-limits.html"),
        ("supervisor", "guides/teams.html"),
        ("fastapi", "guides/serving.html"),
        ("evaluate", "guides/optimizing.html"),
        ("langgraph", "guides/langgraph.html"),
    ],
)
def test_search_finds_it_among_the_first_five(page: Any, words: str, found: str) -> None:
    page.goto((SITE / "words.html").as_uri())
    page.locator(".md-search__input").click()
    page.keyboard.type(words)
    page.wait_for_selector(".md-search-result__item", state="attached", timeout=5_000)
    links = page.locator(".md-search-result__item > .md-search-result__link")
    first = [link.get_attribute("href") for link in links.all()[:5]]
    assert any(urlsplit(link).path.endswith(found) for link in first), first


def test_what_programs_read() -> None:
    pages = {name_of(path): path.read_text() for path in PAGES}
    listed = (SITE / "llms.txt").read_text()
    assert not [name for name in pages if f"({SITE_URL}{name})" not in listed]
    assert ": None" not in listed, "a page without a description"
    assert not [tab.splitlines()[0] for tab in listed.split("\n## ") if tab.count("\n- [") > 14], "too many pages"
    assert (SITE / "img" / "card.png").exists()
    for name, text in pages.items():
        assert re.search(r'property="og:title" content=".+"', text), name
        assert re.search(r'property="og:description" content=".{40,170}"', text), name


@pytest.mark.skipif(not SITE_URL, reason="SITE_URL is set where the site is published")
def test_what_is_published() -> None:
    """A sitemap of all pages, and a 404 page whose styles and links are found at any depth."""
    listed = re.findall(r"<loc>(.*?)</loc>", (SITE / "sitemap.xml").read_text())
    assert {*listed} == {SITE_URL + name_of(path) for path in PAGES}
    lost = (SITE / "404.html").read_text()
    addresses = re.findall(r'(?:href|src)="?([^"\s>#]+)', lost)
    assert not [one for one in addresses if not one.startswith((urlsplit(SITE_URL).path, "http", "data:"))]
    own = [urlsplit(one).path.removeprefix(urlsplit(SITE_URL).path) for one in addresses if one.startswith("/")]
    assert not [one for one in own if not (SITE / one).exists()]
    home = (SITE / "index.html").read_text()
    assert f'property="og:image" content="{SITE_URL}img/card.png"' in home
    if address := os.environ.get("REPO_URL"):
        assert address in home
        assert f"{address}/edit/main/docs/" in (SITE / "quickstart.html").read_text()

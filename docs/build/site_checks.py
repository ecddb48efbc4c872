"""Reads the built site as its readers will: each address leads to a file, nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError

ADDRESS = re.compile(r"<(?:a|link|script|img)\b[^>]*?\s(?:href|src)=[\"']?([^\"'\s>]+)")
LOADING = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=\"?canonical))\b[^>]*(?:src|href)=[\"']?(https?:)?//"
)


def on_startup(*, command: str, dirty: bool) -> None:
    """Called before the site is built: one that is served while it is written may have open ends."""
    global _serving  # noqa: PLW0603 - MkDocs tells its command here alone
    _serving = command == "serve"


_serving = False


def on_post_build(*, config: Any) -> None:
    """Refuses a site with an open end."""
    if _serving:
        return
    site, pages = Path(config.site_dir), len(list(Path(config.docs_dir).rglob("*.md")))
    problems = [*open_ends(site, config.site_url or "")]
    if config.site_url:
        problems += published(site, config.site_url, config.repo_url, pages)
    if problems:
        raise PluginError("\n".join(["the site has open ends:", *problems]))


def addresses(page: Path) -> set[str]:
    """What a page links to and loads."""
    return set(ADDRESS.findall(page.read_text()))


def open_ends(site: Path, site_url: str) -> Iterator[str]:
    """Addresses of pages without a file, pages that load from elsewhere, a search that needs a server.

    Args:
        site: the folder of the built site.
        site_url: where it is published, "" for a site that is opened from disk.
    """
    sub_path = urlsplit(site_url).path or "/"
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site)
        if LOADING.search(page.read_text()):
            yield f"{name} loads something from another host"
        for address in sorted(addresses(page)):
            path = unquote(urlsplit(address).path)
            if (site_url and address.startswith(site_url)) or (
                path.startswith(sub_path) and not urlsplit(address).scheme
            ):
                target = site / path.removeprefix(sub_path)
            elif urlsplit(address).scheme or address.startswith("//"):
                continue
            else:
                target = page.parent / path if path else page
            if not (target / "index.html" if target.is_dir() else target).exists():
                yield f"{name} links to {address}, which is not there"
    if not (site / "search" / "search_index.js").read_text().startswith("var __index = {"):
        yield "search/search_index.js is not what the theme reads from disk"
    if 'src="../assets/file-search.js"' not in (site / "concepts" / "state.html").read_text():
        yield "concepts/state.html does not load assets/file-search.js"


def published(site: Path, site_url: str, repo_url: str, pages: int) -> Iterator[str]:
    """What is missing at a public address: a 404 page for any depth, a sitemap of all pages, a link to the code."""
    styles = [address for address in addresses(site / "404.html") if address.endswith(".css")]
    if not styles or not all(style.startswith(urlsplit(site_url).path) for style in styles):
        yield f"404.html is shown at any depth, and its styles are at {styles}"
    listed = re.findall(r"<loc>(.*?)</loc>", (site / "sitemap.xml").read_text())
    if len(listed) != pages or site_url + "guides/serving.html" not in listed:
        yield f"sitemap.xml lists {len(listed)} pages of {pages}"
    if repo_url and repo_url not in addresses(site / "why.html"):
        yield f"why.html has no link to {repo_url}"

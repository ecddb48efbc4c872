"""Lets the search work in a site that is opened from disk: browsers fetch no index and start no worker there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

BUNDLE = re.compile(r'<script src="([^"]*)javascripts/bundle')


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Puts the stand-in for workers before the theme's own script, which starts one at once."""
    if not (bundle := BUNDLE.search(output)):
        raise ValueError(f"{page.url}: the theme's script is not where it was; see {__file__}")
    return output[: bundle.start()] + f'<script src="{bundle[1]}file-search.js"></script>' + output[bundle.start() :]


def on_post_build(*, config: Any) -> None:
    """Writes the index as a script too: the theme reads that one from disk."""
    folder = Path(config.site_dir) / "search"
    (folder / "search_index.js").write_text("var __index = " + (folder / "search_index.json").read_text())

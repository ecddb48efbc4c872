"""A run as one HTML file: the inspector's page, with the record of the run inside."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

from dspyer.display.graph_svg import drawing_of
from dspyer.record import DrawnGraph, Record

PAGE = Path(__file__).parent / "page"

# What an HTML parser takes for markup, and the line ends that only JSON allows inside of a text.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def drawn_graphs(graph: DrawnGraph) -> dict[str, Any]:
    """The JSON form of a graph and of those inside of it, by path: with drawings, and the nodes with examples."""
    return {
        path: {
            **one.to_dict(),
            "examples": [*one.gives],
            "drawing": drawing_of(one).to_dict() if one.looks else None,
        }
        for path, one in graph.within()
    }


def write_page(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write a run as one HTML file; it is written beside its place first, so that no half of it is ever there."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a folder: name the file, for example {str(target / 'run.html')!r}")
    about = {"store": "", "version": "", "programs": [], "acts": False}
    found = {"about": about, "record": {**record.to_dict(shared=True), "graphs": drawn_graphs(record.graph)}}
    # Its own name for each process: two that write at once do not mix, and the last one stays.
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(fill_page(found), encoding="utf-8", newline="\n")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def fill_page(data: Any) -> str:
    """The page with its script, its styles and its data inside; a policy lets nothing else run or be loaded."""
    script, styles = ((PAGE / name).read_text(encoding="utf-8") for name in ("app.js", "app.css"))
    # In the file itself: it is opened from a disk, where no server sends headers.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    charset = '<meta charset="utf-8">'
    embedded = json_bytes(data).decode().translate(_ESCAPES)  # no text in it can end the script element
    parts = {
        charset: f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="app.css">': f"<style>{styles}</style>",
        '<script src="app.js"></script>': (
            f'<script type="application/json" id="embedded">{embedded}</script>\n<script>{script}</script>'
        ),
    }
    for mark, inside in parts.items():
        # The first place alone: the script and the data behind it may hold the same text.
        before, found, after = page.partition(mark)
        assert found, f"the page lacks {mark}"
        page = f"{before}{inside}{after}"
    return page


def json_bytes(data: Any) -> bytes:
    """The JSON of a value without spaces: in UTF-8, or in ASCII where it has a lone surrogate; null for no number."""
    write = partial(json.dumps, allow_nan=False, separators=(",", ":"))
    try:
        return write(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # only the escape of the surrogate can be written
        return write(data).encode()
    except ValueError:  # a figure such as the cost of an LM with odd prices
        return json_bytes(_finite(data))


def _finite(value: Any) -> Any:
    """A JSON value with null for NaN and the infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

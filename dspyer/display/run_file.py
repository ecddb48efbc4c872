"""A run as one HTML file: the inspector's page, with the answers that it asks its server for inside.

Values that many steps share are in the file once: each list, mapping and scalar is an entry of one table, and a list
or mapping names its parts by their places in it (hash-consing). A state of a thousand fields, of which each step
changes one, costs a list of places for each step.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dspyer.display.cut_values import VALUE, Places, cut_within

PAGE = Path(__file__).parent / "page"

LARGEST = 500
"""Commits up to which all steps are in the file; of a longer run the first and the last of them, half of each."""

_QUESTIONS = [{"text": VALUE, "call": VALUE}]
_CALL = {"messages": VALUE, "response": VALUE, "failed": VALUE}
_CONFLICT = {"base": VALUE, "value": VALUE, "values": [{1: VALUE}]}  # `values` are pairs of an author and a value
RECORD: Places = {
    **{name: [VALUE] for name in ("before", "after", "diff", "state", "sent")},
    "commit": {"patch": [VALUE], "reason": VALUE, "live": VALUE},
    "lm_calls": [_CALL],
    "conflicts": [_CONFLICT],
    "conflict": _CONFLICT,
    "info": {"questions": _QUESTIONS},
    "questions": _QUESTIONS,
    "failures": [{"traceback": VALUE}],
    "answers": [{"value": VALUE, "question": {"text": VALUE, "call": VALUE}}],
    "events": [{"text": VALUE, "event": VALUE}],
    "value": VALUE,
    **_CALL,
}
"""Where a run, a step, an execution, an LM call, a post or a conflict holds values, and texts of any length."""

# What an HTML parser takes for markup, and the line ends that only JSON allows inside of a text.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


class SharedValues:
    """A table of JSON values in which equal values have one place."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._places: dict[Any, int] = {}
        # By id: a value that is passed again need not be walked again. The values are kept, so that no id is reused.
        self._passed: dict[int, tuple[int, Any]] = {}

    def place(self, value: Any) -> int:
        """Return the place of a value; its parts come before it."""
        if isinstance(value, Mapping):
            parts = tuple([(name, self.place(part)) for name, part in value.items()])
            return self._enter(("mapping", parts), dict(parts))
        if isinstance(value, (list, tuple)):
            items = tuple(map(self.place, value))
            return self._enter(("list", items), list(items))
        # The type is a part of the key, since 1, 1.0 and True are equal in Python and three values in JSON; and NaN is
        # not equal to itself.
        return self._enter((type(value), value if value == value else None, str(value)), value)

    def place_once(self, value: Any) -> int:
        """The place of a value with long texts and lists cut; the same object is walked once."""
        known = self._passed.get(id(value))
        if known is None:
            known = self._passed[id(value)] = self.place(cut_within(value, VALUE)), value
        return known[0]

    def place_step(self, step: Mapping[str, Any]) -> int:
        """The place of the answer about a commit. Of its patch the states before and after are left."""
        states = {}
        for name in ("before", "after"):
            fields = step[name]
            states[name] = None if fields is None else {key: self.place_once(fields[key]) for key in fields}
        before, after = states["before"] or {}, states["after"] or {}
        changed = dict.fromkeys(name for name in [*after, *before] if before.get(name) != after.get(name))
        commit = {name: value for name, value in step["commit"].items() if name != "patch"}
        rest = {name: step[name] for name in ("blame", "lm_calls", "conflicts", "sent", "events") if name in step}
        answer = cut_within({"commit": commit, **rest}, RECORD) | {"diff": changed}
        return self.place({**answer, "states": states})

    def _enter(self, key: Any, entry: Any) -> int:
        place = self._places.setdefault(key, len(self.entries))
        if place == len(self.entries):
            self.entries.append(entry)
        return place


def shown_places(count: int) -> Sequence[int]:
    """The indexes of the commits that a file holds: all of them, or the first and the last ones.

    Example:
        >>> len(shown_places(20)), shown_places(10_000)[249:251]
        (20, [249, 9750])
    """
    if count <= LARGEST:
        return range(count)
    half = LARGEST // 2
    return [*range(half), *range(count - half, count)]


def write_file(data: Any, path: str | os.PathLike[str]) -> Path:
    """Write the page with its data; it is written beside its place first, so that no half of it is ever there."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a folder: name the file, for example {str(target / 'run.html')!r}")
    # Its own name for each process: two that write at once do not mix, and the last one stays.
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(fill_page(data), encoding="utf-8", newline="\n")
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
    embedded = f'<script type="application/json" id="embedded">{escape_json(data)}</script>'
    parts = {
        charset: f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="app.css">': f"<style>{styles}</style>",
        '<script src="app.js"></script>': f"{embedded}\n<script>{script}</script>",
    }
    for mark, inside in parts.items():
        # The first place alone: the script and the data behind it may hold the same text.
        before, found, after = page.partition(mark)
        assert found, f"the page lacks {mark}"
        page = f"{before}{inside}{after}"
    return page


def escape_json(data: Any) -> str:
    """The JSON text of a value, with which no text in it can end the script element that holds it.

    Example:
        >>> escape_json({"text": "</script>"})
        '{"text":"\\\\u003c/script\\\\u003e"}'
    """
    return json_bytes(data).decode().translate(_ESCAPES)


def json_bytes(data: Any) -> bytes:
    """The JSON of a value without spaces: in UTF-8, or in ASCII where it has a lone surrogate."""
    write = partial(json.dumps, data, allow_nan=False, separators=(",", ":"))
    try:
        return write(ensure_ascii=False).encode()
    except UnicodeEncodeError:  # only the escape of the surrogate can be written
        return write().encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

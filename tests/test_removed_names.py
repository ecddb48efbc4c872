"""Each name that was removed says what to write in its place."""

from __future__ import annotations

import re
from typing import Any

import pytest

import dspyer
from dspyer import errors, optimize
from dspyer.archive.archived_thread import ArchivedThread

CLASSES: dict[str, Any] = {name: getattr(dspyer, name) for name in dspyer.__all__}
CLASSES |= {"ArchivedThread": ArchivedThread, "GEPA": optimize.GEPA, "reducers": dspyer.reducers}
CLASSES |= {"Memory": dspyer.stores.Memory, "SQLite": dspyer.stores.SQLite}


@pytest.mark.parametrize("row", errors.REMOVED)
def test_a_removed_name_gives_the_new_line(row: str) -> None:
    owner, member, option = re.fullmatch(r"(\w+)\.(\w+)(?:\((\w+)=\))?", row).groups()  # type: ignore[union-attr]
    home = CLASSES[owner]
    line = f"{row} was removed: write {errors.REMOVED[row]}"
    if option is not None:
        with pytest.raises(TypeError, match=re.escape(line)):
            getattr(home, member)(object.__new__(home), **{option: None})
    else:
        with pytest.raises(AttributeError, match=re.escape(line)):
            getattr(object.__new__(home) if isinstance(home, type) else home, member)


def test_other_unknown_names_are_refused_as_usual() -> None:
    graph: Any = dspyer.Graph()
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_call'"):
        graph.compile(max_call=3)
    with pytest.raises(AttributeError, match=r"module 'dspyer\.errors' has no attribute 'CallLimit'"):
        errors.CallLimit


def test_the_removed_rule_for_a_busy_thread_gives_the_new_line() -> None:
    graph = dspyer.Graph().add_node("a", lambda: None).add_path(dspyer.START, "a", dspyer.END)
    thread: Any = graph.compile(store=":memory:").thread("t")
    with pytest.raises(errors.ThreadError, match=r'"raise" or "wait"; .* thread.merge\(copy\)'):
        thread.run({}, on_conflict="merge")

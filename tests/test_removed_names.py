"""Each name that was removed says what to write in its place."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import dspy
import pytest

import dspyer
from dspyer import errors, optimize
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.optimize.gepa import GEPAStats

CLASSES: dict[str, Any] = {name: getattr(dspyer, name) for name in dspyer.__all__}
CLASSES |= {"ArchivedThread": ArchivedThread, "GEPA": optimize.GEPA, "reducers": dspyer.reducers}
CLASSES |= {"optimize": optimize, "GEPAStats": GEPAStats, "Culprits": optimize.Culprits}
CLASSES |= {"Memory": dspyer.stores.Memory, "SQLite": dspyer.stores.SQLite}


def test_a_removed_name_and_one_of_langgraph_give_the_new_line() -> None:
    for row in (*errors.REMOVED, *errors.OF_LANGGRAPH):
        owner, member, option = re.fullmatch(r"(\w+)\.(\w+)(?:\((\w+)=\))?", row).groups()  # type: ignore[union-attr]
        home = CLASSES[owner]
        plain = tuple if isinstance(home, type) and issubclass(home, tuple) else object
        line = f"{row} was removed: write {errors.REMOVED.get(row)}"
        if row in errors.OF_LANGGRAPH:
            line = f"{row} is a name of LangGraph: write {errors.OF_LANGGRAPH[row]}"
        if option is not None:
            with pytest.raises(TypeError, match=re.escape(line)):
                # A coroutine raises when it is awaited.
                asyncio.run(getattr(home, member)(object.__new__(home), **{option: None}))
        else:
            with pytest.raises(AttributeError, match=re.escape(line)):
                getattr(plain.__new__(home) if isinstance(home, type) else home, member)


def test_other_unknown_names_are_refused_as_usual() -> None:
    graph: Any = dspyer.Graph()
    with pytest.raises(TypeError, match=r"compile\(\) has no option 'max_call'\.$"):
        graph.compile(max_call=3)
    with pytest.raises(AttributeError, match=r"module 'dspyer\.errors' has no attribute 'CallLimit'"):
        errors.CallLimit


def test_the_removed_rule_for_a_busy_thread_gives_the_new_line() -> None:
    graph = dspyer.Graph().add_node("a", lambda: None).add_path(dspyer.START, "a", dspyer.END)
    thread: Any = graph.compile(store=":memory:").thread("t")
    with pytest.raises(errors.ThreadError, match=r'"raise" or "wait"; .* thread.merge\(copy\)'):
        thread.run({}, on_conflict="merge")


def test_culprits_of_a_run_says_the_new_form() -> None:
    program = (
        dspyer.Graph().add_node("a", lambda: {"b": 1}, writes=["b"]).add_path(dspyer.START, "a", dspyer.END).compile()
    )
    metric = optimize.by_field({"b": optimize.equals("b")}, goal="b")
    run: Any = program.run({})
    with pytest.raises(TypeError, match=re.escape("got a Run: call culprits(program, example, metric)")):
        optimize.culprits(run, dspy.Example(b=1).with_inputs(), metric)

"""Options that are True or False: any other value would count as one of them, and often as the wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dspyer import END, START, Graph, agents, migrate, serve
from dspyer.stores import Memory, open_store
from tests.rows import each


def size(text: str) -> int:
    """How long a text is."""
    return len(text)


def graph_of(**options: Any) -> Graph:
    return Graph().add_node("work", lambda text: {"size": len(text)}, writes=["size"], **options)


NO: Any = "no"


def program(store: Any = None) -> Any:
    return graph_of().add_path(START, "work", END).compile(store=store)


CASES: dict[str, Callable[[], Any]] = {
    "node 'work': frozen": lambda: graph_of(frozen=NO).add_path(START, "work", END).compile(),
    "accept": lambda: agents.tool_loop("question -> answer", [], check=lambda answer: [], accept=NO),
    "tool 'size': effect": lambda: agents.tool(size, effect=NO),
    "live": lambda: program().run({"text": "a"}, live=NO),
    "tokens": lambda: program().stream({"text": "a"}, tokens=NO),
    "validate": lambda: migrate.from_langgraph(None, validate=NO),
    "recover": lambda: serve.router(program(":memory:"), thread=lambda request, name: name, recover=NO),
    "read_only": lambda: open_store(":memory:", read_only=NO),
}
OF_THREAD: dict[str, Callable[[Any], Any]] = {
    "take_over": lambda thread: thread.run({"text": "a"}, take_over=NO),
    "take_over of a resume": lambda thread: thread.resume(take_over=NO),
    "take_over of a rerun": lambda thread: thread.rerun(0, take_over=NO),
    "take_over of a deletion": lambda thread: thread.delete(take_over=NO),
    "take_over of a pruning": lambda thread: thread.prune(0, take_over=NO),
    "tokens": lambda thread: thread.stream({"text": "a"}, tokens=NO),
}


@each("option", CASES)
def test_what_is_neither_true_nor_false_is_refused(option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{option}='no': give True or False"):
        CASES[option]()


@each("option", OF_THREAD)
def test_a_thread_refuses_it_before_it_does_anything(option: str) -> None:
    store = Memory()
    with pytest.raises(TypeError, match=f"{option.split(maxsplit=1)[0]}='no': give True or False"):
        OF_THREAD[option](program(store).thread("t"))
    assert not store.threads()

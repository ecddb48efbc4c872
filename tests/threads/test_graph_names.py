"""A graph does not continue threads of a graph of another name, unless that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Thread
from dspyer.errors import ChangedGraphError
from dspyer.stores import Memory
from dspyer.stores.base import Store
from tests.rows import each
from tests.threads.owned_runs import failing_rows


class Billing(BaseModel):
    iban: str = ""
    booked: bool = False


class Chat(BaseModel):
    text: str = ""
    reply: str = ""


CALLS: list[str] = []


def book(ctx: Context) -> dict[str, Any]:
    CALLS.append("book")
    return {"booked": ctx.interrupt("sure", "Sure?", bool)}


def echo(text: str) -> dict[str, Any]:
    CALLS.append("echo")
    return {"reply": text}


def billing(store: Store, name: str | None = "Billing", **options: Any) -> CompiledGraph:
    graph = Graph(Billing, name=name, keep="all").add_node(book, writes=["booked"]).add_path(START, "book", END)
    return graph.compile(store=store, answers={"sure": True}, **options)


def chat(
    store: Store, name: str | None = "Chat", node: str = "echo", schema: Any = Chat, **options: Any
) -> CompiledGraph:
    graph = Graph(schema, name=name, keep="all").add_node(node, echo, writes=["reply"]).add_path(START, node, END)
    return graph.compile(store=store, **options)


def finish() -> None:
    """Changes nothing."""


OTHERS: dict[Thread, Thread] = {}
"""The thread `other` by the threads that are merged with it."""

DO: dict[str, Callable[[Thread], Any]] = {
    "run": lambda t: t.run({"text": "hi"}),
    "rerun": lambda t: t.rerun(from_version=0),
    "update": lambda t: t.update({"text": "hi"}),
    "update as a node": lambda t: t.update({"reply": "hi"}, as_node="echo"),
    "copy with a change": lambda t: t.copy(to="u", patch={"text": "hi"}),
    "merge": lambda t: t.merge(OTHERS[t]),
}


@each("what", DO)
def test_a_thread_of_a_graph_of_another_name_is_refused(what: str) -> None:
    store = Memory()
    billing(store).thread("t").run({"iban": "DE00"}).raise_error()
    billing(store).thread("t").copy(to="other").update({"iban": "DE01"})
    CALLS.clear()
    program = chat(store)
    thread, allowed = program.thread("t"), program.thread("t", graphs=["Billing"])
    OTHERS.update({thread: program.thread("other"), allowed: program.thread("other", graphs=["Billing"])})
    before = thread.history()
    with pytest.raises(ChangedGraphError, match=r"belongs to graph 'Billing', and this is graph 'Chat'") as caught:
        DO[what](thread)
    assert "graphs=['Billing'])" in str(caught.value)
    assert (thread.history(), CALLS, store.thread("u")) == (before, [], None)
    assert thread.copy(to="v").state == thread.state  # reading needs no leave
    if what != "rerun":
        DO[what](allowed)


def test_an_open_run_of_a_graph_of_another_name_is_refused() -> None:
    store = Memory()
    waiting = Graph(Billing, name="Billing").add_node(book, writes=["booked"]).add_path(START, "book", END)
    waiting.compile(store=store).thread("t").run({"iban": "DE00"})
    for other in ("Billing", "Accounts"):
        graph = Graph(Billing, name=other).add_node(book, writes=["booked"]).add_path(START, "book", END)
        thread = graph.compile(store=store).thread("t")
        if other == "Billing":
            assert thread.status == "interrupted"
            continue
        with pytest.raises(ChangedGraphError, match="belongs to graph 'Billing', and this is graph 'Accounts'"):
            thread.resume({"sure": True})
        shared = graph.compile(store=store).thread("t", graphs=["Billing"])
        assert shared.resume({"sure": True}).state["booked"] is True


def test_resume_with_allow_changed_graph_accepts_a_graph_of_another_name() -> None:
    store = Memory()
    graph = Graph(Billing, name="Billing").add_node(book, writes=["booked"]).add_path(START, "book", END)
    graph.compile(store=store).thread("t").run({"iban": "DE00"})
    new = Graph(Billing, name="Accounts").add_node(book, writes=["booked"]).add_node("last", finish, writes=[])
    thread = new.add_path(START, "book", "last", END).compile(store=store).thread("t")
    assert thread.resume({"sure": True}, allow_changed_graph=True).status == "completed"
    assert thread.run({"iban": "DE01"}).status == "interrupted"  # it is the new graph's now
    with pytest.raises(ChangedGraphError, match="belongs to graph 'Accounts'"):
        graph.compile(store=store).thread("t").run({}, if_open="abandon")


class More(Chat):
    more: str = ""


def without_schema(*fields: str) -> Callable[[Store], CompiledGraph]:
    graph = Graph().add_node(f"set_{fields[0]}", lambda: dict.fromkeys(fields, 1), writes=list(fields))
    return lambda store: graph.add_path(START, f"set_{fields[0]}", END).compile(store=store)


UNNAMED: dict[str, tuple[Callable[[Store], CompiledGraph], Callable[[Store], CompiledGraph], bool]] = {
    "the same": (lambda s: chat(s, None), lambda s: chat(s, None), True),
    "another schema, the same nodes": (lambda s: chat(s, None), lambda s: chat(s, None, schema=More), True),
    "a name later": (lambda s: chat(s, None), lambda s: chat(s, "Talk"), True),
    "no name any more": (lambda s: chat(s, "Talk"), lambda s: chat(s, None), True),
    "the same name, other nodes": (lambda s: chat(s, "Talk"), lambda s: chat(s, "Talk", node="say"), True),
    "the schema's name given, other nodes": (lambda s: chat(s, None), lambda s: chat(s, "Chat", node="say"), True),
    "other nodes, the same fields": (lambda s: chat(s, None), lambda s: chat(s, None, node="say"), True),
    "other nodes and fields": (lambda s: billing(s, None), lambda s: chat(s, None), False),
    "other nodes and fields, one has a name": (billing, lambda s: chat(s, None), False),
    "without schemas": (without_schema("x"), without_schema("y"), False),
    "without schemas, a field in common": (without_schema("x", "id"), without_schema("y", "id"), True),
}


def test_graphs_without_names_are_distinguished_by_nodes_and_fields() -> None:
    def check(row: tuple[Callable[[Store], CompiledGraph], Callable[[Store], CompiledGraph], bool]) -> None:
        first, second, allowed = row
        store = Memory()
        first(store).thread("t").run({}).raise_error()
        if allowed:
            second(store).thread("t").run({}).raise_error()
            return
        with pytest.raises(ChangedGraphError, match="that has no node and no field in common with it, and this is"):
            second(store).thread("t").run({})

    assert not failing_rows(UNNAMED, check)

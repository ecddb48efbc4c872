"""The limit on a whole state: inputs, nodes, joins, graphs inside, maps, threads and changes that users write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import (
    DELETE,
    END,
    START,
    Breakpoints,
    Command,
    Graph,
    Replace,
    Run,
    Send,
    errors,
    limit,
    live,
    reducers,
)
from dspyer.events import Committed
from dspyer.stores import open_store
from tests.nodes.kit import MODES
from tests.rows import each
from tests.schema.research import calls_of_a_write, write


class Pad(BaseModel):
    topic: str = ""
    text: str = ""
    other: str = ""
    notes: Annotated[list[str], reducers.append] = []


EMPTY = len('""""""[]')  # the defaults: three texts and a list


def run_of(mode: str, program: Any, inputs: Mapping[str, Any]) -> Run:
    """A run in one mode."""
    return cast("Run", program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs)))


def linear(node: Callable[..., Any], kb: float, schema: type[BaseModel] | None = Pad, **options: Any) -> Graph:
    graph = Graph(schema, limit=limit(kb=kb)).add_node("node", node, **options)
    return graph.add_path(START, "node", END)


@MODES
@pytest.mark.parametrize("schema", [Pad, None], ids=["a schema", "none"])
def test_a_node_that_writes_too_much_is_refused(mode: str, schema: Any) -> None:
    """S004-5: the error names the node, the sizes and the largest fields; the write is not committed."""
    program = linear(lambda: {"text": "x" * 80, "other": "y" * 30}, 0.1, schema, writes=["text", "other"]).compile()
    run = run_of(mode, program, {"topic": "t"} if schema else {})
    assert isinstance(run.error, errors.NodeOutputError)
    for part in ("node 'node' writes 'text', 'other'", "would hold 0.1", "at most 0.1 KB", "'text' 0.082 KB, 'other'"):
        assert part in str(run.error)
    assert len(run.commits) == 1


@MODES
def test_a_state_of_exactly_the_limit_is_accepted(mode: str) -> None:
    program = linear(lambda: {"text": "x" * (100 - EMPTY)}, 0.1, writes=["text"]).compile()
    run = run_of(mode, program, {})
    run.raise_error()
    assert [commit.size for commit in run.commits] == [EMPTY, 100]
    assert sum(run.state.sizes().values()) == 100
    program = linear(lambda: {"text": "x" * (101 - EMPTY)}, 0.1, writes=["text"]).compile()
    assert isinstance(run_of(mode, program, {}).error, errors.NodeOutputError)


@MODES
@pytest.mark.parametrize("schema", [Pad, None], ids=["a schema", "none"])
@each("on_a_thread", [False, True], ids=["alone", "on a thread"])
def test_inputs_over_the_limit_are_refused_before_any_node_runs(mode: str, schema: Any, on_a_thread: bool) -> None:
    calls: list[int] = []
    program = linear(lambda topic: calls.append(1), 0.1, schema, writes=[]).compile(store=":memory:")
    thread = program.thread("t") if on_a_thread else program
    with pytest.raises(errors.InputError, match=r"the inputs are refused: .*'topic' 0.202 KB"):
        run_of(mode, thread, {"topic": "x" * 200})
    assert not calls
    run_of(mode, thread, {"topic": "x"}).raise_error()
    assert calls == [1]


@MODES
def test_branches_within_the_limit_may_exceed_it_in_their_join(mode: str) -> None:
    graph = Graph(Pad, limit=limit(kb=0.1))
    graph.add_node("a", lambda: {"text": "x" * 50}, writes=["text"])
    graph.add_node("b", lambda: {"notes": "y" * 50}, writes=["notes"]).add_node("c", lambda: None, writes=[])
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END)
    run = run_of(mode, graph.compile(), {})
    assert isinstance(run.error, errors.NodeOutputError)
    assert "branches joined at node 'c', where a wrote 'text'; b wrote 'notes': together" in str(run.error)
    assert [commit.node for commit in run.commits] == ["START", "a", "b"]


@MODES
def test_values_of_routers_and_maps_count(mode: str) -> None:
    graph = Graph(Pad, limit=limit(kb=0.1))
    graph.add_node("write", lambda topic: {"notes": topic * 20}, writes=["notes"])
    graph.add_conditional_edges(START, lambda: [Send("write", {"topic": name}) for name in "abcd"], ["write"])
    run = run_of(mode, graph.add_edge("write", END).compile(), {})
    assert "write wrote 'notes': together the state would hold" in str(run.error)

    class Items(BaseModel):
        docs: list[str]
        found: list[str] = []

    mapped = Graph(Items, limit=limit(kb=0.1)).add_map("read", lambda d: d * 20, over="docs", item="d", into="found")
    run = run_of(mode, mapped.add_path(START, "read", END).compile(), {"docs": list("abcd")})
    assert "node 'read' writes 'found', which is refused" in str(run.error)


@MODES
def test_the_node_with_a_graph_inside_is_refused_by_the_limit_outside(mode: str) -> None:
    def inner(kb: float) -> Any:
        return linear(lambda topic: {"text": topic * 60}, kb, reads=["topic"], writes=["text"]).compile()

    def outer(kb: float, inside: float) -> Run:
        graph = Graph(Pad, limit=limit(kb=kb)).add_node("sub", inner(inside), reads=["topic"], writes=["text"])
        return run_of(mode, graph.add_path(START, "sub", END).compile(), {"topic": "a"})

    assert outer(1, 1).status == "completed"
    assert "node 'sub' writes 'text', which is refused" in str(outer(0.05, 1).error)
    assert "node 'node' writes 'text', which is refused" in str(outer(1, 0.05).error)


@MODES
def test_posts_to_live_fields_count_when_their_node_commits(mode: str) -> None:
    class Live(BaseModel):
        notes: Annotated[list[str], reducers.append, live] = []

    def post(ctx: Any) -> None:
        for _ in range(3):
            ctx.post("notes", "x" * 40)

    run = run_of(mode, linear(post, 0.1, Live, writes=["notes"]).compile(), {})
    assert "node 'node' writes 'notes', which is refused" in str(run.error)


@MODES
def test_commits_and_their_events_have_the_size(mode: str) -> None:
    """S004-6: in sequence, over a join, in the history, and after a replay."""
    graph = Graph(Pad, limit=limit(kb=1))
    for name in ("a", "b"):
        graph.add_node(name, lambda ctx: {"notes": ctx.node * 9}, writes=["notes"])
    graph.add_node("c", lambda: {"text": "x"}, writes=["text"])
    graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END)
    thread = graph.compile(store=":memory:").thread("t")
    for size in (EMPTY, EMPTY + 2 * 12 + 1):
        run = run_of(mode, thread, {})
        run.raise_error()
        assert run.commits[0].size == size
        assert run.commits[-1].size == sum(run.state.sizes().values())
        assert [c.size for c in run.commits] == [e.commit.size for e in run.events if isinstance(e, Committed)]
        assert run.commits[-1].to_dict()["size"] == run.commits[-1].size
        assert [c.size for c in run.commits] == [c.size for c in thread.history()][-len(run.commits) :]
    thread.update({"text": "y" * 10})
    assert thread.history()[-1].size == sum(thread.state.sizes().values())


def test_a_resumed_run_has_the_sizes_of_its_earlier_commits() -> None:
    def ask(ctx: Any) -> dict[str, str]:
        return {"other": ctx.interrupt("go", "go on?", str)}

    graph = Graph(Pad, limit=limit(kb=0.1)).add_node("first", lambda: {"notes": "x"}, writes=["notes"])
    graph.add_node("ask", ask, writes=["other"]).add_path(START, "first", "ask", END)
    thread = graph.compile(store=":memory:").thread("t")
    waits = thread.run({})
    thread.update({"text": "abc"})
    run = thread.resume({waits.questions[0].id: "y" * 4})
    run.raise_error()
    assert [commit.size for commit in run.commits] == [8, 11, 14, 18]
    assert thread.history()[-1].size == 18
    thread.run({})
    again = thread.resume({thread.questions[0].id: "y" * 99})
    assert isinstance(again.error, errors.NodeOutputError)


def test_manual_changes_of_a_thread_over_the_limit_are_refused() -> None:
    program = linear(lambda: None, 0.1, writes=[]).compile(store=":memory:")
    thread = program.thread("t")
    with pytest.raises(errors.InputError, match="the inputs are refused"):
        thread.update({"text": "x" * 200})
    thread.run({}).raise_error()
    before = thread.history()
    with pytest.raises(errors.NodeOutputError, match=r"node 'update' writes 'text', which is refused"):
        thread.update({"text": "x" * 200})
    with pytest.raises(errors.NodeOutputError, match=r"writes 'text', which is refused"):
        thread.update({"text": "x" * 200}, as_node="node")
    with pytest.raises(errors.NodeOutputError, match=r"node 'update' writes 'text', which is refused"):
        thread.copy(to="u", patch={"text": "x" * 200})
    assert thread.history() == before
    other = thread.copy(to="v")
    other.update({"text": "x" * 50})
    thread.update({"other": "y" * 50})
    with pytest.raises(errors.NodeOutputError, match=r"update wrote .*: together the state would hold 0\.1"):
        thread.merge(other)
    stranger = program.thread("stranger")  # they have no commit in common
    stranger.run({"text": "x" * 50}).raise_error()
    with pytest.raises(errors.NodeOutputError, match=r"'merge' writes .* the state would hold 0\.1"):
        thread.copy(to="w").merge(stranger, base=0)


def test_a_new_limit_refuses_no_existing_thread_and_no_write_that_shrinks_it() -> None:
    """Threads that were committed under another limit are read, replayed, resumed and can shrink."""
    store = open_store(":memory:")

    def thread_of(kb: float | None) -> Any:
        def node(text: str) -> dict[str, str]:
            return {"text": text[:50] if text.startswith("x") else text * 2}

        graph = Graph(Pad, inputs=["text", "other"], limit=None if kb is None else limit(kb=kb))
        graph.add_node("node", node, writes=["text"]).add_path(START, "node", END)
        return graph.compile(store=store, layers=[Breakpoints(before=["node"])]).thread("t")

    thread_of(None).run({"text": "x" * 200})
    thread = thread_of(0.02)
    assert len(thread.state["text"]) == 200
    assert thread.history()[-1].size == EMPTY + 200
    run = thread.resume({thread.questions[0].id: True})
    run.raise_error()
    assert run.state["text"] == "x" * 50
    assert thread.replay() == run.state
    thread.update({"text": "x" * 40})
    with pytest.raises(errors.NodeOutputError, match=r"at most 0\.02 KB"):
        thread.update({"other": "y"})
    with pytest.raises(errors.InputError, match=r"at most 0\.02 KB"):
        thread.run({"other": "y"})
    thread.run({"text": "b" * 9})
    assert isinstance(thread.resume({thread.questions[0].id: True}).error, errors.NodeOutputError)
    assert [commit.size for commit in thread_of(None).history()] == [None] * len(thread.history())


def test_a_run_that_joined_under_a_larger_limit_is_resumed() -> None:
    store = open_store(":memory:")

    def thread_of(kb: float) -> Any:
        graph = Graph(Pad, limit=limit(kb=kb))
        graph.add_node("a", lambda: {"text": "x" * 50}, writes=["text"])
        graph.add_node("b", lambda: {"notes": "y" * 50}, writes=["notes"])
        graph.add_node("c", lambda ctx: {"text": ctx.interrupt("text", "text?", str)}, writes=["text"])
        graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END)
        return graph.compile(store=store).thread("t")

    waits = thread_of(1).run({})
    run = thread_of(0.03).resume({waits.questions[0].id: "z"})
    run.raise_error()
    assert run.commits[-1].size == run.commits[-2].size - 49


def test_a_retried_route_by_command_is_checked_before_it_is_taken() -> None:
    program = linear(lambda: Command(update={"text": "x" * 200}, goto=END), 0.1, writes=["text"], goto=[END])
    assert isinstance(program.compile().run({}).error, errors.NodeOutputError)


def test_an_invalid_state_limit_is_a_graph_error() -> None:
    with pytest.raises(errors.GraphError, match="a whole state can only refuse"):
        Graph(Pad, limit=limit(kb=1, full="drop_oldest"))
    with pytest.raises(errors.GraphError, match=r"it takes limit\(kb=\.\.\.\)"):
        Graph(Pad, limit=cast("Any", 40))
    program = linear(lambda: None, 40, writes=[]).compile()
    assert "limit: the state holds at most 40 KB" in program.graph.explain()


LARGE = limit(kb=1000)


class Deep(BaseModel):
    table: dict[str, dict[str, Any]] = {}
    text: str | None = None
    items: Annotated[list[Any], reducers.append] = []
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    pages: Annotated[dict[str, Any], reducers.update] = {}
    seen: Annotated[set[str], reducers.union] = set()


texts = st.text("aé\n\ud800", max_size=9)
leaves = st.one_of(texts, st.integers(), st.none(), st.lists(texts, max_size=2))
keys = st.sampled_from(["a", "b", "ü"])
trees = st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=6)
some_patches = st.one_of(
    st.fixed_dictionaries({"table": st.dictionaries(keys, st.dictionaries(keys, trees, max_size=3), max_size=2)}),
    st.fixed_dictionaries({"table": st.dictionaries(keys, st.just(DELETE), max_size=2)}),
    st.fixed_dictionaries({"text": st.one_of(texts, st.just(DELETE)), "items": trees}),
    st.fixed_dictionaries({"said": st.lists(st.builds(lambda k, t: {"id": k, "text": t}, keys, texts), max_size=3)}),
    st.fixed_dictionaries({"pages": st.dictionaries(keys, trees, max_size=3), "seen": st.sets(texts, max_size=3)}),
    st.fixed_dictionaries({"pages": st.builds(Replace, st.dictionaries(keys, trees, max_size=2))}),
)


@pytest.mark.parametrize("model", [Deep, None], ids=["a schema", "none"])
@given(patches=st.lists(some_patches, max_size=10))
def test_the_incremental_size_is_the_size_of_the_state(model: Any, patches: list[dict[str, Any]]) -> None:
    """A mistake would stay, and show at the end."""
    run = write(model, *patches, limit=LARGE)
    assert run.commits[-1].size == sum(run.state.sizes().values())


@each("update", [{"table": {"1": {"a": {"7": 2}}}}, {"items": "x"}, {"pages": {"9": {"x": 2}}}])
def test_the_cost_of_counting_depends_on_the_update(update: dict[str, Any]) -> None:
    def cost(size: int) -> int:
        many = [str(n) for n in range(size)]
        table = {name: {"a": dict.fromkeys(many, 1)} for name in many[:3]}
        before = {"table": table, "items": Replace(many), "pages": {name: {"x": 1} for name in many}}
        return calls_of_a_write(Deep, before, update, limit=LARGE)

    assert cost(300) < cost(30) + 400, "it would be more if each entry were measured"


class Both(Deep):
    heard: Annotated[dict[str, Any], reducers.update, live] = {}
    lines: Annotated[list[str], reducers.extend, limit(kb=0.06, full="drop_oldest")] = []


branch_patches = st.tuples(
    some_patches,
    st.fixed_dictionaries(
        {"heard": st.dictionaries(keys, trees, max_size=2), "lines": st.lists(st.text("aé", max_size=9), max_size=2)}
    ),
)


def _giving(patch: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: patch


@given(first=branch_patches, left=branch_patches, right=branch_patches)
@pytest.mark.slow("a law over random graphs")
def test_the_commit_of_a_join_has_the_size_of_its_state(first: Any, left: Any, right: Any) -> None:
    """Also if parallel branches changed the same paths, with or without conflict; the history has the same sizes."""
    graph = Graph(Both, outputs=["text"], limit=LARGE, merge="last_write_wins")
    for name, (patch, more) in {"first": first, "left": left, "right": right}.items():
        graph.add_node(name, _giving({**patch, **more}), writes=list(Both.model_fields))
    graph.add_node("after", lambda: {"items": 1}, writes=["items"]).add_edge(START, "first")
    graph.add_edge("first", ["left", "right"]).add_edge(["left", "right"], "after").add_edge("after", END)
    thread = graph.compile(store=":memory:").thread("t")
    for _ in range(2):
        run = thread.run({})
        run.raise_error()
        assert [c.size for c in run.commits] == [c.size for c in thread.history()][-len(run.commits) :]
        for commit in run.commits:
            if commit.version is not None:
                assert commit.size == sum(thread.at(commit.version).sizes().values()), commit.node

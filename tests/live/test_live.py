"""Live fields: siblings hear each other while they run, and every loop over what they post comes to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import (
    DELETE,
    END,
    START,
    CompiledGraph,
    Context,
    Graph,
    LiveEntry,
    Replace,
    Run,
    Send,
    Updates,
    live,
    reducers,
    view,
)
from dspyer.errors import AttemptError, GraphError, InputError, MergeConflictError, NodeOutputError
from dspyer.events import Doing, LiveConflict, NodeStarted, Posted, Withdrawn

Notes = Annotated[list[str], reducers.append, live]


class Pad(BaseModel):
    task: str = "t"
    notes: Notes = []
    echoes: Notes = []
    code: Annotated[dict[str, Any], reducers.update, live] = {}
    done: Annotated[int, reducers.increment] = 0


def team(*names: str, sequence: Any = False, **nodes: Any) -> Graph:
    """A graph of nodes that run at once, or one after the other. Each may read and write what its name says."""
    graph = Graph(Pad)
    for name, node in nodes.items():
        fn, writes = node if isinstance(node, tuple) else (node, [])
        graph.add_node(name, fn, reads=["notes", "echoes", "code"], writes=writes)
    order = list(names or nodes)
    if sequence:
        return graph.add_path(START, *order, END)
    return graph.add_edge(START, order).add_edge(order, END)


def in_worker_thread(program: CompiledGraph) -> Run:
    async def main() -> Run:
        return await anyio.to_thread.run_sync(lambda: program.run({}))

    return asyncio.run(main())


def streamed(program: CompiledGraph) -> Run:
    with program.stream({}) as events:
        list(events)
    assert events.run is not None
    return events.run


async def streamed_async(program: CompiledGraph) -> Run:
    async with program.astream({}) as events:
        async for _ in events:
            pass
    assert events.run is not None
    return events.run


MODES: dict[str, Callable[[CompiledGraph], Run]] = {
    "run": lambda program: program.run({}),
    "arun": lambda program: asyncio.run(program.arun({})),
    "worker thread": in_worker_thread,
    "stream": streamed,
    "astream": lambda program: asyncio.run(streamed_async(program)),
}
modes = pytest.mark.parametrize("go", MODES.values(), ids=MODES)
colours = pytest.mark.parametrize("colour", ["sync", "async"])


def finished(run: Run) -> Run:
    run.raise_error()
    return run


def writer(ctx: Context) -> dict[str, str]:
    for name in ("a", "b"):
        ctx.post("notes", name)
    return {"notes": "c"}


def echo(colour: str) -> Callable[..., Any]:
    """A node that answers each note."""

    def listen(ctx: Context) -> None:
        for note in ctx.live("notes"):
            ctx.post("echoes", f"{note.author} {note.value}")

    async def alisten(ctx: Context) -> None:
        async for note in ctx.live("notes"):
            ctx.post("echoes", f"{note.author} {note.value}")

    return listen if colour == "sync" else alisten


ANSWERED = {"notes": ["a", "b", "c"], "echoes": ["writer a", "writer b", "writer c"]}


@modes
@colours
@pytest.mark.parametrize("sequence", [False, True], ids=["at once", "in sequence"])
def test_a_listener_hears_every_post_and_its_loop_ends(go: Any, colour: str, sequence: bool) -> None:
    """S004-17: how far it has read is part of its commit."""
    nodes = {"writer": (writer, ["notes"]), "echo": (echo(colour), ["echoes"])}
    run = finished(go(team(sequence=sequence, **nodes).compile()))
    state = run.state.to_dict()
    assert {name: state[name] for name in ANSWERED} == ANSWERED
    commit = next(commit for commit in run.commits if commit.node == "echo")
    assert commit.live is not None
    seqs = next(commit.live.posts["notes"] for commit in run.commits if commit.node == "writer" and commit.live)
    assert commit.live.reads == {"notes": seqs[-1]}


@modes
def test_a_post_is_seen_before_its_node_has_ended(go: Any) -> None:
    """S004-12."""
    heard = threading.Event()

    def posts(ctx: Context) -> None:
        ctx.post("notes", "now")
        assert heard.wait(20)

    def listens(ctx: Context) -> None:
        assert next(ctx.live("notes")).value == "now"
        heard.set()

    finished(go(team(posts=(posts, ["notes"]), listens=listens).compile()))


@modes
@pytest.mark.parametrize("limit", [1, 2])
def test_fifty_sync_waiters_hold_no_slot(go: Any, limit: int) -> None:
    def waits(ctx: Context) -> dict[str, int]:
        return {"done": len([note for note in ctx.live("notes") if note.value == "go"])}

    def posts(ctx: Context) -> None:
        ctx.post("notes", "go")

    nodes: dict[str, Any] = {f"w{number}": (waits, ["done"]) for number in range(50)}
    graph = team(*nodes, "last", **nodes, last=(posts, ["notes"]))
    assert finished(go(graph.compile(max_concurrency=limit))).state["done"] == 50


@modes
@colours
def test_no_more_nodes_work_at_once_than_max_concurrency(go: Any, colour: str) -> None:
    """A waiter that goes on takes a slot again."""
    lock, working, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        with lock:
            working -= 1

    def listens(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            work()

    async def alistens(ctx: Context) -> None:
        async for _ in ctx.live("notes"):
            work()

    def posts(ctx: Context) -> None:
        for number in range(20):
            work()
            ctx.post("notes", str(number))

    nodes: dict[str, Any] = {f"n{number}": listens if colour == "sync" else alistens for number in range(6)}
    finished(go(team(*nodes, "last", **nodes, last=(posts, ["notes"])).compile(max_concurrency=1)))
    assert most == 1


@modes
@colours
def test_of_a_ring_of_waiters_the_first_in_path_order_is_released(go: Any, colour: str) -> None:
    ended: list[str] = []

    def member(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            pass
        ended.append(ctx.node)
        ctx.post("notes", f"{ctx.node} ends")

    async def amember(ctx: Context) -> None:
        async for _ in ctx.live("notes"):
            pass
        ended.append(ctx.node)
        ctx.post("notes", f"{ctx.node} ends")

    fn = member if colour == "sync" else amember
    nodes = {name: (fn, ["notes"]) for name in ("c", "a", "b")}
    run = finished(go(team(**nodes).compile()))
    assert ended == ["c", "a", "b"]
    assert run.state.to_dict()["notes"] == ["c ends", "a ends", "b ends"]
    commits = {commit.node: commit for commit in run.commits}
    assert commits["b"].live is not None
    assert commits["b"].live.reads == {"notes": 2}


def test_a_field_is_open_while_a_node_that_writes_it_can_still_start() -> None:
    """The writer comes two nodes behind a sibling, and behind a router."""
    graph = Graph(Pad)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_node("early", lambda ctx: {"done": 1}, writes=["done"])
    graph.add_node("late", lambda ctx: {"notes": "late"}, writes=["notes"])
    graph.add_node("other", lambda ctx: {}, writes=[])
    graph.add_edge(START, ["listens", "early"]).add_edge("listens", END).add_edge(["late", "other"], END)
    graph.add_conditional_edges("early", lambda done: "late" if done else "other", ["late", "other"])
    assert finished(graph.compile(max_concurrency=1).run({})).state.to_dict()["echoes"] == ["late late"]


def test_what_waits_behind_the_listener_itself_holds_nothing_up() -> None:
    """The node at the join writes the field, and can only start once the listener has ended."""
    graph = Graph(Pad)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_node("beside", lambda ctx: {}, writes=[])
    graph.add_node("joined", lambda ctx: {"notes": "after"}, writes=["notes"])
    graph.add_edge(START, ["listens", "beside"]).add_edge(["listens", "beside"], "joined").add_edge("joined", END)
    state = finished(graph.compile().run({})).state.to_dict()
    assert (state["notes"], state["echoes"]) == (["after"], [])


# --- one order for all


def in_turn(order: Sequence[int], count: int) -> dict[str, Any]:
    """Nodes that post in a given order, whoever is scheduled when."""
    turns, condition = iter(enumerate(order)), threading.Condition()
    current: list[tuple[int, int] | None] = [next(turns, None)]

    def node(me: int) -> Any:
        def posts(ctx: Context) -> None:
            for _ in range(list(order).count(me)):
                with condition:
                    assert condition.wait_for(lambda: current[0] is not None and current[0][1] == me, 20)
                    assert current[0] is not None
                    ctx.post("notes", f"{me}.{current[0][0]}")
                    current[0] = next(turns, None)
                    condition.notify_all()

        return (posts, ["notes"])

    return {f"n{me}": node(me) for me in range(count)}


@settings(max_examples=30, deadline=None)
@given(order=st.lists(st.integers(0, 3), max_size=12))
def test_the_final_state_is_the_fold_by_arrival(order: list[int]) -> None:
    run = finished(team(**in_turn(order, 4)).compile().run({}))
    expected = [f"{me}.{number}" for number, me in enumerate(order)]
    assert run.state.to_dict()["notes"] == expected
    numbered = [
        (seq, update)
        for commit in run.commits
        if commit.live
        for seq, update in zip(
            commit.live.posts["notes"],
            commit.patch["notes"].updates if isinstance(commit.patch["notes"], Updates) else (commit.patch["notes"],),
            strict=True,
        )
    ]
    assert [update for _, update in sorted(numbered)] == expected


def test_views_show_posts_in_the_order_of_their_arrival() -> None:
    seen: list[list[tuple[str, str]]] = []

    def reads(ctx: Context) -> None:
        seen.append([(entry.author, entry.value) for entry in ctx.view(view("notes"))])

    graph = Graph(Pad)
    nodes = in_turn([1, 0, 1], 2)
    for name, (fn, writes) in nodes.items():
        graph.add_node(name, fn, writes=writes)
    graph.add_node("reads", reads, reads=["notes"], writes=[]).add_edge(START, list(nodes))
    run = graph.add_edge(list(nodes), "reads").add_edge("reads", END).compile().run({})
    finished(run)
    assert seen == [[("n1", "1.0"), ("n0", "0.1"), ("n1", "1.2")]]


def test_all_hear_all_in_one_order() -> None:
    heard: dict[str, list[int]] = {}

    def agent(ctx: Context) -> None:
        for number in range(10):
            ctx.post("notes", f"{ctx.node} {number}")
        heard[ctx.node] = [note.seq for note in ctx.live("notes")]

    nodes = {f"a{number}": (agent, ["notes"]) for number in range(12)}
    run = finished(team(**nodes).compile().run({}))
    assert len(run.state["notes"]) == 120
    for name, seqs in heard.items():
        own = next(commit.live.posts["notes"] for commit in run.commits if commit.node == name and commit.live)
        assert seqs == sorted(set(range(1, 121)) - set(own))


def test_a_node_hears_each_entry_once_over_its_visits() -> None:
    heard: list[list[str]] = []

    def posts(ctx: Context) -> dict[str, Any]:
        return {"notes": f"visit {ctx.visit}"}

    def listens(ctx: Context) -> dict[str, Any]:
        heard.append([note.value for note in ctx.live("notes")] + [note.value for note in ctx.live("notes")])
        return {"notes": f"own {ctx.visit}"}

    graph = Graph(Pad, inputs=["notes"])
    graph.add_node("posts", posts, writes=["notes"]).add_node("listens", listens, writes=["notes"])
    graph.add_path(START, "posts", "listens")
    graph.add_conditional_edges(
        "listens", lambda ctx: "more" if ctx.visit < 3 else "end", {"more": "posts", "end": END}
    )
    finished(graph.compile().run({"notes": "given"}))
    assert heard == [["given", "visit 1"], ["visit 2"], ["visit 3"]]


def test_entries_say_who_when_and_which_key() -> None:
    found: list[LiveEntry] = []

    def posts(ctx: Context) -> None:
        ctx.post("code", {"a": 1, "b": [2]})

    def listens(ctx: Context) -> None:
        found.extend(ctx.live("code"))
        found[-1].value.append(3)  # a copy of its own

    run = finished(team(posts=(posts, ["code"]), listens=listens, sequence=True).compile().run({}))
    commit = next(commit.id for commit in run.commits if commit.node == "posts")
    assert found == [LiveEntry(1, "posts", commit, 1, "a"), LiveEntry([2, 3], "posts", commit, 1, "b")]
    assert run.state.to_dict()["code"] == {"a": 1, "b": [2]}


# --- failure, questions, cancellation


@modes
@colours
def test_a_failed_writer_lets_the_listener_give_way(go: Any, colour: str) -> None:
    """Its own error is the run's, although the listener comes first in path order; nothing of the two is committed."""
    listening = threading.Event()

    def fails(ctx: Context) -> None:
        ctx.post("notes", "lost")
        assert listening.wait(20)
        raise ValueError("broken")

    def listens(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            listening.set()

    async def alistens(ctx: Context) -> None:
        async for _ in ctx.live("notes"):
            listening.set()

    nodes = {"listens": listens if colour == "sync" else alistens, "fails": (fails, ["notes"])}
    program = team(**nodes).compile()
    if go in (MODES["stream"], MODES["astream"]):
        with pytest.raises(ValueError, match="broken"):
            go(program)
        return
    run = go(program)
    assert isinstance(run.error, ValueError)
    assert [commit.node for commit in run.commits] == ["START"]
    assert [event.posts for event in run.events if isinstance(event, Withdrawn)] == [(1,)]


@modes
def test_a_listener_gives_way_to_a_question_of_its_writer(go: Any) -> None:
    if go in (MODES["stream"], MODES["astream"]):
        return  # they raise at the end

    def asks(ctx: Context) -> None:
        ctx.post("notes", "draft")
        ctx.interrupt("ok", "Is it good?")

    run = go(team(listens=(echo("sync"), ["echoes"]), asks=(asks, ["notes"])).compile())
    assert (run.status, [question.key for question in run.questions]) == ("interrupted", ["ok"])
    assert [commit.node for commit in run.commits] == ["START"]


@modes
@pytest.mark.parametrize("stops", [{"interrupt_before": ["late"]}, {"interrupt_after": ["early"]}], ids=str)
def test_a_listener_gives_way_where_the_program_stops_before_its_writer(go: Any, stops: dict[str, Any]) -> None:
    if go in (MODES["stream"], MODES["astream"]):
        return  # they raise at the end
    graph = Graph(Pad)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_node("early", lambda ctx: {}, writes=[])
    graph.add_node("late", lambda ctx: {"notes": "late"}, writes=["notes"])
    graph.add_edge(START, ["listens", "early"]).add_path("early", "late", END).add_edge("listens", END)
    run = go(graph.compile(**stops))
    assert run.status == "interrupted"
    assert [commit.node for commit in run.commits] == ["START", "early"]


@colours
def test_a_cancelled_run_holds_nobody(colour: str) -> None:
    async def main() -> None:
        listening, ended = anyio.Event(), threading.Event()

        async def never(ctx: Context) -> None:
            await anyio.sleep_forever()

        def listens(ctx: Context) -> None:
            anyio.from_thread.run_sync(listening.set)
            try:
                list(ctx.live("notes"))
            finally:
                ended.set()

        async def alistens(ctx: Context) -> None:
            listening.set()
            try:
                async for _ in ctx.live("notes"):
                    pass
            finally:
                ended.set()

        fn = listens if colour == "sync" else alistens
        program = team(listens=fn, never=(never, ["notes"])).compile()
        task = asyncio.create_task(program.arun({}))
        await listening.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await anyio.to_thread.run_sync(ended.wait, 20)

    asyncio.run(main())


def test_an_interrupt_of_the_process_holds_nobody() -> None:
    listening = threading.Event()

    def stops(ctx: Context) -> None:
        assert listening.wait(20)
        raise KeyboardInterrupt

    def listens(ctx: Context) -> None:
        listening.set()
        list(ctx.live("notes"))

    with pytest.raises(KeyboardInterrupt):
        team(listens=listens, stops=(stops, ["notes"])).compile().run({})


def test_closing_a_stream_lets_listeners_give_way() -> None:
    """The writer behind the first node does not start any more."""
    closing, listening = threading.Event(), threading.Event()

    def first(ctx: Context) -> None:
        assert closing.wait(20)

    def listens(ctx: Context) -> None:
        listening.set()
        list(ctx.live("notes"))

    graph = Graph(Pad).add_node("listens", listens, reads=["notes"], writes=[]).add_node("first", first, writes=[])
    graph.add_node("late", lambda ctx: {"notes": "late"}, writes=["notes"])
    graph.add_edge(START, ["listens", "first"]).add_path("first", "late", END).add_edge("listens", END)
    events = graph.compile().stream({})
    for event in events:
        if isinstance(event, NodeStarted) and event.node == "first":
            break
    assert listening.wait(20)
    events._request.stop("the test stops it")
    closing.set()
    events.close()
    assert events.run.status == "stopped"


@colours
def test_a_timeout_is_an_error_of_the_loop(colour: str) -> None:
    hold = threading.Event()

    def waits(ctx: Context) -> None:
        assert hold.wait(20)

    def listens(ctx: Context) -> dict[str, int]:
        with pytest.raises(TimeoutError, match="nothing came to the live field 'notes'"):
            next(ctx.live("notes", timeout=0))
        hold.set()
        return {"done": 1}

    async def alistens(ctx: Context) -> dict[str, int]:
        with pytest.raises(TimeoutError, match="nothing came to the live field 'notes'"):
            await anext(ctx.live("notes", timeout=0))
        hold.set()
        return {"done": 1}

    fn = listens if colour == "sync" else alistens
    program = team(listens=(fn, ["done"]), waits=(waits, ["notes"])).compile()
    assert finished(program.run({})).state["done"] == 1


# --- conflicts


@pytest.mark.parametrize(
    ("mark", "first", "second", "expected"),
    [
        (live, {"k": {"a": 1}}, {"k": {"b": 2}}, {"k": {"a": 1, "b": 2}}),
        (live, {"k": [1]}, {"k": [2]}, {"k": [1, 2]}),
        (live, {"k": "x"}, {"k": "y"}, {"k": "y"}),
        (live, {"k": "x"}, {"j": "y"}, {"k": "x", "j": "y"}),
        (live(on_conflict="last_write_wins"), {"k": {"a": 1}}, {"k": {"b": 2}}, {"k": {"b": 2}}),
        (live(on_conflict="reject"), {"k": "x"}, {"k": "y"}, {"k": "x"}),
    ],
)
@pytest.mark.parametrize("reads", [False, True], ids=["unread", "read"])
def test_a_write_over_what_was_not_read_is_a_conflict(
    mark: Any, first: dict[str, Any], second: dict[str, Any], expected: dict[str, Any], reads: bool
) -> None:
    """S004-18, S004-19, S004-29."""

    class Code(BaseModel):
        code: Annotated[dict[str, Any], reducers.update, mark] = {}

    posted = threading.Event()

    def one(ctx: Context) -> None:
        ctx.post("code", first)
        posted.set()

    def two(ctx: Context) -> None:
        assert posted.wait(20)
        if reads:
            next(ctx.live("code"))
        ctx.post("code", second)

    graph = Graph(Code).add_node("one", one, writes=["code"]).add_node("two", two, writes=["code"])
    run = graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile().run({})
    found = [event for event in run.events if isinstance(event, LiveConflict)]
    if reads or set(first) != set(second):
        assert found == []
        assert finished(run).state.to_dict()["code"] == {**first, **second}
        return
    assert found == [LiveConflict("code", "k", "two", "one", 1, mark.on_conflict)]
    if mark.on_conflict == "reject":
        assert isinstance(run.error, MergeConflictError)
        assert (run.error.writers, run.error.path) == (("one", "two"), ("code", "k"))
        assert "read ctx.live('code') up to there" in str(run.error)
    else:
        assert finished(run).state.to_dict()["code"] == expected


def message(**parts: Any) -> dict[str, Any]:
    return {"id": "m", **parts}


MESSAGES: list[tuple[Any, dict[str, Any], dict[str, Any], list[dict[str, Any]], Any]] = [
    (live, message(text="x"), message(text="y"), [message(text="y")], "m"),
    (live, message(a=1), message(b=2), [message(a=1, b=2)], "m"),
    (live(on_conflict="last_write_wins"), message(a=1), message(b=2), [message(b=2)], "m"),
    (live(on_conflict="reject"), message(text="x"), message(text="y"), [message(text="x")], None),
    (live, message(parts=[1]), message(parts=[1]), [message(parts=[1])], "no conflict"),
    (live, message(a=1), {"id": "n"}, [message(a=1), {"id": "n"}], "no conflict"),
    (live, {"text": "x"}, {"text": "x"}, [{"text": "x"}, {"text": "x"}], "no conflict"),
]


@pytest.mark.parametrize(("mark", "first", "second", "expected", "key"), MESSAGES)
@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("how", ["post", "return"])
def test_two_messages_with_one_id_are_a_conflict(
    colour: str, how: str, mark: Any, first: Any, second: Any, expected: list[Any], key: Any
) -> None:
    """None of them is lost in silence: each conflict is an event by the rule of the field, in a resumed run too."""

    class Chat(BaseModel):
        said: Annotated[list[dict[str, Any]], reducers.add_messages, mark] = []

    posted = threading.Event()

    def one(ctx: Context) -> None:
        ctx.post("said", first)
        posted.set()

    def two(ctx: Context) -> Any:
        assert posted.wait(20)
        if how == "return":
            return {"said": second}
        ctx.post("said", second)
        return None

    def three(ctx: Context) -> None:
        ctx.interrupt("go", "go on?")

    graph = Graph(Chat).add_node("one", one, writes=["said"]).add_node("two", two, writes=["said"])
    graph.add_node("three", three, writes=[]).add_edge(START, ["one", "two"]).add_edge(["one", "two"], "three")
    thread = graph.add_edge("three", END).compile(store=":memory:").thread("t")
    run = thread.run({}) if colour == "sync" else asyncio.run(thread.arun({}))
    found = [event for event in run.events if isinstance(event, LiveConflict)]
    if key == "no conflict":
        assert found == []
    else:
        assert found == [LiveConflict("said", key, "two", "one", 1, mark.on_conflict)]
    if mark.on_conflict == "reject":
        assert isinstance(run.error, MergeConflictError)
        assert run.error.writers == ("one", "two")
        return
    run = finished(thread.resume({run.questions[0].id: True}))
    said = [{name: part for name, part in one.items() if "/" not in str(part)} for one in run.state.to_dict()["said"]]
    assert said == expected
    assert thread.replay() == run.state


def test_a_list_may_reject_what_was_written_unread() -> None:
    class Code(BaseModel):
        notes: Annotated[list[str], reducers.append, live(on_conflict="reject")] = []

    posted = threading.Event()

    def one(ctx: Context) -> None:
        ctx.post("notes", "1")
        posted.set()

    def two(ctx: Context) -> None:
        assert posted.wait(20)
        with pytest.raises(MergeConflictError):
            ctx.post("notes", "2")
        heard = next(ctx.live("notes")).value
        ctx.post("notes", f"2 after {heard}")

    graph = Graph(Code).add_node("one", one, writes=["notes"]).add_node("two", two, writes=["notes"])
    program = graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile()
    assert finished(program.run({})).state.to_dict()["notes"] == ["1", "2 after 1"]


@pytest.mark.parametrize("sequence", [False, True])
def test_what_lies_behind_a_node_is_no_conflict(sequence: bool) -> None:
    """A node has in its state what earlier nodes of its branch have written."""
    run = (
        team(
            sequence=True,
            one=(lambda ctx: {"code": {"k": 1}}, ["code"]),
            two=(lambda ctx: {"code": {"k": 2}}, ["code"]),
        )
        .compile()
        .run({}, live=not sequence)
    )
    assert finished(run).state.to_dict()["code"] == {"k": 2}
    assert not [event for event in run.events if isinstance(event, LiveConflict)]


# --- isolated, who is there, events


@modes
def test_an_isolated_run_posts_with_its_commits(go: Any) -> None:
    program = team(echo=(echo("sync"), ["echoes"]), writer=(writer, ["notes"])).compile()
    run = finished(program.run({}, live=False))
    assert run.state.to_dict()["notes"] == ["a", "b", "c"]
    assert run.state.to_dict()["echoes"] == []
    assert not [event for event in run.events if isinstance(event, Posted)]
    assert all(commit.live is None for commit in run.commits)
    assert finished(asyncio.run(program.arun({}, live=False))).state == run.state


def test_siblings_know_of_each_other() -> None:
    """S004-13."""
    ready, seen = threading.Event(), threading.Event()

    def works(ctx: Context) -> None:
        ctx.doing("counting")
        ready.set()
        assert seen.wait(20)

    peers = []

    def looks(ctx: Context) -> None:
        assert ready.wait(20)
        peers.extend(ctx.peers())
        seen.set()

    run = finished(team(works=works, looks=looks).compile().run({}))
    assert [tuple(peer) for peer in peers] == [("works", (0,), 1, "counting", "")]
    assert [event.text for event in run.events if isinstance(event, Doing)] == ["counting"]


def test_a_post_is_an_event_at_once() -> None:
    """S004-16."""
    run = finished(team(writer=(writer, ["notes"])).compile().run({}))
    posted = [event for event in run.events if isinstance(event, Posted)]
    assert [(event.node, event.field, event.seq, event.size) for event in posted] == [
        ("writer", "notes", seq, 3) for seq in (1, 2, 3)
    ]
    places = {type(event).__name__: place for place, event in enumerate(run.events)}
    assert places["Posted"] < places["Committed"]


def test_the_graph_inside_a_node_has_a_board_of_its_own() -> None:
    """What it has posted arrives outside as the update of its node."""
    inner = team(writer=(writer, ["notes"]), echo=(echo("sync"), ["echoes"])).compile()
    graph = Graph(Pad).add_node("inner", inner, reads=["task"], writes=["notes", "echoes"])
    graph.add_node("echo", echo("sync"), reads=["notes"], writes=["echoes"])
    run = finished(graph.add_edge(START, ["echo", "inner"]).add_edge(["echo", "inner"], END).compile().run({}))
    state = run.state.to_dict()
    assert state["notes"] == ANSWERED["notes"]
    assert state["echoes"][-3:] == ["inner a", "inner b", "inner c"]
    assert sorted(state["echoes"][:3]) == sorted(ANSWERED["echoes"])


def test_copies_of_one_node_hear_each_other() -> None:
    heard: dict[str, list[str]] = {}

    def worker(ctx: Context, name: str) -> dict[str, str]:
        ctx.post("notes", name)
        heard[name] = sorted(note.value for note in ctx.live("notes"))
        return {}

    graph = Graph(Pad).add_node("split", lambda ctx: {}, writes=[]).add_node("worker", worker, writes=["notes"])
    graph.add_edge(START, "split").add_edge("worker", END)
    graph.add_conditional_edges("split", lambda ctx: [Send("worker", {"name": name}) for name in "abc"], ["worker"])
    finished(graph.compile().run({}))
    assert heard == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}


# --- bad input


def fields(**annotations: Any) -> type[BaseModel]:
    return type("Fields", (BaseModel,), {"__annotations__": annotations, **{name: [] for name in annotations}})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Graph(fields(a=Annotated[list[str], max, live])), "does not keep the posts apart"),
        (
            lambda: Graph(fields(a=Annotated[list[str], reducers.append, live(on_conflict="last_write_wins")])),
            "is for a field of keys or messages",
        ),
        (lambda: live(on_conflict="never"), "it is one of 'merge', 'last_write_wins', 'reject'"),  # type: ignore[arg-type]
        (
            lambda: Graph(Pad).add_node("n", lambda notes: {}).add_path(START, "n", END).compile(),
            "node 'n' does not say what it writes, so nobody could tell when the live field",
        ),
    ],
)
def test_a_wrong_live_field_is_an_error_of_the_graph(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        make()


def never_ends(ctx: Context) -> None:
    ctx.live("done")


async def blocks(ctx: Context) -> None:
    for _ in ctx.live("notes"):
        pass


WRONG: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda ctx: ctx.post("notes", 1), NodeOutputError, "field 'notes'"),
    (lambda ctx: ctx.post("notes", Replace([])), NodeOutputError, "whose posts are never removed"),
    (lambda ctx: {"notes": DELETE}, NodeOutputError, "whose posts are never removed"),
    (lambda ctx: ctx.post("code", {}), NodeOutputError, "not among its writes"),
    (lambda ctx: ctx.live("done"), InputError, "not among its reads"),
    (lambda ctx: ctx.live("task"), InputError, "which is not live"),
    (blocks, AttemptError, "write `async for` in an async node"),
]


@pytest.mark.parametrize(("fn", "error", "text"), WRONG)
def test_a_wrong_use_is_an_error_of_the_node(fn: Callable[..., Any], error: type[Exception], text: str) -> None:
    graph = Graph(Pad).add_node("n", fn, reads=["notes", "task"], writes=["notes"])
    program = graph.add_path(START, "n", END).compile()
    with pytest.raises(error, match=text):
        asyncio.run(program.arun({})).raise_error()


def test_a_post_from_a_thread_that_outlives_its_node_is_an_error() -> None:
    kept: list[Context] = []

    def leaves(ctx: Context) -> None:
        kept.append(ctx)

    def late(ctx: Context) -> None:
        kept[0].post("notes", "late")

    run = team(sequence=True, leaves=(leaves, ["notes"]), late=(late, ["notes"])).compile().run({})
    assert isinstance(run.error, NodeOutputError)


# --- whatever they do, they come to an end

ACTIONS = st.sampled_from(["post notes", "post echoes", "hear notes", "hear echoes", "one note", "one echo"])


def scripted(actions: Sequence[str], heard: dict[str, list[tuple[str, int]]]) -> tuple[Any, Any]:
    """A node that posts, hears to the end, or takes one entry, in both colours."""
    fields = {"note": "notes", "echo": "echoes"}

    def take(ctx: Context, field: str, entry: LiveEntry) -> None:
        heard.setdefault(f"{ctx.node} {field}", []).append((entry.value, entry.seq))

    def node(ctx: Context) -> None:
        for number, action in enumerate(actions):
            verb, field = action.split()
            if verb == "post":
                ctx.post(field, f"{ctx.node} {number}")
            elif verb == "hear":
                for entry in ctx.live(field):
                    take(ctx, field, entry)
            else:
                found = next(ctx.live(fields[field]), None)
                if found is not None:
                    take(ctx, fields[field], found)

    async def anode(ctx: Context) -> None:
        for number, action in enumerate(actions):
            verb, field = action.split()
            if verb == "post":
                ctx.post(field, f"{ctx.node} {number}")
            elif verb == "hear":
                async for entry in ctx.live(field):
                    take(ctx, field, entry)
            else:
                found = await anext(ctx.live(fields[field]), None)
                if found is not None:
                    take(ctx, fields[field], found)

    return node, anode


def writes_of(actions: Sequence[str]) -> list[str]:
    return sorted({action.split()[1] for action in actions if action.startswith("post")})


@settings(max_examples=60, deadline=None)
@given(
    scripts=st.lists(st.lists(ACTIONS, max_size=5), min_size=1, max_size=6),
    colours=st.lists(st.booleans(), min_size=6, max_size=6),
    limit=st.integers(1, 4),
    behind=st.booleans(),
    tasks=st.booleans(),
)
def test_all_come_to_their_end_and_agree(
    scripts: list[list[str]], colours: list[bool], limit: int, behind: bool, tasks: bool
) -> None:
    """Any scripts, in either colour, under either driver; with `behind`, each second node follows the one before it."""
    heard: dict[str, list[tuple[str, int]]] = {}
    graph = Graph(Pad)
    ends: list[str] = []
    starts: list[str] = []
    for number, actions in enumerate(scripts):
        name = f"n{number}"
        fn = scripted(actions, heard)[colours[number]]
        graph.add_node(name, fn, reads=["notes", "echoes"], writes=writes_of(actions))
        if behind and number % 2:
            graph.add_edge(ends.pop(), name)
        else:
            starts.append(name)
        ends.append(name)
    program = graph.add_edge(START, starts).add_edge(ends, END).compile(max_concurrency=limit)
    run = finished(asyncio.run(program.arun({})) if tasks else program.run({}))
    order: dict[str, list[tuple[str, int]]] = {"notes": [], "echoes": []}
    for commit in run.commits:
        for field, seqs in commit.live.posts.items() if commit.live else ():
            update = commit.patch[field]
            updates = update.updates if isinstance(update, Updates) else (update,)
            order[field] += zip(updates, seqs, strict=True)
    for field, posts in order.items():
        posts.sort(key=lambda post: post[1])
        assert run.state.to_dict()[field] == [value for value, _ in posts]
    for place, entries in heard.items():
        node, field = place.split()
        others = [post for post in order[field] if not post[0].startswith(node)]
        assert entries == others[: len(entries)]

"""`add_node(cache=)`: one call for equal reads, and the same results as without a cache."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest
from hypothesis import given
from pydantic import BaseModel

from dspyer import DELETE, END, START, Cache, CompiledGraph, Context, Graph, Replace, Retry, Send, view
from dspyer.errors import NodeOutputError, NodeTimeoutError
from dspyer.events import NodeStarted
from dspyer.testing import Asks, ScriptedLM, no_pauses
from tests.runtime.cached import Doc, Later, Library, library, search, slow, warnings_of
from tests.runtime.calls import CALLS, GATES, Gate, count_call, gate_of, let_pass
from tests.runtime.conftest import PLAYS, Play
from tests.runtime.test_drivers import Log, summary, unreached
from tests.scheduler.test_schedule import Plan, plans
from tests.timeouts import PATIENCE, TimeIsOver


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def facts(program: CompiledGraph, play: Play, inputs: dict[str, Any]) -> Any:
    """All that must not depend on a cache."""
    run = play(program, inputs)
    commits = [(one.id, one.node, dict(one.patch), one.version) for one in run.commits]
    return commits, run.state.to_dict(), run.status, [type(event).__name__ for event in run.events]


def test_a_second_run_makes_no_call_and_has_the_same_results(play: Play, tmp_path: Path) -> None:
    plain = facts(library(cache=False).compile(), play, {"query": "tides"})
    program = library(folder=tmp_path).compile()
    assert facts(program, play, {"query": "tides"}) == plain
    assert facts(program, play, {"query": "tides"}) == plain
    assert CALLS == {"tides": 2}
    assert [one.cached for one in play(program, {"query": "tides"}).commits] == [False, True]
    assert [one.cached for one in play(program, {"query": "moon"}).commits] == [False, False]


def test_programs_of_one_graph_share_results_and_others_do_not(tmp_path: Path) -> None:
    for _ in range(2):
        library(folder=tmp_path).compile().run({"query": "tides"})
    assert CALLS == {"tides": 1}
    library(folder=tmp_path / "other").compile().run({"query": "tides"})
    assert CALLS == {"tides": 2}
    library(cache=Cache(version="2"), folder=tmp_path).compile().run({"query": "tides"})
    assert CALLS == {"tides": 3}


def test_what_is_stored_is_what_was_returned_and_not_the_change_of_one_state(tmp_path: Path) -> None:
    program = library(folder=tmp_path).compile()
    same = {"query": "tides", "docs": [{"title": "tides"}]}
    assert program.run(same).commits[-1].patch.keys() == {"log", "count"}  # `docs` did not change
    run = program.run({"query": "tides"})
    assert run.commits[-1].cached
    assert run.state["docs"] == [Doc(title="tides")]


@pytest.mark.usefixtures("own_dspy_cache")
def test_the_default_folder_is_in_that_of_dspy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "env"))
    monkeypatch.delitem(vars(dspy), "cache", raising=False)
    program = library().compile()
    program.run({"query": "tides"})
    assert (tmp_path / "env" / "dspyer" / "cache.db").exists()
    dspy.configure_cache(enable_disk_cache=False, disk_cache_dir=str(tmp_path / "configured"))
    program.run({"query": "tides"})
    assert (tmp_path / "configured" / "dspyer" / "cache.db").exists()
    assert CALLS == {"tides": 2}


def test_entries_grow_too_old(tmp_path: Path) -> None:
    with no_pauses():
        program = library(cache=Cache(ttl=60), folder=tmp_path).compile()
        program.run({"query": "tides"})
        let_pass(59)
        assert program.run({"query": "tides"}).commits[-1].cached
        let_pass(2)
        assert not program.run({"query": "tides"}).commits[-1].cached
        let_pass(59)
        assert program.run({"query": "tides"}).commits[-1].cached
        shorter = library(cache=Cache(ttl=10), folder=tmp_path).compile()
        assert not shorter.run({"query": "tides"}).commits[-1].cached
    assert CALLS == {"tides": 3}


# --- what a hit commits


def every_kind(query: str) -> dict[str, Any]:
    count_call(query)
    return {
        "docs": Replace([Doc(title="a", tags=["x"])]),
        "found": (1, {2}, b"x", None, 1.0, {"deep": [Doc(title="b")]}),
        "log": "one",
        "settings": {"theme": "dark", "old": DELETE, "none": None, "keep": Replace({"a": {}})},
    }


def as_model(query: str) -> Library:
    count_call(query)
    return Library(docs=[Doc(title=query)], settings={"only": 1})


def as_prediction(query: str) -> dspy.Prediction:
    count_call(query)
    return dspy.Prediction(docs=[{"title": query}], settings={"one": None})


def nothing(query: str) -> None:
    count_call(query)


def test_any_patch_comes_back_as_it_was(tmp_path: Path) -> None:
    inputs = {"query": "tides", "settings": {"old": 1, "none": 2, "keep": {"b": 1}, "other": 3}}
    for node in (every_kind, as_model, as_prediction, nothing):
        CALLS.clear()
        plain = library(node, None, cache=False).compile().run(inputs)
        program = library(node, None, folder=tmp_path).compile()
        for cached in (False, True):
            run = program.run(inputs)
            assert (node, run.commits[-1].cached) == (node, cached)
            assert run.state == plain.state
            assert dict(run.commits[-1].patch) == dict(plain.commits[-1].patch)
        assert CALLS == {"tides": 2}


def find(query: str) -> dict[str, Any]:
    count_call(query)
    return {"hit": query}


def test_a_renamed_write_is_no_hit_for_another_field(tmp_path: Path) -> None:
    graphs = [
        Graph(name="one").add_node("find", find, writes={"hit": field}, cache=Cache(folder=tmp_path))
        for field in ("a", "b")
    ]
    programs = [graph.add_path(START, "find", END).compile() for graph in graphs]
    assert [program(query="tides").toDict() for program in programs] == [{"a": "tides"}, {"b": "tides"}]


class Numbers(BaseModel):
    query: str = ""
    found: int = 0


class Texts(BaseModel):
    query: str = ""
    found: str = ""


def number(query: str) -> dict[str, Any]:
    count_call(query)
    return {"found": 7}


def test_a_hit_is_validated_by_the_schema_of_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def program(schema: type[BaseModel]) -> CompiledGraph:
        graph = Graph(schema, name="one").add_node("find", number, writes=["found"], cache=Cache(folder=tmp_path))
        return graph.add_path(START, "find", END).compile()

    assert program(Numbers)(query="tides").found == 7
    with pytest.raises(NodeOutputError, match="string"):
        program(Texts)(query="tides")
    assert CALLS == {"tides": 2}, "an entry that the schema refuses is a miss"
    assert "an entry cannot be used" in warnings_of(caplog)[0]


# --- what is not stored


def raises_once(query: str) -> dict[str, Any]:
    count = count_call(query)
    if count == 1:
        raise ConnectionError("no line")
    return {"found": count}


def refused_once(query: str) -> dict[str, Any]:
    count = count_call(query)
    return {"docs": 7 if count == 1 else []}


def test_failures_are_not_stored(play: Play, tmp_path: Path) -> None:
    for node in (raises_once, refused_once):
        CALLS.clear()
        program = library(node, None, folder=tmp_path).compile()
        assert [play(program, {"query": "tides"}).status for _ in range(3)] == ["failed", "completed", "completed"]
        assert CALLS == {"tides": 2}


def test_the_retry_loop_is_inside_the_cache(play: Play, tmp_path: Path) -> None:
    program = library(raises_once, None, retry=2, folder=tmp_path).compile()
    with no_pauses():
        first, second = [play(program, {"query": "tides"}) for _ in range(2)]
    assert (first.state["found"], second.state["found"]) == (2, 2)
    assert [len(run.commits[-1].failed_attempts) for run in (first, second)] == [1, 0]
    assert CALLS == {"tides": 2}


def strange(query: str) -> dict[str, Any]:
    count_call(query)
    return {"found": Later(text=query)}


def calls_an_lm(query: str) -> dict[str, Any]:
    count_call(query)
    return {"found": dspy.settings.answering(question=query).answer}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (strange, "what it returned cannot be kept"),
        (calls_an_lm, "it called a predictor"),
    ],
    ids=["no JSON", "predictor"],
)
def test_a_result_that_cannot_be_kept_is_committed_and_not_stored(
    node: Any, why: str, play: Play, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(version=str(tmp_path))  # it warns once in a process
    program = library(node, ["found"], cache=cache, folder=tmp_path).compile()
    lm = ScriptedLM([(Asks("answer"), {"answer": "tides"})] * 3)
    with dspy.context(lm=lm, answering=dspy.Predict("question -> answer")):
        runs = [play(program, {"query": "tides"}) for _ in range(3)]
    assert [run.status for run in runs] == ["completed"] * 3
    assert [run.commits[-1].cached for run in runs] == [False] * 3
    assert CALLS == {"tides": 3}
    assert [text for text in warnings_of(caplog) if why in text] == warnings_of(caplog)
    assert len(warnings_of(caplog)) == 1, "one warning for the node"


def wrong_then_strange(query: str) -> dict[str, Any]:
    count = count_call(query)
    return {"docs": 7, "found": 1} if count == 1 else {"docs": [], "found": Later(text=query)}


def test_an_attempt_that_is_kept_is_the_one_that_is_committed(play: Play, tmp_path: Path) -> None:
    options: dict[str, Any] = {"retry": Retry(2, on=NodeOutputError)}
    program = library(wrong_then_strange, ["docs", "found"], **options, folder=tmp_path).compile()
    with no_pauses():
        runs = [play(program, {"query": "tides"}) for _ in range(2)]
    assert [run.state["found"] for run in runs] == [Later(text="tides")] * 2
    assert CALLS == {"tides": 3}


def test_what_cannot_be_read_gives_the_error_of_the_node(tmp_path: Path) -> None:
    def route(query: str) -> list[Send]:
        return [Send("find", {"query": query})]

    graph = (
        Graph()
        .add_node("find", lambda query, more: None, writes=[], cache=Cache(folder=tmp_path))
        .add_edge("find", END)
    )
    program = graph.add_conditional_edges(START, route, ["find"]).compile()
    with pytest.raises(KeyError, match="reads 'more', which nothing has written yet"):
        program(query="tides")


# --- the layers around it


def test_routers_and_condensers_run_after_a_hit(play: Play, tmp_path: Path) -> None:
    def route(docs: Any) -> Literal["end"]:
        count_call("route")
        return "end"

    condense = {"log": dspy.Predict("entry -> short")}
    graph = Graph(Library).add_node(
        "search", search, writes=["docs", "log", "count"], cache=Cache(folder=tmp_path), condense=condense
    )
    graph.add_edge(START, "search").add_conditional_edges("search", route, {"end": END})
    program = graph.compile()
    with dspy.context(lm=ScriptedLM([(Asks("short"), {"short": "tides!"})] * 2)):
        runs = [play(program, {"query": "tides"}) for _ in range(2)]
    assert [(run.state["log"], len(run.trace), run.commits[-1].cached) for run in runs] == [
        (["tides!"], 1, False),
        (["tides!"], 1, True),
    ]
    assert CALLS == {"tides": 1, "route": 2}


def test_items_of_a_send_have_keys_of_their_own(play: Play, tmp_path: Path) -> None:
    def split(query: str) -> list[Send]:
        return [Send("search", {"query": word}) for word in query.split()]

    graph = Graph(Library, merge="last_write_wins")
    graph.add_node("search", search, writes=["log", "docs", "count"], cache=Cache(folder=tmp_path)).add_edge(
        "search", END
    )
    program = graph.add_conditional_edges(START, split, ["search"]).compile()
    run = play(program, {"query": "tides moon tides sun tides"})
    assert CALLS == {"tides": 1, "moon": 1, "sun": 1}
    assert run.state["log"] == [f"searched {word}" for word in ("tides", "moon", "tides", "sun", "tides")]
    assert run.state["count"] == 5


def test_views_and_run_values_are_read(play: Play, tmp_path: Path) -> None:
    def last(recent: list[str], visit: int) -> dict[str, Any]:
        count_call((tuple(recent), visit))
        return {"log": f"{visit}: {recent[-1]}"}

    reads: Any = {"recent": view("log").last(1), "visit": "run.last.calls"}
    graph = Graph(Library, inputs=["log"]).add_node(
        "last", last, reads=reads, writes=["log"], cache=Cache(folder=tmp_path)
    )
    graph.add_edge(START, "last")
    graph.add_conditional_edges("last", lambda log: "last" if len(log) < 4 else END, ["last", END])
    program = graph.compile()
    first = play(program, {"log": "a"})
    before = CALLS.copy()
    second = play(program, {"log": "a"})
    assert second.state == first.state
    assert before == CALLS
    assert sum(CALLS.values()) == 3
    reads = [sum(row.visits for row in run.view_tokens().rows if row.view) for run in (first, second)]
    assert reads == [3, 0], "the look into the cache does not count as read by the node"


def measure(doc: str) -> dict[str, int]:
    count_call(doc)
    return {"size": len(doc)}


def test_a_cached_node_of_a_graph_in_a_map(play: Play, tmp_path: Path) -> None:
    inner = Graph(name="inner").add_node("search", measure, cache=Cache(folder=tmp_path))
    inner.add_path(START, "search", END)
    graph = Graph().add_map("sizes", inner.compile(), over="docs", item="doc", into="sizes")
    program = graph.add_path(START, "sizes", END).compile()
    assert play(program, {"docs": ["a", "bb", "a", "bb", "ccc"]}).state["sizes"] == [1, 2, 1, 2, 3]
    assert CALLS == {"a": 1, "bb": 1, "ccc": 1}


# --- random programs


def pure(name: str, write: int) -> Any:
    """A node of a random graph: what it writes depends on `count` alone, which differs between its visits."""

    def work(count: int) -> dict[str, Any]:
        count_call((name, count))
        if count % 7 == 6 and write % 4 == 1:
            raise ConnectionError(f"{name} has no line")
        return {"log": [f"{name} at {count}"], "count": 1, **({"value": [write, count]} if write % 3 else {})}

    return work


def random_graph(plan: Plan, cache: Cache | None = None) -> Graph:
    def route(name: str) -> Any:
        def decide(ctx: Context) -> list[str | Send]:
            ways = plan.routes[name]
            chosen = ways[min(ctx.visit, len(ways)) - 1].split()
            return [Send(way.strip("()"), {}) if way.startswith("(") else way for way in chosen]

        return decide

    graph = Graph(Log, merge=plan.merge)
    for name in plan.nodes:
        graph.add_node(name, pure(name, plan.writes[name]), writes=["log", "count", "value"], cache=cache)
    for source, targets in plan.edges.items():
        graph.add_edge(source, targets.split())
    for source, targets in plan.conditional.items():
        graph.add_conditional_edges(source, route(source), targets.split())
    for name in unreached(plan):
        graph.add_edge(START, name)
    return graph


@pytest.mark.slow("a random graph, run four times in three ways, for each example")
@given(plans())
def test_random_programs_have_the_same_runs_with_a_cache(plan: Plan) -> None:
    def play_of(program: CompiledGraph, mode: str) -> Any:
        status, state, commits, conflicts = summary(PLAYS[mode](program, {}))
        return status, state, [replace(commit, cached=False) for commit in commits], conflicts

    CALLS.clear()
    plain = play_of(random_graph(plan).compile(max_steps=40), "sync")
    expected = CALLS.copy()
    with tempfile.TemporaryDirectory() as folder:
        program = random_graph(plan, Cache(folder=folder)).compile(max_steps=40)
        for number, mode in enumerate(("sync", "async", "asyncified")):
            CALLS.clear()
            found = play_of(program, mode)
            if plain[0] != "completed":  # branches that ran beside the failure may have come further
                assert found[0] == plain[0]
            else:
                assert found == plain
                assert dict.fromkeys(expected, 1) == CALLS if number == 0 else not CALLS


# --- one call at a time

TURNS = 50  # of an event loop, in which an async node comes from its beginning to its wait


async def aslow(query: str) -> dict[str, Any]:
    count_call(query)
    gate_of(query).entered.release()
    await until(gate_of(query).open.is_set)
    return {"found": query}


def following() -> int:
    """How many threads wait for a leader: in dspyer, for an event."""
    count = 0
    for frame in sys._current_frames().values():
        if frame.f_code is threading.Condition.wait.__code__ and frame.f_back is not None:
            caller = frame.f_back.f_back if frame.f_back.f_code is threading.Event.wait.__code__ else None
            count += caller is not None and caller.f_globals["__name__"].startswith("dspyer.")
    return count


def until_following(count: int) -> None:
    end = time.monotonic() + PATIENCE
    while following() < count:
        assert time.monotonic() < end
        time.sleep(0.001)


class Begun:
    """Runs that say when their node has begun: it then leads, or waits for the leader."""

    def __init__(self, program: CompiledGraph, inputs: dict[str, Any]) -> None:
        self.program, self.inputs = program, inputs
        self._begun = threading.Semaphore(0)

    def run(self) -> Any:
        stream = self.program.stream(self.inputs)
        with suppress(ConnectionError):
            for event in stream:
                self._see(event)
        return stream.run

    async def arun(self) -> Any:
        stream = self.program.astream(self.inputs)
        async for event in stream:
            if isinstance(event, NodeStarted):
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            self._see(event)
        return stream.run

    def _see(self, event: Any) -> None:
        if isinstance(event, NodeStarted):
            self._begun.release()

    def wait(self, count: int) -> None:
        """Until as many more nodes have begun."""
        for _ in range(count):
            assert self._begun.acquire(timeout=PATIENCE)

    async def await_(self, count: int) -> None:
        await asyncio.to_thread(self.wait, count)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - other loops and threads make it true
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("node", [slow, aslow], ids=["sync node", "async node"])
def test_threads_tasks_and_event_loops_make_one_call(node: Any, tmp_path: Path) -> None:
    GATES["tides"] = gate = Gate()
    program = library(node, ["found"], folder=tmp_path).compile()
    found: list[Any] = []

    runs = Begun(program, {"query": "tides"})

    def in_thread() -> None:
        found.append(runs.run())

    def on_a_loop_of_its_own() -> None:
        async def several() -> None:
            found.extend(await asyncio.gather(*[runs.arun() for _ in range(3)]))

        asyncio.run(several())

    threads = [threading.Thread(target=target) for target in (in_thread, on_a_loop_of_its_own) * 3]
    for thread in threads:
        thread.start()
    runs.wait(12)
    until_following(2)  # one of the three threads may lead
    gate.open.set()
    for thread in threads:
        thread.join(20)
    assert CALLS == {"tides": 1}
    assert sorted(run.commits[-1].cached for run in found) == [False] + [True] * 11
    assert {run.state["found"] for run in found} == {"tides"}


def test_after_a_failure_the_followers_make_their_own_calls_at_once(tmp_path: Path) -> None:
    GATES["bad"] = gate = Gate()
    program = library(slow, ["found"], folder=tmp_path).compile()
    runs: list[Any] = []
    begun = Begun(program, {"query": "bad"})
    threads = [threading.Thread(target=lambda: runs.append(begun.run())) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(4)
    until_following(3)
    gate.open.set()
    for thread in threads:
        thread.join(20)
    assert [run.status for run in runs] == ["failed"] * 4
    assert CALLS == {"bad": 4}


@pytest.mark.anyio
async def test_a_cancelled_leader_is_followed_by_another_one(tmp_path: Path) -> None:
    GATES["tides"] = gate = Gate()
    program = library(aslow, ["found"], folder=tmp_path).compile()
    leader = asyncio.create_task(program.arun({"query": "tides"}))
    await until(lambda: gate.entered.acquire(blocking=False))
    followers = Begun(program, {"query": "tides"})
    others = [asyncio.create_task(followers.arun()) for _ in range(3)]
    await followers.await_(3)
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    gate.open.set()
    runs = await asyncio.gather(*others)
    assert CALLS == {"tides": 2}
    assert sorted(run.commits[-1].cached for run in runs) == [False, True, True]


@pytest.mark.anyio
async def test_a_cancelled_follower_disturbs_none(tmp_path: Path) -> None:
    GATES["tides"] = gate = Gate()
    program = library(aslow, ["found"], folder=tmp_path).compile()
    begun = Begun(program, {"query": "tides"})
    tasks = [asyncio.create_task(begun.arun()) for _ in range(3)]
    await begun.await_(3)
    tasks[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    gate.open.set()
    runs = await asyncio.gather(*tasks[:2])
    assert CALLS == {"tides": 1}
    assert [run.commits[-1].cached for run in runs] == [False, True]


@pytest.mark.anyio
async def test_a_sync_call_on_a_loop_does_not_wait_for_a_leader_that_needs_the_loop(tmp_path: Path) -> None:
    GATES["tides"] = gate = Gate()
    program = library(aslow, ["found"], folder=tmp_path).compile()
    leader = asyncio.create_task(program.arun({"query": "tides"}))
    await until(lambda: gate.entered.acquire(blocking=False))
    gate.open.set()
    assert program.run({"query": "tides"}).state["found"] == "tides"  # blocks this loop, and so the leader
    assert (await leader).state["found"] == "tides"
    assert CALLS == {"tides": 2}


def test_a_stopped_run_does_not_wait_for_its_leader(tmp_path: Path) -> None:
    GATES["tides"] = gate = Gate()
    program = library(slow, ["found"], folder=tmp_path).compile()
    leader = threading.Thread(target=lambda: program.run({"query": "tides"}))
    leader.start()
    assert gate.entered.acquire(timeout=20)
    stream = program.stream({"query": "tides"})
    for event in stream:
        if type(event).__name__ == "NodeStarted" and getattr(event, "node", "") == "search":
            break
    until_following(1)
    stream.close()
    assert stream.run.status == "stopped"
    gate.open.set()
    leader.join(20)
    assert CALLS == {"tides": 1}


def test_a_leader_in_an_attempt_that_timed_out_is_waited_for_no_longer(
    tmp_path: Path, time_is_over: TimeIsOver
) -> None:
    GATES["tides"] = gate = Gate()
    inner = library(slow, ["found"], folder=tmp_path).compile()
    outer = Graph(Library, inputs=["query"]).add_node("inner", inner, timeout=0.05).add_path(START, "inner", END)
    runs: list[Any] = []
    limited = threading.Thread(target=lambda: runs.append(outer.compile().run({"query": "tides"})))
    limited.start()
    assert gate.entered.acquire(timeout=20)
    time_is_over()
    limited.join(20)
    assert isinstance(runs.pop().error, NodeTimeoutError)  # `slow` still runs
    thread = threading.Thread(target=lambda: runs.append(inner.run({"query": "tides"})))
    thread.start()
    assert gate.entered.acquire(timeout=20), "the second run makes its own call"
    gate.open.set()
    thread.join(20)
    assert runs[0].status == "completed"
    assert CALLS == {"tides": 2}


@pytest.mark.parametrize("play", [PLAYS["sync"], PLAYS["async"]], ids=["sync", "async"])
def test_a_timeout_is_inside_the_retry_loop_and_that_inside_the_cache(
    play: Play, tmp_path: Path, time_is_over: TimeIsOver
) -> None:
    async def late(query: str) -> dict[str, Any]:
        count = count_call(query)
        if count == 1:
            time_is_over()
            await asyncio.Event().wait()
        return {"found": count}

    program = library(late, ["found"], cache=Cache(version="1"), timeout=0.5, retry=2, folder=tmp_path).compile()
    with no_pauses():
        runs = [play(program, {"query": "tides"}) for _ in range(2)]
    assert [(run.state["found"], run.commits[-1].cached) for run in runs] == [(2, False), (2, True)]
    assert [len(run.commits[-1].failed_attempts) for run in runs] == [1, 0]


def test_an_error_edge_is_outside_the_cache(play: Play, tmp_path: Path) -> None:
    graph = Graph(Library, inputs=["query"]).add_node(
        "search", raises_once, writes=["found"], cache=Cache(folder=tmp_path)
    )
    graph.add_node("apologize", lambda: CALLS.update(["sorry"]), writes=[]).add_path(START, "search", END)
    graph.add_edge("apologize", END)
    graph.add_error_edge("search", "apologize", on=ConnectionError, into="problem")
    program = graph.compile()
    runs = [play(program, {"query": "tides"}) for _ in range(3)]
    assert [[one.node for one in run.commits[1:]] for run in runs] == [["search", "apologize"], ["search"], ["search"]]
    assert [run.commits[1].cached for run in runs] == [False, False, True]
    assert CALLS == {"tides": 2, "sorry": 1}

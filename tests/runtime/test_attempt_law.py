"""Retries preserve confluence (rule 26): failures before a success, and any order, change nothing but the attempts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import dspy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run, reducers
from dspyer.errors import StoreError
from dspyer.stores.memory import Memory
from dspyer.testing import ScriptedLM, no_pauses

MOST = 4


class State(BaseModel):
    words: Annotated[list[str], reducers.extend] = []
    last: str = ""
    rounds: int = 0


class Plan(BaseModel):
    """A random graph: layers of parallel nodes that join, a loop around them, and how often each node fails."""

    layers: list[list[int]]  # failures of each node at its first visit
    loops: int
    order: list[int]  # by which nodes of a layer finish
    inner: list[bool]  # whether a layer is a graph of its own, under a policy
    concurrency: int


plans = st.builds(
    Plan,
    layers=st.lists(st.lists(st.integers(0, MOST - 1), min_size=1, max_size=3), min_size=1, max_size=3),
    loops=st.integers(0, 2),
    order=st.permutations(range(3)),
    inner=st.lists(st.booleans(), min_size=3, max_size=3),
    concurrency=st.integers(1, 3),
)


class Nodes:
    """Nodes that fail as planned, count their calls, and finish in a given order."""

    def __init__(self, plan: Plan, fails: bool = True) -> None:
        self.plan = plan
        self.fails = fails
        self.calls: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.turn: dict[str, threading.Event] = {}

    def node(self, name: str, failures: int, before: str | None) -> Callable[..., Any]:
        done = self.turn.setdefault(name, threading.Event())

        def work(rounds: int, ctx: Context, ask: dspy.Module) -> dict[str, Any]:
            key = f"{name} {rounds}"
            with self.lock:
                self.calls[key] += 1
                number = self.calls[key]
            if before is not None and not rounds and self.plan.concurrency == 3:
                self.turn[before].wait(20)  # another one finishes first
            ctx.once("charge", lambda: self.effects.update([key]))
            ask(question=f"{key} attempt {number}")
            ctx.post("words", [f"{key} posts"])
            done.set()
            if self.fails and not rounds and number <= failures:
                raise ConnectionError(f"{name} has no line")
            return {"words": [key], "last": name}

        return work

    def graph(self, store: Any = None) -> CompiledGraph:
        policy = Retry(MOST)
        graph = Graph(State, name="Law", merge={"last": "last_write_wins"})
        before: Any = START
        for depth, failures in enumerate(self.plan.layers):
            names = [f"n{depth}_{index}" for index in range(len(failures))]
            rank = [one for one in self.plan.order if one < len(names)]
            target, join = graph, f"join{depth}"
            nested = self.plan.inner[depth]
            if nested:
                target = Graph(State, name=f"Inner{depth}", merge={"last": "last_write_wins"})
            for index, (name, times) in enumerate(zip(names, failures, strict=True)):
                place = rank.index(index)
                first = names[rank[place - 1]] if place else None
                bound = {"ask": dspy.Predict("question -> answer")}
                work = self.node(name, times, first)
                # Inside a graph with a policy, the graph is attempted again; elsewhere the node.
                own = None if nested else policy
                target.add_node(name, work, writes=["words", "last"], modules=bound, retry=own)
            if nested:
                target.add_edge(START, names).add_edge(names, END)
                many = Retry(1 + sum(failures))
                graph.add_node(join, target.compile(max_concurrency=self.plan.concurrency), retry=many)
                graph.add_edge(before, join)
            else:
                graph.add_node(join, lambda rounds: {}, writes=[], reads=["rounds"])
                graph.add_edge(before, names).add_edge(names, join)
            before = join
        graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"]).add_edge(before, "count")
        first_layer = "join0" if self.plan.inner[0] else [f"n0_{index}" for index in range(len(self.plan.layers[0]))]
        again = [first_layer] if isinstance(first_layer, str) else first_layer
        loops = self.plan.loops
        graph.add_conditional_edges("count", lambda rounds: again if rounds <= loops else END, [*again, END])
        return graph.compile(store=store, max_concurrency=self.plan.concurrency)


def outcome(run: Run) -> Any:
    """Everything but attempts, times and the texts of attempts."""
    assert run.status == "completed", run.error
    commits = [
        (c.id, c.version, c.node, c.branch, c.visit, c.step, dict(c.patch), c.parents, c.route, c.calls)
        for c in run.commits
    ]
    trace = [step[1]["question"].rpartition(" attempt ")[0] for step in run.trace]
    return run.state.to_dict(), commits, run.conflicts, trace


def play(nodes: Nodes, mode: str, store: Any = None) -> Run:
    program = nodes.graph(store)
    with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "x"})), no_pauses():
        if store is None:
            return program.run({}) if mode == "sync" else asyncio.run(program.arun({}))
        t = program.thread("t")
        return t.run({}) if mode == "sync" else asyncio.run(t.arun({}))


def expected_calls(plan: Plan) -> Counter[str]:
    found: Counter[str] = Counter()
    for depth, failures in enumerate(plan.layers):
        for index, times in enumerate(failures):
            for rounds in range(plan.loops + 1):
                found[f"n{depth}_{index} {rounds}"] = 1 if rounds else 1 + times
    return found


@settings(max_examples=20)
@given(plans, st.sampled_from(["sync", "async"]), st.booleans())
def test_failures_before_a_success_change_nothing_but_attempts(plan: Plan, mode: str, stored: bool) -> None:
    smooth, rough = Nodes(plan, fails=False), Nodes(plan)
    known = outcome(play(smooth, "sync"))
    with TemporaryDirectory() as folder:
        store = Path(folder) / "runs.db" if stored else None
        run = play(rough, mode, store)
        found = outcome(run)
        if stored:
            assert rough.graph(store).thread("t").replay() == run.state
    if not stored:
        assert found == known
    assert found[0] == known[0]
    assert found[3] == known[3]
    assert rough.calls == expected_calls(plan)
    assert set(rough.effects.values()) <= {1}  # no effect is doubled
    lost = sum(step.status == "lost" for step in run.trace_steps)
    assert lost == sum(sum(failures) for failures in plan.layers)
    assert len(run.trace) == len(run.trace_steps) - lost


class FailsOnce(Memory):
    """Fails at one write."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def write(self, change: Any) -> int:
        self.at -= 1
        if self.at == 0:
            raise OSError("no space left")
        return super().write(change)


@settings(max_examples=20)
@given(plans, st.sampled_from(["sync", "async"]), st.integers(2, 14))
def test_a_run_that_broke_off_anywhere_and_was_resumed(plan: Plan, mode: str, at: int) -> None:
    """Finished calls are not repeated, no effect is doubled, and the result is that of an undisturbed run."""
    whole = play(Nodes(plan), mode, Memory())
    nodes, store = Nodes(plan), FailsOnce(at)
    program = nodes.graph(store)
    for event in nodes.turn.values():
        event.set()  # any order
    with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "x"})), no_pauses():
        t = program.thread("t")
        try:
            run = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
        except StoreError:
            return  # the first write: there is nothing to resume
        if run.status != "completed":
            assert isinstance(run.error, StoreError)
            done = set(t.state.to_dict().get("words", ()))
            before = Counter(nodes.calls)
            run = t.resume() if mode == "sync" else asyncio.run(t.aresume())
            for word in done:
                if not word.endswith("posts"):
                    assert nodes.calls[word] == before[word], word
    assert run.status == "completed", run.error
    assert run.state == whole.state
    assert [(c.id, c.node, dict(c.patch), c.route) for c in run.commits] == [
        (c.id, c.node, dict(c.patch), c.route) for c in whole.commits
    ]
    # A store that fails may lose what nodes that run at once have just done: nothing knows of these effects then.
    assert sum(count - 1 for count in nodes.effects.values()) <= plan.concurrency

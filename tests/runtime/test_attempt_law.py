"""Retries preserve confluence (rule 26): failures before a success, and any order, change nothing but the attempts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, get_args

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run, Send, reducers
from dspyer.errors import StoreError
from dspyer.stores import Memory
from dspyer.testing import Prompt, ScriptedLM, no_pauses

MOST = 4
POLICY = Retry(MOST)


class State(BaseModel):
    words: Annotated[list[str], reducers.extend] = []
    last: str = ""
    rounds: int = 0
    items1: list[int] = [0]
    items2: list[int] = [0, 1]
    items3: list[int] = [0, 1, 2]
    item: int = 0
    found: list[list[str]] = []
    problems: list[str] = []


Kind = Literal["nodes", "graph", "map", "sends", "check", "router"]


class Layer(BaseModel):
    """A part of a random graph, and how often each of its nodes fails at its first visit.

    The nodes run at once: alone, in a graph under a policy, as items of a map, or as branches of a `Send`. Of a node
    that a check corrects, or that a module routes, only the first one counts.
    """

    kind: Kind
    failures: list[int]

    @property
    def count(self) -> int:
        return 1 if self.kind in ("check", "router") else len(self.failures)


class Plan(BaseModel):
    """A random graph: layers that join, and a loop around them."""

    layers: list[Layer]
    loops: int
    order: list[int]  # by which nodes of a layer finish
    concurrency: int


layers = st.builds(
    Layer,
    kind=st.sampled_from(get_args(Kind)),
    failures=st.lists(st.integers(0, MOST - 1), min_size=1, max_size=3),
)
plans = st.builds(
    Plan,
    layers=st.lists(layers, min_size=1, max_size=3),
    loops=st.integers(0, 2),
    order=st.permutations(range(3)),
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

    def call(
        self, name: str, failures: int, before: str | None, rounds: int, ctx: Context, ask: Callable[..., Any]
    ) -> str:
        """What each node does: it fails so many times at its first visit, and then gives a word."""
        key = f"{name} {rounds}"
        with self.lock:
            self.calls[key] += 1
            number = self.calls[key]
        if before is not None and not rounds and self.plan.concurrency == 3:
            self.turn[before].wait(20)  # another one finishes first
        ctx.once("charge", lambda: self.effects.update([f"{key} {ctx.execution}"]))
        ask(question=f"{key} attempt {number}")
        self.turn[name].set()
        if self.fails and not rounds and number <= failures:
            raise ConnectionError(f"{name} has no line")
        return key

    def node(self, name: str, failures: int, before: str | None = None) -> Callable[..., Any]:
        self.turn.setdefault(name, threading.Event())

        def work(rounds: int, ctx: Context, ask: dspy.Module) -> dict[str, Any]:
            ctx.post("words", [f"{name} {rounds} posts"])
            return {"words": [self.call(name, failures, before, rounds, ctx, ask)], "last": name}

        return work

    def items(self, names: list[str], failures: list[int], before: list[str | None]) -> Callable[..., Any]:
        """A node that gets the number of one of several."""
        for name in names:
            self.turn.setdefault(name, threading.Event())

        def work(item: int, rounds: int, ctx: Context, ask: dspy.Module) -> dict[str, Any]:
            return {"words": [self.call(names[item], failures[item], before[item], rounds, ctx, ask)]}

        return work

    def answer(self, prompt: Prompt) -> dict[str, Any]:
        """The answer of the LM; to a router one that cannot be used, as often as it fails."""
        if "next" not in prompt.asks:
            return {"answer": "x"}
        name, rounds = prompt.inputs["last"], int(prompt.inputs["rounds"])
        with self.lock:
            self.calls[f"after {name} {rounds}"] += 1
            number = self.calls[f"after {name} {rounds}"]
        failures = self.plan.layers[int(name[1])].failures[0]
        return {"next": "none" if self.fails and not rounds and number <= failures else "on"}

    def layer(self, graph: Graph, depth: int) -> tuple[list[str], Callable[[str], object]]:
        """Add a layer: the nodes that it begins with, and what leads from it to the next node."""
        layer, ask = self.plan.layers[depth], {"ask": dspy.Predict("question -> answer")}
        failures = layer.failures[: layer.count]
        names = [f"n{depth}_{index}" for index in range(layer.count)]
        rank = [one for one in self.plan.order if one < layer.count]
        before = [names[rank[rank.index(index) - 1]] if rank.index(index) else None for index in range(layer.count)]

        def add(target: Graph, retry: Retry | None = POLICY) -> None:
            for name, times, first in zip(names, failures, before, strict=True):
                work = self.node(name, times, first)
                target.add_node(name, work, writes=["words", "last"], modules=dict(ask), retry=retry)

        match layer.kind:
            case "nodes":
                add(graph)
                return names, lambda end: graph.add_edge(names, end)
            case "graph":  # it is attempted again, and not the node
                inner, one = Graph(State, name=f"Inner{depth}", merge={"last": "last_write_wins"}), f"graph{depth}"
                add(inner, retry=None)
                inner.add_edge(START, names).add_edge(names, END)
                program = inner.compile(max_concurrency=self.plan.concurrency)
                graph.add_node(one, program, retry=Retry(1 + sum(failures)))
                return [one], lambda end: graph.add_edge(one, end)
            case "map":
                one, work = f"map{depth}", self.items(names, failures, before)
                options: Any = {"over": f"items{layer.count}", "item": "item", "into": "found", "writes": ["words"]}
                graph.add_map(one, work, modules=dict(ask), retry=POLICY, reads=["rounds"], **options)
                return [one], lambda end: graph.add_edge(one, end)
            case "sends":
                one, each, work = f"send{depth}", f"each{depth}", self.items(names, failures, before)
                sends = [Send(each, {"item": index}) for index in range(layer.count)]
                graph.add_node(one, lambda rounds: {}, writes=[]).add_conditional_edges(one, lambda: sends, [each])
                graph.add_node(each, work, writes=["words"], modules=dict(ask), retry=POLICY)
                return [one], lambda end: graph.add_edge(each, end)
            case "check":
                self.add_checked(graph, depth, failures[0])
                return names, lambda end: graph.add_edge(names, end)
            case "router":
                add(graph)
                ask_way = dspy.Predict("last, rounds -> next: Literal['on']")
                return names, lambda end: graph.add_conditional_edges(names[0], ask_way, {"on": end})

    def add_checked(self, graph: Graph, depth: int, failures: int) -> None:
        """Add a node whose output is refused once; the check and the correction fail, too."""
        name, check, fix = f"n{depth}_0", f"check{depth}", f"fix{depth}"
        self.turn |= {one: threading.Event() for one in (name, check, fix)}

        def first(rounds: int, ctx: Context, ask: dspy.Module) -> dict[str, Any]:
            return {"last": self.call(name, failures, None, rounds, ctx, ask)}

        def refuse(last: str, rounds: int, ctx: Context) -> list[str]:
            self.call(check, failures, None, rounds, ctx, lambda question: None)
            return [] if last.startswith("fix") else [f"{last} is refused"]

        def correct(problems: list[str], rounds: int, ctx: Context) -> dict[str, Any]:
            return {"last": self.call(fix, 1, None, rounds, ctx, lambda question: None)}

        graph.add_node(name, first, writes=["last"], modules={"ask": dspy.Predict("question -> answer")}, retry=POLICY)
        graph.add_check(check, refuse, of=name, fix=correct)

    def graph(self, store: Any = None) -> CompiledGraph:
        graph = Graph(State, name="Law", merge={"last": "last_write_wins"})
        first: list[str] = []
        for depth in range(len(self.plan.layers)):
            join = f"join{depth}"
            names, lead = self.layer(graph, depth)
            graph.add_node(join, lambda rounds: {}, writes=[], reads=["rounds"])
            lead(join)
            graph.add_edge(f"join{depth - 1}" if depth else START, names)
            first = first or names
        graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"]).add_edge(join, "count")
        loops = self.plan.loops
        graph.add_conditional_edges("count", lambda rounds: first if rounds <= loops else END, [*first, END])
        return graph.compile(store=store, max_concurrency=self.plan.concurrency, retry=POLICY)


def outcome(run: Run) -> Any:
    """Everything but attempts, times and the texts of attempts."""
    assert run.status == "completed", run.error
    commits = [
        (c.id, c.version, c.node, c.branch, c.visit, c.step, dict(c.patch), c.parents, c.route, c.calls)
        for c in run.commits
    ]
    trace = [step[1].get("question", "").rpartition(" attempt ")[0] for step in run.trace]
    return run.state.to_dict(), commits, run.conflicts, trace


def play(nodes: Nodes, mode: str, store: Any = None) -> Run:
    program = nodes.graph(store)
    with dspy.context(lm=ScriptedLM(nodes.answer)), no_pauses():
        if store is None:
            return program.run({}) if mode == "sync" else asyncio.run(program.arun({}))
        t = program.thread("t")
        return t.run({}) if mode == "sync" else asyncio.run(t.arun({}))


def expected_calls(plan: Plan) -> Counter[str]:
    found: Counter[str] = Counter()
    for depth, layer in enumerate(plan.layers):
        first = layer.failures[0]
        for rounds in range(plan.loops + 1):
            for index, times in enumerate(layer.failures[: layer.count]):
                found[f"n{depth}_{index} {rounds}"] = 1 if rounds else 1 + times
            if layer.kind == "check":
                found[f"check{depth} {rounds}"] = 2 if rounds else 2 + first
                found[f"fix{depth} {rounds}"] = 1 if rounds else 2
            elif layer.kind == "router":
                found[f"after n{depth}_0 {rounds}"] = 1 if rounds else 1 + first
    return found


@pytest.mark.slow("a random graph with LM calls, run twice, for each example")
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
    assert lost == sum(sum(layer.failures[: layer.count]) for layer in plan.layers)
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


@pytest.mark.slow("a random graph with LM calls, run, broken off and resumed, for each example")
@given(plans, st.sampled_from(["sync", "async"]), st.integers(2, 14))
def test_a_run_that_broke_off_anywhere_and_was_resumed(plan: Plan, mode: str, at: int) -> None:
    """Finished calls are not repeated, no effect is doubled, and the result is that of an undisturbed run."""
    whole = play(Nodes(plan), mode, Memory())
    nodes, store = Nodes(plan), FailsOnce(at)
    program = nodes.graph(store)
    for event in nodes.turn.values():
        event.set()  # any order
    with dspy.context(lm=ScriptedLM(nodes.answer)), no_pauses():
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

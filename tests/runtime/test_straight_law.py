"""The straight path of plain nodes is no path of its own: random graphs give what they give with something around them.

Each graph runs twice: as it is, and within a budget that nothing reaches, which is around each of its nodes.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import dspy
import pytest
from dspy.utils import DummyLM
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import dspyer
from dspyer import DELETE, END, START, Budget, Command, Graph, Replace, Run, Send, Updates, reducers
from dspyer.stores import Memory

PACKAGE = Path(dspyer.__file__).parent
AROUND = Budget(requests=10**9)
Mode = Literal["sync", "async", "stored", "astored"]


class Board(BaseModel):
    number: int = 0
    share: float = 0.0
    text: str | None = "none"
    flag: bool = False
    card: dict[str, Any] = {"x": 1}
    things: list[int] = [1]
    rows: Annotated[list[str], reducers.extend] = []
    small: int = Field(0, lt=50)
    label: str = "a"


class Part(BaseModel):
    number: int = 3
    text: str = "part"


UPDATES: list[Any] = [
    None,
    {},
    {"number": 1},
    {"number": 0, "share": 0.0, "flag": False},
    {"share": -0.0},
    {"share": float("nan"), "text": None},
    {"share": 0.5, "number": 2, "text": "some"},
    {"flag": True, "number": True},
    {"card": {"y": [1, {"z": 2}]}, "things": [1, 2]},
    {"card": {"x": None}, "text": DELETE},
    {"card": Replace({"w": 1}), "rows": ["one", "two"]},
    {"rows": Updates(["a"], Replace(["b"]))},
    {"label": "b"},
    {"label": "c", "rows": ["c"]},
    Part(number=7),
    dspy.Prediction(number=9, card={"only": 1}),
    Command(update={"number": 4}),
]
REFUSED: list[Any] = [
    {"number": "many"},
    {"small": 80},
    {"unknown": 1},
    {1: 2},
    "text",
    Command(update={"number": 4}, goto="n0"),
    ConnectionError("no line"),
    StopIteration("early"),
    ExceptionGroup("both", [ValueError("one"), KeyError("two")]),
]
ROUTES: list[Any] = [
    "on",
    "out",
    "back",
    ["on", "out"],
    Send("last", {"label": "sent"}),
    [Send("last", {"label": "b"}), "on"],
    "unknown",
    None,
    ValueError("no way"),
]
FIELDS = ("number", "share", "text", "card", "things", "rows")
LABELS = {"a": "on", "b": "out", "c": "on"}


class Made(NamedTuple):
    """A random node: how it is called, what it reads, what it returns at its visits, how it fails once, its way out."""

    kind: str
    reads: tuple[str, ...]
    updates: tuple[int, ...]
    refused: int | None
    way: str
    routes: tuple[int, ...]
    any_writes: bool


made = st.builds(
    Made,
    kind=st.sampled_from(["plain", "plain", "async", "module", "predictor", "copies", "renamed"]),
    reads=st.lists(st.sampled_from(FIELDS), max_size=3, unique=True).map(tuple),
    updates=st.lists(st.integers(0, len(UPDATES) - 1), min_size=1, max_size=3).map(tuple),
    refused=st.none() | st.none() | st.none() | st.integers(0, len(REFUSED) - 1),
    way=st.sampled_from(["edge", "edge", "function", "function", "field", "fork"]),
    routes=st.lists(st.integers(0, len(ROUTES) - 1), min_size=1, max_size=3).map(tuple),
    any_writes=st.booleans(),
)


def raised(result: Any) -> Any:
    """The result, or raises it anew: a run adds notes to what it raises."""
    if isinstance(result, Exception):
        raise type(result)(*result.args)
    return result


class Module(dspy.Module):
    """A module without an LM: it gives its number."""

    def __init__(self, give: Callable[[Any], Any]) -> None:
        super().__init__()
        self.give = give

    def forward(self, number: int, things: Any) -> dspy.Prediction:
        found = self.give((number, things))
        return dspy.Prediction(number=found["number"] if isinstance(found, dict) and "number" in found else -1)


def function(made: Made, give: Callable[[Any], Any]) -> Callable[..., Any]:
    def copies(things: list[int], card: dict[str, Any], share: float = 1.0) -> Any:
        things.append(1)
        card["mine"] = 1
        return give((things, card, share))

    async def waits(number: Any, rows: Any) -> Any:
        await asyncio.sleep(0)
        return give((number, rows))

    def renamed(mine: Any) -> Any:
        return give(mine)

    if made.kind != "plain":
        functions: dict[str, Callable[..., Any]] = {"copies": copies, "async": waits, "renamed": renamed}
        return functions[made.kind]
    space: dict[str, Any] = {"give": give}
    exec(f"def reads({', '.join(made.reads)}): return give([{', '.join(made.reads)}])", space)
    return space["reads"]  # type: ignore[no-any-return]


def add(graph: Graph, name: str, made: Made, after: str) -> None:
    seen: list[Any] = []
    routed: list[Any] = []

    def give(read: Any) -> Any:
        seen.append(read)
        if made.refused is None or len(seen) > 1:
            return UPDATES[made.updates[len(seen) % len(made.updates)]]
        return raised(REFUSED[made.refused])

    def route(number: Any, text: Any = None) -> Any:
        routed.append((number, text))
        chosen = ROUTES[made.routes[len(routed) % len(made.routes)]] if len(routed) < 4 else "out"
        return raised(chosen)

    if made.kind == "module":
        graph.add_node(name, Module(give), writes=["number"])
    elif made.kind == "predictor":
        graph.add_node(name, dspy.Predict("number: int -> text"))
    elif made.kind == "renamed":
        writes = {"n": "number", "number": "small", "label": "label"}
        graph.add_node(name, function(made, give), reads={"mine": "number"}, writes=writes)
    else:
        graph.add_node(name, function(made, give), writes=None if made.any_writes else list(Board.model_fields))
    if made.way == "function":
        graph.add_conditional_edges(name, route, {"on": after, "out": "last", "back": name})
    elif made.way == "field":
        graph.add_conditional_edges(name, "label", {"a": after, "b": "last", "c": [after]})
    else:
        graph.add_edge(name, list({after: 0, "last": 0}) if made.way == "fork" else after)


def built(plan: list[Made], schema: bool) -> Graph:
    """A chain of the nodes, with ways back and out; `last` joins and ends it."""
    graph = Graph(Board, name="Random") if schema else Graph(name="Random", inputs=[*FIELDS, "label"])
    names = [*[f"n{index}" for index in range(len(plan))], "last"]
    for index, made in enumerate(plan):
        add(graph, names[index], made, names[index + 1])
    graph.add_node("last", lambda label: {"label": "a", "rows": [label]}, writes=["label", "rows"])
    return graph.add_edge(START, names[0]).add_edge("last", END)


def played(plan: list[Made], schema: bool, mode: Mode, width: int, budget: Budget | None) -> list[Any]:
    """What is seen of a run, and of its resume if it has failed on a thread; times and ids of runs are not."""
    store = Memory() if mode.endswith("stored") else None
    program = built(plan, schema).compile(max_concurrency=width, max_steps=20, store=store)
    inputs = {} if schema else {name: Board.model_fields[name].default for name in program.graph.inputs}
    with dspy.context(lm=DummyLM([{"text": f"said {number}"} for number in range(99)])):
        if mode == "sync":
            return [facts(program.run(inputs, budget=budget))]
        if mode == "async":
            return [facts(asyncio.run(program.arun(inputs, budget=budget)))]
        thread = program.thread("t")
        if mode == "stored":
            run = thread.run(inputs, budget=budget)
            return [facts(run), None if run.status != "failed" else facts(thread.resume(budget=budget))]
        run = asyncio.run(thread.arun(inputs, budget=budget))
        return [facts(run), None if run.status != "failed" else facts(asyncio.run(thread.aresume(budget=budget)))]


def facts(run: Run) -> Any:
    error, steps = run.error, [(type(step[0]).__name__, step[1], step[2].toDict()) for step in run.trace]
    raised = error and (type(error), str(error), getattr(error, "__notes__", []), getattr(error, "of_module", None))
    commits = [replace(commit, started=0.0, duration=0.0).to_dict() for commit in run.commits]
    kinds = sorted((type(event).__name__, getattr(event, "node", "")) for event in run.events)
    return repr((run.status, raised, run.state, commits, steps, kinds))


@pytest.mark.slow("a law: each random graph runs twice")
@given(
    st.lists(made, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from(["sync", "async", "stored", "astored"]),
    st.sampled_from([1, 8]),
)
@example([Made("module", (), (2,), 0, "edge", (0,), False)], True, "sync", 1)
def test_nodes_give_what_they_give_within_a_budget(plan: list[Made], schema: bool, mode: Mode, width: int) -> None:
    assert played(plan, schema, mode, width, None) == played(plan, schema, mode, width, AROUND)


# --- what the law does not see


def program(asynchronous: bool = False, broken: bool = False) -> dspyer.CompiledGraph:
    """Two plain nodes."""

    def first(q: str) -> dict[str, str]:
        return {"a": q}

    async def afirst(q: str) -> dict[str, str]:
        return first(q)

    def second(a: str) -> dict[str, str]:
        if broken:
            raise ValueError(f"no {a}")
        return {"b": a}

    async def asecond(a: str) -> dict[str, str]:
        return second(a)

    graph = Graph(inputs=["q"]).add_node("first", afirst if asynchronous else first, writes=["a"])
    graph.add_node("second", asecond if asynchronous else second, writes=["b"])
    return graph.add_path(START, "first", "second", END).compile()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_traceback_of_a_failure_is_short_and_ends_in_the_function(asynchronous: bool) -> None:
    broken = program(asynchronous, broken=True)
    with pytest.raises(ValueError, match="no x") as raised:
        _ = asyncio.run(broken.acall(q="x")) if asynchronous else broken(q="x")
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert frames[-1].name == "second"
    assert len([frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]) <= 9
    assert raised.value.__notes__ == ["in node 'second' (branch trunk, visit 1, attempt 1)"]


def test_a_step_between_plain_nodes_is_few_calls() -> None:
    calls: list[str] = []
    inside = False

    def first(q: str) -> dict[str, str]:
        nonlocal inside
        inside = True
        return {"a": q}

    def second(a: str) -> dict[str, str]:
        nonlocal inside
        inside = False
        return {"b": a}

    def see(frame: Any, event: str, _: object) -> None:
        if inside and event == "call" and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            calls.append(frame.f_code.co_qualname)

    graph = Graph(inputs=["q"]).add_node(first, writes=["a"]).add_node(second, writes=["b"])
    plain = graph.add_path(START, "first", "second", END).compile()
    plain(q="x")
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        plain(q="x")
    finally:
        sys.setprofile(before)
    assert 0 < len(calls) <= 45, calls


def test_a_program_that_has_run_is_pickled_as_before() -> None:
    made = Graph(inputs=["q"]).add_node("first", len_of, writes=["n"]).add_path(START, "first", END).compile()
    before = pickle.dumps(made)
    assert made(q="abc").n == 3
    after = pickle.dumps(made)
    assert after == before
    assert pickle.loads(after)(q="abcd").n == 4


def len_of(q: str) -> dict[str, int]:
    return {"n": len(q)}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_thread_that_begins_in_the_name_of_a_plain_node_goes_on_behind_it(asynchronous: bool) -> None:
    calls: list[str] = []

    def first(q: str) -> dict[str, str]:
        calls.append("first")
        return {"a": q}

    def second(a: str) -> dict[str, str]:
        calls.append("second")
        return {"b": a}

    graph = Graph(inputs=["q"]).add_node(first, writes=["a"]).add_node(second, writes=["b"])
    thread = graph.add_path(START, "first", "second", END).compile(store=Memory()).thread("t")
    thread.run({"q": "x"})
    calls.clear()
    thread.update({"a": "by hand"}, as_node="first")
    run = asyncio.run(thread.aresume()) if asynchronous else thread.resume()
    assert (run.state["b"], calls) == ("by hand", ["second"])

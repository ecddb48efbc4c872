"""Graphs of LangGraph with what becomes of them: in LangGraph, and converted to dspyer.

A case is a function that builds a graph, decorated with `@case`. Its nodes report each of their calls to `Seen`, so
that calls are compared and not only states. `run_langgraph` and `run_dspyer` give the same kind of `Outcome`.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from dspyer.migrate import from_langgraph, langgraph_inputs


class Seen(list[str]):
    """The names of the nodes that were called, one entry for each call."""

    def node(self, name: str, update: Any = None) -> Callable[[Any], Any]:
        """A node that reports its call, and returns `update`, or what `update(state)` returns."""

        def call(state: Any) -> Any:
            self.append(name)
            return update(state) if callable(update) else update

        return call


@dataclass(frozen=True)
class Outcome:
    """What became of a run: its final state with all fields, or the class of its error; and the calls of its nodes."""

    state: Any
    calls: Counter[str]
    error: str = ""


@dataclass(frozen=True)
class Case:
    """A graph, its input, and the outcome of each engine.

    Attributes:
        name: the name of the function that builds it.
        build: gives the graph; its nodes report to `Seen`.
        value: what `invoke` gets.
        langgraph: the outcome in LangGraph.
        dspyer: the outcome of the converted program.
        why: why the two differ, or "".
        answers: for each time that the graph asks, answers by the text of the question.
        only_async: whether a node is async.
        options: of `from_langgraph`.
        invoke: of LangGraph's `invoke`.
        limits: of `compile` in dspyer.
    """

    name: str
    build: Callable[[Seen], Any]
    value: Any
    langgraph: Outcome
    dspyer: Outcome
    why: str = ""
    answers: Sequence[Mapping[str, Any]] = ()
    only_async: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    invoke: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)


_SAME: Any = object()


def case(
    cases: list[Case],
    value: Any,
    ends: Any = None,
    calls: str = "",
    *,
    error: str = "",
    dspyer: Any = _SAME,
    dspyer_calls: str | None = None,
    dspyer_error: str = "",
    **more: Any,
) -> Callable[[Callable[[Seen], Any]], Callable[[Seen], Any]]:
    """Adds a case: `ends`, `calls` and `error` are LangGraph's outcome, and dspyer's where nothing else is said."""
    differs = dspyer is not _SAME or dspyer_calls is not None or bool(dspyer_error)
    assert differs == bool(more.get("why")), "what differs needs a reason, and nothing else does"
    first = Outcome(ends, Counter(calls.split()), error)
    second = Outcome(
        None if dspyer_error else ends if dspyer is _SAME else dspyer,
        Counter((calls if dspyer_calls is None else dspyer_calls).split()),
        dspyer_error or ("" if dspyer is not _SAME else error),
    )

    def add(build: Callable[[Seen], Any]) -> Callable[[Seen], Any]:
        cases.append(Case(build.__name__, build, value, first, second, **more))
        return build

    return add


def plain(value: Any) -> Any:
    """A value with its messages as tuples of type, content and id; ids that were generated are all equal."""
    if isinstance(value, BaseMessage):
        known = value.id if value.id and len(value.id) < 12 and "/" not in value.id else "generated"
        return (value.type, value.content, known)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    return value


def compiled_langgraph(case: Case, seen: Seen) -> CompiledStateGraph:
    """The case's graph, compiled; with a checkpointer if it asks."""
    built = case.build(seen)
    if not isinstance(built, StateGraph):
        return built
    return built.compile(checkpointer=InMemorySaver() if case.answers else None)


def run_langgraph(case: Case, *, asynchronous: bool = False) -> Outcome:
    """Runs the case in LangGraph, with its answers."""
    seen = Seen()
    app = compiled_langgraph(case, seen)
    channels = list(app.builder.channels)
    invoke = dict(case.invoke)
    config = {"configurable": {"thread_id": "1", **invoke.pop("configurable", {})}, **invoke.pop("config", {})}

    def call(value: Any) -> Any:
        options = {"config": config, "output_keys": channels, **invoke}
        return asyncio.run(app.ainvoke(value, **options)) if asynchronous else app.invoke(value, **options)

    try:
        state = call(copy.deepcopy(case.value))  # nodes may change it in LangGraph
        for answers in case.answers:
            pending = app.get_state(config).interrupts
            assert len(pending) == len(answers), pending
            state = call(Command(resume={asked.id: answers[str(asked.value)] for asked in pending}))
        if case.answers:
            assert not app.get_state(config).interrupts
            state = {key: state[key] for key in state if key != "__interrupt__"}
    except Exception as error:  # noqa: BLE001 - the class of any error is the outcome
        return Outcome(None, Counter(seen), type(error).__name__)
    return Outcome(plain({"root" if key == "__root__" else key: state[key] for key in state or {}}), Counter(seen))


def run_dspyer(case: Case, *, asynchronous: bool = False) -> Outcome:
    """Runs the converted program, with the same answers."""
    seen = Seen()
    app = compiled_langgraph(case, seen)
    graph = from_langgraph(app, asynchronous=asynchronous, **case.options)
    program = graph.compile(store=":memory:" if case.answers else None, **case.limits)
    inputs = langgraph_inputs(app, case.value)
    runner: Any = program.thread("1") if case.answers else program
    try:
        run = asyncio.run(runner.arun(inputs)) if asynchronous else runner.run(inputs)
        for answers in case.answers:
            assert len(run.questions) == len(answers), run.questions
            known = {asked.key: answers[asked.text] for asked in run.questions}
            run = asyncio.run(runner.aresume(known)) if asynchronous else runner.resume(known)
        run.raise_error()
        assert run.status == "completed", run.status
    except Exception as error:  # noqa: BLE001 - the class of any error is the outcome
        return Outcome(None, Counter(seen), type(error).__name__)
    return Outcome(plain(run.state.to_dict()), Counter(seen))

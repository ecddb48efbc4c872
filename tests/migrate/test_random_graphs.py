"""Random graphs of LangGraph give the same state by the same calls when they are converted.

Where branches are one node long, LangGraph and dspyer fold updates in the same order, and a node sees the same state:
there the states are equal, and what nodes write depends on what they read. Where branches are longer, dspyer folds by
branch and LangGraph by super-step (rule 14 of the design): there the updates are equal, and not their order.
"""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.channels import AnyValue, EphemeralValue, UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from dspyer.migrate import from_langgraph, langgraph_inputs
from tests.budget import deep
from tests.migrate.cases import Seen, plain

NAMES = ["a", "B", "n1", "n10", "n2", "Z", "é", "x_1", "x", "mm", "two words", "p.q", "0th", "run", "c"]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    total: Annotated[int, operator.add]
    table: Annotated[dict[str, int], operator.or_]
    messages: Annotated[list[Any], add_messages]
    last: str
    data: dict[str, Any]
    rounds: int
    hint: Annotated[str, EphemeralValue(str)]
    either: Annotated[str, AnyValue(str)]
    spent: Annotated[int, UntrackedValue(int)]


@dataclass(frozen=True)
class Stage:
    """Nodes that run at once, and the node where they join.

    Attributes:
        kind: how they are started: by edges, by a router, by a `Command`, or by `Send`.
        members: their names.
        join: the name of the node behind them.
        salt: decides with the state which of them a router chooses, and how many times a `Send` calls them.
    """

    kind: str
    members: tuple[str, ...]
    join: str
    salt: int


few = settings(max_examples=500 if deep else 7)  # each builds, converts and runs graphs: 0.03 s


@st.composite
def stages(draw: st.DrawFn) -> tuple[list[Stage], int]:
    """The stages of a graph, and how many times it runs them in a loop."""
    names = iter(draw(st.permutations(NAMES)))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["edges", "router", "command", "send"]))
        members = tuple(next(names) for _ in range(draw(st.integers(1, 3))))
        found.append(Stage(kind, members, next(names), draw(st.integers(0, 5))))
    return found, draw(st.integers(1, 2))


def writes(name: str, amount: int, state: Any) -> dict[str, Any]:
    """What a node returns: values that depend on what it reads."""
    total = state.get("total", 0)
    passing = " ".join(str(state.get(key)) for key in ("hint", "either", "spent"))
    return {
        "log": [f"{name} {total} {len(state.get('log', ()))} {passing}"],
        "total": amount,
        "table": {f"{name} {total}": len(state.get("table", {}))},
        "messages": [AIMessage(name, id=f"{total % 4}")],
    }


def chosen(stage: Stage, state: Any) -> list[str]:
    """The members that a router chooses: at least one, in any order, perhaps one of them twice."""
    at = (state.get("total", 0) + stage.salt + len(state.get("hint", ""))) % len(stage.members)
    return [*stage.members[at:], stage.members[at]] if stage.salt % 2 else [stage.members[at]]


def sent(stage: Stage, state: Any) -> list[Send] | str:
    """The calls that a router asks for; if there are none, it goes to the join."""
    sends = [
        Send(stage.members[number % len(stage.members)], {"total": number * 10, "log": ["x"] * number})
        for number in range((state.get("total", 0) + stage.salt) % 4)
    ]
    return sends or stage.join


def passes(stage: Stage, member: str, number: int, state: Any) -> dict[str, Any]:
    """What a member returns: of those that a `Send` does not repeat, one gives the next node a hint."""
    update = {**writes(member, number + 1, state), "either": f"from {member}"}
    if stage.kind != "send" and number == stage.salt % len(stage.members):
        update["hint"] = "h" * stage.salt
    return update


def asks(name: str, times: int, act: Callable[[Any], Any], state: Any) -> Any:
    """What a node returns that asks first; what was answered is logged."""
    answers = [interrupt(f"{name} {number} {state.get('total', 0)}") for number in range(times)]
    update = act(state)
    return {**update, "log": [*update["log"], *answers]}


def build(
    plan: list[Stage],
    rounds: int,
    seen: Seen,
    *,
    asynchronous: bool = False,
    asking: Mapping[str, int] = MappingProxyType({}),
) -> Any:
    """The graph of LangGraph; members of `asking` ask so many questions."""
    builder = StateGraph(State)

    def add(name: str, act: Callable[[Any], Any], **options: Any) -> None:
        def call(state: Any) -> Any:
            seen.append(name)
            return act(state)

        async def acall(state: Any) -> Any:
            await asyncio.sleep(0)
            return call(state)

        builder.add_node(name, acall if asynchronous else call, **options)

    def leader(stage: Stage | None, name: str) -> None:
        """A node that runs alone, and starts the next stage."""

        def act(state: Any) -> Any:
            update = {**writes(name, 3, state), "last": name, "data": {name: [state.get("total", 0)]}}
            update["rounds"] = state.get("rounds", 0) + (stage is None)
            if stage and stage.salt > 2:
                update |= {"hint": name, "either": name} | ({} if asking else {"spent": state.get("spent", 0) + 1})
            if stage and stage.kind == "command":
                return Command(update=update, goto=chosen(stage, state))
            return update

        add(name, act, destinations=stage.members if stage and stage.kind == "command" else ())

    leader(plan[0], "start here")
    builder.add_edge(START, "start here")
    for source, stage, following in zip(
        ["start here", *(stage.join for stage in plan)], plan, [*plan[1:], None], strict=False
    ):
        for number, member in enumerate(stage.members):
            add(member, partial(asks, member, asking.get(member, 0), partial(passes, stage, member, number)))
            builder.add_edge(member, stage.join)
        leader(following, stage.join)
        if stage.kind == "edges":
            for member in stage.members:
                builder.add_edge(source, member)
        elif stage.kind == "router":
            builder.add_conditional_edges(source, partial(chosen, stage), list(stage.members))
        elif stage.kind == "send":
            builder.add_conditional_edges(source, partial(sent, stage), [*stage.members, stage.join])
    again = {True: "start here", False: END}
    builder.add_conditional_edges(plan[-1].join, lambda state: state["rounds"] < rounds, again)
    return builder


@few
@given(stages(), st.booleans())
def test_forks_that_join_give_equal_states_by_equal_calls(drawn: tuple[list[Stage], int], asynchronous: bool) -> None:
    plan, rounds = drawn
    value = {"log": ["in"], "messages": [AIMessage("in", id="0")], "data": {"in": 1}}
    there, here = Seen(), Seen()
    app = build(plan, rounds, there, asynchronous=asynchronous).compile(checkpointer=InMemorySaver())
    app_here = build(plan, rounds, here, asynchronous=asynchronous).compile()
    thread = from_langgraph(app_here).compile(store=":memory:").thread("1")
    config: Any = {"configurable": {"thread_id": "1"}}
    for turn in (value, {"log": ["again"], "rounds": 0, "hint": "of the input"}):
        old = asyncio.run(app.ainvoke(turn, config)) if asynchronous else app.invoke(turn, config)
        run = thread.run(langgraph_inputs(app_here, turn))
        run.raise_error()
        assert plain(run.state.to_dict()) == plain(old)
    assert Counter(here) == Counter(there)


@few
@given(stages(), st.data())
def test_questions_are_asked_and_answered_alike(drawn: tuple[list[Stage], int], data: st.DataObject) -> None:
    plan, rounds = drawn
    members = st.sampled_from([member for stage in plan for member in stage.members])
    asking = data.draw(st.dictionaries(members, st.integers(1, 2), min_size=1, max_size=4))
    there, here = Seen(), Seen()
    app = build(plan, rounds, there, asking=asking).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    old = app.invoke({"log": ["in"]}, config)
    app_here = build(plan, rounds, here, asking=asking).compile()
    thread = from_langgraph(app_here).compile(store=":memory:").thread("1")
    run = thread.run(langgraph_inputs(app_here, {"log": ["in"]}))
    while run.status == "interrupted":
        pending = app.get_state(config).interrupts
        assert Counter(asked.value for asked in pending) == Counter(asked.text for asked in run.questions)
        old = app.invoke(Command(resume={asked.id: f"to {asked.value}" for asked in pending}), config)
        run = thread.resume({asked.id: f"to {asked.text}" for asked in run.questions})
    run.raise_error()
    assert plain(run.state.to_dict()) == plain({key: value for key, value in old.items() if key != "__interrupt__"})
    assert not app.get_state(config).next
    assert Counter(here) == Counter(there)


@st.composite
def dags(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """Nodes, each with the nodes that it waits for; a node without one starts the graph."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(2, 8))]
    return [
        (name, draw(st.lists(st.sampled_from(names[:at]), unique=True, max_size=3)) if at else [])
        for at, name in enumerate(names)
    ]


@few
@given(dags())
def test_barriers_of_any_dag_give_equal_updates_by_equal_calls(nodes: list[tuple[str, list[str]]]) -> None:
    def build_dag(seen: Seen) -> Any:
        builder = StateGraph(State)
        for number, (name, before) in enumerate(nodes):
            update = {"log": [name], "total": 2**number, "table": {name: number}}
            builder.add_node(name, seen.node(name, update))
            builder.add_edge(list(before) if before else START, name)
        return builder.compile()

    there, here = Seen(), Seen()
    old = build_dag(there).invoke({"log": ["in"]})
    run = from_langgraph(build_dag(here)).compile().run({"log": ["in"]})
    run.raise_error()
    new = run.state.to_dict()
    assert sorted(new.pop("log")) == sorted(old.pop("log"))
    assert plain(new) == plain(old)
    assert Counter(here) == Counter(there)

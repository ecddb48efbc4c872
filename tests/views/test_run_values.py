"""Run values: computed from the ancestor commits of a branch, the same after a resume, and read like fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Breakpoints, Graph, Run, fill, reducers
from dspyer.errors import GraphError, StepLimitError
from dspyer.extend import Node, Reply
from dspyer.testing import ScriptedLM


class Notes(BaseModel):
    topic: str
    said: Annotated[list[Any], reducers.append] = []
    text: str = ""
    tool_iteration_count: int = 0


def say(value: Any) -> dict[str, Any]:
    return {"said": value}


def counting(*names: str) -> dict[str, Any]:
    return {"value": fill(" ".join(f"{{{name}}}" for name in names))}


def test_count_remaining_and_visits_follow_the_lineage() -> None:
    """S003-3, S003-4, S003-6: behind a join are the nodes of both branches, in one branch its own."""
    graph = Graph(Notes)
    names = ("run.count", "run.remaining", "run.left.visits", "run.right.visits")
    for name in ("first", "left", "right", "last"):
        graph.add_node(name, say, reads=counting(*names), writes=["said"])
    graph.add_edge(START, "first").add_edge("first", ["left", "right"]).add_edge(["left", "right"], "last")
    graph.add_conditional_edges("last", lambda ctx: "first" if ctx.visit < 2 else END, ["first", END])
    program = graph.compile(max_steps=20)
    assert program(topic="t").said == [
        *("0 19 0 0", "1 18 0 0", "1 18 0 0", "3 16 1 1"),
        *("4 15 1 1", "5 14 1 1", "5 14 1 1", "7 12 2 2"),
    ]


class Bounded(Node):
    """A kind of node that bounds itself how often it runs, as the nodes of an agent do."""

    kind = "bounded"
    bounded = True

    def script(self, call: Any) -> Any:
        yield from ()
        return Reply({})


def visits(run: Run, node: str) -> int:
    return [commit.node for commit in run.commits].count(node)


def test_the_default_limit_counts_no_node_of_a_kind_that_is_bounded_otherwise() -> None:
    graph = Graph(Notes).add_node("turn", Bounded(reads=[], writes=[]))
    graph.add_node("own", say, reads=counting("run.own.visits", "run.remaining"), writes=["said"])
    graph.add_path(START, "turn", "own").add_conditional_edges("own", lambda ctx: "turn", ["turn", END])
    run = graph.compile().run({"topic": "t"})
    assert isinstance(run.error, StepLimitError)
    assert (visits(run, "own"), visits(run, "turn")) == (1000, 1000)
    assert (run.state["said"][0], run.state["said"][-1]) == ("0 999", "999 0")
    assert visits(graph.compile(max_steps=20).run({"topic": "t"}), "own") == 10


def test_a_run_value_keeps_its_type_as_an_input_of_its_own() -> None:
    def first(left: int, text: str, why: str) -> dict[str, Any]:
        return {"said": (left, text, why)}

    graph = Graph(Notes)
    reads = {"left": "run.remaining", "text": "run.count", "why": "run.routing_reason"}
    graph.add_node("first", first, reads=reads, writes=["said"]).add_path(START, "first", END)
    assert graph.compile(max_steps=3)(topic="t").said == [(2, "0", "")]


def test_the_reason_of_a_router_is_read_by_the_node_that_it_chose() -> None:
    """S003-5: the reason of the last router that gave one."""

    class Way(dspy.Signature):
        """Which way?"""

        topic: str = dspy.InputField()
        way: Literal["deep", "wide"] = dspy.OutputField()

    graph = Graph(Notes)
    graph.add_node("plan", lambda topic: {"text": topic}, writes=["text"])
    for name in ("deep", "wide"):
        graph.add_node(name, say, reads={"value": "run.routing_reason"}, writes=["said"])
    graph.add_edge(START, "plan").add_edge("wide", END).add_edge("deep", "wide")
    graph.add_conditional_edges("plan", dspy.ChainOfThought(Way), {"deep": "deep", "wide": "wide"})
    with dspy.context(lm=ScriptedLM([{"reasoning": "it is hard", "way": "deep"}])):
        assert graph.compile()(topic="t").said == ["it is hard", "it is hard"]


def look_up(word: str) -> str:
    """Looks a word up."""
    return word


STEP = {"next_thought": "t", "next_tool_name": "look_up", "next_tool_args": {"word": "tide"}}
FINISH = {"next_thought": "t", "next_tool_name": "finish", "next_tool_args": {}}


def agent(**options: Any) -> Any:
    graph = Graph(Notes)
    graph.add_node("agent", dspy.ReAct("topic -> text", tools=[look_up]))
    graph.add_node("after", say, reads=counting("run.agent.calls", "run.agent.tool_calls"), writes=["said"])
    graph.add_path(START, "agent", "after")
    graph.add_conditional_edges("after", lambda ctx: "agent" if ctx.visit < 2 else END, ["agent", END])
    return graph.compile(**options)


ANSWERS: list[Any] = [STEP, STEP, FINISH, {"text": "x"}, STEP, FINISH, {"text": "y"}]


def test_calls_of_predictors_and_tools_are_counted_where_a_node_reads_them() -> None:
    """S003-4, S003-30."""
    with dspy.context(lm=ScriptedLM(ANSWERS)):
        run = agent().run({"topic": "t"})
    assert run.state["said"] == ["4 2", "7 3"]
    assert [commit.calls for commit in run.commits if commit.node == "agent"] == [(4, 2), (3, 1)]


def test_a_resumed_run_has_the_same_counts() -> None:
    program = agent(store=":memory:", layers=[Breakpoints(before=["after"])])
    thread = program.thread("t")
    with dspy.context(lm=ScriptedLM(ANSWERS)):
        run = thread.run({"topic": "t"})
        while run.status == "interrupted":
            run = thread.resume(answers={"before": True})
    assert run.state["said"] == ["4 2", "7 3"]


def test_calls_are_counted_whether_a_prompt_reads_them_or_not() -> None:
    graph = Graph(Notes).add_node("agent", dspy.Predict("topic -> text")).add_path(START, "agent", END)
    with dspy.context(lm=ScriptedLM([{"text": "x"}])):
        run = graph.compile().run({"topic": "t"})
    assert run.commits[1].calls == (1, 0)


def test_run_is_refused_as_the_name_of_a_field_but_not_of_a_node() -> None:
    class Bad(BaseModel):
        run: str = ""

    with pytest.raises(GraphError, match="'run'"):
        Graph(Bad)
    graph = Graph(Notes).add_node("run", say, reads={"value": "run.run.visits"}, writes=["said"])
    assert graph.add_path(START, "run", END).compile().run({"topic": "t"}).state["said"]


@pytest.mark.parametrize("name", ["run.left", "run.nobody.visits", "run.first.turns"])
def test_an_unknown_run_value_is_named_at_build(name: str) -> None:
    graph = Graph(Notes).add_node("first", say, reads={"value": name}, writes=["said"]).add_path(START, "first", END)
    with pytest.raises(GraphError, match=name):
        graph.compile()

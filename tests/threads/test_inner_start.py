"""A subgraph whose `START` has an LM router that writes: resumed, it begins with the state of its first start."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, reducers
from dspyer.testing import ScriptedLM


class Inner(BaseModel):
    q: str
    seen: Annotated[list[str], reducers.append] = ["old"]
    log: Annotated[list[str], reducers.append] = ["begun"]


class Outer(BaseModel):
    q: str
    log: Annotated[list[str], reducers.append] = []


class Route(dspy.Signature):
    """Choose."""

    q: str = dspy.InputField()
    choice: Literal["work", "rest"] = dspy.OutputField()


@pytest.mark.parametrize("field", ["log", "seen"])
def test_a_resumed_subgraph_begins_with_its_first_state(field: str) -> None:
    seen: list[Any] = []

    def work(seen_before: Any, log: Any) -> dict[str, str]:
        seen.append((list(seen_before), list(log)))
        if len(seen) == 1:
            raise ConnectionError("gone")
        return {"log": "worked"}

    def program() -> CompiledGraph:
        inner = Graph(Inner)
        inner.add_node("work", work, reads={"seen_before": "seen", "log": "log"}, writes=["log"])
        inner.add_node("rest", lambda: None, writes=[])
        inner.add_conditional_edges(
            START, dspy.Predict(Route), {"work": "work", "rest": "rest"}, name="chooser", writes={"choice": field}
        )
        inner.add_edge(["work", "rest"], END)
        outer = Graph(Outer).add_node("inner", inner.compile()).add_path(START, "inner", END)
        return outer.compile(store=":memory:")

    thread = program().thread("t")
    with dspy.context(lm=ScriptedLM([{"choice": "work"}])):
        assert isinstance(thread.run({"q": "?"}).error, ConnectionError)
    resumed = thread.resume()
    assert resumed.status == "completed", "and no LM was asked again"
    assert seen[1] == seen[0]
    with dspy.context(lm=ScriptedLM([{"choice": "work"}])):
        undisturbed = program().thread("t").run({"q": "?"})
    assert seen[2] == seen[0]
    assert resumed.state == undisturbed.state

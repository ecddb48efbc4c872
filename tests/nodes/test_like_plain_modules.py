"""A graph of one module answers as the module: values, trace, prompts, for classes and types of DSPy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.errors import StateError
from dspyer.stores import Memory, SQLite
from dspyer.testing import ScriptedLM
from tests.nodes.test_modules import quiet, reward, tool


def add(x: int) -> int:
    """Adds one."""
    return x + 1


class ByTools(dspy.Signature):
    """Call tools."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


class ByNamedTools(dspy.Signature):
    """Call tools."""

    tools: dict[str, dspy.Tool] = dspy.InputField()
    best: dspy.Tool = dspy.InputField()
    calls: list[dspy.ToolCalls] = dspy.OutputField()


class Talk(dspy.Signature):
    """Answer."""

    question: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()


class Look(dspy.Signature):
    """Look at pictures, and listen."""

    image: dspy.Image = dspy.InputField()
    images: list[dspy.Image] = dspy.InputField()
    audio: dspy.Audio = dspy.InputField()
    answer: str = dspy.OutputField()


Python: Any = dspy.Code["python"]


class Write(dspy.Signature):
    """Write code."""

    code: Python = dspy.InputField()
    better: Python = dspy.OutputField()


class Vote(dspy.Module):
    """A module that uses completions."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer", n=3)

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.majority(self.ask(question=question))


class Fresh(dspy.Module):
    """A module that makes its own prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer", n=2)

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer=self.ask(question=question).answer)


class Row(NamedTuple):
    make: Callable[[], dspy.Module]
    script: list[Any]
    inputs: Mapping[str, Any] = {"question": "q"}


CALL = {"tool_calls": [{"name": "add", "args": {"x": 1}}]}
THOUGHT = {"next_thought": "t", "next_tool_name": "finish", "next_tool_args": {}}
ANSWERS = [{"answer": "a"}, {"answer": "b"}]
TWO = [{"reasoning": "1", "answer": "a"}, {"reasoning": "2", "answer": "b"}]
PICTURE = dspy.Image("https://example.org/a.png")
ROWS = {
    "Predict": Row(lambda: dspy.Predict("question -> answer"), ANSWERS[:1]),
    "Predict, n=2": Row(lambda: dspy.Predict("question -> answer", n=2), ANSWERS),
    "Predict of two, n=2": Row(
        lambda: dspy.Predict("question -> words: list[str], score: int", n=2),
        [{"words": ["a"], "score": 1}, {"words": ["b"], "score": 2}],
    ),
    "ChainOfThought, n=2": Row(lambda: dspy.ChainOfThought("question -> answer", n=2), TWO),
    "ReAct": Row(lambda: dspy.ReAct("question -> answer", tools=[tool]), [THOUGHT, TWO[0]]),
    "MultiChainComparison": Row(
        lambda: dspy.MultiChainComparison("question -> answer", M=2),
        [{"rationale": "z", "answer": "a"}],
        {"question": "q", "completions": [dspy.Prediction(**one) for one in TWO]},
    ),
    "BestOfN": Row(lambda: dspy.BestOfN(dspy.ChainOfThought("question -> answer"), 2, reward, 1.0), TWO[:1]),
    "Refine": Row(lambda: dspy.Refine(dspy.ChainOfThought("question -> answer"), 2, reward, 1.0), TWO[:1]),
    "a majority": Row(Vote, [{"answer": "a"}, {"answer": "b"}, {"answer": "b"}]),
    "a fresh prediction": Row(Fresh, ANSWERS),
    "a list of tools": Row(
        lambda: dspy.Predict(ByTools), [{"calls": CALL}], {"question": "q", "tools": [dspy.Tool(add)]}
    ),
    "tools by name": Row(
        lambda: dspy.Predict(ByNamedTools),
        [{"calls": [CALL]}],
        {"tools": {"a": dspy.Tool(add)}, "best": dspy.Tool(add)},
    ),
    "a history": Row(
        lambda: dspy.Predict(Talk),
        ANSWERS[:1],
        {"question": "q", "history": dspy.History(messages=[{"question": "x", "answer": "y"}])},
    ),
    "pictures and sound": Row(
        lambda: dspy.Predict(Look),
        ANSWERS[:1],
        {"image": PICTURE, "images": [PICTURE], "audio": dspy.Audio(data="aGk=", audio_format="wav")},
    ),
    "code": Row(lambda: dspy.Predict(Write), [{"better": "x = 2"}], {"code": Python(code="x = 1")}),
}


def graph_of(module: dspy.Module, store: Any = None) -> CompiledGraph:
    return Graph(name="One").add_node("node", module).add_path(START, "node", END).compile(store=store)


def in_sqlite(module: dspy.Module, inputs: Mapping[str, Any], folder: Path) -> dspy.Prediction:
    with SQLite(folder / "runs.db") as store:
        run = graph_of(module, store).thread("t").run(dict(inputs))
        assert graph_of(module, store).thread("t").state.keys() == run.state.keys()  # as another process reads it
    return run.prediction


WAYS: dict[str, Callable[[dspy.Module, Mapping[str, Any], Path], dspy.Prediction]] = {
    "call": lambda module, inputs, _: graph_of(module)(**inputs),
    "acall": lambda module, inputs, _: asyncio.run(graph_of(module).acall(**inputs)),
    "run": lambda module, inputs, _: graph_of(module).run(dict(inputs)).prediction,
    "thread": lambda module, inputs, _: graph_of(module, Memory()).thread("t").run(dict(inputs)).prediction,
    "SQLite": in_sqlite,
    "a graph in a graph": lambda module, inputs, _: graph_of(graph_of(module))(**inputs),
}


def told(prediction: dspy.Prediction) -> tuple[dict[str, Any], dict[str, list[Any]] | None]:
    return dict(prediction.items()), None if prediction.completions is None else dict(prediction.completions.items())


@pytest.mark.parametrize("name", ROWS)
def test_a_graph_of_one_module_answers_as_the_module(name: str, tmp_path: Path) -> None:
    make, script, inputs = ROWS[name]
    with ScriptedLM(script) as by_hand, dspy.context(trace=[]):
        values = dict(quiet(make)(**inputs).items())
        trace = [(dict(given), *told(outputs)) for _, given, outputs in dspy.settings.trace]

    for way, answer in WAYS.items():
        with ScriptedLM(script) as lm, dspy.context(trace=[]):
            found = dict(answer(quiet(make), inputs, tmp_path).items())
            steps = [(dict(given), *told(outputs)) for _, given, outputs in dspy.settings.trace]
        assert found == {field: values[field] for field in found}, way
        assert set(values) - set(found) <= {"reasoning", "trajectory", "rationale"}, "by-products have no field here"
        assert steps == trace, way
        assert [call.messages for call in lm.calls] == [call.messages for call in by_hand.calls], way


def test_a_tool_keeps_its_function_in_a_run_and_what_prompts_show_in_a_store(tmp_path: Path) -> None:
    def use(tools: list[dspy.Tool], ctx: Context) -> dict[str, Any]:
        return {"result": tools[0](x=1) if ctx.interrupt("go", "Go?") else None}

    graph = Graph(name="Using").add_node("use", use, writes=["result"]).add_path(START, "use", END)
    own = dspy.Tool(add)
    with SQLite(tmp_path / "runs.db") as store:
        run = graph.compile(store=store).thread("t").run({"tools": [own]})
    held = run.state["tools"][0]
    own.args["x"]["description"] = "changed later"
    assert (held.func, held.args) == (add, {"x": {"type": "integer"}})
    assert graph.compile(answers=lambda question: True)(tools=[own]).result == 2

    with SQLite(tmp_path / "runs.db") as store:
        thread = graph.compile(store=store).thread("t")
        stored = thread.state["tools"][0]
        assert (stored.name, stored.desc, stored.args) == (held.name, held.desc, held.args)
        with pytest.raises(StateError, match="the tool 'add' was read from a store, which does not hold its function"):
            thread.resume({run.questions[0].id: True}).raise_error()

"""`Run.of`: the prediction of a program has its run, in whatever way the program was called."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest
from dspy.utils import DummyLM

from dspyer import END, START, CompiledGraph, Context, Graph, Run


def program() -> CompiledGraph:
    graph = Graph(name="Add", inputs=["n"]).add_node("add", add, writes=["m"])
    return graph.add_path(START, "add", END).compile()


def add(n: int) -> dict[str, int]:
    return {"m": n + 1}


class Wrapper(dspy.Module):
    def __init__(self, inner: dspy.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return self.inner(**inputs)

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        return await self.inner.acall(**inputs)


def best_of() -> dspy.Prediction:
    graph = Graph(name="Add", inputs=["n"]).add_node("add", dspy.Predict("n: int -> m: int"))
    module = graph.add_path(START, "add", END).compile()
    best = dspy.BestOfN(module, N=2, reward_fn=lambda inputs, found: Run.of(found).state["m"], threshold=99)
    with dspy.context(lm=DummyLM([{"m": "2"}, {"m": "1"}])):
        prediction: dspy.Prediction = best(n=1)
    return prediction


def evaluated(module: dspy.Module) -> dspy.Prediction:
    found: list[Run] = []

    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
        found.append(Run.of(prediction))
        return float(found[-1].state["m"] == example.n + 1)

    rows = [dspy.Example(n=n).with_inputs("n") for n in (1, 2, 3, 4)]
    result = dspy.Evaluate(devset=rows, metric=metric, num_threads=2, display_progress=False)(module)
    assert result.score == 100
    assert len({run.run_id for run in found}) == 4
    prediction: dspy.Prediction = result.results[0][1]
    assert Run.of(prediction) in found
    return prediction


CALLS: dict[str, Callable[[], dspy.Prediction]] = {
    "called": lambda: program()(n=1),
    "awaited": lambda: asyncio.run(program().acall(n=1)),
    "a run": lambda: program().run({"n": 1}).prediction,
    "an async run": lambda: asyncio.run(program().arun({"n": 1})).prediction,
    "a thread": lambda: _on_thread().prediction,
    "a stream": lambda: _streamed().prediction,
    "Evaluate": lambda: evaluated(program()),
    "a wrapper": lambda: Wrapper(Wrapper(program()))(n=1),
    "an async wrapper": lambda: asyncio.run(Wrapper(program()).acall(n=1)),
    "BestOfN": best_of,
    "a copy of the program": lambda: program().deepcopy()(n=1),
    "dspy.Parallel": lambda: dspy.Parallel(disable_progress_bar=True)(
        [(program(), dspy.Example(n=1).with_inputs("n"))]
    )[0],
    "a deep copy": lambda: copy.deepcopy(program()(n=1)),
    "a copy": lambda: copy.copy(program()(n=1)),
    "a copy of DSPy": lambda: program()(n=1).copy(),
}


def _on_thread() -> Run:
    graph = Graph(name="Add", inputs=["n"]).add_node("add", add, writes=["m"]).add_path(START, "add", END)
    return graph.compile(store=":memory:").thread("t").run({"n": 1})


def _streamed() -> Run:
    with program().stream({"n": 1}) as stream:
        list(stream)
    run = stream.run
    assert run is not None
    return run


def test_a_prediction_has_its_run() -> None:
    for how, call in CALLS.items():
        prediction = call()
        run = Run.of(prediction)
        assert (how, run.status) == (how, "completed")
        assert (run.state["n"], run.state["m"]) == (1, 2), how
        assert run.blame("m").id == "trunk:1"
        assert run.prediction == prediction
        assert Run.of(prediction) is run
        assert Run.of(run.prediction) is run


def test_each_prediction_of_a_program_has_its_own_run() -> None:
    """A wrapper may call a program several times; each prediction knows the call that gave it."""
    one = program()
    predictions = [one(n=n) for n in range(3)]
    assert [Run.of(prediction).state["n"] for prediction in reversed(predictions)] == [2, 1, 0]


def test_copies_share_the_run_and_the_fields_stay_as_they_were() -> None:
    prediction = program()(n=1)
    plain = dspy.Prediction(m=2)
    assert (prediction, repr(prediction), len(prediction)) == (plain, repr(plain), len(plain))
    assert (prediction.toDict(), prediction.keys(), list(prediction)) == ({"m": 2}, ["m"], ["m"])
    trajectory = {"prediction": prediction, "others": [prediction]}
    copied = copy.deepcopy(trajectory)
    assert copied["prediction"] is copied["others"][0] is not prediction
    assert Run.of(copied["prediction"]) is Run.of(prediction)


def test_a_pickled_prediction_has_no_run() -> None:
    prediction = program()(n=1)
    Run.of(prediction)
    data = pickle.dumps(prediction)
    assert b"dspyer." not in data  # it can be read where dspyer is not installed
    loaded = pickle.loads(data)
    assert loaded == prediction
    with pytest.raises(LookupError, match=r"has no run: .*pickled.*Pass on the prediction"):
        Run.of(loaded)


def test_a_prediction_without_a_run_says_what_to_do() -> None:
    with pytest.raises(LookupError, match="Pass on the prediction that program"):
        Run.of(dspy.Prediction(m=2))


def test_what_is_no_prediction_is_refused() -> None:
    with pytest.raises(TypeError, match="takes the prediction that a program gave, not dict"):
        Run.of({"m": 2})


def test_one_run_whichever_thread_asks_first() -> None:
    prediction = program()(n=1)
    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(lambda _: Run.of(prediction), range(32)))
    assert len(set(map(id, runs))) == 1


def test_the_run_and_its_prediction_are_freed_at_once() -> None:
    one = program()
    gc.collect()
    gc.disable()
    try:
        prediction = one(n=1)
        run = Run.of(prediction)
        known = [weakref.ref(prediction), weakref.ref(run)]
        del prediction
        assert known[0]() is None
        assert run.prediction.m == 2
        del run
        assert [ref() for ref in known] == [None, None]
        unasked = weakref.ref(one(n=1))
        assert unasked() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_prediction_that_is_made_anew_is_what_it_was() -> None:
    run = program().run({"n": 1})
    run.prediction.note = "kept"  # the prediction itself is freed at once
    assert run.prediction.note == "kept"
    assert run.prediction is run.prediction
    assert Run.of(run.prediction) is run


def test_a_call_that_is_not_recorded_says_so() -> None:
    run = Run.of(program()(n=1))
    assert (run.usage, run.lm_calls, run.events, run.cost) == ({}, (), (), None)
    assert "program.run(...) records them" in str(run.stats())
    assert program().run({"n": 1}).cost == 0


def test_a_run_without_events_has_a_report() -> None:
    first, *commits = Run.of(program()(n=1)).report().splitlines()
    assert first.startswith("Run completed in ")
    assert first.endswith(": graph 'Add', 2 commits, 1 node call")
    assert any("add → END" in line for line in commits)


def test_a_program_that_a_node_calls_has_its_own_run() -> None:
    seen: list[Run] = []

    def call(n: int, inner: CompiledGraph, ctx: Context) -> dict[str, int]:
        prediction = ctx.call(inner, {"n": n})
        seen.append(Run.of(prediction))
        return {"m": prediction.m * 10}

    graph = Graph(name="Outer", inputs=["n"]).add_node("call", call, modules={"inner": program()}, writes=["m"])
    prediction = graph.add_path(START, "call", END).compile()(n=1)
    assert (seen[0].state["m"], Run.of(prediction).state["m"]) == (2, 20)

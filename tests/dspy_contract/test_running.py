"""Rules 11 to 17, 26, 27 and 29 of the contract: calls, values, settings, concurrent runs."""

from __future__ import annotations

import asyncio
import inspect
import json
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, search
from dspyer.errors import InputError
from dspyer.stores import Memory
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import LABEL, PAIRS, Pair, generous
from tests.rows import each

ROOT = Path(__file__).parents[2]
CHAIN, FORK, LOOP = PAIRS[:3]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


@pairs
def test_call_and_acall_answer_like_the_handwritten_module(pair: Pair, lm: NotingLM) -> None:
    """Rule 11: inputs by name; sync and async calls go through DSPy's own `__call__` and `acall`."""
    program, inputs = pair.graph(), dict(pair.trainset[2].inputs())

    expected = dict(pair.by_hand()(**inputs))
    assert dict(program(**inputs)) == expected
    assert dict(asyncio.run(program.acall(**inputs))) == expected
    for name in ("__call__", "acall"):
        assert name not in {key for kind in type(program).__mro__ if kind is not dspy.Module for key in vars(kind)} or (
            getattr(type(program), name) is getattr(dspy.Module, name)
        )


def test_forward_may_be_replaced_on_the_instance(lm: NotingLM) -> None:
    """Rule 11: bootstrapping and KNNFewShot patch it and put it back."""
    program = CHAIN.graph()
    original = object.__getattribute__(program, "forward")

    def patched(self: Any, **inputs: Any) -> Any:
        return original(**inputs), "traced"

    program.forward = types.MethodType(patched, program)
    assert program(question="A train?")[1] == "traced"
    program.forward = original
    assert program(question="A train?").label
    twin = program.deepcopy()
    twin.label.demos = [dspy.Example(question="q", draft="seen in the copy", label="north")]
    lm.sent.clear()
    twin(question="A train?")
    assert "seen in the copy" in str(lm.sent)


def test_wrong_inputs_raise_before_anything_runs(lm: NotingLM) -> None:
    """Rule 11: missing and unknown names."""
    for wrong in ({}, {"qestion": "A train?"}):
        with pytest.raises(InputError, match="question"):
            FORK.graph()(**wrong)
    with pytest.raises(InputError, match="extra"):
        FORK.graph()(question="A train?", extra=1)
    assert not lm.sent


def test_prediction_holds_plain_values(lm: NotingLM) -> None:
    """Rule 12: frozen views of the state would break JSON, streamify, SIMBA and tracers."""

    def check(value: Any, where: str) -> None:
        assert type(value) in {str, int, list, dict, bool, float, type(None)}, where
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(item, where)

    for pair in PAIRS:
        prediction = pair.graph()(**pair.trainset[0].inputs())
        assert isinstance(prediction, dspy.Prediction), pair.name  # with what its run tells, as attributes
        for name, value in dict(prediction).items():
            check(value, f"{pair.name}: {name}")
        json.dumps(prediction.toDict())


@pairs
def test_run_leaves_nothing_on_the_program(pair: Pair, lm: NotingLM) -> None:
    """Rules 13 and 16: no state of a run on `self`, no setting changed."""
    program = pair.graph()
    before = {name: value for name, value in vars(program).items() if name != "history"}
    program(**pair.trainset[0].inputs())
    asyncio.run(program.acall(**pair.trainset[1].inputs()))
    after = {name: value for name, value in vars(program).items() if name != "history"}

    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert dspy.settings.lm is lm


class Asking(dspy.Module):
    """A user's module: it has a history, as each module has, and as the LM has that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = dspy.LM("openai/gpt-4o-mini")
        self.steps = [dspy.ChainOfThought("question -> answer")]

    def forward(self, question: str) -> dspy.Prediction:
        return self.steps[0](question=question)


def _asking(name: str, module: dspy.Module) -> Graph:
    return Graph(name=name).add_node("ask", module).add_path(START, "ask", END)


class History(list[Any]):
    """A history that counts how often its entries are read."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return super().__iter__()


def _stream(program: CompiledGraph, tokens: bool) -> None:
    with program.stream({"question": "A train?"}, tokens=tokens) as events:
        assert list(events)


OPERATIONS: dict[str, Callable[[CompiledGraph], object]] = {
    "call": lambda program: program(question="A train?"),
    "run": lambda program: program.run({"question": "A train?"}).raise_error(),
    "run in async code": lambda program: asyncio.run(program.arun({"question": "A train?"})).raise_error(),
    "stream": lambda program: _stream(program, tokens=False),
    "stream with tokens": lambda program: _stream(program, tokens=True),
    "run on a thread": lambda program: program.thread("t").run({"question": "A train?"}).raise_error(),
    "deepcopy": lambda program: program.deepcopy(),
    "pickle": cloudpickle.dumps,
    "what an executor gets": lambda program: program.with_executor(ProcessPoolExecutor(1)),
    "predictors": lambda program: program.named_predictors(),
    "save and load": lambda program: program.load_state(program.dump_state()),
    "set_lm": lambda program: program.set_lm(dspy.settings.lm),
    "compile": lambda program: _asking("Again", program).compile(),
    "compile a search": lambda program: search.best_of(program, 2, reward=lambda answer: 1.0, writes=["answer"]),
}


@each("operate", OPERATIONS.values(), ids=OPERATIONS)
def test_no_operation_reads_the_histories(operate: Any, lm: NotingLM) -> None:
    """DSPy keeps up to 10,000 entries in each module and LM: what reads them costs more with every call before it."""
    program = _asking("Outer", _asking("Inner", Asking()).compile()).compile(store=Memory())
    module = program.ask.ask
    owners: list[Any] = [program, program.ask, module, module.judge, *module.steps]
    program(question="A train?")
    for owner in owners:
        owner.history = History([{}] * 3)

    operate(program)

    assert [owner.history.reads for owner in owners] == [0] * len(owners)


@pytest.mark.parametrize(("pair", "times"), [(FORK, 4), (LOOP, 2)], ids=["fork", "loop"])
def test_one_program_in_many_threads(pair: Pair, times: int) -> None:
    """Rules 13 and 29: `Evaluate(num_threads=8)` gives what one thread gives."""
    results = []
    for threads in (1, 8):
        with dspy.context(lm=NotingLM()):
            evaluate = dspy.Evaluate(
                devset=pair.trainset * times, metric=generous, num_threads=threads, display_progress=False
            )
            result = evaluate(pair.graph())
        results.append([(example.question, dict(prediction), score) for example, prediction, score in result.results])
    assert results[0] == results[1]


def test_batch_gives_the_answers_in_order(lm: NotingLM) -> None:
    """`program.batch` runs the examples in threads."""
    program = FORK.graph()
    assert [dict(each) for each in program.batch(FORK.trainset, num_threads=4, disable_progress_bar=True)] == [
        dict(program(**example.inputs())) for example in FORK.trainset
    ]


def test_runs_at_the_same_time_on_one_loop(lm: NotingLM) -> None:
    """Rule 29: the same program, several tasks."""
    program = LOOP.graph()

    async def all_at_once() -> list[Any]:
        return list(await asyncio.gather(*(program.acall(**example.inputs()) for example in LOOP.trainset)))

    assert [dict(each) for each in asyncio.run(all_at_once())] == [
        dict(program(**example.inputs())) for example in LOOP.trainset
    ]


def test_modules_are_called_through_call(lm: NotingLM) -> None:
    """Rule 14: DSPy notes a call in the history of every module that is being called."""
    program = FORK.graph()
    program(question="A train?")

    assert [len(part.history) for part in (program, program.topic, program.topic.predict, program.mood)] == [3, 1, 1, 1]


class Greedy(dspy.Module):
    """Changes what it is given."""

    def forward(self, history: dspy.History, items: list[str]) -> dspy.Prediction:
        history.messages.append({"question": "forged", "answer": "forged"})
        items.append("forged")
        return dspy.Prediction(count=len(items))


class Talk(BaseModel):
    question: str
    history: dspy.History
    items: list[str]
    count: int = 0
    answer: str = ""


def test_module_cannot_change_the_state_through_its_inputs(lm: NotingLM) -> None:
    """Rule 17: ReActV2 appends to the History of its caller; a node has a copy of its own."""
    graph = Graph(Talk, name="Talk")
    graph.add_node("greedy", Greedy(), writes=["count"])
    graph.add_node("answer", dspy.Predict("question, history: dspy.History, items: list[str] -> answer"))
    program = graph.add_path(START, "greedy", "answer", END).compile()
    history, items = dspy.History(messages=[{"question": "Hi?", "answer": "Hi."}]), ["first"]

    prediction = program(question="Which?", history=history, items=items)

    assert prediction.count == 2
    assert (len(history.messages), items) == (1, ["first"])
    assert "forged" not in str(lm.sent)
    assert "Hi?" in str(lm.sent)


def test_sync_call_with_an_async_node_inside_a_running_loop(lm: NotingLM) -> None:
    """Rule 16: no `asyncio.run` in a run."""

    async def slow(question: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"text": question}

    graph = Graph(name="Colours").add_node("slow", slow, writes=["text"])
    graph.add_node("label", dspy.Predict(f"text -> {LABEL}"))
    program = graph.add_path(START, "slow", "label", END).compile()

    async def inside() -> Any:
        return program(question="A train?")

    assert asyncio.run(inside()).label == program(question="A train?").label


def test_no_lm_is_pinned() -> None:
    """Rule 26: the teacher's language model, rollouts and retries come by settings."""
    program = FORK.graph()
    assert [predictor.lm for predictor in program.predictors()] == [None] * 3
    teacher, student = NotingLM("fake/teacher"), NotingLM("fake/student")
    with dspy.context(lm=student):
        dspy.BootstrapFewShot(metric=generous, teacher_settings={"lm": teacher}, max_bootstrapped_demos=2).compile(
            program, trainset=FORK.trainset
        )
    assert (len(teacher.sent), len(student.sent)) == (6, 0)


def test_source_is_the_graph() -> None:
    """Rule 27: what `inspect` reads is the user's graph, also of copies."""
    for pair in PAIRS:
        program = pair.graph()
        source = inspect.getsource(type(program))
        assert source.startswith(f"class {type(program).__name__}(dspy.Module):")
        compile(source, "source", "exec")
        assert inspect.getsource(type(program.deepcopy())) == source, pair.name

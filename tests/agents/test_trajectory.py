"""`run.trajectory` and `prediction.trajectory`: the turns of all agents of a run, wherever the prediction goes."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import bootstrap_trace_data
from dspy.teleprompt.gepa.gepa import GEPA
from dspy.utils import DummyLM
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Run, agents, optimize
from dspyer.record import Turn
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, modes, start, turn

INPUTS = {"question": "Why?"}


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


def sums(**options: Any) -> Graph:
    return agents.tool_loop("task -> result", [agents.tool(add, **options)], name="Sums")


def lead(**options: Any) -> Graph:
    return agents.tool_loop("question -> answer", [fail, agents.tool(sums(**options), name="sums", desc="Adds.")])


ANSWERS = [
    turn(("fail", {"why": "tired"}), ("sums", {"task": "1 + 2"})),
    turn(("add", {"a": 1, "b": 2})),
    turn(("submit", {"result": "3"})),
    SUBMIT,
]


def told(turns: tuple[Turn, ...]) -> list[Any]:
    return [(one.agent, one.mode, [(call.name, call.value) for call in one.calls]) for one in turns]


SAID = "step: fail; error: ValueError: tired; action: correct what was given, and try again"
EXPECTED = [
    ("Agent", "react", [("fail", SAID), ("sums", "3")]),
    ("sums", "react", [("add", 3)]),
    ("sums", "react", [("submit", {"result": "3"})]),
    ("Agent", "react", [("submit", {"answer": "done"})]),
]


def desk() -> Graph:
    """An agent as a node of another graph, under the name of its mode."""
    graph = Graph(inputs=["question"]).add_node("react", lead(), reads=["question"], writes=["answer", "messages"])
    return graph.add_path(START, "react", END)


def of_run(target: Any, mode: str) -> Any:
    return start(target, mode).prediction


def called(target: Any, mode: str) -> Any:
    return target(**INPUTS) if mode == "sync" else asyncio.run(target.acall(**INPUTS))


WAYS: dict[str, Callable[[CompiledGraph, str], Any]] = {
    "a run": of_run,
    "a call": called,
    "a thread": lambda program, mode: of_run(program.thread("t"), mode),
}


@modes
@pytest.mark.parametrize("way", WAYS)
def test_the_turns_of_all_agents_in_the_order_of_their_calls(way: str, mode: str) -> None:
    for graph, name in ((lead(), "Agent"), (desk(), "react")):
        with ScriptedLM(ANSWERS):
            prediction = WAYS[way](graph.compile(store=":memory:"), mode)
        inner = "sums" if name == "Agent" else "react/sums"
        expected = [(name if agent == "Agent" else inner, *rest) for agent, *rest in EXPECTED]
        assert told(prediction.trajectory) == expected
        assert prediction.trajectory == Run.of(prediction).trajectory
        first = prediction.trajectory[0]
        assert (first.thought, first.reason) == ("so", "")
        assert [(call.id, call.args, call.error) for call in first.calls] == [
            ("call_0_0", {"why": "tired"}, True),
            ("call_0_1", {"task": "1 + 2"}, False),
        ]
        assert not {"trajectory", "history", "termination_reason"} & set(prediction.keys())
        assert prediction.answer == "done"


def test_a_prediction_keeps_them_through_copies_and_pickles() -> None:
    with ScriptedLM(ANSWERS):
        prediction = lead().compile()(**INPUTS)
    pickled = pickle.loads(pickle.dumps(prediction))
    copies = [copy.copy(prediction), copy.deepcopy(prediction), prediction.copy(), prediction.without("answer")]
    for one in (*copies, pickled, pickle.loads(pickle.dumps(pickled)), copy.deepcopy(pickled), pickled.copy()):
        assert told(one.trajectory) == EXPECTED
        assert (one.termination_reason, len(one.history.messages)) == ("submit", 2)
    with pytest.raises(LookupError, match="pickled"):
        Run.of(pickled)


def test_an_output_of_that_name_comes_first_and_a_program_without_agents_has_no_turns() -> None:
    program = Graph(inputs=["n"]).add_node("show", lambda n: {"trajectory": n}, writes=["trajectory"])
    prediction = program.add_path(START, "show", END).compile()(n=1)
    assert (prediction.trajectory, Run.of(prediction).trajectory) == (1, ())
    other = Graph(inputs=["n"]).add_node("show", lambda n: {"m": n}, writes=["m"]).add_path(START, "show", END)
    assert other.compile()(n=1).trajectory == ()
    for name in ("history", "termination_reason"):
        assert not hasattr(other.compile()(n=1), name)


def test_a_metric_has_them() -> None:
    """In threads of `dspy.Evaluate`, in what `dspy.GEPA` records, and in both metrics of GEPA."""
    seen: list[Any] = []

    def metric(example: dspy.Example, prediction: Any, trace: Any = None, *of_node: Any) -> float:
        seen.append(told(prediction.trajectory))
        return 1.0

    rows = [dspy.Example(**INPUTS, answer="done").with_inputs("question")]
    settings: dict[str, Any] = {"reflection_lm": ScriptedLM([]), "max_metric_calls": 1, "num_threads": 1}

    def gepa_metric(gold: Any, pred: Any, trace: Any = None, name: Any = None, steps: Any = None) -> float:
        return metric(gold, pred)

    ways: list[Callable[[Any], Any]] = [
        dspy.Evaluate(devset=rows, metric=metric, num_threads=2, display_progress=False),
        lambda program: bootstrap_trace_data(program, rows, metric, num_threads=1),
        lambda program: GEPA(gepa_metric, **settings).compile(program, trainset=rows, valset=rows),
        lambda program: optimize.GEPA(gepa_metric, **settings).compile(program, trainset=rows, valset=rows),
    ]
    for way in ways:
        with dspy.context(lm=ScriptedLM(ANSWERS)):
            way(lead().compile())
        assert seen.pop() == EXPECTED


def test_agents_in_items_of_a_map_have_their_numbers() -> None:
    graph = Graph(inputs=["tasks"]).add_map("read", sums(), over="tasks", item="task", into="results")
    answers = [turn(("submit", {"result": "r"}))] * 2
    with ScriptedLM(answers):
        run = graph.add_path(START, "read", END).compile(max_concurrency=1).run({"tasks": ["a", "b"]})
    assert [one.agent for one in run.trajectory] == ["read[0]", "read[1]"]


@pytest.mark.parametrize("store", [None, ":memory:"])
def test_programs_that_a_function_calls_have_the_order_of_the_calls(store: Any) -> None:
    seen: list[Any] = []

    def compare(question: str, sums: Any, ctx: Context) -> dict[str, Any]:
        for key in ("one", "a/b"):
            seen.extend((one.agent, one.mode) for one in ctx.call(sums, {"task": question}, key=key).trajectory)
        return {"answer": "same"}

    graph = Graph(inputs=["question"]).add_node("compare", compare, modules={"sums": sums().compile()})
    program = graph.add_path(START, "compare", END).compile(store=store)
    with ScriptedLM([turn(("submit", {"result": "r"}))] * 2):
        run = start(program if store is None else program.thread("t"))
    assert seen == [("Sums", "react")] * 2
    assert [one.agent for one in run.trajectory] == ["compare[one]", "compare[a/b]"]


def test_a_run_has_its_own_turns_and_the_history_of_its_thread() -> None:
    thread = lead().compile(store=":memory:").thread("t")
    with ScriptedLM([*ANSWERS, SUBMIT]):
        start(thread)
        prediction = start(thread).prediction
    assert told(prediction.trajectory) == EXPECTED[-1:]
    assert len(prediction.history.messages) == 3


def test_a_worker_gives_them() -> None:
    with ThreadPoolExecutor(1) as pool, dspy.context(lm=DummyLM(ANSWERS)):
        program = lead().compile().with_executor(pool)
        assert told(program(**INPUTS).trajectory) == EXPECTED
    with ThreadPoolExecutor(1) as pool, dspy.context(lm=DummyLM(ANSWERS)):
        graph = Graph(inputs=["question"]).add_node("lead", lead().compile().with_executor(pool), writes=["answer"])
        prediction = graph.add_path(START, "lead", END).compile()(**INPUTS)
    assert [one.agent for one in prediction.trajectory] == ["lead", "lead/sums", "lead/sums", "lead"]


@modes
def test_what_waits_or_was_resumed(mode: str, tmp_path: Any) -> None:
    """A call that waits has no result; a resume knows the turns before it. The call is the one that a person edited."""
    path = tmp_path / "runs.db"
    with ScriptedLM(ANSWERS[:2]):
        waiting = start(lead(approve=True).compile(store=path).thread("t"), mode)
    own, inner = waiting.trajectory
    assert [(call.value, call.error) for call in own.calls] == [(SAID, True), (None, None)]
    assert (inner.agent, inner.calls[0].value) == ("sums", None)
    with ScriptedLM(ANSWERS[2:]):
        thread = lead(approve=True).compile(store=path).thread("t")
        given = {"add": agents.Approval(True, args={"a": 10, "b": 2})}
        run = thread.resume(given, by="ada") if mode == "sync" else asyncio.run(thread.aresume(given, by="ada"))
    edited = [*EXPECTED[:1], ("sums", "react", [("add", 12)]), *EXPECTED[2:]]
    assert told(run.trajectory) == told(run.prediction.trajectory) == edited
    assert told(pickle.loads(cloudpickle.dumps(run)).trajectory) == edited
    (call,) = run.trajectory[1].calls
    assert call.answer is not None
    assert (call.args, call.answer.value, call.answer.by) == ({"a": 10, "b": 2}, given["add"], "ada")
    assert run.trajectory[0].calls[1].answer is None


SECOND = [(True, "bob"), (agents.Approval(True, args={"a": 3, "b": 3}), "bob"), ({"ok": True}, "bob"), (False, "ada")]


@pytest.mark.parametrize(("second", "by"), SECOND)
def test_a_repeated_call_has_the_answer_of_who_agreed_to_it(second: Any, by: str, tmp_path: Any) -> None:
    """The check repeats the call that ada has edited; bob is asked about the repeated one."""

    def check(args: dict[str, int], result: int) -> dict[str, Any]:
        return {"problems": ["odd"], "args": {"a": 1, "b": 3}} if result % 2 else {"problems": []}

    agent = agents.tool_loop("question -> answer", [agents.tool(add, approve=True, check=check)])
    with ScriptedLM([turn(("add", {"a": 1, "b": 1})), SUBMIT]):
        thread = agent.compile(store=tmp_path / "runs.db").thread("t")
        (first,) = start(thread).questions
        (again,) = thread.resume({first.id: agents.Approval(True, args={"a": 1, "b": 2})}, by="ada").questions
        run = thread.resume({again.id: second}, by="bob")
    answer = run.trajectory[0].calls[0].answer
    assert answer is not None
    assert answer.by == by
    assert [one.by for one in run.answers] == ["ada", "bob"]


class Pad(BaseModel):
    note: str = ""


def test_a_result_that_the_end_of_the_turn_decides_about() -> None:
    def keep(text: str) -> Any:
        """Keeps a note."""
        from dspyer import Command

        return Command({"note": text}, result=text)

    program = agents.tool_loop("question -> answer", [keep], schema=Pad).compile()
    with ScriptedLM([turn(("keep", {"text": "a"}), ("keep", {"text": "b"})), SUBMIT]):
        run = program.run(INPUTS)
    first, second = run.trajectory[0].calls
    assert (first.value, first.error, second.error) == ("a", False, True)
    assert "note" in second.value


@modes
def test_one_agent_gives_what_react_gives(mode: str) -> None:
    """The contract with the real class: the history, and how the run has ended."""
    calls = turn(("add", {"a": 1, "b": 2}))
    ways = [
        ([calls, SUBMIT], 5, "submit"),
        ([calls, SUBMIT], 1, "forced_submit"),
        ([turn(), SUBMIT], 5, "forced_submit"),
    ]
    for answers, turns, reason in ways:
        react = dspy.ReActV2("question -> answer", [add], max_iters=turns)
        loop = agents.tool_loop("question -> answer", [add], max_turns=turns).compile()
        found = []
        for program in (react, loop):
            with ScriptedLM(answers):
                found.append(called(program, mode))
        assert [one.termination_reason for one in found] == [reason, reason]
        # Only the ids of calls of a forced turn differ: the loop's are those of its turns.
        first, second = (re.sub(r"call_\d_\d", "call", one.history.model_dump_json()) for one in found)
        assert first == second
        assert found[0].answer == found[1].answer
        assert found[1].trajectory[-1].reason in ("", "max_turns", "empty_tool_calls")

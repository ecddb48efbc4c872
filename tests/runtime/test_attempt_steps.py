"""The trace of a run with failed attempts (C4): what led to the result, and in `trace_steps` what did not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run
from dspyer.testing import Prompt, ScriptedLM, no_pauses

MODES = ["sync", "async"]
ANY = Retry(3, on=Exception)


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


def answers(prompt: Prompt) -> dict[str, str]:
    return {field.name: "x" for field in prompt.output_fields}


def run(program: CompiledGraph, mode: str, lm: Any = None, **inputs: Any) -> Run:
    with dspy.context(lm=lm or ScriptedLM(answers)):
        return program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))


def failing(times: int, error: type[Exception] = ConnectionError) -> Callable[..., Any]:
    """A node that calls its predictor and then fails, a few times."""
    left = iter(range(times))

    def ask(question: str, draft: dspy.Module) -> dict[str, Any]:
        found = draft(question=question).draft
        if next(left, None) is not None:
            raise error("no line")
        return {"draft": found}

    return ask


def graph_of(times: int, retry: Any = ANY, error: type[Exception] = ConnectionError) -> Graph:
    graph = Graph(name="Asks")
    bound = {"draft": dspy.Predict("question -> draft")}
    graph.add_node("ask", failing(times, error), modules=bound, retry=retry, writes=["draft"])
    return graph.add_path(START, "ask", END)


def steps(run: Run) -> list[tuple[str, str, int, str]]:
    return [(step.execution, step.node, step.attempt, step.status) for step in run.trace_steps]


@pytest.mark.parametrize("mode", MODES)
def test_attempts_that_raised_have_no_step_in_the_trace(mode: str) -> None:
    ran = run(graph_of(2).compile(), mode, question="why")
    assert len(ran.trace) == 1
    assert ran.commits[1].calls == (1, 0)  # those of the attempt that was committed (C8)
    assert steps(ran) == [
        ("trunk:1", "ask", 1, "lost"),
        ("trunk:1", "ask", 2, "lost"),
        ("trunk:1", "ask", 3, "used"),
    ]
    assert all(step.predictor is ran.trace[0][0] for step in ran.trace_steps)
    counted = [usage["prompt_tokens"] for usage in ran.usage.values()]
    one = run(graph_of(0).compile(), mode, question="why")
    assert counted == [3 * usage["prompt_tokens"] for usage in one.usage.values()]


@pytest.mark.parametrize("mode", MODES)
def test_the_last_attempt_of_a_failed_run_stays_in_the_trace(mode: str) -> None:
    ran = run(graph_of(3).compile(), mode, question="why")
    assert ran.status == "failed"
    assert len(ran.trace) == 1
    assert [(attempt, status) for _, _, attempt, status in steps(ran)] == [(1, "lost"), (2, "lost"), (3, "used")]


@pytest.mark.parametrize("mode", MODES)
def test_the_trace_around_a_program_has_no_lost_steps(mode: str) -> None:
    """What optimizers see."""
    program = graph_of(2).compile()
    with dspy.context(trace=[], lm=ScriptedLM(answers)):
        if mode == "sync":
            program(question="why")
        else:
            asyncio.run(program.acall(question="why"))
        assert len(dspy.settings.trace) == 1


@pytest.mark.parametrize("mode", MODES)
def test_lost_steps_inside_a_graph_that_is_a_node(mode: str) -> None:
    outer = Graph(name="Outer").add_node("inner", graph_of(2).compile()).add_path(START, "inner", END)
    ran = run(outer.compile(), mode, question="why")
    assert len(ran.trace) == 1
    assert steps(ran) == [("trunk:1", "inner", 1, "lost")] * 2 + [("trunk:1", "inner", 1, "used")]


@pytest.mark.parametrize("mode", MODES)
def test_concurrent_nodes_lose_their_own_steps(mode: str) -> None:
    graph = Graph(name="Fork")
    for name, times in (("a", 1), ("b", 0), ("c", 2)):
        bound = {"draft": dspy.Predict("question -> draft")}

        ask = failing(times)
        graph.add_node(name, ask, modules=bound, retry=ANY, reads=["question"], writes={"draft": name})
        graph.add_path(START, name, END)
    ran = run(graph.compile(), mode, question="why")
    assert ran.status == "completed", ran.error
    assert len(ran.trace) == 3
    found = [(node, status) for _, node, _, status in steps(ran)]
    assert found == [("a", "lost"), ("a", "used"), ("b", "used"), ("c", "lost"), ("c", "lost"), ("c", "used")]


class Shortened(dspy.Module):
    """A predictor and then, a few times, an error."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.predict, self.left = dspy.Predict("text -> short"), iter(range(times))

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def forward(self, text: str) -> Any:
        found = self.predict(text=text)
        if next(self.left, None) is not None:
            raise ConnectionError("no line")
        return dspy.Prediction(short=found.short)


class Texts(BaseModel):
    question: str
    text: str = ""


@pytest.mark.parametrize("mode", MODES)
def test_a_condenser_and_a_router_are_retried_and_the_node_is_not(mode: str) -> None:
    """C2: the node's own result is kept, and so are its steps. Each layer counts its own attempts."""
    calls: list[str] = []

    def write(question: str) -> dict[str, str]:
        calls.append(question)
        if len(calls) == 1:
            raise ConnectionError("no line")
        return {"text": "long " * 9}

    graph = Graph(Texts, name="Layers")
    graph.add_node("write", write, writes=["text"], condense={"text": Shortened(2)}, retry=ANY)
    graph.add_node("again", lambda question: {"text": "other"}, writes=["text"])
    route = dspy.Predict("text -> next: Literal['again', 'stop']")
    graph.add_edge(START, "write").add_conditional_edges("write", route, {"again": "again", "stop": END})
    graph.add_edge("again", END)
    answered = iter([ConnectionError("no line"), ConnectionError("no line"), {"next": "stop"}])

    def answer(prompt: Prompt) -> Any:
        return next(answered) if prompt.output_fields[0].name == "next" else answers(prompt)

    ran = run(graph.compile(), mode, ScriptedLM(answer), question="why")
    assert ran.status == "completed", ran.error
    assert calls == ["why", "why"]
    commit = ran.commits[1]
    assert commit.attempt == 2
    layers = [(failed.execution.removeprefix("trunk:1"), failed.attempt) for failed in commit.failed_attempts]
    assert layers == [("", 1), ("[condense]", 1), ("[condense]", 2), ("[route]", 1), ("[route]", 2)]
    assert len(ran.trace) == 2
    assert [status for *_, status in steps(ran)] == ["lost"] * 2 + ["used"] * 2


@pytest.mark.parametrize("mode", MODES)
def test_a_pure_router_is_never_retried(mode: str) -> None:
    calls: list[int] = []

    def route(question: str) -> str:
        calls.append(1)
        raise ConnectionError("no line")

    graph = Graph(Texts).add_node("write", lambda question: {"text": "x"}, writes=["text"], retry=ANY)
    graph.add_edge(START, "write").add_conditional_edges("write", route, [END])
    ran = run(graph.compile(), mode, question="why")
    assert isinstance(ran.error, ConnectionError)
    assert calls == [1]


def test_demonstrations_come_from_attempts_that_led_to_the_result() -> None:
    """Without that, a predictor whose call was followed by an error would teach what failed."""
    calls = iter(range(100))

    def ask(question: str, draft: dspy.Module) -> dict[str, Any]:
        found = draft(question=question).draft
        if next(calls) % 3 < 2:
            raise ConnectionError("no line")
        return {"draft": found}

    graph = Graph(name="Asks").add_node(
        "ask", ask, modules={"draft": dspy.Predict("question -> draft")}, retry=ANY, writes=["draft"]
    )
    answered = iter(range(100))
    lm = ScriptedLM(lambda prompt: {"draft": f"draft {next(answered)}"})
    examples = [dspy.Example(question=f"why {number}").with_inputs("question") for number in range(3)]
    with dspy.context(lm=lm):
        optimizer = dspy.BootstrapFewShot(metric=lambda *given: True, max_bootstrapped_demos=3, max_labeled_demos=0)
        tuned = optimizer.compile(graph.add_path(START, "ask", END).compile(), trainset=examples)
    (predictor,) = tuned.predictors()
    assert [demo["draft"] for demo in predictor.demos] == ["draft 2", "draft 5", "draft 8"]


@pytest.mark.parametrize("place", ["node", "item", "timed"])
def test_a_call_that_a_failed_attempt_left_in_progress_is_no_step_of_the_next_one(place: str) -> None:
    """`asyncio.gather` raises the first error, and leaves its other tasks running."""
    left: list[asyncio.Task[Any]] = []

    async def ask(question: str, draft: dspy.Module, ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            left.append(asyncio.ensure_future(draft.acall(question="left")))
            raise ConnectionError("of the first attempt")
        await left[0]
        return {"draft": (await draft.acall(question=question)).draft}

    options: dict[str, Any] = {"modules": {"draft": dspy.Predict("question -> draft")}, "retry": 2}
    graph = Graph()
    if place == "item":
        graph.add_map("ask", ask, over="questions", item="question", into="drafts", writes=["draft"], **options)
    else:
        graph.add_node("ask", ask, writes=["draft"], **options, timeout=30 if place == "timed" else None)
    given: dict[str, Any] = {"questions": ["What?"]} if place == "item" else {"question": "What?"}
    found = run(graph.add_path(START, "ask", END).compile(), "async", **given)
    assert found.status == "completed"
    assert [inputs["question"] for _, inputs, _ in found.trace] == ["What?"]
    assert [step.status for step in found.trace_steps] == ["lost", "used"]

"""A kind of node of a user's own, by public names alone: one script, for sync and async runs."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import DELETE, END, START, CompiledGraph, Graph, Retry, Run
from dspyer.errors import GraphError, NodeOutputError, NodeTimeoutError, UnsetFieldError
from dspyer.extend import Call, Layer, Look, Node, Reply
from dspyer.stores import SQLite
from dspyer.testing import ScriptedLM, call_node, clock, stub
from tests.runtime.conftest import Play

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class Judge(dspy.Signature):
    """Names the label of a text."""

    text: str = dspy.InputField()
    label: str = dspy.OutputField()


class Vote(Node):
    """Asks one predictor three times, and takes the label that it gave most often."""

    kind = "vote"
    look = Look("check", "vote", "three ballots")

    def script(self, call: Call) -> Any:
        ballots: list[str] = []
        while len(ballots) < 3:
            prediction = yield call.module("judge", text=call.read("text"))
            ballots.append(prediction.label)
        return Reply({"label": max(set(ballots), key=ballots.count)})


def vote(kind: Callable[..., Node] = Vote, **facts: Any) -> Node:
    return kind(**{"reads": ["text"], "writes": ["label"], "modules": {"judge": dspy.Predict(Judge)}, **facts})


def program_of(node: Node, store: Any = None, **options: Any) -> CompiledGraph:
    graph = Graph(inputs=["text"]).add_node("vote", node, **options)
    return graph.add_path(START, "vote", END).compile(store=store)


def run(program: CompiledGraph, inputs: Mapping[str, Any], mode: str) -> Run:
    return program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))


def labels(*texts: str) -> list[dict[str, str]]:
    return [{"label": text} for text in texts]


@MODES
def test_its_modules_are_leaf_steps_of_sync_and_async_runs(mode: str) -> None:
    with ScriptedLM(labels("a", "b", "b")) as lm:
        found = run(program_of(vote()), {"text": "Win!"}, mode)
    assert found.state["label"] == "b"
    assert [call.prompt.inputs["text"] for call in lm.calls] == ["Win!"] * 3


@MODES
def test_its_functions_are_called_in_either_colour(mode: str) -> None:
    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    class Sum(Node):
        def script(self, call: Call) -> Any:
            number = yield call.function(doubled, call.read("text"))
            return Reply({"label": (yield call.function(pow, number, 2))})

    assert run(program_of(Sum(reads=["text"], writes=["label"])), {"text": 3}, mode).state["label"] == 36


@MODES
def test_an_item_of_a_map_is_one_call(mode: str) -> None:
    graph = Graph(inputs=["texts"]).add_map("vote", vote(), over="texts", item="text", into="labels", max_concurrency=1)
    program = graph.add_path(START, "vote", END).compile()
    with ScriptedLM(labels("a", "a", "b", "c", "d", "d")):
        found = run(program, {"texts": ["x", "y"]}, mode)
    assert list(found.state["labels"]) == ["a", "d"]


def test_a_fix_of_its_output_gets_what_it_has_read_as_far_as_that_is_set() -> None:
    class Shout(Node):
        def script(self, call: Call) -> Any:
            yield from ()
            return Reply({"loud": call.read("text").upper()})

    given: list[tuple[str, str | None, str]] = []

    def fix(text: str, previous_loud: str, hint: str | None = None) -> dict[str, str]:
        given.append((text, hint, previous_loud))
        return {"loud": f"{previous_loud}!"}

    graph = Graph(inputs=["text", "hint"])
    graph.add_node("look", lambda hint: {"hint": hint or DELETE}, writes=["hint"])
    graph.add_node("shout", Shout(reads=["text", "hint"], writes=["loud"])).add_path(START, "look", "shout", END)
    graph.add_check("loud_enough", lambda loud: [] if "!" in loud else ["too quiet"], of="shout", max_fixes=1, fix=fix)
    program = graph.compile()
    assert [program(text="hey", hint=hint).loud for hint in ("", "more")] == ["HEY!", "HEY!"]
    assert given == [("hey", None, "HEY"), ("hey", "more", "HEY")]


@MODES
def test_a_retry_calls_it_again_from_the_beginning(mode: str) -> None:
    with ScriptedLM([{"label": "a"}, ConnectionError("lost"), *labels("b", "b", "c")]) as lm:
        found = run(program_of(vote(), retry=Retry(2, on=Exception)), {"text": "x"}, mode)
    assert (found.state["label"], len(lm.calls)) == ("b", 5)


@MODES
def test_a_timeout_is_that_of_all_steps_of_an_attempt(mode: str) -> None:
    steps: list[str] = []

    class Slow(Node):
        def script(self, call: Call) -> Any:
            for name in ("first", "second", "third"):
                yield call.function(passes, name)
            return Reply({"label": "late"})

    with clock() as time:

        def passes(name: str) -> None:
            steps.append(name)
            time.advance(0.6)

        found = run(program_of(Slow(reads=[], writes=["label"]), timeout=1.0), {"text": "x"}, mode)
    assert isinstance(found.error, NodeTimeoutError)
    assert steps == ["first", "second"]


@MODES
def test_time_is_over_after_the_last_step_too(mode: str) -> None:
    class Slow(Node):
        def script(self, call: Call) -> Any:
            yield call.function(len, "x")
            time.advance(2.0)
            return Reply({"label": "late"})

    with clock() as time:
        found = run(program_of(Slow(reads=[], writes=["label"]), timeout=1.0), {"text": "x"}, mode)
    assert isinstance(found.error, NodeTimeoutError)
    assert not found.error.left_running


class Named(Layer):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def around(self, call: Call, inner: Any) -> Any:
        self.seen.append(self.name)
        return (yield from inner(call))


def test_the_layers_of_a_kind_are_the_innermost_of_their_place() -> None:
    seen: list[str] = []
    node = vote(layers=[Named("kind", seen)])
    graph = Graph(inputs=["text"]).add_node("vote", node, layers=[Named("node", seen)]).add_path(START, "vote", END)
    program = graph.compile(layers=[Named("graph", seen)])
    with ScriptedLM(labels("a", "a", "a")):
        program(text="x")
    assert seen == ["graph", "node", "kind"]


class Killed(BaseException):
    """The process ends here."""


class Kill(Layer):
    """Ends the process once, after the attempt and before the commit."""

    def __init__(self) -> None:
        self.left = 1

    def around(self, call: Call, inner: Any) -> Any:
        output = yield from inner(call)
        if self.left:
            self.left = 0
            raise Killed
        return output


@MODES
def test_a_crash_in_it_is_resumed_by_a_call_of_it(mode: str, tmp_path: Path) -> None:
    store = SQLite(tmp_path / "runs.db")
    graph = Graph(inputs=["text"]).add_node("read", lambda text: {"text": text.upper()}, writes=["text"])
    graph.add_node("vote", vote(), layers=[Kill()]).add_path(START, "read", "vote", END)
    program = graph.compile(store=store)
    thread = program.thread("t")
    with ScriptedLM(labels("a", "a", "b", "c", "c", "c")) as lm:
        with pytest.raises(Killed):
            thread.run({"text": "x"}) if mode == "sync" else asyncio.run(thread.arun({"text": "x"}))
        found = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert (found.status, found.state["label"]) == ("completed", "c")
    assert [call.prompt.inputs["text"] for call in lm.calls] == ["X"] * 6


def test_its_predictors_are_tuned_like_any_other() -> None:
    trainset = [dspy.Example(text=text, label="spam").with_inputs("text") for text in ("one", "two")]
    program = program_of(vote())
    assert [name for name, _ in program.named_predictors()] == ["vote.judge"]
    optimizer = dspy.BootstrapFewShot(metric=lambda example, found, _trace=None: found.label == example.label)
    with ScriptedLM(lambda _prompt: {"label": "spam"}):
        tuned = optimizer.compile(program, trainset=trainset)
        assert tuned(text="three").label == "spam"
    (predictor,) = tuned.predictors()
    assert {demo["text"] for demo in predictor.demos} == {"one", "two"}
    assert not program.predictors()[0].demos


def test_pictures_and_words_show_its_look() -> None:
    graph = program_of(vote()).graph
    assert 'vote_{"vote"}' in graph.to_mermaid()
    assert "<title>vote: vote</title>" in graph.to_svg()
    assert "three ballots" in graph.explain()


class Weighted(Node):
    """A kind with an attribute of its own."""

    def __init__(self, ballots: int, **facts: Any) -> None:
        super().__init__(**facts)
        self.ballots = ballots

    def script(self, call: Call) -> Any:
        for _ in range(self.ballots):
            label = (yield call.module("judge", text=call.read("text"))).label
        return Reply({"label": f"{label}!"})


def test_copies_and_pickles_of_its_program_call_it() -> None:
    program = program_of(vote(partial(Weighted, 1)))
    for twin in (program.deepcopy(), copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        with ScriptedLM(labels("a")):
            assert twin(text="x").label == "a!"


def test_single_nodes_are_called_and_replaced_in_tests() -> None:
    program = program_of(vote())
    with ScriptedLM(labels("a", "b", "b")):
        assert call_node(program, "vote", {"text": "x"}) == {"label": "b"}
    assert stub(program, vote={"label": "fake"})(text="x").label == "fake"


def refused(script: Any, **facts: Any) -> str:
    kind = type("Wrong", (Node,), {"script": script})
    found = program_of(kind(**{"reads": ["text"], "writes": ["label"], **facts})).run({"text": "x"})
    assert isinstance(found.error, NodeOutputError | AttributeError | TypeError | NotImplementedError), found.error
    return str(found.error)


def test_a_mistake_in_a_script_says_what_to_write() -> None:
    def no_reply(self: Node, call: Call) -> Any:
        yield from ()
        return {"label": "x"}

    def other_field(self: Node, call: Call) -> Any:
        yield from ()
        return Reply({"lable": "x"})

    def no_step(self: Node, call: Call) -> Any:
        yield [call.function(len, "x")]

    def other_module(self: Node, call: Call) -> Any:
        yield call.module("jugde")

    assert "return Reply({...})" in refused(no_reply)
    assert "Did you mean 'label'?" in refused(other_field)
    assert "no step: yield call.module(...) or call.function(...)" in refused(no_step)
    assert "node 'vote': a kind of node defines `script(self, call)`" in refused(Node.script)
    judge = {"judge": dspy.Predict("text -> label")}
    assert "node 'vote' has no module 'jugde'. Did you mean 'judge'?" in refused(other_module, modules=judge)


def test_a_script_sees_what_it_declares_alone(play: Play) -> None:
    class Curious(Node):
        def script(self, call: Call) -> Any:
            return Reply({"label": f"{call.read('text')} {call.read('secret')}"})

    def graph(*reads: str) -> Graph:
        curious = Curious(reads=list(reads), writes=["label"])
        return Graph(inputs=["text", "secret"]).add_node("vote", curious).add_path(START, "vote", END)

    inputs = {"text": "a", "secret": "b"}
    assert play(graph("text", "secret").compile(), inputs).state["label"] == "a b"
    assert isinstance(play(graph("text").compile(), inputs).error, UnsetFieldError)
    overlay = Graph(inputs=["texts", "secret"]).add_map(
        "vote", Curious(reads=["text", "secret"], writes=["label"]), over="texts", item="text", into="labels"
    )
    found = play(overlay.add_path(START, "vote", END).compile(), {"texts": ["a", "c"], "secret": "b"})
    assert found.state["labels"] == ["a b", "c b"]


def test_a_script_that_waits_for_nothing_needs_no_yield() -> None:
    class Plain(Node):
        def script(self, call: Call) -> Any:
            return Reply({"label": call.read("text").upper()})

    assert program_of(Plain(reads=["text"], writes=["label"]))(text="x").label == "X"


class Async(Node):
    async def script(self, call: Call) -> Any:  # type: ignore[override]  # the mistake
        return Reply({"label": "x"})


class Unmade(Node):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds


@pytest.mark.parametrize(
    ("node", "options", "text"),
    [
        (Async(reads=["text"], writes=["label"]), {}, "Async.script is async: write a plain `def` with `yield`"),
        (Unmade(3), {}, r"is a Unmade whose `__init__` does not call super\(\).__init__\(reads="),
        (vote(), {"reads": ["text"]}, "give them to Vote"),
        (vote(reads={"own": "text"}), {}, "reads fields by their own names"),
        (vote(modules={"judge": len}), {}, "only a dspy.Module is bound"),
        (vote(modules={"judge": program_of(vote())}), {}, "binds the program 'judge'"),
    ],
)
def test_a_mistake_in_its_facts_is_a_graph_error(node: Node, options: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        program_of(node, **options)


def test_something_else_than_a_layer_is_refused() -> None:
    with pytest.raises(TypeError, match="a layer is a dspyer"):
        program_of(vote(layers=[3]))

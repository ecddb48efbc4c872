"""What a worker gets with a call and what not, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from types import ModuleType
from typing import Any

import cloudpickle
import dspy
import pytest
from dspy.utils.callback import BaseCallback
from pydantic import BaseModel

from dspyer import END, START, Budget, CompiledGraph, Context, Graph, Run, optimize
from dspyer.errors import ExecutorLost, InputError, ThreadError
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.executors.pools import BytesExecutor, forked
from tests.executors.programs import WordLM, checked


def one_node(function: Any, **options: Any) -> CompiledGraph:
    return Graph().add_node("node", function, **options).add_path(START, "node", END).compile()


def asking(**options: Any) -> CompiledGraph:
    return Graph().add_node("ask", dspy.Predict("q -> a")).add_path(START, "ask", END).compile(**options)


# --- the program


class Locked:
    """A part that no pickle takes."""

    def __init__(self) -> None:
        self.lock = Lock()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "and got a NoneType"),
        (ProcessPoolExecutor, "and got a class"),
        (object(), "Ray.*submit.*and got|and got an object.*Ray"),
    ],
)
def test_what_is_no_executor_is_refused(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        asking().with_executor(given)


def test_it_is_the_same_program(pool: BytesExecutor, tmp_path: Any) -> None:
    here = asking()
    far = here.with_executor(pool)
    assert far.ask is here.ask
    assert [name for name, _ in far.named_parameters()] == ["ask"]
    far.save(tmp_path / "program.json")
    asking().load(tmp_path / "program.json")
    twin = copy.deepcopy(far)
    assert twin.ask is not far.ask
    unpickled = pickle.loads(cloudpickle.dumps(far))
    tasks = []
    with dspy.context(lm=WordLM()):
        for program in (far, twin, unpickled, here):
            before = len(pool.sent)
            program(q="1")
            tasks.append(len(pool.sent) - before)
    assert tasks == [1, 1, 0, 0]


def test_an_optimizers_results_on_a_program_are_not_sent(pool: BytesExecutor) -> None:
    far = asking().with_executor(pool)
    with dspy.context(lm=WordLM()):
        far(q="1")
        sent = pool.sent[-1]
        far.candidate_programs = [{"score": 1.0, "program": asking()} for _ in range(20)]
        far(q="1")
    assert pool.sent[-1] < sent + 100


@pytest.mark.parametrize("stream", [lambda far: far.stream({"q": "1"}), lambda far: far.astream({"q": "1"})])
def test_streams_are_refused(stream: Callable[[Any], Any], pool: BytesExecutor) -> None:
    with pytest.raises(ThreadError, match=r"graph 'Graph' has an executor.*without|program that with_executor"):
        stream(asking().with_executor(pool))


def test_threads_and_streamify_are_refused(pool: BytesExecutor) -> None:
    far = asking(store=":memory:").with_executor(pool)
    count = len(pool.sent)
    with pytest.raises(ThreadError, match="has an executor"):
        far.thread("a")
    streamed = dspy.streamify(far, async_streaming=False)
    with pytest.RaisesGroup(pytest.RaisesExc(ThreadError, match="has an executor"), allow_unwrapped=True):
        list(streamed(q="1"))
    assert len(pool.sent) == count


def test_a_program_that_cannot_be_sent_is_refused_with_the_part() -> None:
    held = Locked()
    program = one_node(lambda q: {"a": (held, q)})
    with BytesExecutor() as pool, pytest.raises(InputError, match=r"graph 'Graph' cannot be sent.*node 'node'.*lock"):
        program.with_executor(pool)


# --- values of a call that cannot be pickled


UNSENT: dict[str, Callable[[CompiledGraph], Any]] = {
    "the input 'q'": lambda far: far(q=Locked()),
    "the resource Locked": lambda far: far.run({"q": "1"}, resources=[Locked()]),
    "what answers= was given": lambda far: far.run({"q": "1"}, answers={"go": Locked()}),
}


@pytest.mark.parametrize("part", UNSENT)
def test_an_unpicklable_value_is_named_and_nothing_is_sent(part: str) -> None:
    with BytesExecutor() as pool:
        far = one_node(lambda state: {"a": 1}).with_executor(pool)
        with pytest.raises(ExecutorLost, match=rf"a call of graph 'Graph' was not sent to a worker: {part} .*lock"):
            UNSENT[part](far)
        assert not pool.sent


def test_an_lm_that_cannot_be_pickled_is_named() -> None:
    with BytesExecutor() as pool, dspy.context(lm=ScriptedLM([])):
        text = r"the setting 'lm' of DSPy \(ScriptedLM\) cannot be pickled: .*share one script"
        with pytest.raises(ExecutorLost, match=text):
            asking().with_executor(pool)(q="1")


# --- settings


def settings_of(names: list[str]) -> dict[str, Any]:
    return {"found": {name: dspy.settings.get(name) for name in names}}


SETTINGS: dict[str, Any] = {
    "max_history_size": 7,
    "disable_history": True,
    "max_trace_size": 5,
    "num_threads": 3,
    "max_errors": 4,
    "async_max_workers": 2,
    "provide_traceback": True,
    "allow_tool_async_sync_conversion": True,
    "warn_on_type_mismatch": False,
    "a_setting_of_the_user": {"k": 1},
}


def test_settings_of_dspy_and_of_the_user_arrive(pool: BytesExecutor) -> None:
    far = one_node(settings_of, writes=["found"]).with_executor(pool)
    with dspy.context(**SETTINGS, stream_listeners=[1]):
        found = far(names=[*SETTINGS, "stream_listeners"]).found
    assert found == {**SETTINGS, "stream_listeners": []}


def test_no_history_and_no_callback_of_an_lm_is_sent(pool: BytesExecutor) -> None:
    class Unsent(BaseCallback):
        def __reduce__(self) -> Any:
            raise AssertionError("a callback is sent")

    of_predictor, of_settings = WordLM(), WordLM(callbacks=[Unsent()])
    far = asking().with_executor(pool)
    far.ask.lm = of_predictor
    with dspy.context(lm=of_settings, adapter=dspy.ChatAdapter(callbacks=[Unsent()])):
        far(q="1")
        sent = pool.sent[-1]
        for lm in (of_predictor, of_settings):
            lm.history += [{"messages": "x" * 100_000}]
        far(q="1")
    assert pool.sent[-1] < sent + 100
    assert len(of_predictor.history) == len(of_settings.history) == 1  # theirs is left as it is


def test_callbacks_of_the_program_fire_here_once_and_inner_ones_do_not(pool: BytesExecutor) -> None:
    seen: list[str] = []

    class Noting(BaseCallback):
        def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            seen.append(type(instance).__name__)

    with dspy.context(lm=WordLM(), callbacks=[Noting()]):
        far = asking().with_executor(pool)
        far(q="1")
        asyncio.run(far.acall(q="1"))
    assert seen == ["Graph", "Graph"]


# --- resources


class Client:
    def __init__(self, answer: str) -> None:
        self.answer = answer


def with_client(q: str, client: Client) -> dict[str, str]:
    return {"a": f"{q} {client.answer}"}


def test_a_resource_that_a_worker_lacks_is_refused_and_one_that_can_be_sent_is_sent(pool: BytesExecutor) -> None:
    program = one_node(with_client)
    with pytest.raises(InputError, match=r"resource of type Client.*with_resources\(\{Client: \.\.\.\}\)"):
        program.with_executor(pool)
    far = program.with_resources([Client("one")]).with_executor(pool)
    assert far(q="1").a == "1 one"
    assert far.with_resources([Client("two")])(q="1").a == "1 two"
    assert far.run({"q": "1"}, resources=[Client("three")]).prediction.a == "1 three"


def test_an_unpicklable_resource_is_refused_whenever_it_is_given(pool: BytesExecutor) -> None:
    unsent = Client("one")
    unsent.answer = Lock()  # type: ignore[assignment]
    program = one_node(with_client)
    gives: list[Callable[[], Any]] = [
        lambda: program.with_resources([unsent]).with_executor(pool),
        lambda: program.with_resources([Client("one")]).with_executor(pool).with_resources([unsent]),
    ]
    for give in gives:
        with pytest.raises(InputError, match=r"cannot be sent to a worker: the resource Client \(Client\).*lock"):
            give()


# --- options of a call


def test_a_budget_is_counted_in_the_worker(pool: BytesExecutor) -> None:
    graph = Graph().add_node("one", dspy.Predict("q -> a")).add_node("two", dspy.Predict("a -> b"))
    graph = graph.add_path(START, "one", "two", END)
    with dspy.context(lm=WordLM()):
        for program in (graph.compile(), graph.compile().with_executor(pool)):
            run = program.run({"q": "1"}, budget=Budget(requests=1))
            assert (run.status, str(run.error)[:18]) == ("stopped", "requests: 1 of 1. ")
            assert [commit.node for commit in run.commits] == ["START", "one"]


def agree(ctx: Context) -> dict[str, bool]:
    return {"ok": ctx.interrupt("go", "Go on?", answer=bool)}


def test_answers_are_sent_as_a_dict_and_as_a_function(pool: BytesExecutor) -> None:
    graph = Graph().add_node("go", agree, writes=["ok"]).add_path(START, "go", END)
    far = graph.compile().with_executor(pool)
    assert far.run({}, answers={"go": True}).state["ok"] is True
    assert far.run({}, answers=lambda question: question.key == "no").state["ok"] is False
    assert [question.key for question in far.run({}).questions] == ["go"]


# --- classes and functions that no worker can import


def local_program(module: str) -> tuple[CompiledGraph, dict[str, type]]:
    """A program whose classes are of this function, as those of a script are of `__main__`."""

    class Color(Enum):
        RED = "red"

    class Part(BaseModel):
        name: str
        color: Color = Color.RED

        def shout(self) -> str:
            return self.name.upper()

    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2

    class State(BaseModel):
        q: str
        parts: list[Part] = []
        point: Point | None = None

    class LocalError(Exception):
        pass

    kinds: dict[str, type] = {kind.__name__: kind for kind in (Color, Part, Point, State, LocalError)}
    for kind in kinds.values():
        kind.__module__ = module

    def split(q: str) -> dict[str, Any]:
        if not q:
            raise LocalError("nothing")
        return {"parts": [Part(name=word) for word in q.split()], "point": Point(1)}

    graph = Graph(State).add_node("split", split, reads=["q"], writes=["parts", "point"])
    return graph.add_path(START, "split", END).compile(), kinds


def test_classes_of_a_script_come_back_as_its_own(worker: Executor) -> None:
    for module in ("__main__", __name__):
        program, kinds = local_program(module)
        shout, fields = kinds["Part"].shout, dict(kinds["Part"].model_fields)  # type: ignore[attr-defined]
        far = program.with_executor(worker)
        for _ in range(2):  # the second time, the worker knows them
            found = far(q="a b")
            assert [type(found.parts[0]), type(found.point)] == [kinds["Part"], kinds["Point"]]
            assert found.parts[0].color is kinds["Color"].RED  # type: ignore[attr-defined]
            run = far.run({"q": "a b"})
            assert run.state == program.run({"q": "a b"}).state
            assert run.diff(0, 1) == program.run({"q": "a b"}).diff(0, 1)
            with pytest.raises(kinds["LocalError"], match="nothing"):
                far(q="")
            assert Run.of(found).state["parts"][1].name == "b"
        assert kinds["Part"].shout is shout  # type: ignore[attr-defined]
        assert dict(kinds["Part"].model_fields) == fields  # type: ignore[attr-defined]


def test_a_module_that_no_worker_has_is_said(worker: Executor) -> None:
    module = ModuleType("only_here")
    exec("def twice(n):\n    return {'n': 2 * n}\n", vars(module))
    sys.modules["only_here"] = module
    try:
        far = one_node(vars(module)["twice"], writes=["n"]).with_executor(worker)
        with pytest.raises(ExecutorLost, match=r"No module named 'only_here'.*register_pickle_by_value"):
            far(n=1)
    finally:
        del sys.modules["only_here"]


@pytest.fixture(scope="module")
def worker(fork_server: None) -> Iterator[Executor]:
    with forked() as executor:
        yield executor


# --- what optimizers ask for around a call


def test_what_a_check_in_a_worker_has_refused_is_known_outside(pool: BytesExecutor) -> None:
    here, found = checked().compile(), []
    for inner in (here, here.with_executor(pool)):
        outer = Graph().add_node("inner", inner).add_path(START, "inner", END).compile()
        for program in (outer, optimize.accepted_only(outer)):
            trace: list[Any] = []
            with dspy.context(lm=WordLM(), trace=trace):
                program(q="why")
            found.append([outputs.toDict() for _, _, outputs in trace])
    assert found[:2] == found[2:]
    assert len(found[0]) > len(found[1])


# --- the store


class Unsent(Memory):
    def __reduce__(self) -> Any:
        raise AssertionError("a store is sent")


def test_a_store_is_not_sent(pool: BytesExecutor) -> None:
    far = asking(store=Unsent()).with_executor(pool)
    with dspy.context(lm=WordLM()):
        assert far(q="1").a

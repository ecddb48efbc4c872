"""What a layer can do: reply, call again, change replies and steps, have a part in a run, publish; what it leaves."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Command, Context, Graph, Send, reducers
from dspyer.errors import NodeOutputError, RouteError
from dspyer.events import AttemptFailed, Emitted, ItemStarted
from dspyer.extend import Call, Layer, Output, Reply, replies, using, wrapped
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM, no_pauses
from tests.extend.kit import Counted, at, graph_of, nothing, program_of
from tests.rows import each
from tests.runtime.conftest import Play
from tests.runtime.test_garbage import USES, garbage_of


class State(BaseModel):
    n: int = 0
    doubled: int = 0
    log: Annotated[list[str], reducers.extend] = []


class Replies(Layer):
    """Replies in place of the node."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def around(self, call: Call, inner: Any) -> Any:
        return call.reply(self.reply)
        yield  # type: ignore[unreachable]  # makes it a generator


def never(n: int) -> dict[str, int]:
    raise AssertionError("the node is not called")


def test_a_layer_replies_in_place_of_the_node(play: Play) -> None:
    run = play(program_of(Replies(Reply({"doubled": 7})), work=never), {"n": 1})
    (commit,) = [commit for commit in run.commits if commit.node == "work"]
    assert (run.state["doubled"], dict(commit.patch), commit.route) == (7, {"doubled": 7}, (END,))


def test_a_reply_may_go_where_a_command_may(play: Play) -> None:
    def work(n: int) -> Command:
        raise AssertionError

    def graph(goto: Any) -> Graph:
        layer = Replies(Reply({"doubled": n}, goto=goto))
        found = Graph().add_node("work", work, goto=["other", END], layers=[layer])
        return found.add_node("other", lambda doubled: {"more": doubled + 1}).add_edge(START, "work")

    n = 3
    for goto in ("other", ("other",), Send("other")):
        assert play(graph(goto).add_edge("other", END).compile(), {"n": 1}).state["more"] == 4
    run = play(graph("nowhere").add_edge("other", END).compile(), {"n": 1})
    assert isinstance(run.error, RouteError)
    assert "doubled" not in run.state


BAD_REPLIES: list[tuple[Any, type[Exception], str]] = [
    (Reply({"doubled": "many"}), NodeOutputError, "node 'work'"),
    (Reply({"trebled": 3}), NodeOutputError, "trebled"),
    ({"doubled": 3}, TypeError, r"Reply\(\{field: value\}\)"),
    (None, TypeError, "replied None"),
]


@each("reply, error, text", BAD_REPLIES)
def test_a_bad_reply_is_the_failure_of_the_node(reply: Any, error: type[Exception], text: str) -> None:
    graph = Graph(State).add_node("work", never, layers=[Replies(reply)]).add_path(START, "work", END)
    store = Memory()
    for run in (graph.compile().run({"n": 1}), graph.compile(store=store).thread("t").run({"n": 1})):
        with pytest.raises(error, match=text):
            _ = run.prediction
        assert [commit.node for commit in run.commits] == [START]
        assert any("in node 'work'" in note for note in run.error.__notes__)  # type: ignore[union-attr]
    good = Graph(State).add_node("work", lambda n: {"doubled": 2 * n}).add_path(START, "work", END)
    assert good.compile(store=store).thread("t").resume().state["doubled"] == 2


class Adds(Layer):
    """Adds a field to what the node replies."""

    def around(self, call: Call, inner: Any) -> Any:
        return (yield from inner(replies(call, lambda reply: Reply({**reply.updates, "log": ["added"]}))))


@each("layer, called", [(Replies(Reply({"doubled": 2, "log": ["added"]})), 0), (Adds(), 1)])
@each("writes, status", [(["doubled"], "failed"), (["doubled", "log"], "completed"), (None, "completed")])
def test_a_layer_replies_only_what_its_node_writes(
    layer: Layer, called: int, writes: list[str] | None, status: str, play: Play
) -> None:
    calls: list[int] = []

    def work(n: int) -> dict[str, int]:
        calls.append(n)
        return {"doubled": 2 * n}

    graph = Graph(State).add_node("work", work, writes=writes, layers=[layer]).add_path(START, "work", END)
    run = play(graph.compile(), {"n": 1})
    assert (run.status, len(calls)) == (status, called)
    if status == "failed":
        assert isinstance(run.error, NodeOutputError)
        assert "a layer replied 'log' for node 'work', whose writes are 'doubled'" in str(run.error)


class Twice(Layer):
    """Calls the node twice; the second output counts."""

    def around(self, call: Call, inner: Any) -> Any:
        first = yield from inner(call)
        second = yield from inner(call)
        assert isinstance(first, Output)
        return second


def test_a_layer_calls_the_node_twice(play: Play) -> None:
    """What the first call has posted is not committed, and its effect is not repeated: it belongs to the execution."""
    calls: Counter[str] = Counter()
    inner = Graph(inputs=["n"], name="Inner").add_node("plus", lambda n: {"m": n + 1}, writes=["m"])

    def pay() -> int:
        calls["paid"] += 1
        return calls["paid"]

    def work(n: int, sub: Any, ctx: Context) -> dict[str, Any]:
        calls["work"] += 1
        ctx.post("log", [f"post {calls['work']}"])
        paid = ctx.once("pay", pay)
        return {"doubled": ctx.call(sub, {"n": n}).m, "log": [f"call {calls['work']}, paid {paid}"]}

    modules = {"sub": inner.add_path(START, "plus", END).compile()}
    graph = Graph(State).add_node("work", work, modules=modules, layers=[Twice()]).add_path(START, "work", END)
    run = play(graph.compile(), {"n": 1})
    assert run.error is None
    assert run.state["log"] == ["post 2", "call 2, paid 1"]
    assert calls == {"work": 2, "paid": 1}


def test_a_layer_tries_again_what_has_raised(play: Play) -> None:
    """Also a node that had used a key and posted before it raised."""
    attempts: list[int] = []

    class TriesAgain(Layer):
        def around(self, call: Call, inner: Any) -> Any:
            try:
                return (yield from inner(call))
            except ConnectionError:
                attempts.append(call.attempt)
            return (yield from inner(call))

    def work(n: int, ctx: Context) -> dict[str, Any]:
        ctx.post("log", ["posted"])
        ctx.once(f"effect {len(attempts)}", lambda: None)
        ctx.once("same", lambda: None)
        if not attempts:
            raise ConnectionError
        return {"doubled": 2 * n}

    graph = Graph(State).add_node("work", work, layers=[TriesAgain()]).add_path(START, "work", END)
    run = play(graph.compile(), {"n": 2})
    assert run.error is None
    assert (run.state["doubled"], run.state["log"], attempts) == (4, ["posted"], [1])
    assert not [event for event in run.events if isinstance(event, AttemptFailed)]


def test_a_graph_that_a_layer_calls_twice_runs_twice(play: Play) -> None:
    calls: list[int] = []

    def plus(n: int) -> dict[str, int]:
        calls.append(n)
        return {"m": n + len(calls)}

    inner = Graph(inputs=["n"]).add_node("plus", plus, writes=["m"])
    outer = Graph(inputs=["n"]).add_node("sub", inner.add_path(START, "plus", END).compile(), layers=[Twice()])
    run = play(outer.add_path(START, "sub", END).compile(), {"n": 1})
    assert (run.error, run.state["m"], len(calls)) == (None, 3, 2)


def test_a_layer_changes_the_state_that_the_node_reads(play: Play) -> None:
    class Of(Layer):
        def around(self, call: Call, inner: Any) -> Any:
            assert call.read("n") == call.state["n"] == 1
            changed = call._replace(state=call.state.set("n", 10))
            return (yield from inner(changed))

    assert play(program_of(Of()), {"n": 1}).state["doubled"] == 20


class Upper(Layer):
    """Changes what the node replied, before it is validated."""

    def around(self, call: Call, inner: Any) -> Any:
        def change(reply: Reply) -> Reply:
            return reply._replace(updates={field: f"{value}!" for field, value in reply.updates.items()})

        return (yield from inner(replies(call, change)))


def test_a_layer_changes_what_a_node_replies(play: Play) -> None:
    program = program_of(Upper(), Upper(), work=lambda n: {"text": "a"})
    assert play(program, {"n": 1}).state["text"] == "a!!"
    run = play(
        Graph(State)
        .add_node("work", lambda n: {"doubled": n}, layers=[Upper()])
        .add_path(START, "work", END)
        .compile(),
        {},
    )
    assert isinstance(run.error, NodeOutputError)  # it is validated after the change
    mapped = Graph().add_map("map", lambda x: {"y": x}, over="xs", item="x", into="ys", layers=[at("attempt", Upper)()])
    assert play(mapped.add_path(START, "map", END).compile(), {"xs": ["a", "b"]}).state["ys"] == ["a!", "b!"]


def test_what_changes_a_reply_gives_a_reply(play: Play) -> None:
    class Forgets(Layer):
        def around(self, call: Call, inner: Any) -> Any:
            return (yield from inner(replies(call, lambda reply: None)))  # type: ignore[arg-type,return-value]

    with pytest.raises(TypeError, match="replied None"):
        _ = play(program_of(Forgets()), {"n": 1}).prediction


class Steps(Layer):
    """Is around each step: a call of the node."""

    place = "call"

    def __init__(self) -> None:
        self.made: list[str] = []

    def around(self, call: Call, inner: Any) -> Any:
        layer = self

        class Step:
            def __init__(self, step: Any) -> None:
                self.step = step

            def call(self, call: Call) -> Any:
                layer.made.append(f"sync {call.node}")
                return self.step.call(call)

            async def acall(self, call: Call) -> Any:
                layer.made.append(f"async {call.node}")
                return await self.step.acall(call)

        return wrapped(inner(call), Step)


def test_a_layer_is_around_each_step() -> None:
    steps, failed = Steps(), iter([True, False] * 2)

    def work(n: int) -> dict[str, int]:
        if next(failed):
            raise ConnectionError
        return {"doubled": 2 * n}

    program = graph_of(work, layers=[steps], retry=2).compile()
    with no_pauses():
        assert program.run({"n": 1}).state["doubled"] == 2
        assert asyncio.run(program.arun({"n": 1})).state["doubled"] == 2
    assert steps.made == ["sync work"] * 2 + ["async work"] * 2


def test_a_layer_knows_its_call(play: Play) -> None:
    found: list[Any] = []

    class Seen(Layer):
        place = "attempt"

        def around(self, call: Call, inner: Any) -> Any:
            found.append((call.node, call.execution, call.attempt, call.read("n"), bool(call.run_id)))
            with pytest.raises(KeyError):
                call.read("m")
            return (yield from inner(call))

    failed = iter([True, False])

    def work(n: int) -> dict[str, int]:
        if next(failed):
            raise ConnectionError
        return {"doubled": 2 * n}

    with no_pauses():
        run = play(graph_of(work, layers=[Seen()], retry=2).compile(), {"n": 5})
    assert found == [("work", "trunk:1", 1, 5, True), ("work", "trunk:1", 2, 5, True)]
    assert [event.attempt for event in run.events if isinstance(event, AttemptFailed)] == [1]


def test_a_layer_publishes_events_and_values() -> None:
    class Told(Layer):
        def around(self, call: Call, inner: Any) -> Any:
            output = yield from inner(call)
            call.publish(ItemStarted(call.node, (), call.execution, 0, 1))
            call.publish(dict(output.patch))
            return output

    events = list(program_of(Told()).stream({"n": 4}))
    assert ItemStarted("work", (), "trunk:1", 0, 1) in events
    assert [event for event in events if isinstance(event, Emitted)] == [Emitted("work", (), "trunk:1", {"doubled": 8})]


# --- its part in a run


class PerRun(Layer):
    """Counts the executions of each run."""

    def __init__(self, counts: list[Counted] | None = None, only: str = "") -> None:
        self.counts = [] if counts is None else counts
        self.only = only

    def of(self, run: Any) -> Layer | None:
        if self.only and run.graph.name != self.only:
            return None
        self.counts.append(Counted())
        return self.counts[-1]

    def around(self, call: Call, inner: Any) -> Any:
        raise AssertionError("its part in the run is asked")


def looped() -> Graph:
    graph = Graph(State, name="Loop").add_node("more", lambda n: {"n": n + 1}, writes=["n"]).add_edge(START, "more")
    return graph.add_conditional_edges("more", lambda n: "more" if n < 3 else END, ["more", END])


def test_a_layer_has_a_part_in_each_run(play: Play) -> None:
    of_graph, of_block = PerRun(), PerRun()
    program = looped().compile(layers=[of_graph])
    for _ in range(2):
        with using(of_block):
            play(program, {})
    for layer in (of_graph, of_block):
        assert [part.nodes for part in layer.counts] == [["more"] * 3] * 2


def test_runs_at_once_have_parts_of_their_own() -> None:
    layer = PerRun()
    program = looped().compile(layers=[layer])
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: program.run({}), range(16)))
    assert {run.state["n"] for run in runs} == {3}
    assert [part.nodes for part in layer.counts] == [["more"] * 3] * 16


def test_a_layer_that_gives_none_is_not_in_the_run(play: Play) -> None:
    of_graph, of_block = PerRun(only="Other"), PerRun(only="Other")
    with using(of_block):
        assert play(looped().compile(layers=[of_graph]), {}).state["n"] == 3
    assert of_graph.counts == of_block.counts == []


def test_a_layer_that_is_given_twice_has_one_part_in_a_run(play: Play) -> None:
    layer = PerRun()
    graph = Graph().add_node("a", lambda n: {"m": n}, layers=[layer]).add_node("b", lambda m: {"n": m}, layers=[layer])
    play(graph.add_path(START, "a", "b", END).compile(layers=[layer]), {"n": 1})
    assert [part.nodes for part in layer.counts] == [["a", "a", "b", "b"]]


def test_a_call_finds_the_part_of_a_layer_of_a_kind(play: Play) -> None:
    found: list[Any] = []

    class Asks(Layer):
        place = "attempt"

        def around(self, call: Call, inner: Any) -> Any:
            found.append((call.layer(Counted), call.layer(Upper), call.layer(Asks)))
            return (yield from inner(call))

    per_run, asks = PerRun(), Asks()
    play(program_of(per_run, asks), {"n": 1})
    assert found == [(per_run.counts[0], None, asks)]


# --- what a layer leaves


class HasPart(Layer):
    """Has a part in each run, and notes which of them are alive."""

    def __init__(self) -> None:
        self.parts: weakref.WeakSet[Layer] = weakref.WeakSet()

    def of(self, run: Any) -> Layer:
        part = Counted()
        self.parts.add(part)
        return part


@pytest.mark.parametrize("use", ["run", "arun", "stored", "stored, async"])
def test_a_layer_keeps_nothing_of_a_run_alive(use: str) -> None:
    """What a run was made of is freed with it, without the cyclic collector: also the parts that layers had in it."""
    of_graph, of_block = HasPart(), HasPart()
    program = looped().compile(layers=[of_graph, *nothing()], store=":memory:")
    with using(of_block, *nothing()):
        assert asyncio.run(garbage_of(USES[use], program)) == {}
    gc.collect()
    assert len(of_graph.parts) == len(of_block.parts) == 0


@each("copied", [copy.deepcopy, lambda program: pickle.loads(pickle.dumps(program))], ids=["deepcopy", "pickle"])
def test_a_copy_of_a_program_has_its_layers(copied: Any) -> None:
    program = graph_of(layers=[Trebled()], retry=2).compile(layers=[Trebled()])
    again = copied(program)
    assert again.run({"n": 1}).state["doubled"] == program.run({"n": 1}).state["doubled"] == 18
    assert copied(again).run({"n": 1}).state["doubled"] == 18


class Trebled(Layer):
    """Trebles what a node writes."""

    def around(self, call: Call, inner: Any) -> Any:
        def change(reply: Reply) -> Reply:
            return reply._replace(updates={field: 3 * int(str(value)) for field, value in reply.updates.items()})

        return (yield from inner(replies(call, change)))


def test_an_optimizer_finds_the_same_demonstrations(tmp_path: Path) -> None:
    """`BootstrapFewShot` over a program with layers: the demos of the program without."""

    def tuned(*layers: Layer) -> Any:
        graph = Graph(name="QA").add_node("ask", dspy.Predict("question -> answer"), layers=layers)
        graph.add_node("say", lambda answer: {"said": answer.upper()}).add_path(START, "ask", "say", END)
        rows = [dspy.Example(question=f"q{i}", said=f"A{i}").with_inputs("question") for i in range(4)]
        optimizer = dspy.BootstrapFewShot(
            metric=lambda row, made, trace=None: row.said == made.said, max_labeled_demos=0
        )
        with ScriptedLM(lambda prompt: {"answer": f"a{prompt.inputs['question'][1]}"}):
            program = optimizer.compile(graph.compile(layers=layers), trainset=rows)
        return [dict(demo) for demo in program.ask.demos]

    demos = tuned()
    assert [demo["answer"] for demo in demos] == ["a0", "a1", "a2", "a3"]
    assert tuned(*nothing()) == demos

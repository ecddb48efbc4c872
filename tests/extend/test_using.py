"""Layers of a block: in threads of DSPy, in streams, tasks and workers; and whose layers a resumed run has."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph
from dspyer.errors import ExecutorLost
from dspyer.extend import Call, Layer, Reply, replies, using
from dspyer.stores import Memory
from tests.executors.pools import BytesExecutor
from tests.executors.shouting import shouting
from tests.extend.kit import Counted, Noted, at, graph_of, program_of


def test_a_block_ends_and_blocks_are_around_each_other() -> None:
    notes: list[str] = []
    program = program_of()
    with using(Noted("a", notes), Noted("b", notes)):
        with pytest.raises(KeyError), using(Noted("c", notes)):
            raise KeyError
        with using(Noted("d", notes)), using():
            program(n=1)
    program(n=2)
    assert notes == ["a work", "b work", "d work", "/d work", "/b work", "/a work"]


def test_a_block_is_of_its_thread_and_its_task() -> None:
    counted, program = Counted(), program_of()
    with using(counted):
        other = threading.Thread(target=program, kwargs={"n": 1})
        other.start()
        other.join()
    assert counted.nodes == []

    async def main() -> None:
        async def around() -> None:
            with using(counted):
                await program.acall(n=1)

        await asyncio.gather(around(), program.acall(n=2))

    asyncio.run(main())
    assert counted.nodes == ["work"]


def test_a_block_reaches_the_threads_of_evaluate_and_parallel() -> None:
    counted, program = Counted(), program_of()
    rows = [dspy.Example(n=n, doubled=2 * n).with_inputs("n") for n in range(6)]
    evaluate = dspy.Evaluate(devset=rows, metric=lambda row, made: row.doubled == made.doubled, num_threads=3)
    with using(counted):
        assert evaluate(program).score == 100
        assert len(counted.nodes) == 6
        made = dspy.Parallel(num_threads=3)([(program, row) for row in rows])
    assert [one.doubled for one in made] == [0, 2, 4, 6, 8, 10]
    assert counted.nodes == ["work"] * 12


def test_a_stream_has_the_layers_of_the_block_in_which_it_was_asked_for() -> None:
    counted, program = Counted(), program_of()
    with using(counted):
        stream = program.stream({"n": 1})
        list(stream)
    assert stream.run is not None
    assert counted.nodes == ["work"]


class Doubled(Layer):
    """Doubles a text; a worker can import it."""

    def around(self, call: Call, inner: Any) -> Any:
        def change(reply: Reply) -> Reply:
            return reply._replace(updates={field: f"{value}{value}" for field, value in reply.updates.items()})

        return (yield from inner(replies(call, change)))


class Locked(Doubled):
    """Has what cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_layer_travels_to_a_worker_or_the_error_names_it() -> None:
    with BytesExecutor() as pool:
        far = shouting().with_executor(pool)
        with using(Doubled()):
            assert far(text="hey").loud == shouting()(text="hey").loud == "HEYHEY"
            assert asyncio.run(far.acall(text="hey")).loud == "HEYHEY"
        assert far(text="hey").loud == "HEY"
        with using(Locked()), pytest.raises(ExecutorLost, match=r"was not sent to a worker: .*Locked"):
            far(text="hey")
        own = graph_of(shout, layers=[Doubled()]).compile().with_executor(pool)
        assert own(text="hey").loud == "HEYHEY"


def shout(text: str) -> dict[str, str]:
    return {"loud": text.upper()}


def test_a_layer_is_called_through_a_thread_of_a_store() -> None:
    notes: list[str] = []
    thread = graph_of(layers=[Noted("own", notes)]).compile(store=Memory()).thread("t")
    with using(Noted("block", notes)):
        thread.run({"n": 1})
        asyncio.run(thread.arun({"n": 2}))
    assert notes == ["block work", "own work", "/own work", "/block work"] * 2


def test_a_resumed_run_has_the_layers_of_the_program_that_resumes_it() -> None:
    """Layers are stored nowhere and change no fingerprint: neither options nor blocks."""
    store, fails = Memory(), iter([True, False])

    def fragile(n: int) -> dict[str, int]:
        if next(fails):
            raise LookupError
        return {"n": n + 1}

    def graph(layers: list[Layer]) -> Graph:
        found = Graph(name="Two").add_node("a", first, layers=layers).add_node("b", fragile, layers=layers)
        return found.add_path(START, "a", "b", END)

    before, after = Counted(), Counted()
    with using(at("outside", Counted)()):
        assert graph([before]).compile(store=store).thread("t").run({"n": 1}).status == "failed"
    thread = graph([]).compile(store=store, layers=[after]).thread("t")
    assert thread.resume().state["n"] == 3
    assert (before.nodes, after.nodes) == (["a", "b"], ["b"])
    plain = Graph(name="Two").add_node("a", first).add_node("b", fragile).add_path(START, "a", "b", END)
    assert plain.compile(store=store).thread("t").status == "completed"


def first(n: int) -> dict[str, int]:
    return {"n": n + 1}


def test_what_a_layer_replied_is_in_the_store() -> None:
    """A finished step is not called again, and neither is the layer that replied for it."""

    class Answers(Layer):
        calls = 0

        def around(self, call: Call, inner: Any) -> Any:
            self.calls += 1
            return call.reply(Reply({"m": 7}))
            yield  # type: ignore[unreachable]  # makes it a generator

    def fails(m: int) -> dict[str, int]:
        raise LookupError(m)

    def graph(last: Any) -> Graph:
        found = Graph(name="Kept").add_node("a", lambda n: {"m": n}, layers=[answers]).add_node("b", last)
        return found.add_path(START, "a", "b", END)

    answers, store = Answers(), Memory()
    assert graph(fails).compile(store=store).thread("t").run({"n": 1}).status == "failed"
    thread = graph(lambda m: {"out": m}).compile(store=store).thread("t")
    assert thread.resume().state["out"] == 7
    assert answers.calls == 1
    assert thread.replay()["out"] == 7

"""Layers that are none, or do it wrong: an error of the option, the node or the run that says so; no half commit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from dspyer import END, START, Graph, Retry, Run
from dspyer.errors import GraphError, ImmutableError, Interrupted, NodeOutputError
from dspyer.extend import Call, Layer, Node, Reply, Stop, replies, using
from dspyer.stores import Memory
from dspyer.testing import no_pauses
from tests.extend.kit import PLACES, Followed, Passed, at, graph_of, program_of, twice
from tests.rows import each, sampled
from tests.runtime.conftest import PLAYS, Play

NO_LAYERS: list[tuple[Any, str]] = [
    (Passed, r"list of layers"),
    (Passed(), r"list of layers.*write \[MyLayer\(\)\]"),
    ("retry", "list of layers"),
    (3, "list of layers"),
    (None, "list of layers"),
    ([Passed], r"the class Passed: give an object of it, Passed\(\.\.\.\)"),
    ([Passed(), None], "got None, of type NoneType"),
    (["retry"], "got 'retry', of type str"),
    ([[Passed()]], "of type list"),
    ([lambda call, inner: inner(call)], "of type function"),
]


def given_to_a_node(layers: Any) -> None:
    Graph().add_node("work", twice, layers=layers)


def given_to_a_map(layers: Any) -> None:
    Graph().add_map("work", twice, over="items", item="n", into="found", layers=layers)


def given_to_a_graph(layers: Any) -> None:
    graph_of().compile(layers=layers)


def given_to_a_block(layers: Any) -> None:
    with using(*layers):
        raise AssertionError("the block is not entered")


GIVEN = [given_to_a_node, given_to_a_map, given_to_a_graph]


@each("given, row", sampled(GIVEN, NO_LAYERS), ids=str)
def test_what_is_no_layer_is_refused_by_the_option(given: Callable[[Any], None], row: tuple[Any, str]) -> None:
    with pytest.raises(TypeError, match=row[1]):
        given(row[0])


@each("layers, text", [row for row in NO_LAYERS if isinstance(row[0], list)], ids=str)
def test_what_is_no_layer_is_refused_by_a_block(layers: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        given_to_a_block(layers)


@each("given", [*GIVEN, given_to_a_block], ids=lambda given: given.__name__)
def test_an_unknown_place_is_refused_with_the_list_of_places(given: Callable[[Any], None]) -> None:
    wrong: Any = "atempt"
    with pytest.raises(GraphError, match=r"Did you mean 'attempt'\?.*outside, errors, output, cache, node, retry, att"):
        given([at(wrong, Passed)()])
    for place in (None, 3, ["node"]):
        wrong = place
        with pytest.raises(GraphError, match="one of outside"):
            given([at(wrong, Passed)()])


@each("hook", ["of", "surrounds", "around", "run", "admit", "event", "shown"])
def test_an_async_method_is_refused_by_the_option(hook: str) -> None:
    """None of them would be awaited: an async `admit` would let everything begin."""

    async def never(self: Layer, *given: object) -> None:
        raise AssertionError("never called")

    layer: Layer = type("Wrong", (Layer,), {hook: never})()
    for given in (*GIVEN, given_to_a_block):
        with pytest.raises(TypeError, match=rf"Wrong\.{hook} is async: write a plain `def`"):
            given([layer])


# --- scripts that are wrong


class NoGenerator(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        return 3


class NoReply(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        wrong: Any = "text"
        return call.reply(Reply(wrong))


class AdmitsFalse(Layer):
    def admit(self, call: Call) -> Any:
        return False


class AsyncGenerator(Layer):
    async def around(self, call: Call, inner: Any) -> Any:
        yield inner(call)


class ForgetsReturn(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        yield from inner(call)


class ForgetsYield(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        return inner(call)
        yield  # type: ignore[unreachable]  # makes it a generator


class ForgetsFrom(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        output = yield inner(call)
        return output


class YieldsSomething(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        yield 3
        return (yield from inner(call))


class ReturnsPatch(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        output = yield from inner(call)
        return dict(output.patch)


WRONG: list[tuple[type[Layer], str]] = [
    (NoGenerator, "the layer NoGenerator around node 'work': its output is 3, of type int, and not what"),
    (NoReply, r"a layer replied Reply\('text'\): give Reply"),
    (AdmitsFalse, r"AdmitsFalse.admit returned False: raise Stop\(...\)"),
    (AsyncGenerator, "the layer AsyncGenerator .* of type async_generator"),
    (ForgetsReturn, "the layer ForgetsReturn .* its output is None, of type NoneType, .* `return output`"),
    (ForgetsYield, "the layer ForgetsYield .* its output is .* of type generator"),
    (ForgetsFrom, "no step: .* write `yield from` before inner.call."),
    (YieldsSomething, "a script asked for 3, which is no step"),
    (ReturnsPatch, "the layer ReturnsPatch .* of type dict"),
]


def retried(kind: type[Layer], place: Any) -> Run:
    return program_of(at(place, kind)(), retry=Retry(2, on=ValueError)).run({"n": 1})


def surrounded(kind: type[Layer], place: Any) -> Run:
    """With layers on both sides."""
    with using(Followed(), at(place, Followed)()):
        return program_of(Passed(), at(place, kind)(), Followed()).run({"n": 1})


def awaited(kind: type[Layer], place: Any) -> Run:
    return asyncio.run(program_of(at(place, kind)(), timeout=20).arun({"n": 1}))


def mapped(kind: type[Layer], place: Any) -> Run:
    graph = Graph().add_map("work", twice, over="items", item="n", into="found", layers=[at(place, kind)()])
    return graph.add_path(START, "work", END).compile().run({"items": [1, 2]})


def stored(kind: type[Layer], place: Any) -> Run:
    return graph_of(layers=[at(place, kind)()]).compile(store=Memory()).thread("t").run({"n": 1})


HOW = [retried, surrounded, awaited, mapped, stored]


@each("row, how, place", sampled(WRONG, HOW, ["outside", "node", "retry", "call"]), ids=str)
def test_a_wrong_script_fails_its_node_with_a_type_error(row: Any, how: Callable[..., Run], place: str) -> None:
    run = how(row[0], place)
    assert run.status == "failed"
    with pytest.raises(TypeError, match=row[1]):
        raise run.error  # type: ignore[misc]
    assert any("in node 'work'" in note for note in run.error.__notes__)  # type: ignore[union-attr]
    assert [commit.node for commit in run.commits] == [START]


class Replies(Layer):
    """Replies the same each time, without a `yield`."""

    def __init__(self, **updates: Any) -> None:
        self.updates = updates

    def around(self, call: Call, inner: Any) -> Any:
        return call.reply(Reply(self.updates))


class Changes(Replies):
    """Replies the same after a call."""

    def around(self, call: Call, inner: Any) -> Any:
        return inner(replies(call, lambda reply: Reply(self.updates)))


@each("kind", [Replies, Changes])
def test_a_layer_replies_what_its_node_writes(kind: type[Replies], play: Play) -> None:
    right, wrong = kind(doubled=5), kind(doubld=5)
    assert play(program_of(right, writes=["doubled"]), {"n": 1}).state["doubled"] == 5
    run = play(program_of(wrong, writes=["doubled"]), {"n": 1})
    text = "a layer replied 'doubld' for node 'work', whose writes are 'doubled': give these. Did you mean 'doubled'?"
    assert (type(run.error), str(run.error)) == (NodeOutputError, text)
    assert [commit.node for commit in run.commits] == [START]
    assert play(program_of(wrong), {"n": 1}).state["doubld"] == 5  # of a node that does not say what it writes


@each("kind", [Replies, Changes])
def test_a_layer_of_items_replies_what_an_item_gives(kind: type[Replies], play: Play) -> None:
    def mapped(layer: Layer) -> Run:
        asks = Asks()
        graph = Graph().add_map("work", asks, over="items", item="n", into="found", layers=[layer])
        return play(graph.add_path(START, "work", END).compile(), {"items": [1, 2]})

    class Asks(Node):
        def __init__(self) -> None:
            super().__init__(reads=["n"], writes=["doubled"])

        def script(self, call: Call) -> Any:
            return Reply({"doubled": 2 * (yield call.function(int, call.read("n")))})

    each_item = at("retry", kind)
    assert mapped(each_item(doubled=5)).state["found"] == [5, 5]
    assert mapped(kind(found=[3])).state["found"] == [3]
    for wrong in (each_item(found=[3]), kind(doubled=5)):
        assert isinstance(mapped(wrong).error, NodeOutputError)


@each("hook", ["of", "surrounds", "around", "run", "event"])
def test_a_stop_elsewhere_than_in_admit_says_so(hook: str, play: Play) -> None:
    def stops(self: Layer, *given: object, **more: object) -> None:
        raise Stop("enough")

    layer: Layer = type("Wrong", (Layer,), {hook: stops})()
    with pytest.raises(Stop, match=r"outside of `Layer.admit`, where alone it stops the run \(enough\)"):
        play(graph_of().compile(layers=[layer]), {"n": 1}).raise_error()


class Replaces(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        output = yield from inner(call)
        return output._replace(patch={"doubled": 9})


class Assigns(Layer):
    def around(self, call: Call, inner: Any) -> Any:
        output = yield from inner(call)
        output.patch["doubled"] = 9
        return output


@each(
    "kind, error, place",
    [(*row, place) for row in [(Replaces, TypeError), (Assigns, ImmutableError)] for place in PLACES],
)
def test_a_patch_without_the_state_that_it_makes_is_not_committed(
    kind: type[Layer], error: type[Exception], place: Any, play: Play
) -> None:
    """A run would go on with one value, and a resume of it with another."""
    run = play(program_of(at(place, kind)()), {"n": 1})
    assert isinstance(run.error, error)
    assert [commit.node for commit in run.commits] == [START]


def test_an_event_and_a_block_of_a_layer_are_checked(play: Play) -> None:
    class Odd(Layer):
        def event(self, event: Any) -> Any:
            return "text"

    class Breaks(Layer):
        def event(self, event: Any) -> Any:
            raise LookupError("from the layer")

    class NoBlock(Layer):
        def run(self, run: Any) -> Any:
            yield

    with pytest.raises(TypeError, match=r"Odd\.event returned 'text': return an event, or None"):
        play(program_of(Odd()), {"n": 1})
    with pytest.raises(LookupError) as broken:
        play(program_of(Breaks()), {"n": 1})
    assert broken.value.__notes__ == ["in Breaks.event, which got RunStarted"]
    error = play(program_of(NoBlock()), {"n": 1}).error
    assert isinstance(error, TypeError)
    assert re.match("NoBlock.run gave .*, and no block: put @contextmanager on it", str(error))


# --- layers that raise


class Raises(Layer):
    """Raises before or after it has called the node, for as long as it fails."""

    def __init__(self, error: type[BaseException] = ConnectionError, after: bool = False) -> None:
        self.error = error
        self.after = after
        self.fails = True
        self.calls = 0

    def around(self, call: Call, inner: Any) -> Any:
        self.calls += 1
        if self.fails and not self.after:
            raise self.error("from the layer")
        output = yield from inner(call)
        if self.fails:
            raise self.error("from the layer")
        return output


@each("after", [False, True])
def test_a_layer_that_raises_fails_its_node(after: bool) -> None:
    for how in ("sync", "async"):
        run = PLAYS[how](program_of(Raises(after=after)), {"n": 1})
        assert isinstance(run.error, ConnectionError)
        assert any("in node 'work' (branch trunk, visit 1, attempt 1)" in note for note in run.error.__notes__)
        assert [commit.node for commit in run.commits] == [START]


@each("place, after", [(place, after) for place in ("outside", "errors", "node", "call") for after in (False, True)])
def test_an_error_edge_takes_what_a_layer_inside_of_it_raises(place: Any, after: bool) -> None:
    raising = at(place, Raises)(after=after)
    graph = Graph().add_node("work", twice, layers=[raising]).add_node("rescue", lambda n: {"doubled": -1})
    graph.add_path(START, "work", END).add_edge("rescue", END).add_error_edge("work", "rescue", on=ConnectionError)
    run = graph.compile().run({"n": 1})
    if place in ("outside", "errors"):
        assert (run.status, type(run.error)) == ("failed", ConnectionError)
    else:
        assert (run.status, run.state["doubled"]) == ("completed", -1)


@each("place, attempts", [("node", 1), ("retry", 1), ("attempt", 3), ("call", 3)])
def test_a_retry_takes_what_a_layer_inside_of_it_raises(place: Any, attempts: int) -> None:
    raising = at(place, Raises)()
    with no_pauses():
        run = program_of(raising, retry=3).run({"n": 1})
    assert isinstance(run.error, ConnectionError)
    assert raising.calls == attempts


def test_a_stop_iteration_of_a_layer_fails_its_node(play: Play) -> None:
    run = play(program_of(Raises(StopIteration)), {"n": 1})
    assert run.status == "failed"
    assert isinstance(run.error, StopIteration)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("after", [False, True])
def test_a_stored_run_goes_on_where_a_layer_raised(how: str, after: bool) -> None:
    """Nothing of the node is committed; what was finished before is not called again."""
    calls: list[str] = []

    def noting(name: str) -> Any:
        def work(n: int) -> dict[str, int]:
            calls.append(name)
            return {"n": n + 1}

        return work

    raising, store = Raises(after=after), Memory()
    graph = Graph().add_node("a", noting("a")).add_node("b", noting("b"), layers=[raising]).add_node("c", noting("c"))
    thread = graph.add_path(START, "a", "b", "c", END).compile(store=store).thread("t")
    run = thread.run({"n": 0}) if how == "sync" else asyncio.run(thread.arun({"n": 0}))
    assert (run.status, type(run.error), thread.status) == ("failed", ConnectionError, "failed")
    assert [commit.node for commit in thread.history()] == [START, "a"]
    assert thread.state["n"] == 1
    raising.fails = False
    run = thread.resume() if how == "sync" else asyncio.run(thread.aresume())
    assert (run.status, run.state["n"], thread.state["n"]) == ("completed", 3, 3)
    assert calls == ["a", *(["b", "b"] if after else ["b"]), "c"]


def test_a_layer_whose_part_cannot_be_made_fails_the_run_before_it_begins(play: Play) -> None:
    class Unmade(Followed):
        fails = True

        def of(self, run: Any) -> Layer:
            if self.fails:
                raise LookupError("no part")
            return self

    layer = Unmade()
    program = graph_of(layers=[layer]).compile(store=Memory())
    with pytest.raises(LookupError, match="no part"):
        play(program, {"n": 1})
    thread = program.thread("t")
    with pytest.raises(LookupError, match="no part"):
        thread.run({"n": 1})
    assert thread.history() == []
    outer = (
        Graph(inputs=["n"]).add_node("sub", graph_of(layers=[layer]).compile()).add_path(START, "sub", END).compile()
    )
    assert isinstance(play(outer, {"n": 1}).error, LookupError)  # of the run inside: so of its node
    layer.fails = False
    assert thread.resume().state["doubled"] == 2


def test_a_part_that_is_no_layer_is_refused(play: Play) -> None:
    class Odd(Layer):
        def of(self, run: Any) -> Any:
            return 3

    for layers in ([Odd()], []):
        with pytest.raises(TypeError, match=r"Odd\.of got 3, of type int"), using(*([] if layers else [Odd()])):
            play(program_of(*layers), {"n": 1})


def test_surrounds_that_raises(play: Play) -> None:
    class Unsure(Followed):
        def surrounds(self, node: Any) -> bool:
            raise LookupError(node.name)

    with pytest.raises(LookupError, match="work"):
        graph_of().compile(layers=[Unsure()])
    with using(Unsure()):
        run = play(program_of(), {"n": 1})
    assert isinstance(run.error, LookupError)


def test_a_layer_around_a_question(play: Play) -> None:
    """A question passes a layer: the run waits, and a resume calls the node again."""
    asked: list[str] = []

    class Sees(Layer):
        def around(self, call: Call, inner: Any) -> Any:
            try:
                return (yield from inner(call))
            except Exception as error:
                asked.append(type(error).__name__)
                raise

    def work(n: int, ctx: Any) -> dict[str, int]:
        return {"doubled": 2 * ctx.interrupt("really", "Really?", answer=int)}

    program = graph_of(work, layers=[Sees()]).compile(store=Memory())
    thread = program.thread("t")
    run = thread.run({"n": 1})
    assert run.status == "interrupted"
    assert thread.resume({question.id: 4 for question in thread.questions}).state["doubled"] == 8
    assert len(asked) <= 1
    with pytest.raises(Interrupted):
        program(n=1)

"""`Layer`: what surrounds the executions of nodes; `stack` puts layers around each other.

Retries, timeouts, caches, error edges and what users add are layers: none of them is known to the code that calls a
node. A layer that a node does not have costs it nothing, since it is in no list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import GeneratorType
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import dspy

from dspyer.errors import GraphError, InputError, StateError, brief, suggestion
from dspyer.events import Commit, Event
from dspyer.failure import Failure
from dspyer.log.rows import RECORDS, LayerRow, StoredRow
from dspyer.nodes.node import Call, Decision, Node, Output, Reply, checked_reply
from dspyer.nodes.steps import Script, is_async
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.json import is_valid_text

Place: TypeAlias = Literal["outside", "errors", "output", "cache", "node", "retry", "attempt", "call"]
"""Where a layer is, from the outside in."""

PLACES: Final[tuple[str, ...]] = get_args(Place)
HOOKS: Final = ("of", "surrounds", "around", "run", "admit", "event", "shown", "rows")
OF_EACH_ITEM: Final = ("retry", "attempt", "call")
"""The places around each item of a map or trial of a search; layers in the others are around the whole node."""

Inner: TypeAlias = Callable[[Call], Script[Any]]
"""What a layer is around: the layers inside of it, and the node. Gives the script of a call."""


class RunView(Protocol):
    """A run that begins, as a layer sees it.

    Attributes:
        run_id: its id.
        graph: its graph, `program.graph`.
        scope: the executions around it, outermost first; empty for a run that is no part of another one.
    """

    graph: Any

    @property
    def run_id(self) -> str: ...

    @property
    def scope(self) -> tuple[str, ...]: ...

    def rows(self, kind: str) -> list[Any]:
        """The bodies of the rows of a kind that were added to its commits so far, in order (`Layer.rows`)."""


# The layers of a block travel in DSPy's settings, which it carries to the threads of `dspy.Evaluate` and optimizers.
USING: Final = "dspyer_layers"


class NewRow(NamedTuple):
    """A row that a layer stores with a commit (`Layer.rows`).

    Attributes:
        kind: a name for rows of its sort, by which `run.rows(kind)` finds them. Layers that give rows of one kind share
            them; the names of dspyer's own rows, such as `"commit"`, are taken.
        body: JSON data. What else a state holds is kept as well, but for objects of classes that dspyer does not know.
    """

    kind: str
    body: Any


class Stop(Exception):  # noqa: N818 - the name of what it does, as `StopIteration`
    """Raised by `Layer.admit` to stop the run, with the reason as its argument. Raised elsewhere it is an error."""

    @property
    def reason(self) -> str:
        """The reason alone."""
        return super().__str__()

    def __str__(self) -> str:
        return (
            f"a Stop was raised outside of `Layer.admit`, where alone it stops the run ({self.reason or 'no reason'})"
        )


class Layer:
    """Surrounds the executions of nodes. A subclass overrides what it needs; the rest costs nothing.

    Attributes:
        place: where it is, from the outside in: `"outside"`, `"errors"`, `"output"`, `"cache"`, `"node"`, `"retry"`,
            `"attempt"` or `"call"`. By default it is around all attempts of a node; `"attempt"` is around each.
        around_parts: whether it is around the condensers and the module routers of a node as well, which have attempts
            of their own, and give no `Output`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> from dspyer.extend import Layer
        >>> class Shown(Layer):
        ...     def around(self, call, inner):
        ...         print(call.node, "begins")
        ...         output = yield from inner(call)
        ...         print(call.node, "wrote", dict(output.patch))
        ...         return output
        >>> graph = Graph().add_node("shout", lambda text: {"loud": text.upper()},
        ...     layers=[Shown()])
        >>> graph.add_path(START, "shout", END).compile()(text="hey").loud
        shout begins
        shout wrote {'loud': 'HEY'}
        'HEY'
    """

    __slots__ = ()
    place: ClassVar[Place] = "node"
    around_parts: ClassVar[bool] = False

    @property
    def stops_after(self) -> Collection[str]:
        """The nodes after which a run asks whether to go on, as for `Breakpoints`."""
        return ()

    @property
    def stays_here(self) -> bool:
        """Return whether calls in a block `using` of it stay in this process, also of a program with an executor."""
        return False

    @property
    def note(self) -> str:
        """The words of `explain()` for it, at each node that it is around."""
        return f"in {type(self).__name__}"

    def of(self, run: RunView) -> Layer | None:
        """Its part in one run, with what it knows of that run alone; None for a run in which it has no part.

        Args:
            run: the run that begins.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer
            >>> class PerRun(Layer):
            ...     def of(self, run):
            ...         return Counted() if run.graph.name == "Shout" else None
            >>> class Counted(Layer):
            ...     calls = 0
            ...     def around(self, call, inner):
            ...         self.calls += 1
            ...         print("call", self.calls, "in this run")
            ...         return (yield from inner(call))
            >>> graph = Graph(name="Shout").add_node("shout",
            ...     lambda text: {"loud": text.upper()}, layers=[PerRun()])
            >>> program = graph.add_path(START, "shout", END).compile()
            >>> [program(text=text).loud for text in ("a", "b")]
            call 1 in this run
            call 1 in this run
            ['A', 'B']
        """
        del run
        return self

    def surrounds(self, node: Node) -> bool:
        """Says of a node that it is around it, for a layer that was given to a whole graph or by `using`.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer
            >>> class OfB(Layer):
            ...     def surrounds(self, node):
            ...         return node.name == "b"
            ...     def around(self, call, inner):
            ...         print("around", call.node)
            ...         return (yield from inner(call))
            >>> graph = Graph().add_node("a", lambda n: {"n": n + 1}).add_node("b",
            ...     lambda n: {"n": n + 1})
            >>> graph.add_path(START, "a", "b", END).compile(layers=[OfB()]).run(
            ...     {"n": 1}).state["n"]
            around b
            3
        """
        del node
        return True

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an execution, with `inner(call)` in it: `output = yield from inner(call)`.

        It may call `inner` again, with another call, or not at all: `return call.reply(Reply({...}))` commits what the
        node would have returned. The same code serves sync and async runs. What it raises is the failure of the node.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer, Reply
            >>> class Known(Layer):
            ...     def around(self, call, inner):
            ...         if call.read("text") == "hey":
            ...             return call.reply(Reply({"loud": "HEY HEY"}))
            ...         return (yield from inner(call))
            >>> graph = Graph().add_node("shout", lambda text: {"loud": text.upper()},
            ...     layers=[Known()])
            >>> program = graph.add_path(START, "shout", END).compile()
            >>> program(text="hey").loud, program(text="you").loud
            ('HEY HEY', 'YOU')
        """
        return inner(call)

    def run(self, run: RunView) -> AbstractContextManager[object]:
        """A block around the run: from before its first node begins until its last one has ended.

        What it raises at its beginning fails the run, before a node is called.

        Args:
            run: the run, as in `of`.

        Example:
            >>> from contextlib import contextmanager
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer, using
            >>> class Shown(Layer):
            ...     @contextmanager
            ...     def run(self, run):
            ...         print(run.graph.name, "begins")
            ...         yield
            ...         print(run.graph.name, "has ended")
            >>> graph = Graph(name="Shout").add_node("shout",
            ...     lambda text: {"loud": text.upper()})
            >>> with using(Shown()):
            ...     graph.add_path(START, "shout", END).compile()(text="hey").loud
            Shout begins
            Shout has ended
            'HEY'
        """
        del run
        return nullcontext()

    def admit(self, call: Call) -> None:
        """Called before an execution begins.

        Raises:
            Stop: to stop the outermost run: what runs is finished, and a resume calls the node.
            Interrupt: to ask first, `call.context.interrupt(key, question)`; the answer is what that returns.
            Exception: to fail the node.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer, Stop
            >>> class Open(Layer):
            ...     def admit(self, call):
            ...         if call.read("hour") >= 18:
            ...             raise Stop("it is after 6 pm")
            >>> graph = Graph().add_node("shout",
            ...     lambda hour, text: {"loud": text.upper()}, layers=[Open()])
            >>> run = graph.add_path(START, "shout", END).compile().run(
            ...     {"text": "hey", "hour": 19})
            >>> run.status, run.error.reason
            ('stopped', 'it is after 6 pm')
        """

    def event(self, event: Event) -> Event | None:
        """Called with each event before any reader sees it; returns what they see, None for nothing.

        The event is as `redact` of the graph shows it: what a graph around it redacts is hidden in the run around.
        Events of runs inside of nodes are among those of the runs around them. May be called from any thread.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.events import NodeStarted
            >>> from dspyer.extend import Layer
            >>> class Quiet(Layer):
            ...     def event(self, event):
            ...         return None if isinstance(event, NodeStarted) else event
            >>> graph = Graph().add_node("shout", lambda text: {"loud": text.upper()})
            >>> run = graph.add_path(START, "shout", END).compile(layers=[Quiet()]).run(
            ...     {"text": "hey"})
            >>> [type(event).__name__ for event in run.events]
            ['RunStarted', 'Committed', 'Committed', 'RunEnded']
        """
        return event

    def rows(self, commit: Commit) -> Iterable[NewRow]:
        """Called with a commit of a node that it is around, before it is made; returns rows to store with it.

        Rows and commit are written in one transaction: a crash leaves both or none. A resume, in another process too,
        finds them in `of`: `run.rows(kind)` has the bodies, in the order in which they were written. A run inside of a
        node has rows of its own. What no node makes has none: the commit of the inputs, joins and manual commits.

        What it raises is the failure of the node: nothing is committed, and a resume calls the node again. No retry and
        no error edge takes it, since the node has returned.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer, NewRow, Stop
            >>> class Most(Layer):
            ...     def __init__(self, most, calls=0):
            ...         self.most, self.calls = most, calls
            ...     def of(self, run):
            ...         return Most(self.most, sum(run.rows("calls")))
            ...     def admit(self, call):
            ...         if self.calls >= self.most:
            ...             raise Stop(f"{self.calls} calls")
            ...         self.calls += 1
            ...     def rows(self, commit):
            ...         return [NewRow("calls", 1)]
            >>> graph = Graph().add_node("count", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_edge(START, "count")
            >>> graph = graph.add_conditional_edges("count", lambda n: "count",
            ...     ["count", END])
            >>> thread = graph.compile(layers=[Most(2)], store=":memory:").thread("t")
            >>> thread.run({"n": 0}).state["n"], thread.resume().error.reason
            (2, '2 calls')
        """
        del commit
        return ()

    def shown(self, value: Any, failure: Failure | None = None, *, ends: bool = False) -> Any:
        """Called with what is shown of a run and is no event of it yet; returns what to show.

        It may change what it gets, and learn from it what must not be shown later: so it gets an event that waits until
        it is written, and an error, as soon as there is one. For a layer that overrides it, `event` comes before that
        of the others. May be called from any thread.

        Args:
            value: an error or a text of a log, an event that waits; at the end an error, or the questions.
            failure: what a state may get of an error after which the run goes on, with nothing hidden; None for any
                other value.
            ends: whether it is how the run ends, so that an error may be changed in place.

        Example:
            >>> from dspyer import END, START, Graph
            >>> from dspyer.extend import Layer
            >>> class Helped(Layer):
            ...     def shown(self, value, failure=None, *, ends=False):
            ...         if ends and isinstance(value, ZeroDivisionError):
            ...             value.add_note("give another n")
            ...         return value
            >>> graph = Graph().add_node("half", lambda n: {"n": 1 / n},
            ...     layers=[Helped()])
            >>> graph.add_path(START, "half", END).compile().run(
            ...     {"n": 0}).error.__notes__[-1]
            'give another n'
        """
        del failure, ends
        return value


def checked_layers(given: object, option: str) -> tuple[Layer, ...]:
    """The layers that an option was given.

    Raises:
        TypeError: if one of them is no layer.
        GraphError: if its place is unknown.
    """
    if isinstance(given, (Layer, str)) or not isinstance(given, Iterable):
        raise TypeError(f"{option} takes a list of layers, and got {brief(given)}: write [MyLayer()]")
    found = tuple(given)
    for one in found:
        if isinstance(one, type) and issubclass(one, Layer):
            raise TypeError(f"{option} got the class {one.__name__}: give an object of it, {one.__name__}(...)")
        if not isinstance(one, Layer):
            raise TypeError(
                f"{option} got {brief(one)}, of type {type(one).__name__}: a layer is a dspyer.extend.Layer; "
                "give them one by one"
            )
        for hook in HOOKS:
            if is_async(getattr(one, hook)):
                raise TypeError(
                    f"{option}: {type(one).__name__}.{hook} is async: write a plain `def`, which serves async runs too"
                )
        place: Any = one.place
        if place not in PLACES:
            raise GraphError(
                f"{option}: {type(one).__name__}.place is {place!r}.{suggestion(str(place), PLACES)} "
                f"From the outside in, a place is one of {', '.join(PLACES)}"
            )
    return found


def ordered(*sources: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers in the order in which an execution meets them: by place, then by source, then as given."""
    return tuple(sorted([layer for source in sources for layer in source], key=lambda one: PLACES.index(one.place)))


def stack(layers: Iterable[Layer], innermost: Inner) -> Inner:
    """Layers around each other, the first one outermost; those that surround nothing are left out."""
    inner = innermost
    for layer in reversed([layer for layer in layers if type(layer).around is not Layer.around]):
        inner = _within(layer, inner)
    return inner


_MADE: Final = (Output, Decision, float)
"""What executions and items, routers, and rewards of trials give: a layer that gives nothing has forgotten `return`."""


def _within(layer: Layer, inner: Inner) -> Inner:
    def script(call: Call) -> Script[Any]:
        found: Any = layer.around(call, inner)
        # A layer may return a value without a `yield`: `around` is then a plain function and gives no generator.
        output = (yield from found) if isinstance(found, GeneratorType) else found
        if isinstance(output, _MADE):
            return output
        raise TypeError(
            f"the layer {type(layer).__name__} around node {call.node!r}: its output is {brief(output)}, of type "
            f"{type(output).__name__}, and not what `inner(call)` or `call.reply` gave: write "
            "`output = yield from inner(call)`, and `return output`"
        )

    return script


def replies(call: Call, change: Callable[[Reply], Reply]) -> Call:
    """The call with replies that are changed before they are validated, for `inner`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> from dspyer.extend import Layer, Reply, replies
        >>> class Loud(Layer):
        ...     def around(self, call, inner):
        ...         change = lambda reply: Reply(
        ...             {name: text.upper()
        ...             for name, text in reply.updates.items()})
        ...         return (yield from inner(replies(call, change)))
        >>> graph = Graph().add_node("greet", lambda name: {"text": f"Hi {name}"},
        ...     layers=[Loud()])
        >>> graph.add_path(START, "greet", END).compile()(name="Ada").text
        'HI ADA'
    """
    made = call.made
    return call._replace(made=lambda called, reply: made(called, checked_reply(change(reply), called)))


# --- layers of a block


def layers_around() -> tuple[Layer, ...]:
    """The layers that `using` gives to what is called here."""
    found: tuple[Layer, ...] = dspy.settings.get(USING) or ()
    return found


@contextmanager
def using(*layers: Layer) -> Iterator[None]:
    """A block in which layers are around the nodes of all programs that are called, in threads of DSPy too.

    Args:
        layers: the layers, which come before those of the programs; those of a block around this one come first.

    Raises:
        TypeError: for what is no layer.
        GraphError: if the place of one is unknown.

    Example:
        >>> from dspyer import END, START, Graph
        >>> from dspyer.extend import Layer, using
        >>> class Counted(Layer):
        ...     calls = 0
        ...     def around(self, call, inner):
        ...         self.calls += 1
        ...         return (yield from inner(call))
        >>> graph = Graph().add_node("shout", lambda text: {"loud": text.upper()})
        >>> program, counted = graph.add_path(START, "shout",
        ...     END).compile(), Counted()
        >>> with using(counted):
        ...     results = [program(text=text).loud for text in ("a", "b")]
        >>> counted.calls, program(text="c").loud, counted.calls
        (2, 'C', 2)
    """
    found = (*layers_around(), *checked_layers(layers, "using"))
    with dspy.context(**{USING: found}):
        yield


# --- the layers of a run


class RunLayers:
    """The layers around the nodes of one run: their parts in it, and the chains that they make.

    It does not refer to the run: that would be a cycle.

    Args:
        asked: the layers of the call. One of a kind that the runs of the graph have too comes in the place of that: the
            part of the run around makes the part of this one.
        run: the run.

    Attributes:
        around: the parts of those that are around all nodes: of the graph, of `using`, then of the call.
        asked: the parts of those of the call and of the runs of the graph: the layers of the runs inside of its nodes.
        per_step: whether one of those around all nodes has something to do there.
        stops_after: the nodes after which the run asks whether to go on.
        runs: the parts with a block around the run.
        events: the parts that events pass through.
        showing: the parts that decide what is shown of other values (`Layer.shown`).
        writes: whether one has rows for commits.
    """

    # Those of a run without layers of its own, which is most of them: `_begin` is not called for it.
    asked: tuple[Layer, ...] = ()
    around: tuple[Layer, ...] = ()
    per_step = False
    stops_after: frozenset[str] = frozenset()
    runs: tuple[Layer, ...] = ()
    events: tuple[Layer, ...] = ()
    showing: tuple[Layer, ...] = ()
    writes = False

    def __init__(
        self, graph: Any, asked: Iterable[Layer] = (), using: Iterable[Layer] = (), run: RunView | None = None
    ) -> None:
        self._graph = graph
        self._chains: dict[str, Inner] = {}
        self._admits: dict[str, tuple[Layer, ...]] = {}
        self._parts: dict[int, Layer | None] = {}  # of the layers of nodes, by their ids
        if run is not None:
            self._begin(asked, using, run)

    def _begin(self, asked: Iterable[Layer], using: Iterable[Layer], run: RunView) -> None:
        """Makes the parts, and sorts them by what they override."""
        graph = run.graph
        # What the run around has made takes the place of what the graph asks for: a redaction must know the one around
        # it.
        self.asked = _parts((*asked, *[one for one in graph.of_runs if type(one) not in map(type, asked)]), run)
        using = _parts(using, run)
        self.around = (*_parts(graph.around, run), *using, *self.asked)
        kinds = [type(part) for part in self.around]
        self.per_step = any(one.around is not Layer.around or one.admit is not Layer.admit for one in kinds)
        # By identity: a user's layer may be equal to another, and one that was given to several nodes has one part.
        own = {id(layer): layer for found in self._graph.layers.values() for layer in found}
        self._parts = {key: _part(layer, run) for key, layer in own.items() if type(layer).of is not Layer.of}
        found = [part for key, layer in own.items() if (part := self._parts.get(key, layer)) is not None]
        every = (*self.around, *found)
        self.stops_after = frozenset([name for part in every for name in part.stops_after])
        self.runs = tuple([part for part in ordered(every) if type(part).run is not Layer.run])
        showing = [part for part in (*self.asked, *using, *found) if type(part).shown is not Layer.shown]
        self.showing = tuple(showing)
        # Last those that hide nothing: no other layer gets an event before the ones above have hidden values in it.
        showing += [part for part in every if type(part).shown is Layer.shown]
        self.events = tuple([part for part in showing if type(part).event is not Layer.event])
        self.writes = any(type(part).rows is not Layer.rows for part in every)

    def shown(self, value: Any, failure: Failure | None = None, *, ends: bool = False) -> Any:
        """The shown form of a value that is no event of the run yet (`Layer.shown`)."""
        for layer in self.showing:
            value = layer.shown(value, failure, ends=ends)
        return value

    def of(self, name: str) -> tuple[Layer, ...]:
        """The layers around a node, outermost first."""
        found: Iterable[Layer] = self._graph.layers.get(name, ())
        if self._parts:
            found = [part for one in found if (part := self._parts.get(id(one), one)) is not None]
        if not self.around:
            return tuple(found)
        node = self._graph.nodes.get(name)  # None for the routers of `START`
        return ordered([layer for layer in self.around if node is None or layer.surrounds(node)], found)

    def chain(self, name: str) -> Inner:
        """The maker of the scripts of a node; `retry` and what is inside of it are around each item of a map."""
        # Made once per node and run: to stack the layers anew for each execution costs more than a plain node.
        found = self._chains.get(name)
        if found is None:
            node, layers = self._graph.nodes[name], self.of(name)
            # Those of items are left out here: `around_item` has them, around each item.
            if node.mapped is not None:
                layers = tuple([layer for layer in layers if layer.place not in OF_EACH_ITEM])
            found = self._chains[name] = stack(layers, node.attempt)
        return found

    def admitting(self, name: str) -> tuple[Layer, ...]:
        """The layers that are asked before an execution of a node begins."""
        found = self._admits.get(name)
        if found is None:
            found = self._admits[name] = tuple([one for one in self.of(name) if type(one).admit is not Layer.admit])
        return found

    def rows(self, commit: Commit, execution: str) -> list[StoredRow]:
        """The rows that the layers around a node add to a commit; `execution` is its id in the outermost run."""
        # The commit of the inputs, joins and manual commits have no node, so no layer is around them.
        around = self.of(commit.node) if commit.node in self._graph.nodes else ()
        layers = [layer for layer in around if type(layer).rows is not Layer.rows]
        return [_checked_row(layer, row, execution) for layer in layers for row in _given_rows(layer, commit)]

    @contextmanager
    def running(self, run: Any) -> Iterator[None]:
        """A block of all layers around the run. One that cannot begin fails the run before its first node."""
        with ExitStack() as stack:
            try:
                for layer in self.runs:
                    block: Any = layer.run(run)
                    if not isinstance(block, AbstractContextManager):
                        raise TypeError(
                            f"{type(layer).__name__}.run gave {brief(block)}, and no block: put @contextmanager on it"
                        )
                    stack.enter_context(block)
            except Exception as error:
                if run.scope:
                    raise  # it is the failure of the node around the run
                run.stop_signal.stop(f"{type(error).__name__} was raised by a layer", error)
            yield

    def around_item(self, name: str, script: Inner) -> Inner:
        """The scripts of an item of a map, or of a trial of a search, within the layers around each of them."""
        return stack([layer for layer in self.of(name) if layer.place in OF_EACH_ITEM], script)

    def around_part(self, name: str, script: Inner) -> Inner:
        """The scripts of a part of an execution within the layers around its attempts, which are its own."""
        return stack([layer for layer in self.of(name) if layer.around_parts], script)


def _given_rows(layer: Layer, commit: Commit) -> list[NewRow]:
    given: Any = layer.rows(commit)
    found = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(row, NewRow) for row in found):
        raise TypeError(f"{type(layer).__name__}.rows gave {brief(given)}: return a list of NewRow(kind, body)")
    return found


def _checked_row(layer: Layer, row: NewRow, execution: str) -> LayerRow:
    """A row to store; `InputError` for a kind that is taken or no text, `StateError` for a body that is no data."""
    kind, who = row.kind, f"{type(layer).__name__}.rows"
    if type(kind) is not str or not kind or kind in RECORDS or not is_valid_text(kind):
        taken = ", ".join(sorted(RECORDS))
        raise InputError(f"{who} gave a row of kind {brief(kind)}: a kind is a text of your own, and none of {taken}")
    try:
        # Through the codec and back: the row in memory is what a resume will read, and a later change by its owner is
        # not.
        return LayerRow(execution, kind, encoding.decode(encoding.encode(freeze(row.body, ("body",)))))
    except StateError as error:
        raise StateError(f"{who} gave a row of kind {kind!r} that cannot be stored: {error}. Give JSON data") from error


def _parts(layers: Iterable[Layer], run: RunView) -> tuple[Layer, ...]:
    return tuple([part for layer in layers if (part := _part(layer, run)) is not None])


def _part(layer: Layer, run: RunView) -> Layer | None:
    """The part of a layer in a run; a `TypeError` if it is no layer."""
    part = layer.of(run)
    return part if part is layer or part is None else checked_layers([part], f"{type(layer).__name__}.of")[0]


def of_part(call: Call, name: str, script: Inner) -> Script[Any]:
    """The script of a part of an execution that comes after its node: a router that is a module, or what condenses.

    It has attempts of its own: what the node gave is kept.
    """
    part = call.context.delegate.of_part(name)
    # The node has been called: its `ctx` refuses posts and effects from here on, which no retry of the part could undo.
    part.over = True
    around: Inner = call.runner.session.layers.around_part(call.node, script)
    return around(call.of_attempt(part))

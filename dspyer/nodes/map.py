"""One node that runs another one once per item of a list.

Each item is an execution of its own: it has its own id, events, effects and questions, and on a thread its result is
recorded, so that a resumed run calls only the items that have none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from dspyer.errors import Interrupt, NodeOutputError, annotate, brief
from dspyer.events import ItemFinished, ItemStarted
from dspyer.nodes.binding import unset
from dspyer.nodes.callables import class_of
from dspyer.nodes.context import Context
from dspyer.nodes.field_names import unknown_field_text
from dspyer.nodes.module import ModuleNode, module_io
from dspyer.nodes.node import Built, Call, Node, Reply
from dspyer.nodes.options import MapOptions, NodeOptions
from dspyer.nodes.outputs import RESULT
from dspyer.nodes.subgraph import SubgraphNode, SubgraphProgram
from dspyer.persistence.execution_records import MISSING
from dspyer.schema.type_fit import item_check, misfit, value_type
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapNode(Node):
    """A node that runs `inner` once per item of `over` and commits `into` once, in the order of the items.

    Attributes:
        inner: what runs per item.
        over: the field with the items.
        item: the name under which `inner` sees its item.
        into: the field for the results.
        max_concurrency: most items that run at once; None for as many as the run may.
        check: refuses an item's result that the field cannot hold; None where only all results can be validated.
        parts: for a field whose reducer replaces messages by id: returns the ids and messages of a result.
    """

    kind: ClassVar[str] = "map"

    inner: Node
    over: str
    item: str
    into: str
    max_concurrency: int | None = None
    check: Callable[[object, int], None] | None = None
    parts: Callable[[Any], Iterable[tuple[Any, Any]]] | None = None

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to it may bring; None for any."""
        own = self.inner.takes
        return None if own is None else (own - {self.item}) | {self.over}

    @property
    def is_subgraph(self) -> bool:
        """Whether it runs a compiled graph per item."""
        return self.inner.is_subgraph

    @property
    def map_fields(self) -> tuple[str, str, str]:
        """The field with the items, the name of one item, the field for the results."""
        return self.over, self.item, self.into

    def permitted_fields(self, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """The fields that the code of the inner node may read or write through `ctx`; None for all."""
        return self.inner.permitted_fields(option)

    def whole_fields(self, state: ImmutableState) -> list[tuple[str, str]]:
        """The fields that all calls of the inner node read whole."""
        items = state.raw(self.over, None)
        return self.inner.whole_fields(state) * (len(items) if isinstance(items, Sized) else 0)

    def call(self, call: Call) -> Reply:
        """Call the inner node once per item, as many at once as the runner allows."""
        items = self._items(call)
        fresh = [item for item in items if item.recorded is MISSING]
        results = call.runner.gather([item.run for item in fresh], self.max_concurrency)
        return self._reply(items, results)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        items = self._items(call)
        runs: list[Callable[[], Awaitable[object]]] = [item.arun for item in items if item.recorded is MISSING]
        return self._reply(items, await call.runner.agather(runs, self.max_concurrency))

    def _items(self, call: Call) -> list[_Item]:
        source = call.overlay if call.overlay is not None and self.over in call.overlay else call.state
        if self.over not in source:
            raise unset(self.over, self.who)
        items = source.raw(self.over)
        if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
            raise NodeOutputError(
                f"{self.who} maps over {self.over!r}, which holds {brief(items)}: add_map needs a list there"
            )
        overlay: FrozenDict[str, Any] = call.overlay if call.overlay is not None else FrozenDict()
        raw = items.raw_items() if isinstance(items, FrozenList) else items
        return [self._item(call, overlay.set(self.item, value), index, len(items)) for index, value in enumerate(raw)]

    def _item(self, call: Call, overlay: FrozenDict[str, Any], index: int, count: int) -> _Item:
        """One item, as an execution of its own."""
        outer = call.context
        attempt = outer.delegate.item(index)
        name = f"{outer.execution}[{index}]"
        context = Context(outer.run_id, outer.node, outer.branch, outer.visit, name, attempt)
        inner = call._replace(context=context, overlay=overlay)
        return _Item(self, inner, index, count, attempt.recorded_result())

    def _reply(self, items: Sequence[_Item], results: Iterable[object]) -> Reply:
        found = iter(results)
        values = [next(found) if item.recorded is MISSING else item.recorded for item in items]
        if self.parts is not None:
            self._check_ids(self.parts, values)
        # Recorded results are frozen. In a plain list pydantic would not accept a frozen model; from a frozen list, as
        # a state has it, readers get the model itself.
        return Reply({self.into: freeze(values, (self.into,))})

    def _check_ids(self, parts: Callable[[Any], Iterable[tuple[Any, Any]]], values: list[object]) -> None:
        """Refuse different results with one id: items run at once, so none of them is the later one."""
        known: dict[Any, tuple[int, Any]] = {}
        for place, value in enumerate(values):
            for key, part in parts(freeze([value], (self.into,))):
                first, other = known.setdefault(key, (place, part))
                if key is not None and not same(other, part):
                    raise NodeOutputError(
                        f"{self.who} gives different messages with the id {key!r} for {self.over}[{first}] and "
                        f"{self.over}[{place}], of which field {self.into!r} would keep one: give each an id of its "
                        "own, or none"
                    )


@dataclass(frozen=True, slots=True)
class _Item:
    """One item of one call; `recorded` is its result of an earlier attempt, `MISSING` if there is none."""

    node: MapNode
    call: Call
    index: int
    count: int
    recorded: Any

    def run(self) -> object:
        attempt = self.call.context.delegate
        self._started()
        try:
            attempt.raise_if_unanswered()
            result = self._checked(self.node.inner.call(self.call))
            attempt.finish()
            recorded = attempt.record_result(result, (self.node.into, self.index))
        except BaseException as error:
            self._failed(error)
            raise
        self._ended("completed")
        return recorded

    async def arun(self) -> object:
        attempt = self.call.context.delegate
        self._started()
        try:
            attempt.raise_if_unanswered()
            result = self._checked(await self.node.inner.acall(self.call))
            attempt.finish()
            recorded = await attempt.arecord_result(result, (self.node.into, self.index))
        except BaseException as error:
            self._failed(error)
            raise
        self._ended("completed")
        return recorded

    def _checked(self, reply: Reply) -> object:
        """The result of the item. What the field cannot hold is refused here, before other items are paid for."""
        result = result_of(reply, self.node)
        if self.node.check is not None:
            self.node.check(result, self.index)
        return result

    def _started(self) -> None:
        attempt = self.call.context.delegate
        event = ItemStarted(attempt.node, attempt.branch, attempt.execution, self.index, self.count)
        attempt.host.publish(event)

    def _ended(self, status: str) -> None:
        attempt = self.call.context.delegate
        event = ItemFinished(attempt.node, attempt.branch, attempt.execution, self.index, self.count, status)
        attempt.host.publish(event)

    def _failed(self, error: BaseException) -> None:
        status = "interrupted" if isinstance(error, Interrupt) else "failed"
        self._ended(status if isinstance(error, (Interrupt, Exception)) else "stopped")
        annotate(error, f"in {self.node.over}[{self.index}] of the map {self.node.name!r} ({self.count} items)")


def result_of(reply: Reply, node: MapNode) -> object:
    """The result of one item: a function's bare value, the value of a single output, a dict of several, or None."""
    if reply.goto is not None:
        raise NodeOutputError(
            f"{node.who} returned Command(goto=...) for an item, which goes nowhere: for longer work per item "
            "use a subgraph, or a router that returns Sends"
        )
    values = dict(reply.updates)
    if RESULT in values:
        return values[RESULT]
    outputs = node.inner.writes
    if len(values if outputs is None else outputs) == 1:
        return next(iter(values.values()), None)
    return values or None


def build_map_node(inner: Built, options: NodeOptions, mapped: MapOptions) -> Built:
    """A node that maps another one, built with the same options, over the items of a field."""
    if inner.node is None:
        return inner
    node = inner.node
    over, item, into, max_concurrency = mapped
    problems = [*inner.problems, *_field_problems(options, over, into), *_item_problems(inner, options, into)]
    if node.takes is not None and item not in node.takes:
        problems.append(f"{options.who} never reads its item: give it a parameter or input {item!r}, or say item=...")
    if max_concurrency is not None and max_concurrency < 1:
        problems.append(f"{options.who}: max_concurrency={max_concurrency} lets no item run: give 1 or more, or None")
    outer = MapNode(
        name=options.name,
        reads=None if node.reads is None else {**node.reads, over: over},
        optional=node.optional - {over},
        writes={into: into},
        resources=node.resources,
        whole_state=node.whole_state,
        templates=node.templates,
        inner=node,
        over=over,
        item=item,
        into=into,
        max_concurrency=max_concurrency,
        check=item_check(options.schema, into, options.who),
        parts=_ids(options, into),
    )
    return Built(outer, inner.module, tuple(problems), inner.unknown)


def _field_problems(options: NodeOptions, over: str, into: str) -> list[str]:
    schema = options.schema
    if schema.accepts_any_key:
        return []
    problems = [
        f"{options.who}: {option}={name!r} {unknown_field_text(name, schema)}"
        for option, name in (("over", over), ("into", into))
        if name not in schema.fields
    ]
    kind = class_of(schema.fields[over].annotation) if over in schema.fields else None
    if kind is not None and issubclass(kind, (str, bytes, int, float, dict, set)):
        problems.append(f"{options.who}: over={over!r} is a field of type {kind.__name__}: a map needs a list")
    return problems


def _ids(options: NodeOptions, into: str) -> Callable[[Any], Iterable[tuple[Any, Any]]] | None:
    """The function that returns ids and messages of a result, if the field's reducer replaces messages by id."""
    reducer = options.schema.reducer(into)
    by_id = reducer is not None and reducer.keyed is not None and reducer.assign_ids is not None
    return reducer.parts if by_id and reducer is not None else None


def _item_problems(inner: Built, options: NodeOptions, into: str) -> list[str]:
    """Why the declared results of the inner node can never be items of the field."""
    given: Any = Any
    if isinstance(inner.node, ModuleNode) and inner.module is not None and inner.node.gives is not None:
        found = module_io(inner.module)
        given = _result_type([found.type_of(name) for name in inner.node.gives])
    elif isinstance(inner.node, SubgraphNode) and inner.module is not None and inner.node.gives is not None:
        schema = cast(SubgraphProgram, inner.module).graph.topology.schema
        given = _result_type([value_type(schema, name) for name in inner.node.gives])
    wrong = misfit(options.schema, into, list[given])
    advice = "declare the type in the signature, or change the field"
    return [f"{options.who}: the list of its results {wrong}: {advice}"] if wrong else []


def _result_type(outputs: list[Any]) -> Any:
    """The type of an item's result: that of the only output, or a dict of several."""
    return outputs[0] if len(outputs) == 1 else dict[str, Any] if outputs else Any

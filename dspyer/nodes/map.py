"""One node that runs another one once per item of a list.

Each item is an execution of its own: it has its own id, attempts, events, effects and questions, and on a thread its
result is recorded, so that a resumed run calls only the items that have none.

With `failures=` an item that fails does not fail the map. Whether the map completes depends on the outcomes of its
items alone, and not on their order in time (`Tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, cast

from dspyer.errors import Interrupt, MapError, NodeOutputError, always_raised, annotate, brief, unwrap_stop_iteration
from dspyer.events import ItemFinished, ItemStarted
from dspyer.failure import ITEM, Failure
from dspyer.ids import part_id
from dspyer.lm.tracing import execute_item, step_count, take_steps
from dspyer.log.execution_records import MISSING
from dspyer.log.journal import NewRows
from dspyer.log.rows import ItemRow
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.binding import unset
from dspyer.nodes.callables import class_of
from dspyer.nodes.context import Context
from dspyer.nodes.field_access import unknown_field_text
from dspyer.nodes.function import RESULT
from dspyer.nodes.node import Built, Call, Look, MapOptions, Node, Output, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import Script, Step, TwoWays, arun_script, run_script, wrapped
from dspyer.schema.type_fit import item_check, misfit
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.scalars import is_number, is_whole_number

FIRST_ITEMS: Final = 20
"""If so many items at the beginning of the list fail alike, the map fails: the cause is hardly in the items."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapNode(Node):
    """A node that runs `inner` once per item of `over` and commits `into` once, in the order of the items.

    Attributes:
        check: refuses an item's result that the field cannot hold; None where only all results can be validated.
        parts: for a field whose reducer replaces messages by id: returns the ids and messages of a result.
        live: the live fields to which its items post.
    """

    kind: ClassVar[str] = "map"

    inner: Node
    mapped: MapOptions
    check: Callable[[object, int], None] | None = None
    parts: Callable[[Any], Iterable[tuple[Any, Any]]] | None = None
    live: frozenset[str] = frozenset()

    @property
    def look(self) -> Look:
        """The look in pictures, with the failures that it lets pass."""
        note = "" if self.mapped.failures is None else f"failures of items into {self.mapped.failures}"
        share = self.mapped.min_success
        return Look("map", self.kind, f"{note}, at least {100 * share:g} % must succeed" if share else note)

    def whole_fields(self, state: ImmutableState) -> list[tuple[str, str]]:
        """The fields that all calls of the inner node read whole."""
        items = state.raw(self.mapped.over, None)
        return self.inner.whole_fields(state) * (len(items) if isinstance(items, Sized) else 0)

    def script(self, call: Call) -> Script[Reply]:
        """Call the inner node once per item, as many at once as the runner allows."""
        items = self._items(call)
        tolerance = None if self.mapped.failures is None else Tolerance(self, items)
        return self._reply((yield from results_of(items, call, self.mapped.max_concurrency, tolerance)))

    def _items(self, call: Call) -> list[MapItem]:
        over, name = self.mapped.over, self.mapped.item
        source = call.overlay if call.overlay is not None and over in call.overlay else call.state
        if over not in source:
            raise unset(over, self.who, call.state)
        items = source.raw(over)
        if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
            raise NodeOutputError(
                f"{self.who} maps over {over!r}, which holds {brief(items)}: add_map needs a list there"
            )
        overlay: FrozenDict[str, Any] = call.overlay if call.overlay is not None else FrozenDict()
        raw = items.raw_items() if isinstance(items, FrozenList) else items
        return [
            MapItem(self, call, index, len(items), overlay=overlay.set(name, value), made=partial(self._made, index))
            for index, value in enumerate(raw)
        ]

    def _made(self, index: int, call: Call, reply: Reply) -> Output:
        """The result of an item, as what it writes to its field. What that cannot hold is refused here: no other item
        is paid for.
        """
        result = result_of(reply, self)
        if self.check is not None:
            self.check(result, index)
        attempt = call.context.delegate
        for name in self.live.intersection(reply.updates):
            if (live := attempt.host.together.posts) is None:
                raise NodeOutputError(
                    f"{attempt.who}: an item of a map posts to the live field {name!r}, which is not live in a run "
                    "with live=False: return it in the item's result"
                )
            live.post(attempt, name, reply.updates[name], returned=True)
        # A question whose `Interrupt` the item has caught must not be lost in its result.
        attempt.finish()
        # In a map that is not stored, the field freezes all results at once.
        stored = attempt.host.records.journal is not None or self.mapped.failures is not None
        value = freeze(result, (self.mapped.into, index)) if stored else result
        return Output({self.mapped.into: value}, call.state, None, None, False, None, call, reply.updates)

    def _reply(self, results: Sequence[object]) -> Reply:
        values = {index: result for index, result in enumerate(results) if not isinstance(result, FailedItem)}
        if self.parts is not None:
            self._check_ids(self.parts, values)
        # Recorded results are frozen. In a plain list pydantic would not accept a frozen model; from a frozen list, as
        # a state has it, readers get the model itself.
        updates = {self.mapped.into: freeze(list(values.values()), (self.mapped.into,))}
        if self.mapped.failures is not None:
            failed = [result.failure for result in results if isinstance(result, FailedItem)]
            updates[self.mapped.failures] = freeze(failed, (self.mapped.failures,))
        return Reply(updates)

    def _check_ids(self, parts: Callable[[Any], Iterable[tuple[Any, Any]]], values: Mapping[int, object]) -> None:
        """Refuse different results with one id: items run at once, so none of them is the later one."""
        over, into = self.mapped.over, self.mapped.into
        known: dict[Any, tuple[int, Any]] = {}
        for index, value in values.items():
            for key, part in parts(freeze([value], (into,))):
                first, other = known.setdefault(key, (index, part))
                if key is not None and not same(other, part):
                    raise NodeOutputError(
                        f"{self.who} gives different messages with the id {key!r} for {over}[{first}] and "
                        f"{over}[{index}], of which field {into!r} would keep one: give each an id of its "
                        "own, or none"
                    )


@dataclass(slots=True, eq=False)
class FailedItem:
    """The result of an item that failed, of a map that can complete without it.

    Attributes:
        index: the index of the item.
        failure: the record of the failure.
        error: what was raised; None once it is known not to be the first one.
    """

    index: int
    failure: Failure
    error: BaseException | None


class Tolerance:
    """The count of failed items: it says whether a map can still complete, and so whether further items start.

    A map fails if too few of its items can succeed, or if the first items of the list all fail alike, as with a wrong
    API key. Both depend on outcomes and not on time, so that a map completes or fails in whatever order its items end.
    Time decides only which items have started by then. While all items that have ended failed alike, no further one
    starts before all of the first ones have ended.
    """

    def __init__(self, node: MapNode, items: Sequence[Item]) -> None:
        self._who = node.who
        self._count = len(items)
        self._fresh = [item for item in items if item.recorded is MISSING]
        # Not `ceil(min_success * count)`: 0.07 * 100 is 7.000000000000001, and 7 of 100 are the share that was written.
        self._share = node.mapped.min_success
        least = math.floor(self._share * self._count)
        self._needed = max(1, least + (least / max(1, self._count) < self._share))
        self._failed: list[FailedItem] = []
        self._reason = ""
        # By item that has ended, the type of the failure that no retry mends; "" for any other outcome.
        self._kinds: dict[int, str] = {item.index: "" for item in items if item.recorded is not MISSING}
        self._all = set(self._kinds.values())

    @property
    def ended(self) -> bool:
        """Return whether the map has failed."""
        return bool(self._reason)

    @property
    def may_start(self) -> bool:
        """Tell if the next item may start now: it waits for the first ones while all that have ended failed alike."""
        alike = len(self._all) == 1 and "" not in self._all
        waits = alike and len(self._kinds) >= FIRST_ITEMS and len(self._first()) < FIRST_ITEMS
        return not self._reason and not waits

    def _first(self) -> list[str]:
        """The outcomes of the first items, as far as they have ended."""
        return [self._kinds[index] for index in range(FIRST_ITEMS) if index in self._kinds]

    def note(self, index: int, result: object) -> None:
        """Counts the result of an item that was called, by its place among these. Results come as the items end."""
        failed = result if isinstance(result, FailedItem) else None
        kind = "" if failed is None or failed.failure.retryable else failed.failure.type
        self._kinds[self._fresh[index].index] = kind
        self._all.add(kind)
        if failed is None:
            return
        self._keep(failed)
        left, first = self._count - len(self._failed), self._first()
        if not left:
            self._reason = f"all {self._count} items failed"
        elif left < self._needed:
            self._reason = (
                f"{len(self._failed)} of {self._count} items failed, and min_success={self._share} needs "
                f"{self._needed} that succeed"
            )
        elif first[0:1] != [""] and first == first[:1] * FIRST_ITEMS:
            self._reason = f"the first {FIRST_ITEMS} items all failed with {first[0]}, which no retry mends"

    def raise_if_lost(self) -> None:
        """Raises `MapError` if the map has failed."""
        if not self._reason:
            return
        first, *_ = self._failed
        self._failed.sort(key=lambda failed: failed.index)
        text = f"{self._who}: {self._reason}. The first of them: {first.failure}"
        raise MapError(text, [failed.failure for failed in self._failed]) from first.error

    def _keep(self, failed: FailedItem) -> None:
        """Keeps a failure, the first item's in front, and of the exceptions only that one: each holds the frames of
        its call.
        """
        # By index and not by time, so that the same error is raised in whatever order the items end.
        if self._failed and failed.index > self._failed[0].index:
            failed.error = None
            self._failed.append(failed)
        else:
            if self._failed:
                self._failed[0].error = None
            self._failed.insert(0, failed)


class Item:
    """One item of a call of a map, or one trial of a search: an execution of its own, whose result is recorded.

    Args:
        call: that of the node.
        index: its index among the items.
        count: how many there are.
        changes: what its call has otherwise.

    Attributes:
        call: its call.
        recorded: its result of an earlier attempt, `MISSING` if there is none.
        may_fail: whether something stands for its result if it fails.
    """

    may_fail = True

    def __init__(self, call: Call, index: int, count: int, **changes: Any) -> None:
        attempt = call.context.delegate.item(index)
        self.call = self.inside(call, attempt)._replace(**changes)
        self.index, self.count = index, count
        self.recorded: Any = attempt.recorded_result()

    def place(self, number: int) -> str:
        """The place of an attempt, for the notes of its errors."""
        raise NotImplementedError

    def made(self) -> Script[Any]:
        """Its result, frozen."""
        raise NotImplementedError

    def ended(self, result: Any, steps: int) -> Script[Any]:
        """Its result once it has ended; `steps` of the trace were there before it."""
        del steps
        yield from ()
        return result

    def failed(self, error: BaseException, number: int) -> Script[Any]:
        """The value that stands for its result."""
        raise NotImplementedError

    def script(self) -> Script[object]:
        """Its result, or what stands for it."""
        attempt = self.call.context.delegate
        execute_item(self.index)
        started = ItemStarted(attempt.node, attempt.branch, attempt.execution, self.index, self.count)
        attempt.host.publish(started)
        steps = step_count() if self.may_fail else 0
        try:
            # An item that asked in an earlier attempt would only ask again, and pay for what it does before.
            attempt.raise_if_unanswered()
            result = yield from self.made()
        except BaseException as error:  # no other local may refer to it: its traceback refers to this frame
            number = attempt.last.number
            self._publish_end(error)
            annotate(unwrap_stop_iteration(error), self.place(number))
            vars(unwrap_stop_iteration(error))[ITEM] = attempt.node, self.index
            if always_raised(error) or not self.may_fail:
                raise
            # What led to a failure is no step towards the result: an optimizer would learn from it.
            attempt.host.lose_steps(attempt, number, take_steps(steps))
            return (yield from self.failed(error, number))
        self._publish_end(None)
        return (yield from self.ended(result, steps))

    def _publish_end(self, error: BaseException | None) -> None:
        attempt = self.call.context.delegate
        status = "completed" if error is None else "stopped"  # of what is no `Exception`, such as a cancellation
        if isinstance(error, Interrupt):
            status = "interrupted"
        elif isinstance(error, Exception):
            status = "failed"
        attempt.host.publish(
            ItemFinished(attempt.node, attempt.branch, attempt.execution, self.index, self.count, status)
        )

    def inside(self, call: Call, attempt: Attempt) -> Call:
        """The call for an execution inside of that of a call."""
        outer = call.context
        name = part_id(outer.execution, attempt.part or attempt.index)
        return call._replace(context=Context(outer.run_id, outer.node, outer.branch, outer.visit, name, attempt))

    def called(self, inner: Node, call: Call, wrap: Callable[[Step], Step] | None = None) -> Script[Output]:
        """Call a node, within the layers around each item; `wrap` is around each step."""
        session, script = call.runner.session, inner.attempt
        if wrap is not None:
            script = lambda call: wrapped(inner.attempt(call), wrap)  # noqa: E731 - mypy knows its type
        if session is not None:
            script = session.layers.around_item(call.node, script)
        return script(call)

    def part(self, call: Call, script: Callable[[Call], Script[Any]]) -> Script[Any]:
        """Make a part of it, within the layers around attempts."""
        session = call.runner.session
        return script(call) if session is None else session.layers.around_part(call.node, script)(call)

    def record(self, attempt: Attempt, frozen: Any) -> Script[None]:
        """Write the result of it or of a part of it, with its LM calls: it is not called again."""
        records, of_item = attempt.host.records, self.call.context.delegate.local_id
        if records.journal is not None:
            row = ItemRow(attempt.local_id, frozen).row()
            if row.content is not None:
                row.content.data  # noqa: B018 - encodes it now: what cannot be stored fails here, in the item
            # The row before the record, as of effects; with the LM calls of the item, which a crash would otherwise
            # lose.
            rows = NewRows([*records.lm_call_rows(of_item), row])
            yield TwoWays(partial(records.journal.write, rows), partial(records.journal.awrite, rows)), self.call
            records.items[attempt.local_id] = frozen
        else:
            records.finished[attempt.local_id] = frozen


def results_of(
    items: Sequence[Item], call: Call, max_concurrency: int | None = None, tolerance: Tolerance | None = None
) -> Script[list[Any]]:
    """The results of items in their order, as many made at once as the runner allows."""
    # Items with a recorded result are not called again: a resume pays only for those that are missing.
    fresh = [item for item in items if item.recorded is MISSING]
    scripts, runner = [item.script() for item in fresh], call.runner
    gather = TwoWays(
        partial(runner.gather, [partial(run_script, one) for one in scripts], max_concurrency, tolerance),
        partial(runner.agather, [partial(arun_script, one) for one in scripts], max_concurrency, tolerance),
    )
    made = iter((yield gather, call))
    if tolerance is not None:  # before results are counted: of a map that is lost, some are missing
        tolerance.raise_if_lost()
    return [next(made) if item.recorded is MISSING else item.recorded for item in items]


class MapItem(Item):
    """An item of a map."""

    def __init__(self, node: MapNode, call: Call, index: int, count: int, **changes: Any) -> None:
        super().__init__(call, index, count, **changes)
        self.node = node
        self.may_fail = node.mapped.failures is not None

    def place(self, number: int) -> str:
        """The place of an attempt, for the notes of its errors."""
        count = f"{self.count} items" if number == 1 else f"{self.count} items, attempt {number}"
        return f"in {self.node.mapped.over}[{self.index}] of the map {self.node.name!r} ({count})"

    def made(self) -> Script[Any]:
        """Its result, frozen."""
        output = yield from self.called(self.node.inner, self.call)
        result = output.patch[self.node.mapped.into]
        yield from self.record(self.call.context.delegate, result)
        return result

    def failed(self, error: BaseException, number: int) -> Script[FailedItem]:
        """The value that stands for its result."""
        yield from ()
        failure = self.call.context.delegate.failure(unwrap_stop_iteration(error), number)
        return FailedItem(self.index, failure, error)


def result_of(reply: Reply, node: MapNode) -> object:
    """The result of one item: a function's bare value, the value of a single output, a dict of several, or None."""
    if reply.goto is not None:
        raise NodeOutputError(
            f"{node.who} returned Command(goto=...) for an item, which goes nowhere: for longer work per item "
            "use a subgraph, or a router that returns Sends"
        )
    values = {name: value for name, value in reply.updates.items() if name not in node.live}
    if RESULT in values:
        return values[RESULT]
    outputs = None if node.inner.writes is None else set(node.inner.writes.values()) - node.live
    if len(values if outputs is None else outputs) == 1:
        return next(iter(values.values()), None)
    return values or None


def build_map_node(inner: Built, options: NodeOptions, mapped: MapOptions) -> Built:
    """A node that maps another one, built with the same options, over the items of a field."""
    if inner.node is None:
        return inner
    node = inner.node
    over, item, into, max_concurrency, failures, _ = mapped
    problems = [*inner.problems, *_field_problems(options, over, into)]
    # Reasons why the declared results of the inner node can never be items of the field.
    types = inner.types
    given: Any = Any if not types else types[0] if len(types) == 1 else dict[str, Any]
    if wrong := misfit(options.schema, into, list[given]):
        advice = "declare the type in the signature, or change the field"
        problems.append(f"{options.who}: the list of its results {wrong}: {advice}")
    problems += _failures_problems(options, mapped)
    if node.takes is not None and item not in node.takes:
        problems.append(f"{options.who} never reads its item: give it a parameter or input {item!r}, or say item=...")
    reducer = options.schema.reducer(into)
    live = frozenset(options.schema.live_fields).intersection((node.writes or {}).values())
    most: Any = max_concurrency
    if most is not None and not (is_whole_number(most) and most > 0):
        problems.append(f"{options.who}: max_concurrency={most!r}: give the most items that run at once, 1 or more")
    outer = MapNode(
        name=options.name,
        reads=None if node.reads is None else {**node.reads, over: over},
        optional=node.optional - {over},
        takes=None if node.takes is None else (node.takes - {item}) | {over},
        writes={name: name for name in (into, failures, *sorted(live)) if name is not None},
        resources=node.resources,
        templates=node.templates,
        programs=node.programs,
        inner=node,
        mapped=mapped,
        live=live,
        check=item_check(
            options.schema, into, options.who, ". No further item was started" if failures is None else ""
        ),
        # A reducer that replaces messages by id keeps one of each id: the map must refuse two that differ.
        parts=reducer.parts if reducer is not None and reducer.keyed is not None and reducer.assign_ids else None,
    )
    return Built(outer, inner.module, tuple(problems), inner.unknown)


def _field_problems(options: NodeOptions, over: str, into: str) -> list[str]:
    schema = options.schema
    problems = [
        f"{options.who}: {option}={name!r} {unknown_field_text(name, schema)}"
        for option, name in (("over", over), ("into", into))
        if name not in schema
    ]
    kind = class_of(schema.fields[over].annotation) if over in schema.fields else None
    if kind is not None and issubclass(kind, (str, bytes, int, float, dict, set)):
        problems.append(f"{options.who}: over={over!r} is a field of type {kind.__name__}: a map needs a list")
    return problems


def _failures_problems(options: NodeOptions, mapped: MapOptions) -> list[str]:
    """Problems with `failures=` and `min_success=`."""
    who, failures = options.who, cast("Any", mapped.failures)
    share: Any = mapped.min_success
    problems = []
    if not is_number(share) or not 0 <= share <= 1:
        problems.append(f"{who}: min_success={share!r} is no share of the items: give a number from 0 to 1")
    elif share and failures is None:
        problems.append(
            f"{who}: min_success={share} lets items fail, so it needs failures='a field', a list of dspyer.Failure"
        )
    if failures is None:
        return problems
    for option in ("over", "into", "item"):
        if failures == getattr(mapped, option):
            return [*problems, f"{who}: failures={failures!r} is its {option}=, too: give the failures their own field"]
    if failures not in options.schema:
        return [*problems, f"{who}: failures={failures!r} {unknown_field_text(failures, options.schema)}"]
    wrong = misfit(options.schema, failures, list[Failure])
    if wrong:
        problems.append(f"{who}: the list of its failures {wrong}: declare it as {failures}: list[dspyer.Failure] = []")
    return problems

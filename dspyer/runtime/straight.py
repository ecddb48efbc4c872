"""The straight path: a plain node, with the way out of it, as one function from an execution to its transition.

Most nodes are a function or a predictor of fields alone, with nothing around them, and with one way out: an edge, or a
router that is a field or a function of fields. What the general path (`execution`) finds out at each call of such a
node, that there is no policy, no view, no resource and no question, is known when the graph is compiled. So a function
is made that reads, calls, commits and routes. It gives the same transition, and raises the same errors.

If something surrounds the nodes of a session, all of them take the general path (`straight_paths`). The functions are
derived from the graph: they are made when it first runs, and no pickle holds them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter, time
from typing import Any, NamedTuple, TypeAlias, cast

from dspyer.errors import NodeOutputError, annotate
from dspyer.graph.spec import GraphSpec
from dspyer.nodes.binding import Binding
from dspyer.nodes.function import FunctionNode
from dspyer.nodes.module import ModuleNode
from dspyer.nodes.node import Call, Node, Reply
from dspyer.nodes.router import FieldRouter, FunctionRouter
from dspyer.nodes.steps import failure_or_questions
from dspyer.nodes.sync_async import acall_function, acall_module, call_function, call_module
from dspyer.runtime.execution import checked_targets
from dspyer.runtime.session import Session
from dspyer.scheduler.lineage import NO_CALLS
from dspyer.scheduler.run_state import Execution, Target, Transition
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.scalars import SCALARS
from dspyer.values.types import Opaque

Overlay: TypeAlias = FrozenDict[str, Any] | None
Read: TypeAlias = Callable[[Session, ImmutableState, Overlay], dict[str, Any]]
"""The arguments of a call, from the state and what a `Send` has brought."""

Route: TypeAlias = Callable[[Session, ImmutableState, Overlay], tuple[Target, ...]]
WayOut: TypeAlias = tuple[Target, ...] | Route
"""The targets of an edge, or what gives those of a router from the state after the node."""

Invoke: TypeAlias = Callable[[Session, dict[str, Any]], Any]

_ABSENT: Any = object()
_NAMES = frozenset({str})
_SHARED = SCALARS | {FrozenDict, FrozenList}
_NOTHING: frozenset[type] = frozenset()
_new = tuple.__new__  # as in `schedule`


class StraightPath(NamedTuple):
    """One plain node as a function, for each of the two drivers."""

    call: Callable[[Session, Execution], Transition]
    acall: Callable[[Session, Execution], Awaitable[Transition]]


Paths: TypeAlias = Mapping[str, StraightPath | None]
_NO_PATHS: Paths = {}


def straight_paths(session: Session) -> Paths:
    """The straight path of each node that has one, by name; none if something surrounds the nodes of the session."""
    graph = session.graph
    if session.layers.per_step or session.records.questions:
        return _NO_PATHS
    paths: dict[str, StraightPath | None] = graph.straight
    if not paths:
        paths.update({START: _start(graph), **{name: _path(graph, node) for name, node in graph.nodes.items()}})
    return paths


def _path(graph: GraphSpec, node: Node) -> StraightPath | None:
    surrounded = node.name in graph.layers or node.name in graph.checked or node.templates.in_instructions
    way_out = None if surrounded else _way_out(graph, node.name)
    if way_out is None:
        return None
    if type(node) is FunctionNode:
        return _function(graph.topology.schema, node, way_out)
    return _module(graph.topology.schema, node, way_out) if type(node) is ModuleNode else None


def _start(graph: GraphSpec) -> StraightPath | None:
    way_out = _way_out(graph, START)
    if way_out is None:
        return None

    def call(session: Session, _execution: Execution) -> Transition:
        return _first(session, way_out)

    async def acall(session: Session, execution: Execution) -> Transition:
        return call(session, execution)

    return StraightPath(call, acall)


def _function(schema: Schema, node: FunctionNode, way_out: WayOut) -> StraightPath | None:
    binding, fn, asynchronous = node.binding, node.fn, node.asynchronous
    if not _of_fields(binding) or node.goto or node.per_item or node.programs:
        return None
    read = _reader(binding)
    own = None if node.writes is None else {name for name, field in node.writes.items() if name == field}

    def reply(result: object) -> Reply:
        """What the function returned: a dict as it is, if its keys are names of fields that the node writes."""
        if type(result) is dict and (own is None or own.issuperset(result)) and _NAMES.issuperset(map(type, result)):
            return _new(Reply, (result, None, False, None))
        return node.reply(result)

    def invoke(_session: Session, arguments: dict[str, Any]) -> Any:
        return call_function(fn, arguments, asynchronous)

    def ainvoke(_session: Session, arguments: dict[str, Any]) -> Any:
        return acall_function(fn, arguments, asynchronous)

    return _straight(schema, node, read, (invoke, ainvoke), reply, way_out)


def _module(schema: Schema, node: ModuleNode, way_out: WayOut) -> StraightPath | None:
    name = node.name
    if not _of_fields(node.binding) or node.turns.fields or node.turns.histories:
        return None
    read = _reader(node.binding)

    def reply(result: object) -> Reply:
        return node.reply(result, {})  # the inputs are for turns of a conversation, which it has not

    def invoke(session: Session, arguments: dict[str, Any]) -> Any:
        return call_module(getattr(session.program, name), arguments)

    def ainvoke(session: Session, arguments: dict[str, Any]) -> Any:
        return acall_module(getattr(session.program, name), arguments)

    return _straight(schema, node, read, (invoke, ainvoke), reply, way_out)


def _straight(
    schema: Schema,
    node: FunctionNode | ModuleNode,
    read: Read,
    invokers: tuple[Invoke, Invoke],
    reply_of: Callable[[object], Reply],
    way_out: WayOut,
) -> StraightPath:
    name, (invoke, ainvoke) = node.name, invokers

    def committed(session: Session, execution: Execution, result: object) -> tuple[Mapping[str, Any], ImmutableState]:
        updates, _, whole, completions = reply_of(result)
        before, commit_id = execution.branch.state, session.ids.prefix + execution.id
        patch, after = schema.commit(before, updates, node=name, commit_id=commit_id, whole_values=whole)
        if schema.state_limit is not None:
            schema.check_state_limit(name, before, patch, after)
        if completions is not None:
            session.notes.completions[execution.id] = completions
        return patch, after

    def call(session: Session, execution: Execution) -> Transition:
        if execution.branch.head < 0:
            return _first(session, way_out)
        began, clock = time(), perf_counter()
        arguments = read(session, execution.branch.state, execution.overlay)
        try:
            patch, after = committed(session, execution, invoke(session, arguments))
        except (NodeOutputError, BaseExceptionGroup) as error:
            raise _as_raised(error, node)  # noqa: B904 - the same error, but for a group of questions
        return _transition(session, patch, after, execution.overlay, way_out, began, clock)

    async def acall(session: Session, execution: Execution) -> Transition:
        if execution.branch.head < 0:
            return _first(session, way_out)
        began, clock = time(), perf_counter()
        arguments = read(session, execution.branch.state, execution.overlay)
        try:
            patch, after = committed(session, execution, await ainvoke(session, arguments))
        except (NodeOutputError, BaseExceptionGroup) as error:
            raise _as_raised(error, node)  # noqa: B904 - as in `call`
        return _transition(session, patch, after, execution.overlay, way_out, began, clock)

    return StraightPath(call, acall)


def _first(session: Session, way_out: WayOut) -> Transition:
    """The first commit, of `START` or in the name of a node: its patch is known, and only the way out is not."""
    began, clock = time(), perf_counter()
    first = session.run_start
    return _transition(session, first.patch, first.state, None, way_out, began, clock)


def _as_raised(error: BaseException, node: Node) -> BaseException:
    if isinstance(error, NodeOutputError):
        error.of_module = error.of_module or node.of_module
    return failure_or_questions(error)


def _transition(
    session: Session,
    patch: Mapping[str, Any],
    after: ImmutableState,
    overlay: Overlay,
    way_out: WayOut,
    began: float,
    clock: float,
) -> Transition:
    targets = way_out if isinstance(way_out, tuple) else way_out(session, after, overlay)
    took = perf_counter() - clock
    return _new(Transition, (patch, after, targets, None, began, took, None, NO_CALLS, 1, None, (), False))


# --- reading


def _of_fields(binding: Binding) -> bool:
    """Whether all parameters get whole fields, or what a `Send` brings."""
    others = binding.contexts or binding.resources or binding.modules or binding.whole_state or binding.rest is not None
    return not others and not any(one.view or one.computed for one in binding.fields)


def _reader(binding: Binding) -> Read:
    """What reads the parameters of a plan of fields alone.

    Values that need nothing are passed as they are; for all others the general way to read is asked.
    """
    fields = [
        (one.name, one.field, _NOTHING if not one.readable else SCALARS if one.copy else _SHARED)
        for one in binding.fields
    ]

    def read(session: Session, state: ImmutableState, overlay: Overlay) -> dict[str, Any]:
        if overlay is None and not Opaque.any_exist:
            found, get = dict[str, Any](), state._map.get
            for name, field, shared in fields:
                value = get(field, _ABSENT)
                if type(value) not in shared:
                    break
                found[name] = value
            else:
                return found
        return binding.bind(_call(session, state, overlay))

    return read


def _call(session: Session, state: ImmutableState, overlay: Overlay) -> Call:
    """A call for what reads fields alone, and so no context."""
    return Call(state, cast("Any", None), session.program, overlay)


# --- the way out


def _way_out(graph: GraphSpec, name: str) -> WayOut | None:
    """The only way out of a node; None if it has none or several, or a router that needs more than fields."""
    exits = graph.exits[name]
    way = exits[0] if len(exits) == 1 else None
    if isinstance(way, str):
        return (Target(way),)
    if type(way) is FunctionRouter and _of_fields(way.binding):
        return _function_router(name, way)
    return _field_router(name, way) if type(way) is FieldRouter else None


def _function_router(name: str, router: FunctionRouter) -> WayOut:
    binding, fn, who = router.binding, router.fn, router.who
    read = _reader(binding)
    known = {text: (Target(names[0]),) for text, names in router.routes.by_text.items() if len(names) == 1}

    def targets(session: Session, after: ImmutableState, overlay: Overlay) -> tuple[Target, ...]:
        arguments = read(session, after, overlay)
        try:
            result = fn(**arguments)
        except Exception as error:
            annotate(error, f"in {who}")
            raise
        found = known.get(result) if type(result) is str else None
        return found or checked_targets(session, name, router.resolve(result))

    return targets


def _field_router(name: str, router: FieldRouter) -> WayOut:
    def targets(session: Session, after: ImmutableState, overlay: Overlay) -> tuple[Target, ...]:
        return checked_targets(session, name, router.call(_call(session, after, overlay)).targets)

    return targets

"""Unit tests of one node or route, and programs with a node replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dspy

from dspyer.errors import GraphError, Interrupt, Interrupted, suggestion
from dspyer.graph.spec import GraphSpec, check_send
from dspyer.hints import signature_of
from dspyer.nodes.answer_types import Interrupts, answering, first_of
from dspyer.nodes.attempt import Attempt, NoRun, with_posts
from dspyer.nodes.binding import check_resources, resources_of
from dspyer.nodes.build import build_node
from dspyer.nodes.condense import CondenserCalls, condensed
from dspyer.nodes.context import Context
from dspyer.nodes.node import Call, Node, Send
from dspyer.nodes.options import node_options
from dspyer.nodes.router import Router
from dspyer.patch import plain_patch
from dspyer.runtime.program import CompiledGraph
from dspyer.runtime.session_views import StateViews
from dspyer.scheduler.run_state import Branch
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.values.persistent import PersistentMap

Resources = Mapping[type, object] | Sequence[object] | None


def call_node(
    program: CompiledGraph,
    node: str,
    state: Mapping[str, Any],
    *,
    resources: Resources = None,
    interrupts: Interrupts = None,
) -> dict[str, Any]:
    """Calls one node of a program as a run would: binding, permissions and validation included.

    Args:
        program: the program.
        node: name of the node.
        state: the fields that are there; those with a default may be left out.
        resources: as in `program.run`.
        interrupts: answers to questions, as in `program.run`.

    Returns:
        The patch that the node would commit, with plain values.

    Raises:
        GraphError: if there is no such node.
        Interrupted: if the node asks what `interrupts` does not answer.
        Exception: what the node raises, or the validation of what it returns.

    Example:
        >>> from dspyer import END, START, Graph
        >>> program = Graph().add_node("double", lambda n: {"n": 2 * n}).add_path(START, "double", END).compile()
        >>> call_node(program, "double", {"n": 4})
        {'n': 8}
    """
    blueprint = program.graph
    call = _call(program, node, state, resources, [_node(blueprint, node)], interrupts)
    schema = blueprint.topology.schema
    with _unanswered(blueprint):
        reply = blueprint.nodes[node].call(call)
        call.context.attempt.finish()
        updates: Mapping[str, object] = with_posts(reply.updates, call.context.attempt.posts or (), schema)
        updates = _follow(condensed(blueprint.condensers.get(node, {}), updates, call))
    patch, _ = schema.commit(call.state, updates, node=node, commit_id="test", whole_values=reply.whole)
    return plain_patch(patch)


def route(
    program: CompiledGraph,
    node: str,
    state: Mapping[str, Any],
    *,
    resources: Resources = None,
    interrupts: Interrupts = None,
) -> list[str | Send]:
    """Asks the edges and routers of a node where a branch would go.

    Args:
        program: the program.
        node: name of the node, or `START`.
        state: the state after the node.
        resources: as in `program.run`.
        interrupts: answers to questions, as in `program.run`.

    Returns:
        The targets, each name once.

    Raises:
        GraphError: if there is no such node.
        Interrupted: if a router asks what `interrupts` does not answer.
        RouteError: if a router goes to no target, or sends what the target does not read.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("judge", lambda score: None).add_edge(START, "judge")
        >>> graph = graph.add_conditional_edges("judge", lambda score: score > 0.5, {True: END, False: "judge"})
        >>> route(graph.compile(), "judge", {"score": 0.2})
        ['judge']
    """
    blueprint = program.graph
    if node != START:
        _node(blueprint, node)
    ways = blueprint.exits[node]
    call = _call(program, node, state, resources, [way for way in ways if isinstance(way, Router)], interrupts)
    found: list[str | Send] = []
    with _unanswered(blueprint):
        for way in ways:
            for target in (way,) if isinstance(way, str) else way.decide(call).targets:
                if isinstance(target, Send):
                    check_send(blueprint, node, target)
                if isinstance(target, Send) or target not in found:
                    found.append(target)
    return found


def stub(program: CompiledGraph, **fakes: Callable[..., Any] | Mapping[str, Any]) -> CompiledGraph:
    """A copy of a program in which some nodes are replaced; permissions and validation stay those of the nodes.

    Args:
        program: the program.
        fakes: by node a function, whose parameters are those that the node might have, or the patch to return.

    Returns:
        The copy.

    Raises:
        GraphError: if there is no such node, or if a function asks for what the node may not read.

    Example:
        >>> from dspyer import END, START, Graph
        >>> program = Graph().add_node("ask", lambda question: 1 / 0).add_path(START, "ask", END).compile()
        >>> stub(program, ask={"answer": "42"})(question="?").answer
        '42'
    """
    blueprint = program.graph
    nodes = dict(blueprint.nodes)
    senders: list[Node | Router] = [*nodes.values(), *blueprint.routers]
    sent = {target for sender in senders for target in sender.send_targets}
    problems: list[str] = []
    for name, fake in fakes.items():
        node = _node(blueprint, name)
        function = _constant(fake) if isinstance(fake, Mapping) else fake
        reads = _reads(function, node.reads)
        options = node_options(
            name, function, blueprint.topology.schema, reads=reads, writes=node.writes, goto=node.goto
        )
        built = build_node(options)
        problems += [*built.problems, *(built.unknown if name not in sent else ())]
        if built.node is not None:
            nodes[name] = built.node
    if problems:
        raise GraphError(problems)
    twin: CompiledGraph = program.deepcopy()
    condensers = {name: found for name, found in blueprint.condensers.items() if name not in fakes}
    twin._graph = replace(blueprint, nodes=nodes, condensers=condensers)
    for name in fakes:
        twin.__dict__.pop(name, None)
    return twin


def _follow(calls: CondenserCalls) -> Mapping[str, object]:
    """Makes the calls of a node in sync code."""
    reply: Any = None
    while True:
        try:
            step, call = calls.send(reply)
        except StopIteration as done:
            found: Mapping[str, object] = done.value
            return found
        reply = step.call(call)


def _constant(patch: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    def fake() -> dict[str, Any]:
        return dict(patch)

    return fake


def _reads(function: Callable[..., Any], reads: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """What a fake reads: the part of the node's reads that it has parameters for."""
    parameters = signature_of(function).parameters
    if reads is None or not parameters.keys() & reads.keys():
        return reads if parameters else {}
    return {name: field for name, field in reads.items() if name in parameters}


def _node(blueprint: GraphSpec, name: str) -> Node:
    if name not in blueprint.nodes:
        known = ", ".join(blueprint.nodes)
        hint = suggestion(name, blueprint.nodes)
        raise GraphError(f"graph {blueprint.name!r} has no node {name!r}.{hint} Its nodes are {known}")
    return blueprint.nodes[name]


def _call(
    program: dspy.Module,
    node: str,
    fields: Mapping[str, Any],
    resources: Resources,
    users: Sequence[Node | Router],
    interrupts: Interrupts,
) -> Call:
    schema = program.graph.topology.schema
    given = resources_of(resources)
    check_resources(users, given)
    _, state = schema.commit(
        schema.initial_state({}), fields, node="the state of the test", commit_id="test", whole_values=True
    )
    host = NoRun(first_of(answering(interrupts), program.graph.answer))
    now = ImmutableState(state)
    host.views = StateViews(program.graph, now)
    attempt = Attempt(host, node, position=Branch((), ((),), now, 0, "", 0, PersistentMap()))
    return Call(now, Context("test", node, attempt=attempt), program, None, given)


@contextmanager
def _unanswered(blueprint: GraphSpec) -> Iterator[None]:
    """A question that nobody answers is an error here."""
    try:
        yield
    except Interrupt as interrupt:
        asked = ", ".join(f"{one.key!r}: {one.text}" for one in interrupt.questions)
        raise Interrupted(
            f"graph {blueprint.name!r} asks {asked}; give the answer with interrupts={{...}}", interrupt.questions
        ) from None

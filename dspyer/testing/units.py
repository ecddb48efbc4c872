"""Unit tests of a node or a route without a run, and programs with nodes replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dspy

from dspyer import START, CompiledGraph, Context, ImmutableState, Send
from dspyer.errors import GraphError, Interrupt, Interrupted, suggestion
from dspyer.extend import Built, Call, Node, Schema, run_script
from dspyer.graph.spec import GraphSpec, check_send
from dspyer.hints import signature_of
from dspyer.layers.condensers import condensed
from dspyer.lm.tracing import executing_here
from dspyer.nodes.attempt import Answers, Attempt, AttemptHost, answer_source, first_of
from dspyer.nodes.binding import check_resources, resources_of
from dspyer.nodes.build import build_node
from dspyer.nodes.callables import giving
from dspyer.nodes.function import given
from dspyer.nodes.options import node_options
from dspyer.nodes.router import Router
from dspyer.patch import plain_patch
from dspyer.runtime.session_views import Fields, RunViews
from dspyer.scheduler.provenance import PriorHistory
from dspyer.scheduler.schedule import Branch
from dspyer.values.persistent import PersistentMap

Resources = Mapping[type, object] | Sequence[object] | None


def call_node(
    program: CompiledGraph,
    node: str,
    state: Mapping[str, Any],
    *,
    resources: Resources = None,
    answers: Answers = None,
) -> dict[str, Any]:
    """Calls one node of a program as a run would: binding, permissions and validation included.

    It is called once, whatever its `retry=`: a test sees what the node raises.

    Args:
        program: the program.
        node: name of the node.
        state: the fields of the state; those with a default may be left out.
        resources: as in `program.run`.
        answers: answers to questions, as in `program.run`.

    Returns:
        The patch that the node would commit, with plain values.

    Raises:
        GraphError: if there is no such node.
        Interrupted: if the node asks a question that `answers` does not answer.
        NodeOutputError: if the node returns a patch that it may not write or that the schema refuses.
        Exception: any exception that the node raises.

    Example:
        >>> from dspyer import END, START, Graph
        >>> program = Graph().add_node("double", lambda n: {"n": 2 * n}).add_path(
        ...     START, "double", END).compile()
        >>> call_node(program, "double", {"n": 4})
        {'n': 8}
    """
    graph = program.graph
    call = _call(program, node, state, resources, [_node(graph, node)], answers)
    schema = graph.topology.schema
    with _without_run(program):
        reply = run_script(graph.nodes[node].script(call))
        # Posts end with the node, as in a run.
        call.context.delegate.finish()
        updates = given(call, reply.updates, schema)
        updates = run_script(condensed(graph.condensers.get(node, {}), updates, call))
    patch, _ = schema.commit(call.state, updates, node=node, commit_id="test", whole_values=reply.whole)
    return plain_patch(patch)


def route(
    program: CompiledGraph,
    node: str,
    state: Mapping[str, Any],
    *,
    resources: Resources = None,
    answers: Answers = None,
) -> list[str | Send]:
    """Evaluates the edges and routers of a node: where would a branch go from it?

    Args:
        program: the program.
        node: name of the node, or `START`.
        state: the state after the node.
        resources: as in `program.run`.
        answers: answers to questions, as in `program.run`.

    Returns:
        The targets, each name once.

    Raises:
        GraphError: if there is no such node.
        Interrupted: if a router asks a question that `answers` does not answer.
        RouteError: if a router returns no target, or a `Send` with fields that the target does not read.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("judge", lambda score: None).add_edge(START,
        ...     "judge")
        >>> graph = graph.add_conditional_edges("judge", lambda score: score > 0.5,
        ...     {True: END, False: "judge"})
        >>> route(graph.compile(), "judge", {"score": 0.2})
        ['judge']
    """
    graph = program.graph
    if node != START:
        _node(graph, node)
    exits = graph.exits[node]
    call = _call(program, node, state, resources, [exit_ for exit_ in exits if isinstance(exit_, Router)], answers)
    targets: list[str | Send] = []
    with _without_run(program):
        for exit_ in exits:
            for target in (exit_,) if isinstance(exit_, str) else run_script(exit_.script(call)).targets:
                if isinstance(target, Send):
                    check_send(graph, node, target)
                if isinstance(target, Send) or target not in targets:
                    targets.append(target)
    return targets


def stub(program: CompiledGraph, /, **fakes: object) -> CompiledGraph:
    """A copy of a program with some nodes replaced; the fakes have the permissions and validation of the nodes.

    Args:
        program: the program.
        fakes: by name of the node a function, with parameters that the node could have, or the patch to return. By
            name of an agent's tool a function with arguments of the tool, or its result. For the `check` of an agent a
            function that gives problems, as `check=` takes it, or a dict with `problems`.

    Returns:
        The copy. `program` is unchanged.

    Raises:
        GraphError: if there is no such node, or if a function has a parameter for a field that the node may not read.

    Example:
        >>> from dspyer import END, START, Graph
        >>> program = Graph().add_node("ask", lambda question: 1 / 0).add_path(
        ...     START, "ask", END).compile()
        >>> stub(program, ask={"answer": "42"})(question="?").answer
        '42'
    """
    graph = program.graph
    nodes = dict(graph.nodes)
    senders: list[Node | Router] = [*nodes.values(), *graph.routers]
    # A `Send` may bring values that are no fields: a fake may read them, too.
    sent = {target for sender in senders if sender.sends for target in sender.goto}
    problems: list[str] = []
    for name, fake in fakes.items():
        node = _node(graph, name)
        built = _fake(node, fake, graph.topology.schema)
        problems += [*built.problems, *(built.unknown if name not in sent else ())]
        if built.node is not None:
            nodes[name] = built.node
    if problems:
        raise GraphError(problems)
    # A copy of the modules, too: a test may set their demos or LM without changing the program.
    twin: CompiledGraph = program.deepcopy()
    # The fake gives what it gives: a condenser would call its LM.
    condensers = {name: found for name, found in graph.condensers.items() if name not in fakes}
    twin._graph = replace(graph, nodes=nodes, condensers=condensers)
    for name in fakes:
        # The module of a node that is replaced must not be tuned or saved.
        twin.__dict__.pop(name, None)
    return twin


def _fake(node: Node, fake: object, schema: Schema) -> Built:
    """A node that calls a function instead."""
    own = node.with_fake(fake, schema)
    if own is not None:
        return own
    function: Any = giving(dict(fake)) if isinstance(fake, Mapping) else fake
    reads = _reads(function, node.reads)
    return build_node(node_options(node.name, function, schema, reads=reads, writes=node.writes, goto=node.goto))


def _reads(function: Callable[..., Any], reads: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The reads of a fake: those of the node for which it has parameters."""
    parameters = signature_of(function).parameters
    if reads is None or not parameters.keys() & reads.keys():
        return reads if parameters else {}
    return {name: field for name, field in reads.items() if name in parameters}


def _node(graph: GraphSpec, name: str) -> Node:
    if name not in graph.nodes:
        known = ", ".join(graph.nodes)
        hint = suggestion(name, graph.nodes)
        raise GraphError(f"graph {graph.name!r} has no node {name!r}.{hint} Its nodes are {known}")
    return graph.nodes[name]


def _call(
    program: dspy.Module,
    node: str,
    fields: Mapping[str, Any],
    resources: Resources,
    users: Sequence[Node | Router],
    answers: Answers,
) -> Call:
    schema = program.graph.topology.schema
    given = resources_of(resources)
    check_resources(users, given)
    _, state = schema.commit(
        schema.initial_state({}), fields, node="the state of the test", commit_id="test", whole_values=True
    )
    current = ImmutableState(state)
    # A view may ask who wrote a value: the test did.
    log = PriorHistory.of_state(current, START).log
    views = RunViews(program.graph, Fields(schema, whole_values=False), log, None)
    # The answers of the test first: those of the program would hide what it asks.
    host = AttemptHost(first_of(answer_source(answers), program.graph.answer), program, given, views)
    attempt = Attempt(host, node, position=Branch((), ((),), current, 0, "", 0, PersistentMap()))
    return Call(current, Context("test", node, delegate=attempt), program, None, given)


@contextmanager
def _without_run(program: CompiledGraph) -> Iterator[None]:
    """A block that calls parts of a graph. An unanswered question is an error: no run could wait for the answer."""
    try:
        with executing_here(program):
            yield
    except Interrupt as interrupt:
        asked = ", ".join(f"{one.key!r}: {one.text}" for one in interrupt.questions)
        raise Interrupted(
            f"graph {program.graph.name!r} asks {asked}; give the answer with answers={{...}}", interrupt.questions
        ) from None

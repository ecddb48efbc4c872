"""Parts of LangGraph that a conversion refuses, found before anything is built.

Each check adds its problems to the findings: what, why, and what to do. A check refuses only what cannot run as it ran:
what only some inputs reach is found when it is reached.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import dspy
from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langgraph.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from langgraph.channels.base import BaseChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import push_message
from langgraph.graph.state import CompiledStateGraph
from langgraph.graph.ui import delete_ui_message, push_ui_message
from langgraph.pregel.protocol import PregelProtocol
from langgraph.types import interrupt

from dspyer.errors import list_names, suggestion
from dspyer.migrate.code_reading import StateKeys, has_sync_form, read_code, read_keys
from dspyer.migrate.internals import TaskFunction, data_channels
from dspyer.migrate.nested_graphs import names_parent, why_whole
from dspyer.schema.fields import RESERVED

# What a conversion finds: the problems that refuse a graph, and the notes on what was inferred.


class FoundNode(NamedTuple):
    """A node that a conversion has found.

    Attributes:
        path: the name of the node whose graph it is in, with a dot after it; empty for the outermost graph.
        label: its name in its graph.
        runnable: what LangGraph calls.
        channels: the channels of its graph.
        targets: the nodes that may follow it, also the end.
    """

    path: str
    label: str
    runnable: Any
    channels: Mapping[str, BaseChannel[Any, Any, Any]]
    targets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in options and texts."""
        return self.path + self.label

    @property
    def keys(self) -> StateKeys:
        """The fields that its function reads and returns, as far as its code names them."""
        found = read_keys(self.runnable)
        return StateKeys(*(tuple(key for key in keys if key in self.channels) for keys in found))


class Findings:
    """The problems and notes of one conversion, in the order in which they were found.

    The converter reports everything here and goes on, so that a user sees all problems at once.

    Attributes:
        problems: why the graph cannot be converted, each as `what: why; what to do`.
        notes: what the conversion has inferred or left out.
        nodes: the nodes that a run may reach, those of graphs that are nodes included.
        value_types: what values may be, of all fields and of all graphs inside.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.nodes: list[FoundNode] = []
        self.value_types: list[Any] = []

    def problem(self, text: str) -> None:
        """Add a problem, unless it is known."""
        if text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        """Add a note, unless it is known."""
        if text not in self.notes:
            self.notes.append(text)


ASKS: Final = "calls interrupt(): ask in a node, and route by the answer"
RAISES: Final = "raises NodeInterrupt: call interrupt(value), which returns the answer"
OF_TASKS: Final = "make it a node with that policy, or call a plain function"
LEAVES_BY_COMMAND: Final = (
    "return the value and route in the parent graph, or let a function that is the node call this graph"
)
_CONVERTED: Final = (LastValue, EphemeralValue, AnyValue, UntrackedValue, BinaryOperatorAggregate, DeltaChannel)
# What to do with a field of another channel class.
_CHANNELS: Final[dict[type[BaseChannel[Any, Any, Any]], str]] = {
    Topic: "a list emptied after each step; use reducers.extend, and DELETE to empty it",
    NamedBarrierValue: "a barrier; leave it out: a node waits for all branches that can still reach it",
}


def graph_problem(graph: object) -> str:
    """The reason why an object is no graph that can be converted, empty if it is one."""
    if isinstance(graph, (StateGraph, CompiledStateGraph)):
        return ""
    name = getattr(graph, "name", None)
    what = f"{name!r}" if isinstance(name, str) and name not in ("", "LangGraph") else "what was given"
    advice = "pass a StateGraph, or what its compile() returns"
    if isinstance(graph, PregelProtocol):
        advice = "write its steps as nodes of a StateGraph or of a dspyer.Graph, or call it in the function of a node"
    return f"{what} is {_a(graph)}, which has no nodes and edges to convert: {advice}"


def _a(thing: object) -> str:
    """The class of an object with its article."""
    name = type(thing).__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def check_graph(
    builder: StateGraph[Any, Any, Any, Any],
    reached: Collection[str],
    replaced: Collection[str],
    findings: Findings,
    path: str = "",
) -> None:
    """Add a problem for each part of a graph that cannot be converted.

    `reached` are the nodes that a run may reach. Each is checked with its error handler, but for those in `replaced`,
    whose code is not used. Graphs among the nodes are not gone into. `path` stands before the names of nodes.
    """
    inside = f" of {path.rstrip('.')!r}" if path else ""
    for name, channel in data_channels(builder).items():
        if name != "__root__":
            _check_field_name(name, inside, findings)
        _check_channel(name, inside, channel, findings)
    for name in builder.managed:
        _check_field_name(name, inside, findings)
    for name in reached:
        if name in replaced:
            continue
        # LangGraph keeps a handler as a node without edges, which no run reaches by itself.
        for own in (name, builder.nodes[name].error_handler_node):
            if own is not None:
                _check_node(path + name, builder.nodes[own].runnable, findings)
                _note_unknown_keys(path + name, builder.nodes[own].runnable, builder, findings)
    for source in (START, *reached):
        for name, branch in builder.branches.get(source, {}).items():
            who = f"the router {name!r} of {path + source!r}"
            _check_router(who, branch, findings)
            if source not in replaced:
                _check_router_keys(who, builder, source, branch, findings)


def check_names(
    builder: StateGraph[Any, Any, Any, Any],
    nodes: Mapping[str, object],
    routes: Mapping[str, object],
    goto: Mapping[str, object],
    findings: Findings,
    path: str = "",
) -> None:
    """Add a problem for each name in the options of a conversion that is no node."""
    known = {START, *builder.nodes}
    graphs = {
        name: spec.runnable for name, spec in builder.nodes.items() if isinstance(spec.runnable, CompiledStateGraph)
    }
    for option, given in {"nodes": nodes, "routes": routes, "goto": goto}.items():
        for name in given:
            around = next((graph for graph in graphs if name.startswith(f"{graph}.")), None)
            if name not in known and around is None:
                findings.problem(
                    f"{option}= names {path + name!r}: the graph has no such node ({list_names(builder.nodes)})."
                    f"{suggestion(name, builder.nodes)}"
                )
            elif name not in known and around is not None and (why := why_whole(graphs[around])):
                findings.problem(
                    f"{option}= names {path + name!r}, and {path + around!r} runs whole, by LangGraph's engine: "
                    f"{why}; replace the whole node"
                )


# --- fields


def _check_channel(name: str, inside: str, channel: BaseChannel[Any, Any, Any], findings: Findings) -> None:
    if isinstance(channel, _CONVERTED):
        return
    advice = next((text for cls, text in _CHANNELS.items() if isinstance(channel, cls)), None)
    findings.problem(
        f"field {name!r}{inside} is {_a(channel)}: "
        + (advice or "a channel class that dspyer does not know; use a reducer, or a plain field")
    )


def _check_field_name(name: str, inside: str, findings: Findings) -> None:
    if name in RESERVED:
        findings.problem(f"field {name!r}{inside} has the name of a parameter that nodes have: rename it")
    elif name.startswith("_"):
        findings.problem(f"field {name!r}{inside} begins with an underscore, as private attributes do: rename it")
    elif not name.isidentifier():
        findings.problem(f"field {name!r}{inside} is no identifier, as names of fields are: rename it")
    elif name == "model_config":
        findings.problem(f"field {name!r}{inside} has the name of the configuration of pydantic models: rename it")


# --- nodes


def _check_node(name: str, runnable: object, findings: Findings) -> None:
    if isinstance(runnable, CompiledStateGraph):
        return
    if isinstance(runnable, PregelProtocol):
        findings.note(
            f"node {name!r} is {_a(runnable)}, which has no nodes and edges to convert: it is called as a function"
        )
        return
    code = read_code(runnable)
    for function in (push_message, push_ui_message, delete_ui_message):
        if any(use.value is function for use in code.uses):
            findings.problem(f"node {name!r} calls {function.__name__}: return the message")
    for event in (dispatch_custom_event, adispatch_custom_event):
        if any(use.value is event for use in code.uses):
            findings.problem(
                f"node {name!r} calls {event.__name__}, which needs a run of LangChain: call get_stream_writer()(value)"
            )
    if names_parent(code):
        findings.problem(f"node {name!r} returns Command(graph=Command.PARENT): {LEAVES_BY_COMMAND}")
    if code.raises("NodeInterrupt"):
        findings.problem(f"node {name!r} {RAISES}")
    for use in code.values(TaskFunction):
        policies = task_policies(vars(use.value))
        if policies:
            called = use.value.__name__
            findings.problem(f"node {name!r} calls the task {called!r}, which has a {policies[0]}: {OF_TASKS}")
    for use in code.values(dspy.Module):
        named = use.name[:1].isidentifier()
        called, argument = (use.name, use.name) if named else (type(use.value).__name__, "...")
        findings.problem(
            f"node {name!r} calls the module {called!r}: pass it as from_langgraph(nodes={{{name!r}: {argument}}})"
        )


def _note_unknown_keys(
    name: str, runnable: object, builder: StateGraph[Any, Any, Any, Any], findings: Findings
) -> None:
    """Note the keys that a node seems to return and that are no fields: a problem only where that code is reached."""
    # A state that is one value has no keys.
    if "__root__" in builder.channels:
        return
    unknown = [key for key in read_keys(runnable).returned if key not in builder.channels]
    if unknown and not read_code(runnable).values(CompiledStateGraph):  # of which they are dropped here, too
        findings.note(
            f"node {name!r} may return {list_names(unknown)}, which is no field: LangGraph drops it, and a run "
            "here fails; add it to the state, or write from_langgraph(extra='drop')"
        )


def task_policies(options: Mapping[str, Any]) -> list[str]:
    """The policies among the options of a `@task`, which only nodes have here."""
    return [key for key in ("retry_policy", "cache_policy", "timeout") if options.get(key)]


# --- routers


def _check_router(who: str, branch: Any, findings: Findings) -> None:
    if not has_sync_form(branch.path):
        findings.problem(f"{who} is async: a router is a plain function; await in a node, and route by what it wrote")
    if read_code(branch.path).names_itself(interrupt):  # what it holds may ask elsewhere, as the tools of an agent do
        findings.problem(f"{who} {ASKS}")


def _check_router_keys(
    who: str, builder: StateGraph[Any, Any, Any, Any], source: str, branch: Any, findings: Findings
) -> None:
    """Refuse a router that reads what only LangGraph passes to it.

    That is what its node returned, keys that are no fields among it, unless its parameter has a schema. The router of
    START gets the input itself.
    """
    if branch.input_schema is not None and source != START:
        return
    # Only `state["x"]`: `.get` is for keys that may be missing.
    read = read_keys(branch.path).needed
    unknown = [key for key in read if key not in builder.channels and key not in builder.managed]
    if unknown and source != START:
        written = read_keys(builder.nodes[source].runnable).returned
        unknown = [key for key in unknown if key in written]
    for key in unknown:
        findings.problem(f"{who} reads {key!r}: {key!r} is no field; add it to the state")

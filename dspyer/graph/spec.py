"""`GraphSpec`, a compiled graph as `program.graph` shows it: topology, nodes, ways out of each node, settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import dspy

from dspyer.budget import Budget
from dspyer.display.graph_mermaid import draw_mermaid
from dspyer.display.graph_picture import GraphPicture
from dspyer.display.graph_svg import GraphDrawing, draw_graph, draw_svg
from dspyer.display.redaction import Redact, Redaction, redacted_policies
from dspyer.errors import InputError, RouteError, list_names, suggestion, with_article
from dspyer.graph.declarations import check_redacted_paths, fields_of_items, inner_schemas
from dspyer.graph.text import edge_labels, explain
from dspyer.layers.breakpoints import Breakpoints
from dspyer.layers.condensers import Condense, Condensers
from dspyer.layers.handlers import ErrorEdge, ErrorEdges
from dspyer.layers.layer import Layer, ordered
from dspyer.layers.redacted import Redacted
from dspyer.layers.reports import Reports
from dspyer.nodes.check import CheckNode, FinderNode, checks_of, rejecting_of
from dspyer.nodes.node import SENT, Node, Send
from dspyer.nodes.router import Router
from dspyer.persistence.execution_records import AnswerSource, no_answer
from dspyer.persistence.journal import Durability
from dspyer.persistence.lm_calls import Choose, LMCallLog, Recorded
from dspyer.scheduler.topology import Topology

Exit = str | Router
"""A way out of a node: the target of an edge, or a router."""

Migrate = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Converts the state that an earlier graph left in a thread, as plain values, for the graph that continues it."""


class Derived(dict[str, Any]):
    """What is made of a graph when it first runs: functions, which no pickle can hold and which are made again."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Derived], tuple[()]]:
        return Derived, ()


@dataclass(frozen=True, slots=True, eq=False)
class GraphSpec:
    """A compiled graph: `program.graph`. It shows itself as a picture in a notebook.

    Attributes:
        topology: names, edges and rules.
        nodes: the nodes by name, in the order of declaration.
        exits: the ways out of each node and of `START`, in the order of declaration.
        inputs: the fields that a run may be given.
        required: the fields that a run must be given.
        outputs: the fields that a program returns; None for every field that is no input.
        frozen: the program's attributes whose modules are hidden from optimizers.
        thawed: the program's attributes whose modules are open to optimizers, even if one has compiled them before.
        closed: whether unknown inputs are refused.
        max_calls: most node calls of a run and of those inside of its nodes; None for no limit.
        max_concurrency: most nodes of one run that work at the same time; that of the outermost program counts.
        keep: the fields that last over the runs of a thread; None for all.
        interrupt_before: the nodes before which a run stops.
        interrupt_after: the nodes after which it stops.
        answer: answers questions as they are asked.
        migrate: converts the state that an earlier graph left in a thread; None for the defaults.
        condensers: the modules that shorten what nodes write, by node and field.
        durability: when a run on a thread is written.
        redaction: what is hidden of the values that leave a run.
        warn_at: how many steps before its limit a run warns in its conversations; None for never.
        max_demo_turns: how many turns of a history a demo shows; None for all.
        also: what a run may be given besides its inputs: fields that a node reads or writes and that need no value.
        takes: for each node, the names that a `Send` may bring, for it or its routers; None for any.
        named: whether the graph was given a name.
        shares_threads_with: names of other graphs whose threads this one may continue.
        budget: what a run may spend, unless the call gives another budget; None for no limit.
        record_lm_calls: how much of its LM calls a stored run records, or what decides it.
        around: the layers around all that `using` and a call ask for, of all nodes.
        given_layers: the layers that nodes were given, and those of their options `retry`, `timeout` and `cache`.
        of_runs: the layers of its runs, and of those inside of its nodes: none of them is around a node.
        attempts: the most attempts of each node with a retry policy, those of the graphs around it first, by its path:
            `{"write": (3,), "write/draft": (3, 2)}`.
        error_edges: where a branch goes after a failure, by node; the first edge that takes the exception counts.
        rejecting: the nodes that may reject an output: the checks, those of agents too.
        checked: the check that follows a node, by the names of the nodes that have one and of their fixes.
        searches: the nodes that make the trials of a search, by their names.
        layers: all layers of the nodes that have some, by node, outermost first.
        needs_resources: whether a node or router has a parameter for a resource.
        straight: the straight paths of plain nodes, once a run has begun (`runtime.straight`).

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("greet", lambda name: {"text": f"Hi {name}"}).add_path(START, "greet", END)
        >>> program = graph.compile()
        >>> program.graph, program.graph.inputs
        (<graph Graph: greet>, ('name',))
    """

    topology: Topology
    nodes: Mapping[str, Node]
    exits: Mapping[str, tuple[Exit, ...]]
    inputs: tuple[str, ...]
    required: frozenset[str]
    outputs: tuple[str, ...] | None
    frozen: frozenset[str] = frozenset()
    thawed: frozenset[str] = frozenset()
    closed: bool = True
    max_calls: int | None = None
    max_concurrency: int = 32
    keep: frozenset[str] | None = None
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    answer: AnswerSource = no_answer
    migrate: Migrate | None = None
    condensers: Condensers = field(default_factory=dict)
    redaction: Redaction | None = None
    durability: Durability = "sync"
    warn_at: int | None = None
    max_demo_turns: int | None = None
    also: frozenset[str] = frozenset()
    takes: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    named: bool = False
    shares_threads_with: frozenset[str] = frozenset()
    around: tuple[Layer, ...] = ()
    given_layers: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)
    of_runs: tuple[Layer, ...] = ()
    budget: Budget | None = None
    record_lm_calls: Recorded | Choose = "usage"
    attempts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    error_edges: Mapping[str, tuple[ErrorEdge, ...]] = field(default_factory=dict)
    rejecting: Mapping[str, FinderNode] = field(init=False)
    checked: Mapping[str, CheckNode] = field(init=False)
    searches: Mapping[str, Node] = field(init=False)
    layers: Mapping[str, tuple[Layer, ...]] = field(init=False)
    needs_resources: bool = field(init=False)
    straight: Derived = field(init=False, default_factory=Derived)

    def __post_init__(self) -> None:
        parts = (*self.nodes.values(), *self.routers)
        checked = {name: check for check in self.checks.values() for name in (check.of, check.fix) if name is not None}
        object.__setattr__(self, "rejecting", rejecting_of(self.nodes))
        object.__setattr__(self, "checked", checked)
        searches = {name: node for name, node in self.nodes.items() if type(node).trials_in is not Node.trials_in}
        object.__setattr__(self, "searches", searches)
        layers = {name: self._layers_of(name, node) for name, node in self.nodes.items()}
        object.__setattr__(self, "layers", {name: found for name, found in layers.items() if found})
        object.__setattr__(self, "needs_resources", any(part.resources for part in parts))

    def _layers_of(self, name: str, node: Node) -> tuple[Layer, ...]:
        own: list[Layer] = list(self.given_layers.get(name, ()))
        if name in self.interrupt_before:
            own.append(Breakpoints())
        if name in self.error_edges:
            own.append(ErrorEdges(self.error_edges[name]))
        if name in self.condensers:
            own.append(Condense(self.condensers[name]))
        if node.reports_in:
            own.append(Reports(node))
        return ordered(own)

    @property
    def routers(self) -> tuple[Router, ...]:
        """All routers, in the order of declaration."""
        return tuple([way for ways in self.exits.values() for way in ways if not isinstance(way, str)])

    @property
    def checks(self) -> Mapping[str, CheckNode]:
        """The checks, by their names."""
        return checks_of(self.nodes)

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.topology.name

    def lm_call_log(self) -> LMCallLog | None:
        """What records the LM calls of a stored run; None if they are not recorded."""
        recorded = self.record_lm_calls
        return None if recorded == "none" else LMCallLog(recorded, self.redaction is not None)

    @property
    def writes(self) -> tuple[str, ...] | None:
        """The fields that the nodes may write; None if a node does not declare them."""
        fields: dict[str, None] = {}
        for node in self.nodes.values():
            if node.writes is None:
                return None
            fields.update(dict.fromkeys(node.writes.values()))
        for router in self.routers:
            fields.update(dict.fromkeys(router.writes.values()))
        fields.update((edge.into, None) for ways in self.error_edges.values() for edge in ways if edge.into is not None)
        return tuple(fields)

    def explain(self) -> str:
        """The graph in words: what each node reads and writes, where it leads, where rounds begin, what is not checked.

        Returns:
            A text of one line per fact.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("double", lambda n: {"n": 2 * n}, writes=["n"]).add_path(START, "double", END)
            >>> print(graph.compile().graph.explain())
            graph Graph: 1 nodes
              inputs: n
              outputs: every field that is no input
              START: -> double
              double: reads n; writes n; -> END
        """
        return explain(self)

    def to_mermaid(self) -> str:
        """The graph as Mermaid text: routes are labelled, edges that start the next round of a loop are dashed.

        Returns:
            A `flowchart`.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("double", lambda n: {"n": 2 * n}, writes=["n"]).add_path(START, "double", END)
            >>> print(graph.compile().graph.to_mermaid())
            flowchart TD
                START(["START"])
                double_["double"]
                END(["END"])
                START --> double_
                double_ --> END
        """
        return draw_mermaid(self._picture())

    def to_svg(self) -> str:
        """The graph as a picture.

        Returns:
            An SVG document that loads nothing from elsewhere.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("double", lambda n: {"n": 2 * n}, writes=["n"]).add_path(START, "double", END)
            >>> graph.compile().graph.to_svg()[:4]
            '<svg'
        """
        return draw_svg(self._picture())

    def drawing(self) -> GraphDrawing:
        """The picture as data: nodes and edges with their positions."""
        return draw_graph(self._picture())

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self.nodes)}>"

    def _picture(self) -> GraphPicture:
        looks = {name: node.look[:2] for name, node in self.nodes.items()}
        return GraphPicture(self.topology, edge_labels(self), looks)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphSpec:
        return self  # frozen, and shared by all copies of a program


def with_redaction(graph: GraphSpec, redact: Redact, modules: Iterable[dspy.Module]) -> GraphSpec:
    """The same graph, whose errors and merge policies show values only as far as `redact` allows."""
    old = graph.topology
    schemas = [old.schema, *inner_schemas(modules)]
    redaction = Redaction.of(redact, fields_of_items(schemas))
    if redaction is None:
        return graph
    check_redacted_paths(redaction.patterns, schemas)
    joins = {node: redacted_policies(policies, redaction) for node, policies in old.join_policies.items()}
    schema = old.schema.with_show_value(redaction.brief)
    topology = replace(old, schema=schema, policies=redacted_policies(old.policies, redaction), join_policies=joins)
    return replace(graph, topology=topology, redaction=redaction, of_runs=(Redacted(),))


# --- checks at run time


def check_inputs_by_name(graph: GraphSpec, inputs: object) -> None:
    """Refuse inputs that are no mapping from names."""
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return
    name = graph.inputs[0] if graph.inputs else "name"
    wrong = "a dict whose keys are no texts" if isinstance(inputs, Mapping) else with_article(type(inputs).__name__)
    raise InputError(
        f"graph {graph.name!r} takes its inputs as one dict by name: write run({{{name!r}: ...}}); it was given {wrong}"
    )


RUN_OPTIONS: Final = ("budget", "resources", "answers")
"""What a run takes besides its inputs, and what a program called with its inputs by name does not."""


def check_inputs(graph: GraphSpec, inputs: Collection[str], kept: Collection[str] = ()) -> None:
    """Refuse unknown and missing inputs of a run; `kept` fields have a value from earlier runs of the thread."""
    known = graph.inputs
    allowed = {*known, *graph.also}
    if (not graph.closed or allowed.issuperset(inputs)) and not graph.required.difference(inputs, kept):
        return
    extra = [name for name in inputs if name not in allowed] if graph.closed else ()
    problems = []
    if extra:
        hints = "".join(suggestion(name, dict.fromkeys((*known, *sorted(graph.also)))) for name in extra[:3])
        problems.append(
            f"graph {graph.name!r} has no input {list_names(extra)}.{hints} Its inputs are {list_names(known)}; "
            "name others with Graph(inputs=[...])"
        )
        if option := next((name for name in RUN_OPTIONS if name in extra), None):
            problems.append(f"{option} is an option of run, as in program.run({{...}}, {option}=...)")
    missing = [name for name in known if name in graph.required and name not in inputs and name not in kept]
    if missing:
        texts = ", ".join(_missing_text(graph, name, extra) for name in missing[:6])
        texts += f", ... ({len(missing)} in all)" if len(missing) > 6 else ""
        near = "".join(suggestion(name, sorted(graph.also.difference(known))) for name in missing[:3])
        problems.append(f"missing inputs: {texts} (given: {list_names(inputs)}){near and '.' + near}")
    if problems:
        raise InputError(". ".join(problems))


def _missing_text(graph: GraphSpec, field: str, extra: Collection[str]) -> str:
    """A missing input with the nodes that read it.

    A function with one parameter may have meant the whole state; that hint is given only where the run got an input
    that no node reads, and that is no misspelling of the field.
    """
    readers = [name for name, node in graph.nodes.items() if field in (node.reads or {}).values()]
    if not readers:
        return repr(field)
    first, schema = graph.nodes[readers[0]], graph.topology.schema
    alone = not first.kind and len(first.reads or {}) == 1
    other = schema.accepts_any_key and extra and not any(suggestion(name, [field]) for name in extra)
    hint = "; for the state as a whole name the parameter `state`" if alone and other else ""
    return f"{field!r}, read by {list_names(readers)}{hint}"


def check_send(graph: GraphSpec, sender: str, send: Send) -> None:
    """Refuse a `Send` that brings a value which its target does not read."""
    taken = graph.takes.get(send.node)
    if taken is None or SENT in send.overlay or all(map(taken.__contains__, send.overlay)):
        return
    (key, *_) = [key for key in send.overlay if key not in taken]
    field = (graph.nodes[send.node].reads or {}).get(key)
    hint = suggestion(key, taken) if field is None else f" What it calls {key!r} is the field {field!r}: send that."
    if field == key:  # read by ctx.view alone
        hint = f" It is among its reads, but the function does not take it: add a parameter {key!r}, or leave it out."
    raise RouteError(
        f"the Send from node {sender!r} to node {send.node!r} brings {key!r}, which the latter does not read: it "
        f"reads {list_names(sorted(taken)) if taken else 'nothing'}.{hint or ' Leave it out, or read it there.'}"
    )

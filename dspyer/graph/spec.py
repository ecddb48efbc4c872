"""`GraphSpec`, a compiled graph as `program.graph` shows it: topology, nodes, ways out of each node, settings."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import dspy

from dspyer import display
from dspyer.budget import Budget
from dspyer.errors import GraphError, InputError, RouteError, brief, list_names, suggestion, with_article
from dspyer.layers.breakpoints import Breakpoints
from dspyer.layers.condensers import Condense, Condenser
from dspyer.layers.conversations import Conversations
from dspyer.layers.handlers import ErrorEdge, ErrorEdges, Reports
from dspyer.layers.layer import OF_EACH_ITEM, Layer, ordered
from dspyer.layers.redacted import Redacted
from dspyer.lm.parameters import modules_in
from dspyer.log.execution_records import AnswerSource, Choose, LMCallLog, Recorded, no_answer
from dspyer.nodes.callables import class_of
from dspyer.nodes.check import CheckNode, FinderNode, checks_of
from dspyer.nodes.interrupt import InterruptNode
from dspyer.nodes.module import SubgraphNode
from dspyer.nodes.node import SENT, Node, Send
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.router import Router, RouterOptions
from dspyer.nodes.steps import is_program
from dspyer.policies import Pattern, Policies
from dspyer.record.drawn import DrawnGraph
from dspyer.record_codec import decode
from dspyer.redaction import Redact, Redaction
from dspyer.scheduler.topology import END, ERROR_MARK, START, Topology
from dspyer.schema.schema import Schema
from dspyer.schema.type_fit import merge_problem, path_problem
from dspyer.values.scalars import Uncopied, is_whole_number

# --- what a `Graph` was given, and the checks that can be made before it is compiled


# No module of a node may have these names besides those of `dspy.Module`: it becomes an attribute of the program, which
# needs them itself, or DSPy's optimizers set them on it. `save` writes its own entry "metadata" beside the predictors.
_ATTRIBUTES = (
    *("thread", "threads", "recover", "delete", "forward", "aforward", "metadata", "callbacks", "history"),
    *("run", "arun", "stream", "astream", "graph", "with_resources", "with_executor"),
    *("score", "simba_idx", "candidate_programs", "trial_logs", "total_calls", "prompt_model_total_calls"),
    *("mb_candidate_programs", "results_best", "results_latest", "detailed_results", "flag_compilation_error_occurred"),
)


# A class of its own, since () is a tuple that a user may give: it says that no input is required.
class _Needed(tuple[str, ...]):
    """The class of `NEEDED`."""

    __slots__ = ()


NEEDED = _Needed()
"""In place of required inputs: those that a node reads before another node can have written them."""


class GraphOptions(NamedTuple):
    """The options of `Graph(...)`.

    Attributes:
        name: name of the graph.
        named: whether the user gave that name.
        schema: the fields of the state.
        inputs: the fields that a run is given; None to infer them.
        required: the inputs that a run must be given; None for those without a default, `NEEDED` for those that a node
            reads before another node can have written them.
        outputs: the fields that the program returns; None to infer them.
        policies: what a join does with a conflict, by path.
        keep: the fields that last over the runs of a thread; None for all.
        also: further fields that a run may be given. A graph around this one gives it those that `reads=` names.
        conversation: whether its nodes share one.
    """

    name: str
    named: bool
    schema: Schema
    inputs: tuple[str, ...] | None
    required: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    policies: Policies
    keep: frozenset[str] | None
    also: frozenset[str] = frozenset()
    conversation: bool = False


class EdgeDeclaration(NamedTuple):
    """One call of `add_edge`."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


AnyEdge: TypeAlias = EdgeDeclaration | RouterOptions | ErrorEdge


class Declarations(NamedTuple):
    """All that a `Graph` was given; nodes and edges in the order of their declaration.

    Of several error edges of a node the first that fits counts, so their order is a part of the graph.
    """

    options: GraphOptions
    nodes: tuple[NodeOptions, ...]
    edges: tuple[AnyEdge, ...] = ()
    join_policies: Mapping[str, Policies] = MappingProxyType({})


def as_names(names: Iterable[str]) -> tuple[str, ...]:
    """A tuple of names; a single text is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def checked_policies(option: str, spec: object, schema: Schema, otherwise: Policies | None = None) -> Policies:
    """The merge policies that `option` was given; each pattern must name a field, and what can be a conflict in it."""
    policies = Policies.of(spec, otherwise)
    check_fields(option, _fields_named(rule.pattern for rule in policies.rules), [schema])
    for pattern, _ in policies.rules:
        field = schema.fields.get(pattern.field)
        fold: Any = field and field.reducer and (dict[str, str] if field.reducer.keyed else str)  # its conflicts
        if field and (problem := merge_problem(pattern, fold or field.annotation)):
            raise GraphError(f"{option}: {problem}")
    return policies


def check_redacted_paths(patterns: Iterable[Pattern], schemas: Sequence[Schema]) -> None:
    """Refuse patterns of `compile(redact=...)` that can match nothing in the graph, or in a graph inside it."""
    given = tuple(patterns)
    hint = ". To hide what runs with another schema left in a thread, write '**.' before the name"
    check_fields("redact", _fields_named(given), schemas, hint)
    if any(schema.accepts_any_key for schema in schemas):
        return
    # A pattern that hides nothing is an error and no warning: its author takes the value for hidden.
    items = fields_of_items(schemas)
    for pattern in given:
        name = pattern.field
        kinds = [schema.fields[name].annotation for schema in schemas if name in schema.fields]
        problems = [path_problem(pattern, kind, name in items) for kind in kinds]
        if problems and all(problems):
            shown = pattern.segments if pattern.literal else ".".join(pattern.segments)
            raise GraphError(f"redact={shown!r} hides nothing: {problems[0]}")


def fields_of_items(schemas: Iterable[Schema]) -> frozenset[str]:
    """The fields of which an update may be one item of a list, as with the reducers `append` and `add_messages`."""
    folded = [(name, field) for schema in schemas for name, field in schema.fields.items() if field.reducer is not None]
    classes = [(name, class_of(field.annotation)) for name, field in folded]
    return frozenset(name for name, cls in classes if cls is not None and issubclass(cls, list))


def _fields_named(patterns: Iterable[Pattern]) -> list[Any]:
    return list(dict.fromkeys(pattern.field for pattern in patterns if pattern.field is not None))


def check_fields(option: str, names: Iterable[Any], schemas: Sequence[Schema], hint: str = "") -> None:
    """Refuse names that are a field of none of the schemas, unless one accepts any key."""
    if any(schema.accepts_any_key for schema in schemas):
        return
    known = dict.fromkeys(name for schema in schemas for name in schema.fields)
    unknown = [name for name in names if name not in known]
    if unknown:
        inside = " or of a graph inside it" if len(schemas) > 1 else ""
        near = "".join(suggestion(name, known) for name in unknown)
        raise GraphError(
            f"{option} names {list_names(unknown)}, no field of the schema{inside}.{near} Fields: {list_names(known)}"
            f"{hint}"
        )


def checked_edge_ends(nodes: str | Sequence[str]) -> tuple[str, ...]:
    """The names at one end of an edge; functions and anything else that is no name are refused."""
    names = (nodes,) if isinstance(nodes, str) or not isinstance(nodes, Sequence) else tuple(nodes)
    given: tuple[Any, ...] = names
    # The most frequent slip, since other libraries take the function itself: the message shows both lines to write.
    for function in given:
        if callable(function) and hasattr(function, "__name__"):
            name = function.__name__
            raise GraphError(
                f"an edge goes between names of nodes: add the function with add_node({name}) and write {name!r} here"
            )
    if not names or not all(isinstance(name, str) for name in names):
        raise GraphError(
            f"an edge goes between names of nodes, not {nodes!r}; add the node with add_node and use its name"
        )
    return names


def check_name(name: str, known: Collection[str]) -> None:
    """Refuse a name of a new node that is no identifier, reserved or taken."""
    given: Any = name
    if not isinstance(given, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise GraphError(
            f"{brief(given)} is no name for a node: names are identifiers, since nodes become attributes of the program"
        )
    # A leading underscore is how programs mark attributes of their own.
    if name in (START, END) or name.startswith("_"):
        own = "the ends of a graph, and the program's own attributes with a leading underscore, have such names"
        raise GraphError(f"{name!r} cannot name a node: {own}; choose another, like {name.strip('_') + '_node'!r}")
    if name in known:
        raise GraphError(f"there is a node {name!r} already: give this one another name")


def attribute_problems(names: Iterable[str]) -> list[str]:
    """The names of modules of a program that cannot be its attributes."""
    return [
        f"no module of the graph can be called {name!r}: it becomes program.{name}, which DSPy or the program needs "
        f"itself. Give its node or router another name, like {name + '_node'!r}"
        for name in names
        if name in _ATTRIBUTES or hasattr(dspy.Module, name)
    ]


def check_one_name(**options: object) -> None:
    """Refuse options that take one name and got something else, such as a list of names or a function."""
    for option, given in options.items():
        if not isinstance(given, str):
            raise GraphError(f"{option}={brief(given)}: give one name, {option}='...'")


def check_limits(**limits: object) -> None:
    """Refuse limits that are no whole number of at least 1."""
    for name, limit in limits.items():
        if not is_whole_number(limit) or limit < 1:
            raise GraphError(f"{name}={limit!r}: it must be a whole number of at least 1")


_OF_PREDICTIONS = frozenset(dir(dspy.Prediction))


def flaws_of(graph: GraphSpec) -> Iterator[str]:
    """Warnings about a graph that can run, for its author."""
    if shadowed := sorted(_OF_PREDICTIONS.intersection(graph.outputs or ())):
        yield (
            f"dspy.Prediction has methods called {', '.join(shadowed)}: read these outputs as "
            f"prediction[{shadowed[0]!r}], or rename the fields"
        )
    for name, node in graph.nodes.items():
        for into in filter(graph.lasts, node.writes or ()) if isinstance(node, InterruptNode) else ():
            yield (
                f"add_interrupt({name!r}, into={into!r}): the field lasts over the runs of a thread, so each run "
                "begins with the answer to the question of an earlier one. Take a field that lives for one run"
            )
        inside = node.inner or node
        if not isinstance(inside, SubgraphNode):
            continue
        inner, shared = graph.inner[name], {} if inside.shared is None else inside.shared.names
        if "wait_for_posts" in inner.nodes and not (inside.shared and inside.shared.reads):
            yield (
                f"node {name!r} reads no live field, so that `wait_for_posts` of its agent returns at once: "
                f"add_node({name!r}, ..., reads=[...])"
            )
        for own in inner.topology.schema.live_fields:
            if own in graph.topology.schema.live_fields and own not in shared:
                yield (
                    f"the graph of node {name!r} has a live field {own!r} of its own: the one of this graph is "
                    "another, since the node neither reads nor writes it, or its program has an executor. Name it, "
                    f"add_node({name!r}, ..., reads=[...], writes=[...]), or rename one"
                )


# --- a graph in words, and the labels of its edges


def explain(graph: GraphSpec) -> str:
    """The graph in words, one line per fact: nodes with reads, writes and targets, loops, stops, shared fields."""
    topology = graph.topology
    inputs = [name if name in graph.required else f"{name} (optional)" for name in graph.inputs]
    outputs = "every field that is no input" if graph.outputs is None else ", ".join(graph.outputs)
    lines = [f"graph {graph.name}: {len(graph.nodes)} nodes"]
    lines.append(f"  inputs: {', '.join(inputs) or 'none'}")
    lines.append(f"  outputs: {outputs}")
    if graph.keep is None or graph.keep:
        lasting = "every field" if graph.keep is None else ", ".join(sorted(graph.keep))
        lines.append(f"  lasts over the runs of a thread: {lasting}")
    given, bare = _joined(_router_labels(graph)), {"True", "False", "None"}  # by source and target; these are no texts
    labels = {edge: label if bare.issuperset(label.split(", ")) else repr(label) for edge, label in given.items()}
    for name in (START, *graph.nodes):
        node = graph.nodes.get(name)
        facts = [] if node is None else [f"reads {_fields(node.reads)}", f"writes {_fields(node.writes)}"]
        targets = [_target(graph, name, one, labels.get((name, one), "")) for one in topology.own_targets(name)]
        facts.append(f"-> {', '.join(targets)}")
        # From the inside out, as what happens to a call is read: a timeout, then the retry of it.
        each = " per item" if node is not None and node.mapped is not None else ""
        facts += [
            f"{layer.note}{each if layer.place in OF_EACH_ITEM else ''}"
            for layer in reversed(graph.given_layers.get(name, ()))
            if layer.note
        ]
        if node is not None and node.look.note:
            facts.append(node.look.note)
        for edge in graph.error_edges.get(name, ()):
            fact = "" if edge.into is None else f"the failure into {edge.into}"
            facts.append(f"on {edge.condition} -> {_target(graph, name, edge.target, fact)}")
        lines.append(f"  {name}: {'; '.join(facts)}")
    lines.extend(
        f"  loop of {', '.join(loop.nodes)}: a round begins at {', '.join(loop.heads)}"
        for loop in topology.rounds.loops
    )
    stops = [(word, graph.stops(word)) for word in ("before", "after")]
    lines.extend(f"  stops {word} {', '.join(names)}" for word, names in stops if names)
    lines.extend(
        f"  several writers: {written} is written by {', '.join(writers)}; the last one's value stays"
        + (", in parallel the merge policy decides" if topology.has_policy(written) else "")
        for written, writers in _overwritten_fields(graph).items()
    )
    lines.extend(
        f"  retries multiply: {path} is called up to {' x '.join(map(str, attempts))} times"
        for path, attempts in graph.attempts.items()
        if len(attempts) > 1
    )
    lines.extend(_hiding(graph))
    unknown = [name for name, node in graph.nodes.items() if node.writes is None]
    if unknown:
        lines.append(
            f"  not checked: what is written by {', '.join(unknown)} is not declared, so parallel writers and unset "
            "reads are found when they happen; declare it with writes=[...]"
        )
    return "\n".join(lines)


def _hiding(graph: GraphSpec) -> Iterator[str]:
    """The lines about what is hidden, and what is not: what a node makes of a hidden value is a new value."""
    redaction = graph.redaction
    if redaction is None:
        return
    if not redaction.patterns:
        yield "  hidden: what a function decides by path"
        return
    yield f"  hidden: {', '.join(['.'.join(map(str, one.segments)) for one in redaction.patterns])}"
    whole = {one.segments[0] for one in redaction.patterns if len(one.segments) == 1}
    derived: dict[str, list[str]] = {}
    for name, node in graph.nodes.items():
        if node.reads is None or any(map(redaction.names, node.reads.values())):
            for field in {"?": ""} if node.writes is None else dict.fromkeys(node.writes.values()):
                derived.setdefault(field, []).append(name)
    told = [f"{field} by {', '.join(nodes)}" for field, nodes in derived.items() if field not in whole]
    if told:
        yield f"  not hidden: what nodes make of it, {'; '.join(told)}"


def drawing_facts(graph: GraphSpec) -> dict[str, Any]:
    """Facts of a graph and of those inside of it for readers of its runs: the JSON form of a `DrawnGraph`."""
    mapped = {name: found for name, node in graph.nodes.items() if (found := node.mapped) is not None}
    gives = {name: dict(node.predicted) for name, node in graph.nodes.items() if node.predicted is not None}
    return {
        "name": graph.name,
        "looks": {name: list(node.look[:2]) for name, node in graph.nodes.items()},
        "edges": [edge._asdict() for edge in graph.topology.edges],
        "labels": [[list(edge), label] for edge, label in edge_labels(graph).items()],
        "inputs": list(graph.inputs),
        "fields": [shape.to_dict() for shape in graph.topology.schema.field_shapes],
        "text": explain(graph),
        "checks": {
            name: {"fix": one.fix, "into": one.into, "modes": list(one.modes)} for name, one in graph.rejecting.items()
        },
        "maps": {
            name: {"into": one.into, "failures": one.failures, "over": one.over, "item": one.item}
            for name, one in mapped.items()
        },
        "reads": {
            name: dict(graph.nodes[name].sources) for name in (*gives, *(graph.inner.keys() & graph.nodes.keys()))
        },
        "gives": gives,
        "lists": sorted(fields_of_items([graph.topology.schema])),
        "failures": {name: list(fields) for name in graph.nodes if (fields := graph.failure_fields(name))},
        "inner": {name: drawing_facts(inner) for name, inner in graph.inner.items()},
    }


def edge_labels(graph: GraphSpec) -> dict[tuple[str, str], str]:
    """The labels of edges in a picture: those of routers, and after a cross what an error edge takes."""
    found = _router_labels(graph)
    for source, edges in graph.error_edges.items():
        for edge in edges:
            found.setdefault((source, edge.target), []).append(f"{ERROR_MARK} {edge.condition}")
    return _joined(found)


def _router_labels(graph: GraphSpec) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for source, ways in graph.exits.items():
        for way in ways:
            if not isinstance(way, str):
                for target, text in way.labels.items():
                    found.setdefault((source, target), []).append(text)
    return found


def _joined(labels: Mapping[tuple[str, str], list[str]]) -> dict[tuple[str, str], str]:
    return {edge: ", ".join(texts) for edge, texts in labels.items()}


def _target(graph: GraphSpec, name: str, target: str, fact: str) -> str:
    facts = [fact] if fact else []
    facts += ["next round"] if graph.topology.rounds.goes_back(name, target) else []
    return f"{target} ({', '.join(facts)})" if facts else target


def _fields(names: Mapping[str, str] | None) -> str:
    if names is None:
        return "?"
    return ", ".join(field if own == field else f"{field} (as {own})" for own, field in names.items()) or "nothing"


def _overwritten_fields(graph: GraphSpec) -> dict[str, list[str]]:
    """The fields in which one node's value replaces another one's, with their writers."""
    schema = graph.topology.schema
    merged = {name for name, found in schema.fields.items() if found.reducer is not None or found.patches_by_key}
    writers: dict[str, list[str]] = {}
    # A fix writes what its node writes: that is its purpose, and no second writer to be warned of.
    fixes = {check.fix for check in graph.checks.values()}
    for name, node in graph.nodes.items():
        own = () if name in fixes else (node.writes or {}).values()
        failures = [edge.into for edge in graph.error_edges.get(name, ()) if edge.into is not None]
        for written in dict.fromkeys((*own, *failures)):
            writers.setdefault(written, []).append(name)
    return {written: names for written, names in writers.items() if len(names) > 1 and written not in merged}


Exit = str | Router
"""A way out of a node: the target of an edge, or a router."""


class Derived(dict[str, Any]):
    """Functions that are made of a graph when it first runs: no pickle can hold them, and they are made again."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Derived], tuple[()]]:
        return Derived, ()


@dataclass(frozen=True, slots=True, eq=False)
class GraphSpec(Uncopied):
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
        max_concurrency: most nodes of one run that work at the same time; that of the outermost program counts.
        keep: the fields that last over the runs of a thread; None for all.
        answer: answers questions as they are asked.
        condensers: the modules that shorten what nodes write, by node and field.
        redaction: what is hidden of the values that leave a run.
        conversations: what is done with conversations besides keeping them.
        also: what a run may be given besides its inputs: fields that a node reads or writes and that need no value.
        takes: for each node, the names that a `Send` may bring, for it or its routers; None for any.
        named: whether the graph was given a name.
        budget: what a run may spend, unless the call gives another budget; None for no limit.
        listeners: the paths of the agents that messages to a thread can name, `"team/lead"`; `""` for the graph itself.
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
        inner: the graphs inside of it, by the attribute of the program that has one.
        derived: what its runs share once one has begun: the straight paths of plain nodes, and layers without parts.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("greet", lambda name: {
        ...     "text": f"Hi {name}"}).add_path(START, "greet", END)
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
    max_concurrency: int = 32
    keep: frozenset[str] | None = frozenset()
    answer: AnswerSource = no_answer
    condensers: Mapping[str, Mapping[str, Condenser]] = field(default_factory=dict)
    redaction: Redaction | None = None
    conversations: Conversations = field(default_factory=Conversations)
    also: frozenset[str] = frozenset()
    takes: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    named: bool = False
    around: tuple[Layer, ...] = ()
    given_layers: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)
    of_runs: tuple[Layer, ...] = ()
    budget: Budget | None = None
    listeners: tuple[str, ...] = ()
    record_lm_calls: Recorded | Choose = "usage"
    attempts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    error_edges: Mapping[str, tuple[ErrorEdge, ...]] = field(default_factory=dict)
    inner: Mapping[str, GraphSpec] = field(default_factory=dict)
    rejecting: Mapping[str, FinderNode] = field(init=False)
    checked: Mapping[str, CheckNode] = field(init=False)
    searches: Mapping[str, Node] = field(init=False)
    layers: Mapping[str, tuple[Layer, ...]] = field(init=False)
    needs_resources: bool = field(init=False)
    derived: Derived = field(init=False, default_factory=Derived)

    def __post_init__(self) -> None:
        parts = (*self.nodes.values(), *self.routers)
        checked = {name: check for check in self.checks.values() for name in (check.of, check.fix) if name is not None}
        # Derived once: each run asks for them, and `replace` makes them again from what it has changed.
        rejecting = {name: node for name, node in self.nodes.items() if isinstance(node, FinderNode)}
        object.__setattr__(self, "rejecting", rejecting)
        object.__setattr__(self, "checked", checked)
        searches = {name: node for name, node in self.nodes.items() if type(node).trials_in is not Node.trials_in}
        object.__setattr__(self, "searches", searches)
        layers = {name: self._layers_of(name, node) for name, node in self.nodes.items()}
        object.__setattr__(self, "layers", {name: found for name, found in layers.items() if found})
        object.__setattr__(self, "needs_resources", any(part.resources for part in parts))

    def _layers_of(self, name: str, node: Node) -> tuple[Layer, ...]:
        own: list[Layer] = list(self.given_layers.get(name, ()))
        # The order here hardly counts: `ordered` sorts by place, and keeps it within one.
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

    def stops(self, word: str) -> list[str]:
        """The nodes `"before"` or `"after"` which runs stop to ask."""
        return [
            name
            for name, layers in self.given_layers.items()
            if any(isinstance(one, Breakpoints) and name in getattr(one, word) for one in layers)
        ]

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.topology.name

    @property
    def hidden(self) -> list[Any] | str | None:
        """The redaction of its values, as the header of a run says it; None for nothing."""
        return None if self.redaction is None else self.redaction.told

    @property
    def recorded(self) -> str:
        """The amount that is recorded of LM calls, as the header of a run says it."""
        return self.record_lm_calls if isinstance(self.record_lm_calls, str) else "function"

    def failure_fields(self, node: str) -> tuple[str, ...]:
        """The fields that may get a failure of a node: those of its error edges, and those in which it reports one."""
        edges, found = self.error_edges.get(node, ()), self.nodes.get(node)
        return (*[edge.into for edge in edges if edge.into is not None], *(() if found is None else found.reports_in))

    def lasts(self, field: str) -> bool:
        """Return whether a field has the value of the run before when a run of a thread begins."""
        return self.keep is None or field in self.keep

    @property
    def of_around(self) -> frozenset[str]:
        """The fields that a graph around it may give besides its inputs: both may have live fields in common."""
        return self.also.union(self.topology.schema.live_fields).difference(self.inputs)

    def lm_call_log(self) -> LMCallLog | None:
        """The log of the LM calls of a stored run; None if they are not recorded."""
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
            >>> graph = Graph().add_node("double", lambda n: {"n": 2 * n},
            ...     writes=["n"]).add_path(START, "double", END)
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
            >>> graph = Graph().add_node("double", lambda n: {"n": 2 * n},
            ...     writes=["n"]).add_path(START, "double", END)
            >>> print(graph.compile().graph.to_mermaid())
            flowchart TD
                START(["START"])
                double_["double"]
                END(["END"])
                START --> double_
                double_ --> END
        """
        return display.draw_mermaid(self.drawn)

    def to_svg(self) -> str:
        """The graph as a picture.

        Returns:
            An SVG document that loads nothing from elsewhere.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("double", lambda n: {"n": 2 * n},
            ...     writes=["n"]).add_path(START, "double", END)
            >>> graph.compile().graph.to_svg()[:4]
            '<svg'
        """
        return display.draw_svg(self.drawn)

    def drawing(self) -> display.GraphDrawing:
        """The picture as data: nodes and edges with their positions."""
        return display.drawing_of(self.drawn)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self.nodes)}>"

    @property
    def drawn(self) -> DrawnGraph:
        """The graph as its runs store it: pictures and records know no more."""
        return decode(DrawnGraph, drawing_facts(self))


def with_redaction(graph: GraphSpec, redact: Redact, modules: Iterable[dspy.Module]) -> GraphSpec:
    """The same graph, whose errors and merge policies show values only as far as `redact` allows."""
    old = graph.topology
    # Graphs inside have schemas of their own, and a pattern may name a field of theirs alone.
    inside: dict[int, Any] = {id(part): part for module in modules for _, part in modules_in(module)}
    schemas = [old.schema, *(part.graph.topology.schema for part in inside.values() if is_program(part))]
    redaction = Redaction.of(redact, fields_of_items(schemas))
    if redaction is None:
        return graph
    check_redacted_paths(redaction.patterns, schemas)
    shown = redaction.brief
    joins = {node: replace(policies, show_value=shown) for node, policies in old.join_policies.items()}
    own, schema = replace(old.policies, show_value=shown), old.schema.with_show_value(shown)
    topology = replace(old, schema=schema, policies=own, join_policies=joins)
    return replace(graph, topology=topology, redaction=redaction, of_runs=(*graph.of_runs, Redacted()))


# --- checks at run time


def check_inputs_by_name(graph: GraphSpec, inputs: object) -> None:
    """Refuse inputs that are no mapping from names."""
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return
    # The most frequent slip is `run(question=...)` or `run("...")`: the message shows the line to write.
    name = graph.inputs[0] if graph.inputs else "name"
    wrong = "a dict whose keys are no texts" if isinstance(inputs, Mapping) else with_article(type(inputs).__name__)
    raise InputError(
        f"graph {graph.name!r} takes its inputs as one dict by name: write run({{{name!r}: ...}}); it was given {wrong}"
    )


TO_KEEP: Final = (
    "a run begins with its inputs and the defaults of all other fields. What is to last over the runs of a thread is "
    "declared `Kept[...]` in the schema, or named in Graph(keep=[...])"
)

RUN_OPTIONS: Final = ("budget", "resources", "answers")
"""What a run takes besides its inputs, and what a program called with its inputs by name does not."""


def check_inputs(
    graph: GraphSpec,
    inputs: Collection[str],
    kept: Collection[str] = (),
    before: Collection[str] = (),
    inside: bool = False,
) -> None:
    """Refuse unknown and missing inputs of a run, which may be `inside` of a node.

    `kept` fields have a value from earlier runs of the thread; `before` are all that the last one had.
    """
    known = graph.inputs
    allowed = {*known, *(graph.of_around if inside else graph.also)}
    # Most inputs are right: this is the only work of the straight path, and the rest words a mistake.
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
        if lost := [name for name in missing if name in before]:
            problems.append(f"The last run of the thread had {list_names(lost)}: {TO_KEEP}")
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
    # A value that nothing reads is a misspelled name: the target would run with the field of the state instead.
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

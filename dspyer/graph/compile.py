"""`compile_graph`: from the declarations of a graph to its `GraphSpec`, with all problems reported at once.

The nodes and routers are built first. What cannot be built hides nothing from the checks of the graph as a whole: a
node that was not built may write any field, and a router without known targets may lead to any node.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast, get_origin

import dspy

from dspyer.errors import GraphError, list_names, suggestion
from dspyer.graph.checks import (
    build_checks,
    error_edge_problems,
    fix_name,
    follow_checks,
    handler_problems,
    unfilled_problems,
)
from dspyer.graph.spec import (
    NEEDED,
    AnyEdge,
    Declarations,
    EdgeDeclaration,
    Exit,
    GraphOptions,
    GraphSpec,
    attribute_problems,
    flaws_of,
)
from dspyer.layers.attempts import NodeLM, Retry, Timeout
from dspyer.layers.breakpoints import Breakpoints
from dspyer.layers.cache import node_cache
from dspyer.layers.condensers import Condenser, plan_condenser
from dspyer.layers.conversations import Conversations, Inbox
from dspyer.layers.handlers import ErrorEdge
from dspyer.layers.layer import Layer, checked_layers, ordered
from dspyer.layers.live import LiveFields
from dspyer.lm.parameters import enable_templates, enable_warnings, modules_in, predictors_in, shorten_demos
from dspyer.lm.source import Show, graph_text
from dspyer.log.execution_records import no_answer
from dspyer.nodes.build import build_node
from dspyer.nodes.callables import members
from dspyer.nodes.check import CheckOptions, checks_of
from dspyer.nodes.field_access import author_problems
from dspyer.nodes.function import may_return_command
from dspyer.nodes.interrupt import interrupts_of
from dspyer.nodes.node import Built, Node
from dspyer.nodes.options import KindOptions, NodeOptions, OfGraph
from dspyer.nodes.router import Router, RouterOptions, build_router
from dspyer.nodes.steps import is_program
from dspyer.patch import DELETE
from dspyer.policies import Policies
from dspyer.scheduler.lineage import UPDATE_AUTHOR
from dspyer.scheduler.schedule import NODE_VALUES, RUN_VALUES, is_counted, run_value_problem
from dspyer.scheduler.topology import (
    END,
    START,
    Edge,
    GraphFacts,
    Rounds,
    Topology,
    WritesBefore,
    check_parallel_writers,
    check_paths,
    check_reads,
    check_targets,
    repaired_edges,
    unset_reads,
    unwritten_reason,
    with_missing_starts,
)
from dspyer.templates import RUN

_DECLARE_SEND = (
    " If a Send brings it that is made in another function, declare that in the return annotation of the router, "
    "`-> list[Send]`, or of the node, `-> Command[Send]`."
)


def compile_graph(
    declared: Declarations,
    max_steps: int,
    counts_all: bool,
    retry: Retry | None,
    layers: Sequence[Layer],
    **settings: Any,
) -> tuple[GraphSpec, dict[str, dspy.Module]]:
    """The graph, and the modules of its program by attribute; raises `GraphError` with every problem of the graph.

    `settings` are fields of `GraphSpec` that need no check against the rest of the graph.
    """
    options, parts = declared.options, _build_parts(declared)
    problems = parts.problems
    problems += attribute_problems(parts.modules)
    problems += _author_problems(parts)
    problems += _policy_problems(parts, (options.policies, *declared.join_policies.values()))
    problems += parts.unsent_problems()
    edges = tuple(parts.edges())
    topology = Topology(
        options.name,
        parts.names,
        edges,
        options.schema,
        options.policies,
        declared.join_policies,
        max_steps,
        frozenset() if counts_all else frozenset(name for name, node in parts.nodes.items() if node.bounded),
        Rounds((START, *parts.names, END), repaired_edges(edges, parts.names)),
    )
    # All checks run although an earlier one has found something: a user mends a graph once, and not problem by problem.
    _check(parts, topology)
    problems += _breakpoint_problems(parts, layers)
    # It is given as a layer, like what else concerns all nodes, but changes predictors when the program is made.
    conversations = next((one for one in layers if isinstance(one, Conversations)), Conversations())
    layers = [one for one in layers if not isinstance(one, Conversations)]  # what it asks for is done by `compile`
    if conversations.warn_at is not None and not any(node.conversations for node in parts.nodes.values()):
        problems.append(
            "warn_at: no node commits turns that a warning could stand in: give the schema a field of Messages and "
            'a module node writes=[..., "messages"], or show it {run.remaining}'
        )
    problems += _executor_problems(parts.modules)
    problems += _lm_problems(declared.nodes, parts)
    # Before the problems are raised: a function without a key for its cache is one of them.
    given = _given_layers(parts, retry, layers)
    if problems:
        raise GraphError(problems)
    optional, exits = _optional_inputs(parts), {source: tuple(ways) for source, ways in parts.exits.items()}
    listeners = _listeners(parts)
    spec = GraphSpec(
        topology,
        parts.nodes,
        exits,
        parts.inputs,
        parts.required,
        _declared_outputs(parts),
        frozen=parts.attributes(True),
        thawed=parts.attributes(False),
        closed=optional is not None,
        also=optional or frozenset(),
        keep=options.keep,
        conversations=conversations,
        condensers=parts.condensers,
        takes={name: _taken(node, exits[name]) for name, node in parts.nodes.items()},
        named=options.named,
        around=(LiveFields(),) if topology.schema.live_fields else (),
        given_layers=given,
        of_runs=(Inbox(),) if listeners else (),
        listeners=listeners,
        attempts=_attempts(parts, given),
        # In the order of declaration, in which the first match wins.
        error_edges={one.source: tuple([e for e in parts.errors if e.source == one.source]) for one in parts.errors},
        inner={name: module.graph for name, module in parts.modules.items() if is_program(module)},
        **settings,
    )
    for text in (*parts.warnings, *flaws_of(spec)):
        warnings.warn(f"graph {options.name!r}: {text}", stacklevel=4)  # the line of the user that calls `compile`
    return spec, parts.modules


# --- building nodes, routers and condensers


@dataclass
class GraphParts:
    """The parts of a graph as they are built and checked, with all problems that are found.

    What cannot be built is missing in `nodes` and `exits`; its options stay, for the checks of the whole. What is
    cached is asked for by these checks alone, when all parts are built.

    Attributes:
        warnings: what its author should look at, though the graph can run.
        lost: the routers that could not be built.
        modules: the modules of the program by attribute.
        unsent: by node, what is wrong unless a `Send` brings the missing values.
        inputs: the fields that a run may be given, and `required` those that it must be given; `_check` finds both.
    """

    graph: GraphOptions
    options: list[NodeOptions]
    errors: list[ErrorEdge]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    exits: dict[str, list[Exit]] = field(default_factory=dict)
    lost: list[RouterOptions] = field(default_factory=list)
    condensers: dict[str, dict[str, Condenser]] = field(default_factory=dict)
    modules: dict[str, dspy.Module] = field(default_factory=dict)
    unsent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()

    def add(self, name: str, built: Built) -> None:
        """Add a node that was built, or the reasons why it was not."""
        self.problems.extend(built.problems)
        self.unsent[name] = built.unknown
        if built.node is not None:
            self.nodes[name] = built.node
        if built.module is not None:
            self.modules[name] = built.module
        self.modules.update(built.more)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.options)

    @cached_property
    def routers(self) -> list[tuple[str, Router]]:
        """The routers, each with the node that it follows."""
        return [(source, way) for source, ways in self.exits.items() for way in ways if isinstance(way, Router)]

    def all_condensers(self) -> list[tuple[str, Node]]:
        """The condensers, each with its node."""
        return [(node, part) for node, parts in self.condensers.items() for part in parts.values()]

    def edges(self) -> list[Edge]:
        """All edges, each pair of nodes once; an edge is conditional unless one declaration of it is not.

        Error edges come last: they are edges of their own, also between nodes that another edge connects.
        """
        found: dict[tuple[str, str], Edge] = {}
        for source, ways in self.exits.items():
            for way in ways:
                for target in (way,) if isinstance(way, str) else way.goto:
                    known = found.get((source, target))
                    conditional = not isinstance(way, str) and (known is None or known.conditional)
                    found[source, target] = Edge(source, target, conditional)
            # A `Command` may go anywhere that its node declares, so an edge to the same place stays unconditional.
            node = self.nodes.get(source)
            for target in node.goto if node is not None else ():
                found.setdefault((source, target), Edge(source, target, True))
        caught = [Edge(one.source, one.target, True, True, one.into) for one in self.errors]
        return [*found.values(), *dict.fromkeys(caught)]

    @cached_property
    def writers(self) -> list[Collection[str] | None]:
        """The fields that each node, router and error edge writes; None for unknown."""
        return [
            *(None if node.writes is None else node.writes.values() for node in self.nodes.values()),
            *(router.writes.values() for _, router in self.routers),
            *((edge.into,) for edge in self.errors if edge.into is not None),
        ]

    @cached_property
    def written(self) -> set[str]:
        """All fields that are known to be written."""
        return {name for fields in self.writers for name in fields or ()}

    @cached_property
    def sent(self) -> set[str]:
        """The nodes that a `Send` may start, whose inputs may come with it."""
        found = {target for node in self.nodes.values() if node.sends for target in node.goto}
        found.update(target for _, router in self.routers if router.sends for target in router.goto)
        found.update(name for router in self.lost if router.may_send for name in router.known_targets or self.names)
        # A check sees what was sent to the node that it checks.
        found.update([name for name, node in checks_of(self.nodes).items() if node.of in found])
        return found

    def sent_in_parallel(self) -> set[str]:
        """The nodes that several `Send`s may start at once: a fix is sent one at a time, unless its node is."""
        sent = self.sent
        # Each check sends to its fix, but the next Send comes when the fix has been checked.
        alone = {node.fix for node in checks_of(self.nodes).values() if node.of not in sent}
        return sent - alone

    def unsent_problems(self) -> list[str]:
        """Missing values of the nodes that no `Send` starts."""
        sent = self.sent
        routed = {target for _, router in self.routers for target in router.goto}
        routed |= {target for node in self.nodes.values() for target in node.goto}
        return [
            f"{text}{_DECLARE_SEND if name in routed else ''}"
            for name, texts in self.unsent.items()
            if name not in sent
            for text in texts
        ]

    def attributes(self, frozen: bool) -> frozenset[str]:
        """The program's attributes of the nodes whose option `frozen` is this, and those that always are."""
        found = {
            name
            for node in self.options
            if node.frozen is frozen
            for name in (node.name, *(each.name for each in self.condensers.get(node.name, {}).values()))
        }
        if frozen:
            found.update(name for node in self.nodes.values() for name in node.frozen_modules)
        return frozenset(found)


def _build_parts(declared: Declarations) -> GraphParts:
    """Build all nodes, routers and condensers."""
    edges = declared.edges
    parts = GraphParts(declared.options, list(declared.nodes), [edge for edge in edges if isinstance(edge, ErrorEdge)])
    for options in declared.nodes:
        if not isinstance(options.node, CheckOptions):
            parts.add(options.name, build_node(options))
    # Checks come last: a check needs the node that it checks, wherever that was declared.
    build_checks(parts)
    parts.exits = {name: [] for name in (START, *parts.names)}
    for edge in edges:
        if isinstance(edge, EdgeDeclaration):
            for source in edge.sources:
                parts.exits.setdefault(source, []).extend(edge.targets)
        elif isinstance(edge, RouterOptions):
            _build_router(edge, parts)
    follow_checks(parts)  # when all exits are known: those of a checked node become those of its check
    _build_condensers(parts)
    return parts


def _build_router(options: RouterOptions, parts: GraphParts) -> None:
    built = build_router(options, parts.graph.schema)
    parts.problems += built.problems
    if not isinstance(built.node, Router):
        parts.lost.append(options)
        return
    parts.exits.setdefault(options.source, []).append(built.node)
    if built.module is not None:
        name = str(built.node.module_name)
        if name in parts.modules or name in parts.exits:
            parts.problems.append(
                f"two parts of the graph are called {name!r}: give the router at {options.source!r} a name="
            )
        parts.modules[name] = built.module


def _build_condensers(parts: GraphParts) -> None:
    """Build the modules that shorten what nodes write."""
    for node in parts.options:
        if not node.condense or node.name not in parts.nodes:
            continue
        given: Any = node.condense
        if not isinstance(given, Mapping):
            parts.problems.append(f"node {node.name!r}: condense takes a dict from fields to modules")
            continue
        for name, module in given.items():
            try:
                condenser, wrong = plan_condenser(node.name, name, module, node.schema, parts.nodes[node.name].writes)
            except GraphError as error:
                parts.problems += error.problems
                continue
            parts.problems += wrong
            if condenser.name in parts.modules or condenser.name in parts.nodes:
                parts.problems.append(f"two parts of the graph are called {condenser.name!r}: rename the other one")
            parts.modules[condenser.name] = module
            parts.condensers.setdefault(node.name, {})[name] = condenser


# --- checks of the graph as a whole


def _check(parts: GraphParts, topology: Topology) -> None:
    """Find the inputs of a run, and what is wrong with the graph."""
    options, names, problems = parts.graph, parts.names, parts.problems
    schema = options.schema
    # The edges that a lost router may have: nothing is unreachable because of a router that is wrong itself.
    ways = [(router.source, target) for router in parts.lost for target in router.known_targets or (*names, END)]
    lost = [edge for edge in (Edge(source, target, True) for source, target in ways) if edge not in topology.edges]
    # Without exits they look like dead ends, and what they lack is a `goto=`.
    commands = [
        name
        for name, node in parts.nodes.items()
        if not parts.exits[name] and not node.goto and may_return_command(node)
    ]
    others = {str(router.module_name): f"the router of {source!r}" for source, router in parts.routers}
    others |= {part.name: f"a condenser of {node!r}" for node, part in parts.all_condensers()}
    hints = {
        name: f" It is {kind}, whose errors no error edge takes.{suggestion(name, names)}"
        for name, kind in others.items()
        if name not in names
    }
    facts = GraphFacts(names, (*topology.edges, *lost), {}, {}, {}, (), (), (), commands, hints)
    problems += check_targets(facts)
    # Each check continues with edges repaired as the problems found so far suggest: one mistake is reported once.
    repaired = topology.rounds.edges
    facts = facts._replace(edges=tuple(repaired_edges(facts.edges, names)) if lost else repaired)
    problems += check_paths(facts)
    facts = facts._replace(edges=tuple(with_missing_starts(facts.edges, names)))
    _declare_inputs(parts, facts.edges)
    facts = _complete_facts(facts, parts, topology)
    if options.required is NEEDED:
        # Twice: what must be given depends on what is unset without it, and that on what is given.
        parts.required = frozenset(name for _, name in unset_reads(facts) if name in facts.left_out)
        facts = _complete_facts(facts, parts, topology)
    # Only edges that exist for certain: an edge of a lost router must not make two writers parallel.
    problems += check_parallel_writers(facts._replace(edges=repaired), topology.rounds)
    if options.inputs is not None or options.required is not None or not schema.accepts_any_key:
        problems += check_reads(facts)
    problems += error_edge_problems(parts.errors, schema, parts.sent_in_parallel(), partial(_merges, topology))
    if not parts.lost and None not in facts.writes.values():
        problems += unfilled_problems(parts.errors, schema, parts.nodes, parts.written.union(options.inputs or ()))
    problems += handler_problems(parts.nodes, parts.errors)
    problems += _output_problems(parts)
    problems += _live_problems(parts)
    problems += _template_problems(parts, facts)


def _complete_facts(facts: GraphFacts, parts: GraphParts, topology: Topology) -> GraphFacts:
    """The facts with forks, reads, writes and the fields that are set from the start."""
    schema, nodes, sent = parts.graph.schema, parts.nodes, parts.sent
    forks = {
        source: [(way,) if isinstance(way, str) else way.goto for way in ways] for source, ways in parts.exits.items()
    }
    # What a `Send` may bring need not have been written before.
    reads = {
        name: [one for one in (node.reads or {}).values() if one not in node.optional]
        for name, node in nodes.items()
        if name not in sent
    }
    writes = _node_writes(parts)
    given = {name for name in schema.fields if not schema.fields[name].required}
    given |= set(parts.inputs) if parts.graph.required is None else parts.required
    written = {one for fields in writes.values() for one in fields or ()} if schema.accepts_any_key else schema.fields
    folded = {one for one in written if _merges(topology, one)}
    return facts._replace(
        forks=forks, reads=reads, writes=writes, given=given, folded=folded, left_out=set(parts.inputs) - given
    )


def _node_writes(parts: GraphParts) -> dict[str, tuple[str, ...] | None]:
    """The fields that each node writes; None for unknown."""
    writes: dict[str, tuple[str, ...] | None] = dict.fromkeys(parts.names)
    writes |= {name: tuple(node.writes.values()) for name, node in parts.nodes.items() if node.writes is not None}
    return writes


def _merges(topology: Topology, name: str) -> bool:
    """Says that parallel writes of a field are no conflict: folded, merged by key, live, or covered by a policy."""
    schema = topology.schema
    if schema.reducer(name) is not None or name in schema.live_fields or topology.has_policy(name):
        return True
    field = schema.fields.get(name)
    kinds = [] if field is None else [get_origin(member) or member for member in members(field.annotation)]
    return any(isinstance(kind, type) and issubclass(kind, Mapping) for kind in kinds)


def _given_layers(parts: GraphParts, of_graph: Retry | None, around: Sequence[Layer]) -> dict[str, tuple[Layer, ...]]:
    """The layers that options ask for, of the graph before those of each node that was built."""
    found = {}
    for options in parts.options:
        node, own = parts.nodes.get(options.name), list(options.layers)
        if node is None:
            continue
        retry = options.retry
        # The nodes of a graph inside have their own policy: to retry it as a whole would repeat what has succeeded.
        if isinstance(retry, OfGraph):
            retry = None if node.runs_graph else of_graph
        if retry is not None:
            own.append(retry)
        if options.lm is not None:
            own.append(NodeLM(options.lm))
        if options.timeout is not None:
            own.append(Timeout(options.timeout))
        if options.cache is not None and (cache := node_cache(parts.graph.name, node, options, parts.problems)):
            own.append(cache)
        of_kind = checked_layers(node.layers, f"node {options.name!r}: layers=")
        if layers := ordered([layer for layer in around if layer.surrounds(node)], own, of_kind):
            found[options.name] = layers
    return found


def _attempts(parts: GraphParts, layers: Mapping[str, Iterable[Layer]]) -> dict[str, tuple[int, ...]]:
    """The most attempts of each node that is retried, and of the nodes of graphs that it is or calls, by path."""
    found: dict[str, tuple[int, ...]] = {}
    checks = checks_of(parts.nodes)
    for name, node in parts.nodes.items():
        # The attempts of a graph around multiply those of its nodes: 3 x 3 calls where a user may expect 3.
        own = tuple([layer.attempts for layer in layers.get(name, ()) if isinstance(layer, Retry)])
        if own:
            found[name] = own
        inside: dict[str, Any] = {f"{name}/{one}": getattr(parts.modules[name], one) for one in node.programs}
        if node.runs_graph and name not in checks:
            inside[name] = parts.modules[name]
        for place, program in inside.items():
            found |= {f"{place}/{path}": (*own, *inner) for path, inner in program.graph.attempts.items()}
    return found


def _listeners(parts: GraphParts) -> tuple[str, ...]:
    """The paths of the graphs that listen to messages: the graph itself, `""`, and those inside of it."""
    found = [""] if any(node.listens for node in parts.nodes.values()) else []
    checks = checks_of(parts.nodes)
    for name, node in parts.nodes.items():
        # No message says which of the items of a map it is for.
        if node.runs_graph and node.mapped is None and name not in checks:
            found += [f"{name}/{path}".removesuffix("/") for path in parts.modules[name].graph.listeners]
    return tuple(found)


def _author_problems(parts: GraphParts) -> list[str]:
    """Views that name an author which cannot write anything."""
    known = [START, *parts.names]
    return [
        problem
        for node in parts.options
        for name, view in node.views.items()
        for problem in author_problems(view, name, known, node.who)
    ]


def _policy_problems(parts: GraphParts, tables: Iterable[Policies]) -> Iterator[str]:
    """Nodes that a merge policy prefers, and that cannot write anything."""
    known = [*parts.names, *parts.modules]  # those of routers and condensers, too
    for name in dict.fromkeys(name for table in tables for name in table.preferred()):
        if name not in (*known, START, UPDATE_AUTHOR) and not name.startswith("join:"):  # authors on a thread
            yield (
                f"a merge policy prefers {name!r}, which is no node.{suggestion(name, known)} "
                f"Nodes: {list_names(parts.names)}"
            )


def _executor_problems(modules: Mapping[str, dspy.Module]) -> Iterator[str]:
    """Questions of programs with an executor: nothing can be asked from a worker."""
    for attribute, module in modules.items():
        for _, program in modules_in(module):
            if getattr(program, "_executor", None) is None or program.graph.answer is not no_answer:
                continue
            asked = [name for path, part in modules_in(program) for name in _asked_in(part, path)]
            if asked:
                yield (
                    f"node {attribute!r} has a program with an executor, and {list_names(asked)} of it ask a question, "
                    "which nothing can answer while a worker runs it: give the node the program without its executor, "
                    "or supply the answers with compile(answers={...}) of that program"
                )


def _lm_problems(given: Iterable[NodeOptions], parts: GraphParts) -> Iterator[str]:
    """Functions with a language model that no predictor of theirs, of their fixes or of their condensers could use."""
    for node in given:
        if node.lm is None or isinstance(node.node, dspy.Module) or node.name not in parts.nodes:
            continue
        names = (node.name, fix_name(node.name), *(one.name for one in parts.condensers.get(node.name, {}).values()))
        held = [parts.modules[name] for name in names if name in parts.modules]
        if not any(True for module in held for _ in predictors_in(module, graphs=True)):
            yield (
                f"{node.who}: lm= is for predictors, and it has none: bind what it calls, add_node({node.name!r}, ..., "
                "modules={'predict': dspy.Predict(...)}), or leave lm= out"
            )


def _asked_in(program: dspy.Module, path: str) -> list[str]:
    """The nodes of a program that are known to ask, each with the path of the program."""
    if not is_program(program) or cast("Any", program).graph.answer is not no_answer:
        return []
    graph: GraphSpec = cast("Any", program).graph
    names = dict.fromkeys((*interrupts_of(graph.nodes), *graph.stops("before"), *graph.stops("after")))
    return ["/".join((*filter(None, path.split(".")), name)) for name in names]


def _breakpoint_problems(parts: GraphParts, layers: Sequence[Layer]) -> Iterator[str]:
    """Nodes that do not exist; a `Breakpoints` of one node may name that node alone."""
    for names, given in ((parts.names, layers), *(((node.name,), node.layers) for node in parts.options)):
        for one in given:
            if isinstance(one, Breakpoints):
                yield from one.problems(names)


def _live_problems(parts: GraphParts) -> Iterator[str]:
    """Live fields that can never be closed, since not every writer is known, or that a router writes."""
    schema = parts.graph.schema
    if not schema.live_fields:
        return
    named = ", ".join(map(repr, schema.live_fields))
    for name, node in parts.nodes.items():
        if node.writes is None:
            yield (
                f"node {name!r} does not say what it writes, so it would never be known when the live fields ({named}) "
                "close: declare it, add_node(..., writes=[...])"
            )
    for source, router in parts.routers:
        for name in router.writes.values():
            if name in schema.live_fields:
                yield (
                    f"the router at {source!r} writes the live field {name!r}: let a node post to it, or write the "
                    "label to a field of its own"
                )


_NUMBER = re.compile(r"_?\d+$|_[a-z]$")  # `draft_2` beside `draft`, `price_a` beside `price_b`: no slip of a key


def _template_problems(parts: GraphParts, facts: GraphFacts) -> Iterator[str]:
    """Run values that do not exist. A warning says which fields of templates nothing can have set by then: they stay.

    Without a schema any field may be an input: one that only texts and views name is refused if it is spelt like one
    that a node has. The inputs are then those that the graph declares.
    """
    schema = parts.graph.schema
    inputs = parts.graph.inputs or () if schema.accepts_any_key else parts.inputs
    earlier: WritesBefore | None = None  # costly, and rarely needed
    readers: list[tuple[str, Node | Router]] = [*parts.nodes.items(), *parts.all_condensers(), *parts.routers]
    if schema.accepts_any_key and None not in parts.writers:
        reads = [{*(part.reads or {}).values()}.difference(part.templates.typed) for _, part in readers]
        known = sorted(parts.written.union(*reads, inputs))
        for place, part in readers:
            for name in part.templates.typed if place in (START, *facts.reads) else ():  # not what a `Send` may bring
                others = [one for one in known if _NUMBER.sub("", one) != _NUMBER.sub("", name)]
                if name not in known and (near := suggestion(name, others, 0.8)):
                    yield f"{part.who} names {name!r}, which no node writes.{near} Else name all inputs, Graph(inputs=)"
    for place, part in readers:
        for name in part.templates.names:
            if name.startswith(RUN):
                problem = run_value_problem(name, facts.nodes)
                if problem is not None:
                    yield f"{part.who}: {name!r} {problem}"
            elif not schema.accepts_any_key and name in schema.fields:
                known_field, given = schema.fields[name], name in inputs and name not in facts.left_out
                default = known_field.fixed_default
                if given or known_field.info.default_factory is not None or default not in (None, DELETE):
                    continue
                earlier = earlier or WritesBefore(facts.edges, facts.writes)
                own = isinstance(part, Router) and name in (facts.writes.get(place) or ())
                if place in facts.reads and not own and not earlier.unknown(place) and not earlier.wrote(place, name):
                    parts.warnings.append(
                        f"{part.who} is filled with {{{name}}}, {unwritten_reason(facts, place, name)}. As it is, the "
                        f"text shows {{{name}}} itself"
                    )


# --- inputs and outputs


def _declare_inputs(parts: GraphParts, edges: Sequence[Edge]) -> None:
    """Find the fields that a run may be given, and those that it must be given."""
    options, schema = parts.graph, parts.graph.schema
    fields, inputs = schema.fields, options.inputs
    if schema.accepts_any_key:
        inferred = _inferred_inputs(parts, edges)
        inputs = tuple(inferred) if inputs is None else inputs
        needed = [name for name in inputs if inferred.get(name)]
    else:
        if inputs is None:
            inputs = tuple(name for name in fields if name not in parts.written)
        parts.problems += [
            f"the input {name!r} is no field of {options.name}.{suggestion(name, fields)}"
            for name in inputs
            if name not in fields
        ]
        needed = [name for name in inputs if name in fields and fields[name].required]
    parts.problems += [
        f"required names {name!r}, which is no input of {options.name} ({list_names(inputs)})."
        f"{suggestion(name, inputs)}"
        for name in options.required or ()
        if name not in inputs
    ]
    parts.inputs = inputs
    parts.required = frozenset(needed if options.required is None else options.required)


def _inferred_inputs(parts: GraphParts, edges: Sequence[Edge]) -> dict[str, bool]:
    """Without a schema: the fields that a node reads and no earlier node writes, and whether a run must be given them.

    What only the targets of a `Send` read may come with the `Send`. Inputs that may be left out come last.
    """
    sent = parts.sent
    earlier = WritesBefore(edges, _node_writes(parts))
    found: dict[str, bool] = {}
    for name, node in parts.nodes.items():
        if earlier.unknown(name):
            continue
        for read in (node.reads or {}).values():
            if not earlier.wrote(name, read):
                needed = read not in node.optional and name not in sent
                found[read] = found.get(read, False) or needed
    return dict(sorted(found.items(), key=lambda item: not item[1]))


def _optional_inputs(parts: GraphParts) -> frozenset[str] | None:
    """The fields that a run may be given besides its inputs; None for anything.

    Without a schema that is each field that a node or router reads or writes, so that a misspelled input is refused;
    where one of them reads the state as a whole, it is anything.
    """
    options = parts.graph
    if options.inputs is not None or not options.schema.accepts_any_key:
        return options.also
    readers: list[Node | Router] = [*parts.nodes.values(), *(router for _, router in parts.routers)]
    # Such a node may read any key, and which one shows only when it runs.
    if any(part.reads is None for part in readers):
        return None
    known = {*(options.outputs or ()), *(options.keep or ())}
    for part in readers:
        known.update((part.reads or {}).values(), (part.writes or {}).values())
    known.update(name for _, part in parts.all_condensers() for name in part.templates.fields)
    known.update(edge.into for edge in parts.errors if edge.into is not None)
    return frozenset(known)


def _declared_outputs(parts: GraphParts) -> tuple[str, ...] | None:
    """The fields that the program returns; None for every field that is no input."""
    options, schema = parts.graph, parts.graph.schema
    if options.outputs is not None or schema.accepts_any_key:
        return options.outputs
    # Inputs that were named are no outputs; of those that were inferred, an optional one may be written as well.
    kept = parts.inputs if options.inputs is not None else parts.required
    return tuple(
        name
        for name in schema.fields
        if schema.reducer(name) is not None or (name not in kept and (name in parts.written or None in parts.writers))
    )


def _output_problems(parts: GraphParts) -> Iterator[str]:
    """Outputs that are no fields, or that nothing writes."""
    options, any_key = parts.graph, parts.graph.schema.accepts_any_key
    if any_key and None in parts.writers:
        return
    written = dict.fromkeys((*parts.inputs, *(name for fields in parts.writers for name in fields or ())))
    known = written if any_key else options.schema.fields
    for name in options.outputs or ():
        if name not in known:
            what = f"nothing that a node of {options.name} writes" if any_key else f"no field of {options.name}"
            yield f"the output {name!r} is {what}.{suggestion(name, known)}"


def _taken(node: Node, exits: tuple[Exit, ...]) -> frozenset[str] | None:
    """The names that a `Send` may bring for a node and its routers; None for any."""
    found: frozenset[str] = frozenset()
    for taken in (node.takes, *(way.takes for way in exits if isinstance(way, Router))):
        if taken is None:
            return None
        found |= taken
    return found


# --- the program's own text and modules


def source_text(declared: Declarations) -> str:
    """The graph as Python text, which optimizers show to a language model as the source of the program."""

    def calls(show: Show) -> Iterator[str]:
        yield from (_node_call(node, show) for node in declared.nodes)
        for edge in declared.edges:
            yield from _edge_calls(edge, show)

    options = declared.options
    return graph_text(options.name, options.schema.model, calls, "conversation=True" if options.conversation else "")


def _node_call(node: NodeOptions, show: Show) -> str:
    name, given, of = node.name, node.node, node.map
    if isinstance(given, KindOptions):
        return given.text(name, show)
    if of is not None:
        return f'graph.add_map("{name}", {show(given)}, over="{of.over}", item="{of.item}", into="{of.into}")'
    call = f'graph.add_node("{name}", {show(given)}'
    modules = ", ".join(f'"{local}": {show(module)}' for local, module in node.modules.items())
    return f"{call}, modules={{{modules}}})" if modules else f"{call})"


def _edge_calls(edge: AnyEdge, show: Show) -> Iterator[str]:
    if isinstance(edge, ErrorEdge):
        yield _error_edge_call(edge, show)
        return
    if isinstance(edge, EdgeDeclaration):
        yield from (f"graph.add_edge({_quoted(source)}, {_all_quoted(edge.targets)})" for source in edge.sources)
        return
    ways: Any = edge.path_map
    call = f"graph.add_conditional_edges({_quoted(edge.source)}, "
    call += repr(edge.route) if isinstance(edge.route, str) else show(edge.route)
    if isinstance(ways, Mapping):
        call += ", {" + ", ".join(f"{label!r}: {_all_quoted(target)}" for label, target in ways.items()) + "}"
    elif ways:
        call += f", [{', '.join(map(_quoted, ways))}]"
    yield f"{call})"


def _error_edge_call(edge: ErrorEdge, show: Show) -> str:
    kinds = edge.on if isinstance(edge.on, tuple) else (edge.on,)
    named = [one.__name__ if isinstance(one, type) else show(one) for one in kinds]
    on = "" if edge.on is Exception else f", on={named[0] if len(named) == 1 else '(' + ', '.join(named) + ')'}"
    into = "" if edge.into is None else f', into="{edge.into}"'
    return f"graph.add_error_edge({_quoted(edge.source)}, {_quoted(edge.target)}{on}{into})"


def _all_quoted(names: str | Sequence[str]) -> str:
    quoted = [_quoted(name) for name in ([names] if isinstance(names, str) else names)]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"


def _quoted(name: str) -> str:
    return name if name in (START, END) else f'"{name}"'  # the two are names of constants


def prepare_modules(graph: GraphSpec, modules: Mapping[str, dspy.Module]) -> None:
    """Let the predictors of a program fill in templates, append warnings and shorten demos.

    `modules` are the program's own copies, by attribute; they are changed in place. It is an error if a predictor that
    must append a warning or shorten demos has a `forward` of its own, which would not do it.
    """
    named = [(name, node.templates) for name, node in graph.nodes.items()]
    named += [(router.module_name or "", router.templates) for router in graph.routers]
    named += [(part.name, part.templates) for parts in graph.condensers.values() for part in parts.values()]
    # A text may name only these: what else begins like a run value is the user's own text in braces.
    run_values = [f"{RUN}{name}" for name in RUN_VALUES]
    run_values += [f"{RUN}{node}.{name}" for node in graph.nodes for name in NODE_VALUES]
    if not any(is_counted(name) for _, templates in named for name in templates.names):  # they are many
        run_values = [name for name in run_values if not is_counted(name)]
    for attribute, templates in named:
        if templates.in_instructions and attribute in modules:
            allowed = None if templates.allowed is None else templates.allowed.union(run_values)
            enable_templates(attribute, modules[attribute], allowed)
    problems: list[str] = []
    warn_at, max_demo_turns = graph.conversations.warn_at, graph.conversations.max_demo_turns
    if warn_at is not None:
        problems += [
            f"warn_at: node {name!r}: nothing can be added to the instructions of {path!r}, since its class has a "
            "`forward` of its own: use dspy.Predict"
            for name, node in graph.nodes.items()
            if node.conversations and name in modules
            for path in enable_warnings(modules[name])
        ]
    if max_demo_turns is not None and not problems:
        problems += [
            f"max_demo_turns: the demos of {name!r} in node {attribute!r} cannot be shortened, since its class has a "
            "`forward` of its own: use dspy.Predict"
            for attribute, module in modules.items()
            for name in shorten_demos(module, max_demo_turns)
        ]
    if problems:
        raise GraphError(problems)

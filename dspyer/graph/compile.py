"""From the declarations of a graph to its blueprint: builds every node and router, and reports all problems at once."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union, cast, get_args, get_origin

import dspy
from pydantic import BaseModel

from dspyer.dspy_module.prompt_templates import enable_templates, enable_warnings, shorten_demos
from dspyer.dspy_module.source import EdgeText, FunctionText, InterruptText, MapText, graph_text
from dspyer.errors import GraphError, list_names, suggestion
from dspyer.graph.declarations import EdgeSpec, NodeSpec, RouterSpec
from dspyer.graph.spec import Exit, GraphSpec
from dspyer.nodes.answer_types import Interrupts, answering
from dspyer.nodes.build import build_map, build_node
from dspyer.nodes.condense import Condenser, Condensers, plan_condenser
from dspyer.nodes.interrupt import InterruptOptions
from dspyer.nodes.node import Node
from dspyer.nodes.router import Router, build_router, lost_ways
from dspyer.nodes.view_access import author_problems
from dspyer.patch import DELETE
from dspyer.policies import Policies
from dspyer.scheduler.loops import Edge, Rounds
from dspyer.scheduler.run_values import NODE_VALUES, RUN_VALUES, is_counted, run_value_problem
from dspyer.scheduler.topology import END, START, Topology
from dspyer.scheduler.validation import (
    GraphFacts,
    WritesBefore,
    check_parallel_writers,
    check_paths,
    check_reads,
    check_targets,
    repaired_edges,
    unwritten_reason,
    with_missing_starts,
)
from dspyer.schema.schema import Schema
from dspyer.templates import RUN
from dspyer.views import View

_SENT = (
    " If a Send brings it that is made in another function, let the router promise it, `-> list[Send]`, or the node, "
    "`-> Command[Send]`."
)


class LostRouter(NamedTuple):
    """A router that could not be built.

    Attributes:
        source: the node that it follows.
        targets: where it may go; empty for unknown.
        sends: whether it may return `Send`s.
    """

    source: str
    targets: tuple[str, ...]
    sends: bool


class Assembly(NamedTuple):
    """The declarations of a graph, as `Graph.compile` hands them over."""

    name: str
    schema: Schema
    nodes: tuple[NodeSpec, ...]
    ways: tuple[EdgeSpec | RouterSpec, ...]
    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    policies: Policies
    join_policies: Mapping[str, Policies]
    keep: frozenset[str] | None = None
    interrupt_before: tuple[str, ...] = ()
    interrupt_after: tuple[str, ...] = ()
    interrupts: Interrupts = None
    required: tuple[str, ...] | None = None

    def build(
        self, max_steps: int, max_calls: int | None, max_concurrency: int
    ) -> tuple[GraphSpec, dict[str, dspy.Module], str]:
        """Builds the blueprint.

        Args:
            max_steps: longest chain of commits in a run.
            max_calls: most node calls in a run, None for no limit.
            max_concurrency: most nodes of one run that work at the same time.

        Returns:
            The blueprint, the modules by attribute of the program, and the graph as text.

        Raises:
            GraphError: with every problem of the graph.
        """
        problems: list[str] = []
        modules: dict[str, dspy.Module] = {}
        nodes, unknown = self._build_nodes(modules, problems)
        exits, lost = self._build_exits(modules, problems)
        condensers = build_condensers(self.nodes, nodes, self.schema, modules, problems)
        problems += view_authors(self.nodes)
        edges = self._edges(nodes, exits)
        names = tuple(spec.name for spec in self.nodes)
        sent = _sent(nodes, exits) | {name for router in lost if router.sends for name in router.targets or names}
        routed = {target for router in _routers(exits) for target in router.targets}
        routed |= {target for node in nodes.values() for target in node.goto}
        for name, texts in unknown.items():
            if name not in sent:
                problems += [f"{text}{_SENT if name in routed else ''}" for text in texts]
        rounds = Rounds.of((START, *names, END), repaired_edges(edges, names))
        inputs, required = self._check(nodes, exits, lost, edges, sent, rounds, condensers, problems)
        if problems:
            raise GraphError(problems)
        topology = Topology(
            self.name, names, tuple(edges), self.schema, self.policies, self.join_policies, max_steps, max_calls, rounds
        )
        outputs = self._declared_outputs(nodes, exits, inputs, required)
        parts = {
            spec.name: [spec.name, *[each.name for each in condensers.get(spec.name, {}).values()]]
            for spec in self.nodes
        }
        frozen = frozenset(part for spec in self.nodes if spec.frozen for part in parts[spec.name])
        thawed = frozenset(part for spec in self.nodes if spec.frozen is False for part in parts[spec.name])
        known = self._known_inputs(nodes, exits, condensers)
        blueprint = GraphSpec(
            topology,
            nodes,
            exits,
            inputs,
            required,
            outputs,
            frozen,
            thawed,
            known is not None,
            max_concurrency,
            keep=self.keep,
            interrupt_before=frozenset(self.interrupt_before),
            interrupt_after=frozenset(self.interrupt_after),
            answer=answering(self.interrupts),
            condensers=condensers,
            also=known or frozenset(),
            takes={name: _taken(node, exits[name]) for name, node in nodes.items()},
        )
        return blueprint, modules, self._text()

    def _check(
        self,
        nodes: Mapping[str, Node],
        exits: Mapping[str, tuple[Exit, ...]],
        lost: Sequence[LostRouter],
        edges: list[Edge],
        sent: Collection[str],
        rounds: Rounds,
        condensers: Condensers,
        problems: list[str],
    ) -> tuple[tuple[str, ...], frozenset[str]]:
        """Adds the problems of the graph as a whole, as far as it is known, and gives the inputs of a run.

        What could not be built hides nothing: a node without a plan may write anything, and a router without targets
        may lead anywhere.
        """
        names = tuple(spec.name for spec in self.nodes)
        ways = [Edge(router.source, target, True) for router in lost for target in router.targets or (*names, END)]
        every = [*edges, *(way for way in ways if way not in edges)]
        commands = [
            name for name, node in nodes.items() if not exits[name] and not node.goto and node.may_return_command
        ]
        facts = GraphFacts(names, tuple(every), {}, {}, {}, (), (), (), commands)
        problems += check_targets(facts)
        facts = facts._replace(edges=tuple(repaired_edges(every, names)))
        problems += check_paths(facts)
        facts = facts._replace(edges=tuple(with_missing_starts(facts.edges, names)))
        inputs, required = self._declared_inputs(nodes, exits, list(facts.edges), sent, problems)
        facts = self._facts(facts, nodes, exits, inputs, required, sent)
        problems += check_parallel_writers(facts._replace(edges=tuple(repaired_edges(edges, names))), rounds)
        declared = self.inputs is not None or self.required is not None or not self.schema.accepts_any_key
        problems += check_reads(facts) if declared else ()
        problems += self._check_outputs(nodes, exits, inputs)
        routers = [(source, way) for source, ways in exits.items() for way in _routers({source: ways})]
        problems += live_problems(self.schema, nodes, routers)
        parts: list[tuple[str, Node | Router]] = [*nodes.items(), *_all(condensers), *routers]
        problems += template_problems(parts, facts, self.schema, inputs)
        problems += [
            f"interrupt_{option} names {name!r}, which is no node.{suggestion(name, names)} Nodes: {', '.join(names)}"
            for option, listed in (("before", self.interrupt_before), ("after", self.interrupt_after))
            for name in listed
            if name not in names
        ]
        return inputs, required

    def _build_nodes(
        self, modules: dict[str, dspy.Module], problems: list[str]
    ) -> tuple[dict[str, Node], dict[str, tuple[str, ...]]]:
        nodes: dict[str, Node] = {}
        unknown: dict[str, tuple[str, ...]] = {}
        for spec in self.nodes:
            if spec.over is not None:
                built = build_map(
                    spec.name,
                    spec.node,
                    schema=self.schema,
                    over=spec.over,
                    item=spec.item,
                    into=spec.into,
                    max_concurrency=spec.max_concurrency,
                    reads=spec.reads,
                    writes=spec.writes,
                    modules=spec.modules,
                )
            else:
                built = build_node(
                    spec.name,
                    spec.node,
                    schema=self.schema,
                    reads=spec.reads,
                    writes=spec.writes,
                    modules=spec.modules,
                    goto=spec.goto,
                )
            problems += built.problems
            unknown[spec.name] = built.unknown
            if built.node is not None:
                nodes[spec.name] = built.node
            if built.module is not None:
                modules[spec.name] = built.module
        return nodes, unknown

    def _build_exits(
        self, modules: dict[str, dspy.Module], problems: list[str]
    ) -> tuple[dict[str, tuple[Exit, ...]], list[LostRouter]]:
        """The ways out of each node, and the routers that could not be built."""
        lost: list[LostRouter] = []
        exits: dict[str, list[Exit]] = {name: [] for name in (START, *(spec.name for spec in self.nodes))}
        for way in self.ways:
            if isinstance(way, EdgeSpec):
                for source in way.sources:
                    exits.setdefault(source, []).extend(way.targets)
                continue
            built = build_router(
                way.source, way.route, way.path_map, schema=self.schema, name=way.name, writes=way.writes
            )
            problems += built.problems
            if built.router is None:
                lost.append(LostRouter(way.source, *lost_ways(way.route, way.path_map)))
                continue
            exits.setdefault(way.source, []).append(built.router)
            if built.module is not None:
                name = str(built.router.module_name)
                if name in modules or name in exits:
                    problems.append(
                        f"two parts of the graph are called {name!r}: give the router at {way.source!r} a name="
                    )
                modules[name] = built.module
        return {source: tuple(ways) for source, ways in exits.items()}, lost

    def _edges(self, nodes: Mapping[str, Node], exits: Mapping[str, tuple[Exit, ...]]) -> list[Edge]:
        edges: dict[tuple[str, str], Edge] = {}
        for source, ways in exits.items():
            for way in ways:
                for target in (way,) if isinstance(way, str) else way.targets:
                    known = edges.get((source, target))
                    conditional = not isinstance(way, str) and (known is None or known.conditional)
                    edges[source, target] = Edge(source, target, conditional)
            node = nodes.get(source)
            for target in node.goto if node is not None else ():
                edges.setdefault((source, target), Edge(source, target, True))
        return list(edges.values())

    def _declared_inputs(
        self,
        nodes: Mapping[str, Node],
        exits: Mapping[str, tuple[Exit, ...]],
        edges: list[Edge],
        sent: Collection[str],
        problems: list[str],
    ) -> tuple[tuple[str, ...], frozenset[str]]:
        """The fields that a run is given, and those that it must be given."""
        fields = self.schema.fields
        written = {field for _, writes in _writers(nodes, exits) for field in writes or ()}
        if self.schema.accepts_any_key:
            inferred = self._open_inputs(nodes, edges, sent)
            inputs = tuple(inferred) if self.inputs is None else self.inputs
            return inputs, self._required_of(inputs, [name for name in inputs if inferred.get(name)], problems)
        if self.inputs is None:
            inputs = tuple(name for name in fields if name not in written)
        else:
            inputs = self.inputs
            unknown = [name for name in inputs if name not in fields]
            problems += [
                f"the input {name!r} is no field of {self.name}.{suggestion(name, fields)}" for name in unknown
            ]
        needed = [name for name in inputs if name in fields and fields[name].required]
        return inputs, self._required_of(inputs, needed, problems)

    def _required_of(self, inputs: tuple[str, ...], needed: list[str], problems: list[str]) -> frozenset[str]:
        """The inputs that a run must be given: what was declared, else what is needed."""
        if self.required is None:
            return frozenset(needed)
        problems += [
            f"required names {name!r}, which is no input of {self.name} ({list_names(inputs)})."
            f"{suggestion(name, inputs)}"
            for name in self.required
            if name not in inputs
        ]
        return frozenset(self.required)

    def _known_inputs(
        self, nodes: Mapping[str, Node], exits: Mapping[str, tuple[Exit, ...]], condensers: Condensers
    ) -> frozenset[str] | None:
        """What a run may be given besides its inputs: without a schema what a node or router reads or writes; None for
        anything, where one reads the state as a whole.
        """
        if self.inputs is not None or not self.schema.accepts_any_key:
            return frozenset()
        parts: list[Node | Router] = [*nodes.values(), *_routers(exits)]
        if any(part.reads is None for part in parts):
            return None
        known = {*(self.outputs or ()), *(self.keep or ())}
        for part in parts:
            known.update((part.reads or {}).values(), (part.writes or {}).values())
        known.update(field for _, part in _all(condensers) for field in part.templates.fields)
        return frozenset(known)

    def _open_inputs(self, nodes: Mapping[str, Node], edges: list[Edge], sent: Collection[str]) -> dict[str, bool]:
        """Without a schema: what a node reads and no earlier node writes, and whether a run must be given it.

        What only the targets of a `Send` read may come with the `Send`. What no node needs may be left out, and
        comes last.
        """
        writes: dict[str, tuple[str, ...] | None] = dict.fromkeys(spec.name for spec in self.nodes)
        writes |= {name: tuple(node.writes.values()) for name, node in nodes.items() if node.writes is not None}
        earlier = WritesBefore(edges, writes)
        found: dict[str, bool] = {}
        for name, node in nodes.items():
            if earlier.unknown(name):
                continue
            for field in (node.reads or {}).values():
                if not earlier.wrote(name, field):
                    needed = field not in node.optional and name not in sent
                    found[field] = found.get(field, False) or needed
        return dict(sorted(found.items(), key=lambda item: not item[1]))

    def _declared_outputs(
        self,
        nodes: Mapping[str, Node],
        exits: Mapping[str, tuple[Exit, ...]],
        inputs: tuple[str, ...],
        required: frozenset[str],
    ) -> tuple[str, ...] | None:
        if self.outputs is not None or self.schema.accepts_any_key:
            return self.outputs
        writers = list(_writers(nodes, exits))
        written = {field for _, writes in writers for field in writes or ()}
        undeclared = any(writes is None for _, writes in writers)
        kept = inputs if self.inputs is not None else required
        return tuple(
            name
            for name in self.schema.fields
            if self.schema.reducer(name) is not None or (name not in kept and (name in written or undeclared))
        )

    def _facts(
        self,
        facts: GraphFacts,
        nodes: Mapping[str, Node],
        exits: Mapping[str, tuple[Exit, ...]],
        inputs: tuple[str, ...],
        required: frozenset[str],
        sent: Collection[str],
    ) -> GraphFacts:
        forks = {
            source: [(way,) if isinstance(way, str) else way.targets for way in ways] for source, ways in exits.items()
        }
        reads = {
            name: [field for field in (node.reads or {}).values() if field not in node.optional]
            for name, node in nodes.items()
            if name not in sent
        }
        writes: dict[str, tuple[str, ...] | None] = dict.fromkeys(facts.nodes)
        writes |= {name: tuple(node.writes.values()) for name, node in nodes.items() if node.writes is not None}
        given = {name for name in self.schema.fields if not self.schema.fields[name].required}
        given |= set(inputs) if self.required is None else required
        folded = {name for name in self.schema.fields if self._settled(name)}
        if self.schema.accepts_any_key:
            folded = {field for fields in writes.values() for field in fields or () if self._settled(field)}
        left_out = set(inputs) - given
        return facts._replace(forks=forks, reads=reads, writes=writes, given=given, folded=folded, left_out=left_out)

    def _settled(self, name: str) -> bool:
        """Whether parallel writes of a field fold, merge by key, are live, or are covered by what the user said."""
        if self.schema.reducer(name) is not None or name in self.schema.live_fields:
            return True
        field = self.schema.fields.get(name)
        covered = any(policies.covers(name) for policies in (self.policies, *self.join_policies.values()))
        return covered or (field is not None and _is_mapping(field.annotation))

    def _check_outputs(
        self, nodes: Mapping[str, Node], exits: Mapping[str, tuple[Exit, ...]], inputs: Collection[str]
    ) -> Iterator[str]:
        """Outputs that are no fields, or that nothing writes."""
        written = dict.fromkeys(inputs)
        for _, writes in _writers(nodes, exits):
            if writes is None and self.schema.accepts_any_key:
                return
            written |= dict.fromkeys(writes or ())
        known = written if self.schema.accepts_any_key else self.schema.fields
        for name in self.outputs or ():
            if name not in known:
                what = (
                    f"nothing that a node of {self.name} writes"
                    if self.schema.accepts_any_key
                    else f"no field of {self.name}"
                )
                yield f"the output {name!r} is {what}.{suggestion(name, known)}"

    def _text(self) -> str:
        nodes: dict[str, object] = {}
        for spec in self.nodes:
            node = FunctionText(cast(Any, spec.node), spec.modules) if spec.modules else spec.node
            if isinstance(node, InterruptOptions):
                node = InterruptText(*node)
            nodes[spec.name] = node if spec.over is None else MapText(node, spec.over, spec.item, spec.into)
        edges: list[EdgeText] = []
        for way in self.ways:
            if isinstance(way, EdgeSpec):
                edges += [EdgeText(source, way.targets) for source in way.sources]
            else:
                labels = dict(way.path_map) if isinstance(way.path_map, Mapping) else None
                targets = () if labels else tuple(way.path_map or ())
                edges.append(EdgeText(way.source, targets, way.route, labels))
        model: type[BaseModel] | None = self.schema.model
        return graph_text(self.name, schema=model, nodes=nodes, edges=edges)


def _all(condensers: Condensers) -> list[tuple[str, Node]]:
    """The modules that shorten, each with its node."""
    return [(node, part) for node, parts in condensers.items() for part in parts.values()]


def _routers(exits: Mapping[str, tuple[Exit, ...]]) -> list[Router]:
    return [way for ways in exits.values() for way in ways if isinstance(way, Router)]


def _writers(
    nodes: Mapping[str, Node], exits: Mapping[str, tuple[Exit, ...]]
) -> Iterator[tuple[str, Collection[str] | None]]:
    for name, node in nodes.items():
        yield name, None if node.writes is None else node.writes.values()
    for source, ways in exits.items():
        for way in ways:
            if isinstance(way, Router):
                yield source, way.writes.values()


def _sent(nodes: Mapping[str, Node], exits: Mapping[str, tuple[Exit, ...]]) -> set[str]:
    """The nodes that a `Send` may start, whose inputs may come with it."""
    found: set[str] = set()
    for node in nodes.values():
        found.update(node.goto if node.sends else ())
    for ways in exits.values():
        for way in ways:
            if isinstance(way, Router) and way.sends:
                found.update(way.targets)
    return found


def _taken(node: Node, exits: tuple[Exit, ...]) -> frozenset[str] | None:
    """The names that a node and its routers may get by a `Send`; None for any."""
    found: frozenset[str] = frozenset()
    for taken in (node.takes, *(way.takes for way in exits if isinstance(way, Router))):
        if taken is None:
            return None
        found |= taken
    return found


def _is_mapping(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_is_mapping(part) for part in get_args(annotation))
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, Mapping)


# --------------------------------------------------------------------------------------------------------------------
# The modules of a graph that shorten what its nodes write.


def build_condensers(
    specs: Iterable[NodeSpec],
    nodes: Mapping[str, Node],
    schema: Schema,
    modules: dict[str, dspy.Module],
    problems: list[str],
) -> Condensers:
    """The modules that shorten what nodes write, by node and field.

    Args:
        specs: the declared nodes.
        nodes: the nodes that were built.
        schema: the fields of the state.
        modules: the modules of the program by attribute; these are added.
        problems: what is wrong with them is added.
    """
    found: dict[str, dict[str, Condenser]] = {}
    for spec in specs:
        if not spec.condense or spec.name not in nodes:
            continue
        given: Any = spec.condense
        if not isinstance(given, Mapping):
            problems.append(f"node {spec.name!r}: condense takes a dict from fields to modules")
            continue
        for field, module in given.items():
            condenser, wrong = plan_condenser(spec.name, field, module, schema, nodes[spec.name].writes)
            problems += wrong
            if condenser is None:
                continue
            if condenser.name in modules or condenser.name in nodes:
                problems.append(f"two parts of the graph are called {condenser.name!r}: rename the other one")
            modules[condenser.name] = module
            found.setdefault(spec.name, {})[field] = condenser
    return found


def view_authors(specs: Iterable[NodeSpec]) -> list[str]:
    """Views that name nobody who could have brought anything, each with its fix.

    Args:
        specs: the declared nodes.
    """
    specs = list(specs)
    nodes = [START, *[spec.name for spec in specs]]
    return [
        problem
        for spec in specs
        if isinstance(spec.reads, Mapping)
        for name, right in spec.reads.items()
        if isinstance(right, View)
        for problem in author_problems(right, name, nodes, f"node {spec.name!r}")
    ]


# --------------------------------------------------------------------------------------------------------------------
# Whether the live fields of a graph can be: for each, all who may write it are known.


def live_problems(schema: Schema, nodes: Mapping[str, Node], routers: Iterable[tuple[str, Router]]) -> Iterator[str]:
    """What is wrong with the live fields, each with its fix.

    Args:
        schema: the fields.
        nodes: the nodes by name.
        routers: the routers, with the nodes at which they decide.
    """
    if not schema.live_fields:
        return
    named = ", ".join(map(repr, schema.live_fields))
    for name, node in nodes.items():
        if node.writes is None:
            yield (
                f"node {name!r} does not say what it writes, so nobody could tell when the live field {named} is "
                "closed: declare it, add_node(..., writes=[...])"
            )
    for source, router in routers:
        for field in router.writes.values():
            if field in schema.live_fields:
                yield (
                    f"the router at {source!r} writes the live field {field!r}: let a node post to it, or write the "
                    "label to a field of its own"
                )


# --------------------------------------------------------------------------------------------------------------------
# The templates of a graph: whether what they name can be there, and the predictors that are filled in.


def template_problems(
    parts: Iterable[tuple[str, Node | Router]], facts: GraphFacts, schema: Schema, inputs: Collection[str]
) -> Iterator[str]:
    """What templates and run values name that cannot be there, each with its fix.

    Args:
        parts: nodes and routers, with the node at which they stand.
        facts: what is known of the graph.
        schema: the fields.
        inputs: the fields that a run may be given.
    """
    earlier: WritesBefore | None = None
    for place, part in parts:
        for name in part.templates.names:
            if name.startswith(RUN):
                problem = run_value_problem(name, facts.nodes)
                if problem is not None:
                    yield f"{part.who}: {name!r} {problem}"
            elif not schema.accepts_any_key and name in schema.fields:
                field = schema.fields[name]
                given = name in inputs and name not in facts.left_out
                if given or field.info.default_factory is not None or field.fixed_default not in (None, DELETE):
                    continue
                earlier = earlier or WritesBefore(facts.edges, facts.writes)
                own = isinstance(part, Router) and name in (facts.writes.get(place) or ())
                if place in facts.reads and not own and not earlier.unknown(place) and not earlier.wrote(place, name):
                    yield f"{part.who} is filled with {{{name}}}, {unwritten_reason(facts, place, name)}"


def fill_templates(blueprint: GraphSpec, modules: Mapping[str, dspy.Module]) -> None:
    """Lets predictors fill in the fields that their instructions name, and shorten the histories in their demos.

    Args:
        blueprint: the graph.
        modules: the program's own modules by attribute; changed in place.

    Raises:
        GraphError: if a predictor that is to be warned, or whose demos are to be shortened, has a `forward` of its own.
    """
    named = [(name, node.templates) for name, node in blueprint.nodes.items()]
    named += [(router.module_name or "", router.templates) for router in blueprint.routers()]
    named += [(part.name, part.templates) for parts in blueprint.condensers.values() for part in parts.values()]
    run_values = [f"{RUN}{name}" for name in RUN_VALUES]
    run_values += [f"{RUN}{node}.{name}" for node in blueprint.nodes for name in NODE_VALUES]
    run_values = [name for name in run_values if blueprint.counts or not is_counted(name)]
    for attribute, templates in named:
        if templates.in_instructions and attribute in modules:
            may = None if templates.allowed is None else templates.allowed.union(run_values)
            enable_templates(attribute, modules[attribute], may)
    if blueprint.warn_at is not None:
        problems = [
            f"warn_at: node {name!r}: nothing can be added to the instructions of {path!r}, since its class has a "
            "`forward` of its own: use dspy.Predict"
            for name, node in blueprint.nodes.items()
            if node.conversations and name in modules
            for path in enable_warnings(modules[name])
        ]
        if problems:
            raise GraphError(problems)
    if blueprint.max_demo_turns is not None:
        problems = [
            f"max_demo_turns: the demos of {name!r} in node {attribute!r} cannot be shortened, since its class has a "
            "`forward` of its own: use dspy.Predict"
            for attribute, module in modules.items()
            for name in shorten_demos(module, blueprint.max_demo_turns)
        ]
        if problems:
            raise GraphError(problems)

"""`from_langgraph`: a graph of LangGraph as a graph of dspyer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

import dspy
from langchain_core.tools import StructuredTool
from langgraph.constants import END, START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from pydantic import BaseModel, ValidationError

from dspyer import Breakpoints, Graph
from dspyer.errors import GraphError, list_names
from dspyer.graph.spec import NEEDED
from dspyer.migrate.channels import state_fields, stored_classes, with_checkpoints
from dspyer.migrate.code_reading import read_code, sync_form
from dspyer.migrate.converted_node import (
    AsyncConvertedNode,
    ConvertedBranch,
    ConvertedNode,
    ConvertedRouter,
    Kind,
    NamedTargets,
    Surroundings,
    Targets,
    retry_of,
    timeout_of,
    usable_name,
)
from dspyer.migrate.graph_edges import GraphEdges, note_what_is_left_out
from dspyer.migrate.internals import DEFAULT_ERROR_HANDLER, AllowedTypes, allowed_types, data_channels, only_async
from dspyer.migrate.langgraph_report import LangGraphReport, make_report, replaced_text
from dspyer.migrate.nested_graphs import CHECKPOINTS, classes_named, graphs_inside, runnables_of, why_whole
from dspyer.migrate.unsupported import Findings, FoundNode, check_graph, check_names, graph_problem
from dspyer.scheduler import topology
from dspyer.schema.fields import refusal_text
from dspyer.values.freezing import set_held_classes
from dspyer.values.scalars import check_flags

_LOG = logging.getLogger("dspyer.migrate")


def from_langgraph(
    graph: Any,
    *,
    nodes: Mapping[str, dspy.Module | Graph | Callable[..., Any] | Mapping[str, Any]] | None = None,
    routes: Mapping[str, Sequence[str]] | None = None,
    goto: Mapping[str, Sequence[str]] | None = None,
    context: object = None,
    store: Any = None,
    configurable: Mapping[str, Any] | None = None,
    validate: bool = True,
    extra: Literal["error", "drop"] = "error",
    asynchronous: bool = False,
    merge: object = None,
) -> Graph:
    """Convert a graph of LangGraph.

    The guide has the differences that most programs meet. The rare ones:

    - A node sees what led to it and what was joined, not what a branch beside it has written. Removing a message of
      such a branch is an error. Parallel updates fold in the order of the names of their nodes.
    - If one node returns an `Overwrite` and another update of a field, both count, in their order.
    - While a question is open, the state shows what is committed; nodes beside the one that asks join after the answer.
    - A node that asks runs again from its start at each answer, with its model calls, as in LangGraph. If it asks from
      several threads, an answer goes to the question with its text; one with another text is asked anew.
    - A graph that LangGraph's engine runs whole begins anew if it fails, but after the last answer. If it asks or has
      `checkpointer=True`, what it holds must be data, of classes that its fields name. What it adds to a list is
      doubled, as in LangGraph.
    - A `RetryPolicy` repeats its node alone: if a router raises, the run fails. Decide in a node where it may fail.
    - A client, a `SecretStr` or another object that is no data is an error in the state: pass it as `context`. So is
      a `deque`: use a list. A `Counter`, an `OrderedDict` or a `defaultdict` reaches nodes and reducers where the
      annotation of the field names its class; elsewhere it is a plain mapping.
    - Where a pydantic state has validators of its own for a field, they run when a node reads it.
    - A node that reads `model.stream(...)` may pass the parts on by `get_stream_writer()`.
    - A failure that an error handler takes is an event `NodeFailed`, in no commit and in no `run.stats()`. The handler
      gets an exception of Python's own class, else an `Exception` with the name of the class and the text.
    - A context variable that a node sets may be seen by nodes after it.
    - Left out: callbacks of the whole graph, `step_timeout` and `idle_timeout`, and of `config["metadata"]` all but
      `langgraph_node`.
    - A message without an id gets one from its commit, the same in a replay.
    - A state that is one value has the field `root`.

    Each node and router gets a copy of the fields in its input schema, which takes about 4 µs per message or dict. Its
    parameter may be annotated with a smaller schema. Of a `Budget`, `seconds` alone bounds the LM calls of such nodes.

    Args:
        graph: a `StateGraph`, or what its `compile()` returned.
        nodes: by the name of a node, a module, graph or function that takes its place, or the options of
            `Graph.add_node` for it, such as `{"node": chat, "modules": {"predict": module}}`. In all options, the node
            `inner` of a graph that is node `outer` has the name `outer.inner`; a graph that runs whole has none. The
            new node keeps the timeout, and the attempts and pauses of a `RetryPolicy`, whose default becomes that of
            `Retry`: no error that the LM has retried. An `error_handler` and a `CachePolicy` are left out, with a note
            in the log: write `add_error_edge(...)`, and `cache=` among the options. For labelled demonstrations, the
            examples also need the inputs of a predictor that a function calls.
        routes: by the name of a node, the nodes to which its routers may lead, where their code does not say it.
        goto: by the name of a node, the nodes to which a `Command` of it may lead, where its code does not say it.
        context: what nodes find as `runtime.context`. A run may be given its own, as a resource of the graph's
            `context_schema`: `program.run(inputs, resources=[Context(user="ada")])`.
        store: the `BaseStore` that nodes find as `runtime.store`; by default the one of a compiled graph.
        configurable: what nodes find in `config["configurable"]`, beside the name of the thread as `"thread_id"`. A
            run may be given more: `resources={RunnableConfig: {"configurable": {"user_id": "ada"}}}`.
        validate: whether values are validated by the annotations of the state; if not, all fields are `Any`.
        extra: what happens to a returned key that is no field: `"error"`, or `"drop"` as LangGraph does. Of a node
            that calls a graph of LangGraph it is always dropped.
        asynchronous: whether nodes with an async form are called by it, those that have a sync form too. Nodes and
            tools that have no other are always.
        merge: what a join does with a conflict, as in `Graph(merge=)`.

    Returns:
        The graph: `compile()` makes a program of it.

    Raises:
        GraphError: if the graph cannot be converted, with all problems and what to do about each.

    Example:
        >>> from typing import TypedDict
        >>> from langgraph.graph import StateGraph
        >>> class State(TypedDict):
        ...     name: str
        ...     text: str
        >>> old = StateGraph(State).add_node("greet",
        ...     lambda state: {"text": f"Hello {state['name']}"})
        >>> old = old.add_edge("__start__", "greet")
        >>> from_langgraph(old).compile()(name="Ada").text
        'Hello Ada'
    """
    check_flags(validate=validate, asynchronous=asynchronous)
    findings = Findings()
    options = Options(
        nodes=nodes or {},
        routes=routes or {},
        goto=goto or {},
        surroundings=Surroundings(context, store, configurable or {}),
        validate=validate,
        extra=extra,
        asynchronous=asynchronous,
        merge=merge,
    )
    converted = Conversion(graph, options, findings).run()
    if findings.problems:
        raise GraphError(findings.problems)
    assert converted is not None
    _LOG.info("from_langgraph: %s", "; ".join([f"{len(findings.nodes)} nodes converted", *findings.notes]))
    return converted


def explain_langgraph(graph: Any) -> LangGraphReport:
    """Say what `from_langgraph` would do with a graph, without a run. It raises nothing.

    Args:
        graph: a `StateGraph`, or what its `compile()` returned.

    Returns:
        The report. Print it: it has the nodes, what is in the way of a conversion, what the conversion
        infers or leaves out, and the nodes that call an LM, each with a module that could replace it.

    Example:
        >>> from typing import TypedDict
        >>> from langgraph.graph import StateGraph
        >>> class State(TypedDict):
        ...     name: str
        ...     text: str
        >>> old = StateGraph(State).add_node("greet",
        ...     lambda state: {"text": f"Hello {state['name']}"})
        >>> print(explain_langgraph(old.add_edge("__start__", "greet")))
        This graph can be converted: from_langgraph(graph).
        <BLANKLINE>
        Nodes
          node   what it is  reads  writes  goes to
          greet  function    name   text    END
    """
    findings = Findings()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _try_conversion(graph, findings)
        for warning in caught:
            findings.note(str(warning.message))
        return make_report(findings.problems, findings.notes, findings.nodes)
    except Exception as error:  # noqa: BLE001 - it is reported
        findings.problem(f"the conversion fails with {type(error).__name__}: {error}")
        return make_report(findings.problems, findings.notes)


def _try_conversion(graph: Any, findings: Findings) -> None:
    try:
        converted = Conversion(graph, Options(), findings).run()
        if converted is not None:
            converted.compile()
    except GraphError as error:
        for problem in error.problems:
            findings.problem(problem)


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments that `from_langgraph` was given beside the graph."""

    nodes: Mapping[str, Any] = field(default_factory=dict)
    routes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    goto: Mapping[str, Sequence[str]] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings)
    validate: bool = True
    extra: Literal["error", "drop"] = "error"
    asynchronous: bool = False
    merge: object = None

    def inside(self, name: str) -> Options:
        """The options of the graph that is node `name`: those of `name.inner` are for its node `inner`."""

        def inner(given: Mapping[str, Any]) -> dict[str, Any]:
            return {key.removeprefix(f"{name}."): value for key, value in given.items() if key.startswith(f"{name}.")}

        return replace(self, nodes=inner(self.nodes), routes=inner(self.routes), goto=inner(self.goto))


class Conversion:
    """One graph of LangGraph on its way: the steps are those of `run`. Problems and notes go to `findings`.

    `path` is the name of the node that the graph is, with a dot after it; empty for the outermost graph.
    """

    def __init__(self, graph: Any, options: Options, findings: Findings, path: str = "") -> None:
        self.given, self.options, self.findings, self.path = graph, options, findings, path

    def run(self) -> Graph | None:
        """The converted graph; None if there are problems."""
        self.builder = self._builder()
        if self.builder is None:
            return None
        self._take_surroundings()
        self.edges = self._edges()
        self.findings.nodes += [self._found(name) for name in self.edges.reached]
        self._check()
        self.fields = state_fields(self.builder, validate=self.options.validate, findings=self.findings)
        self.findings.value_types += classes_named(self.builder)
        self.inside = list(graphs_inside(self.builder))
        if any(graph.checkpointer is True for graph in self.inside):
            self.fields = with_checkpoints(self.fields, bool(self.path), self.findings)
        if self.findings.problems:
            # A user mends all problems at once, and not one graph after the other.
            self._check_inner_graphs()
            return None
        self.targets = self._targets()
        note_what_is_left_out(self.given, self.builder, self.edges, self.targets, self.findings, self.path)
        nodes = {name: self._node_options(name) for name in self.edges.reached}
        if self.findings.problems:
            return None
        graph = self._empty_graph()
        if isinstance(self.given, CompiledStateGraph):
            before, after = self.given.interrupt_before_nodes, self.given.interrupt_after_nodes
            stops = Breakpoints(before=self.targets.stops(before), after=self.targets.stops(after))
            graph._layers += [stops] if before or after else []
        for name, options in nodes.items():
            graph.add_node(self.targets.names[name], **options)
        for source in (START, *self.edges.reached):
            self._add_edges(graph, source)
        set_held_classes(self.fields.model, stored_classes(self.findings.value_types))
        return graph

    # --- the parts of LangGraph's graph

    def _builder(self) -> Any:
        """The `StateGraph`, whose nodes and edges can be read; None if there is none."""
        problem = graph_problem(self.given)
        if problem:
            self.findings.problem(problem)
        elif isinstance(self.given, StateGraph):
            # `compile` of LangGraph changes the graph, and the user's is left as it is.
            builder = _copied(self.given)
            try:
                builder.compile()  # LangGraph's own checks, and its defaults for nodes
            except ValueError as error:
                self.findings.problem(f"the graph does not compile in LangGraph: {error}")
            else:
                return builder
        return getattr(self.given, "builder", None) if not problem else None

    def _take_surroundings(self) -> None:
        """Give nodes the store and the config that the graph was compiled with, unless the caller gave others."""
        around, inside = self.options.surroundings, self._inside
        compiled_with = getattr(self.given, "store", None)
        if compiled_with is not None and around.store is None:
            around = replace(around, store=compiled_with)
            self.findings.note(f"nodes get the store that the graph{inside} was compiled with")
        bound = (getattr(self.given, "config", None) or {}).get("configurable")
        if bound:
            around = replace(around, configurable={**bound, **around.configurable})
            self.findings.note(f"nodes get the configurable values that the graph{inside} was bound to")
        if not self.path:  # LangGraph makes it once, for all graphs
            around = replace(around, context=self._made_context(around.context))
        self.options = replace(self.options, surroundings=around)

    def _made_context(self, given: object) -> object:
        """The context as nodes find it: LangGraph makes an object of a dict if there is a class for it."""
        schema = self.builder.context_schema
        made = isinstance(schema, type) and (issubclass(schema, BaseModel) or is_dataclass(schema))
        if not made or not isinstance(given, dict):
            return given
        try:
            return schema(**given)
        except (TypeError, ValueError) as error:  # whose text may show values, which may be secrets
            why = refusal_text(error, "context") if isinstance(error, ValidationError) else str(error)
            self.findings.problem(
                f"the context makes no {schema.__name__}: {why}; pass it as context={schema.__name__}(...)"
            )
            return given

    def _edges(self) -> GraphEdges:
        return GraphEdges(self.builder, self.options.routes, self.options.goto, self.findings, self._inside)

    @property
    def _inside(self) -> str:
        """The place of the graph, for notes."""
        return f" in the graph {self.path.removesuffix('.')!r}" if self.path else ""

    def _check(self) -> None:
        options = self.options
        check_names(self.builder, options.nodes, options.routes, options.goto, self.findings, self.path)
        check_graph(self.builder, self.edges.reached, options.nodes, self.findings, self.path)

    def _check_inner_graphs(self) -> None:
        """Find the problems of the graphs inside, too: no graph is built, and all problems are to be reported."""
        for name in self.edges.reached:
            if self._kind(name) == "graph":
                self._inner(name).run()

    def _targets(self) -> Targets:
        """The name of each node in dspyer, and what becomes of it."""
        names: dict[str, str] = {}
        for name in self.edges.reached:
            names[name] = usable_name(name, names.values())
            if names[name] != name:
                self.findings.note(
                    f"node {name!r}{self._inside} is named {names[name]!r}, which becomes an attribute of the program"
                )
        return Targets(names, frozenset(self.builder.nodes), {name: self._kind(name) for name in names})

    def _kind(self, name: str) -> Kind:
        if name in self.options.nodes:
            return "replaced"
        runnable = self.builder.nodes[name].runnable
        return "graph" if isinstance(runnable, CompiledStateGraph) and not why_whole(runnable) else "code"

    # --- what is made of them

    def _empty_graph(self) -> Graph:
        name, passing = getattr(self.given, "name", None), self.fields.passing
        lasting = [field for field in self.fields.model.model_fields if field not in passing]
        return Graph(
            self.fields.model,
            name=name if name and name != "LangGraph" else None,
            inputs=self.fields.inputs,
            required=NEEDED,  # LangGraph requires none: what nodes= brings cannot do without
            outputs=self.fields.outputs,
            merge=self._merge(),
            # As with a checkpointer: what a run leaves in other channels, the next one finds there.
            keep=lasting if passing else "all",
        )

    def _merge(self) -> object:
        """The merge policy, named for all fields: a graph that is a node writes what it passes on, mostly unchanged."""
        own = {"**": "raise", **dict.fromkeys(sorted(self.fields.of_last_write), "last_write_wins")}
        given: Any = {} if self.options.merge is None else self.options.merge
        # A policy for some fields leaves the others as they would be without it.
        return {**own, **given} if isinstance(given, Mapping) else given

    def _node_options(self, name: str) -> dict[str, Any]:
        """The way in which a node is added: the options of `Graph.add_node`."""
        options = {"goto": self._goto(name), **self._policies(name)}
        match self.targets.kinds[name]:
            case "replaced":
                given = self.options.nodes[name]
                options |= given if isinstance(given, Mapping) else {"node": given}
                self._check_replacement(name, options)
                self.findings.note(replaced_text(self._found(name), options))
            case "graph":
                options |= self._graph_options(name)
            case "code":
                node = self._node(name)
                options["node"] = node
                self._note_whole(name)
                if node.handler is not None:  # it takes every error after which there is no other attempt
                    options |= {"retry": node.retry, "timeout": None}
        return options

    def _note_whole(self, name: str) -> None:
        """Note a graph that LangGraph's engine runs inside of a node."""
        runnable = self.builder.nodes[name].runnable
        if isinstance(runnable, CompiledStateGraph):
            text = f"is a graph that LangGraph's engine runs whole, since {why_whole(runnable)}"
        elif read_code(runnable).values(CompiledStateGraph):
            text = "holds a graph, which LangGraph's engine runs whole when it is called"
        else:
            return
        text += ": it is one commit, nothing in it is tuned, and returned keys that are no fields are dropped"
        self.findings.note(f"node {self.path + name!r} {text}")

    def _policies(self, name: str) -> dict[str, Any]:
        """The policies of a node that `Graph.add_node` takes."""
        spec = self.builder.nodes[name]
        retry = retry_of(spec.retry_policy, replaced=self.targets.kinds[name] == "replaced")
        seconds = timeout_of(self.path + name, spec, self.findings)
        found = {"retry": retry, "timeout": seconds}
        return {option: policy for option, policy in found.items() if policy is not None}

    def _check_replacement(self, name: str, options: Mapping[str, Any]) -> None:
        """Refuse a module in the place of a node that also says where the run goes, which a module cannot."""
        ends = self.edges.commanded(name)
        if ends and isinstance(options.get("node"), (dspy.Module, Graph)):
            self.findings.problem(
                f"node {self.path + name!r} goes to {list_names(ends)} by a Command, and what replaces it has no goto: "
                "add conditional edges to the graph, which read what it writes, or replace it by a function"
            )

    def _graph_options(self, name: str) -> dict[str, Any]:
        """A graph that is a node, with what LangGraph passes in and out."""
        conversion, spec = self._inner(name), self.builder.nodes[name]
        inner = conversion.run()
        if inner is None:
            return {"node": None}
        seen = {CHECKPOINTS, *map(self.fields.field, self.fields.keys[spec.input_schema])}
        return {
            "node": inner.compile(max_steps=(spec.runnable.config or {}).get("recursion_limit")),
            "reads": [field for field in conversion.fields.inputs if field in seen],
            # LangGraph drops what the outer state has not.
            "writes": [field for field in conversion.fields.outputs if field in self.fields.model.model_fields],
        }

    def _found(self, name: str) -> FoundNode:
        targets = self.edges.ends(name) or (END,)
        return FoundNode(self.path, name, self.builder.nodes[name].runnable, data_channels(self.builder), targets)

    def _inner(self, name: str) -> Conversion:
        compiled = self.builder.nodes[name].runnable
        return Conversion(compiled, self.options.inside(name), self.findings, f"{self.path}{name}.")

    def _node(self, name: str) -> ConvertedNode:
        spec, handler = self.builder.nodes[name], self.builder.nodes.get(self.edges.handler(name))
        asynchronous = self.options.asynchronous or _awaits(spec.runnable)
        if handler is not None:  # LangGraph has timeouts for async nodes alone
            asynchronous = asynchronous or _awaits(handler.runnable) or spec.timeout is not None
        kind = AsyncConvertedNode if asynchronous else ConvertedNode
        node = kind(
            name=self.targets.names[name],
            label=name,
            runnable=spec.runnable,
            input_schema=spec.input_schema,
            fields=self.fields,
            static=self.edges.static.get(name, ()),
            router=self._router(name),
            targets=self.targets,
            leads_to=NamedTargets(
                frozenset([*self.edges.commanded(name), *self._followed(name)]), f"goto={{{self.path + name!r}: [...]}}"
            ),
            # LangGraph drops what a graph returns beside the fields of the graph around it; a function may pass it on.
            extra="drop" if read_code(spec.runnable).values(CompiledStateGraph) else self.options.extra,
            surroundings=self._surroundings,
            place=f"{self.path.replace('.', '|')}{name}",
            allowed=self._allowed,
        )
        if handler is None:
            return node
        handling = replace(
            node,
            name=f"{node.name}_error_handler",
            label=self.edges.handler(name),
            runnable=handler.runnable,
            place=f"{node.place}_error_handler",
        )  # its input_schema is that of the node: LangGraph passes on what the node got
        seconds = timeout_of(self.path + name, spec, self.findings)
        return replace(node, handler=handling, retry=retry_of(spec.retry_policy), timeout=seconds)

    @cached_property
    def _allowed(self) -> AllowedTypes:
        graphs = [self.builder, *[getattr(graph, "builder", graph) for graph in self.inside]]
        return frozenset().union(*[allowed_types(graph, classes_named(graph)) for graph in graphs])

    @property
    def _surroundings(self) -> Surroundings:
        managed, schema = dict(self.builder.managed), self.builder.context_schema
        return replace(self.options.surroundings, managed=managed, context_schema=schema)

    def _goto(self, name: str) -> list[str]:
        """The targets that a `Command` of the node may name: LangGraph follows its edges and routers, too."""
        commanded, handled = self.edges.commanded(name), self.edges.handler(name)
        if not (commanded or handled) or self.targets.kinds[name] == "graph":
            return []
        ends = {*commanded, *self._followed(name)}
        found = [self.targets.names[one] for one in self.edges.reached if one in ends]
        return [*found, topology.END] if handled else found

    def _followed(self, source: str) -> set[str]:
        """The targets of edges and routers."""
        return {*self.edges.static.get(source, ()), *self.edges.routed(source)}

    def _add_edges(self, graph: Graph, source: str) -> None:
        own = self.targets.names.get(source, topology.START)
        static = self.edges.static.get(source, ())
        router = self._router(source)
        if router is None:
            graph.add_edge(own, [self.targets.names[target] for target in static] or topology.END)
            return
        ends = self._followed(source)
        names = [self.targets.names[name] for name in self.edges.reached if name in ends]
        graph.add_conditional_edges(own, router, [*names, topology.END])

    def _router(self, source: str) -> ConvertedRouter | None:
        branches = self.builder.branches.get(source)
        if not branches:
            return None
        default = self.builder.nodes[source].input_schema if source != START else self.builder.state_schema
        return ConvertedRouter(
            label=source,
            branches=tuple(
                [
                    ConvertedBranch(sync_form(branch.path), branch.input_schema or default, branch.ends)
                    for branch in branches.values()
                ]
            ),
            static=self.edges.static.get(source, ()),
            fields=self.fields,
            targets=self.targets,
            leads_to=NamedTargets(frozenset(self._followed(source)), f"routes={{{self.path + source!r}: [...]}}"),
            surroundings=self._surroundings,
        )


def _awaits(runnable: Any) -> bool:
    """Return whether a node is async code alone, or holds a tool that is, as those of an MCP server are."""
    if isinstance(runnable, CompiledStateGraph):
        return any(map(_awaits, runnables_of(runnable)))
    tools = read_code(runnable).values(StructuredTool)
    return only_async(runnable) or any(use.value.func is None for use in tools)


def _copied(builder: Any) -> Any:
    """A copy of a `StateGraph`, which its `compile()` changes: it puts defaults into nodes, and adds their handler."""
    copied = copy(builder)
    copied.nodes = {name: copy(spec) for name, spec in builder.nodes.items() if name != DEFAULT_ERROR_HANDLER}
    return copied

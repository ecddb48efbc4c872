"""`Graph`: nodes, edges and routers are added one by one, and checked as a whole by `compile()`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import dspy
from pydantic import BaseModel

from dspyer.budget import Budget
from dspyer.errors import GraphError, list_names, names_options, noting
from dspyer.graph.checks import error_edges
from dspyer.graph.compile import compile_graph, source_text
from dspyer.graph.spec import (
    NEEDED,
    AnyEdge,
    Declarations,
    EdgeDeclaration,
    GraphOptions,
    GraphSpec,
    as_names,
    check_fields,
    check_limits,
    check_name,
    check_one_name,
    checked_edge_ends,
    checked_policies,
    with_redaction,
)
from dspyer.layers.attempts import Retry, RetryOn
from dspyer.layers.layer import Layer, checked_layers
from dspyer.lm.source import SourceText
from dspyer.log.execution_records import MISSING, Choose, Recorded, check_recorded
from dspyer.messages import MESSAGES
from dspyer.nodes.attempt import Answers, answer_source
from dspyer.nodes.build import node_name
from dspyer.nodes.check import CheckOptions
from dspyer.nodes.field_access import is_conversation
from dspyer.nodes.interrupt import InterruptOptions
from dspyer.nodes.module import ModuleIO, module_io, takes_more
from dspyer.nodes.node import MapOptions, Node
from dspyer.nodes.options import Cache, KindOptions, NodeOptions, OfGraph, node_options
from dspyer.nodes.router import RouterOptions
from dspyer.nodes.steps import is_program
from dspyer.policies import Policies
from dspyer.redaction import Redact
from dspyer.scheduler.topology import END, START  # noqa: F401 - for the examples below
from dspyer.schema.schema import Schema
from dspyer.stores import Store
from dspyer.templates import Fill
from dspyer.values.scalars import flag_problems
from dspyer.views import View, view

if TYPE_CHECKING:
    from dspyer.runtime.program import CompiledGraph


class Graph:
    """A state graph of DSPy programs. Add nodes and edges, then `compile()` it into a `dspy.Module`.

    Args:
        schema: a pydantic model of the state: its fields, their types, defaults and reducers. None for a state with any
            keys. A patch may be a pydantic model, with the effect of its `model_dump()`: defaults that were not set
            are written too, but that of a field with a reducer is no update, and of an instance of the schema only what
            was set counts. Without a schema a `None` of a model is stored, and one of a dict deletes the key.
        name: name of the graph, by default that of the schema.
        inputs: the fields that a run is given. By default those that no node declares to write, without a schema those
            that the nodes read.
        required: the inputs that a run must be given; the others may be left out. By default those without a default.
            An input that is left out and has no default is unset; a node that needs it needs a default for it.
        outputs: the fields that the program returns. By default every field that some node may write and that is no
            required input, and those with a reducer.
        merge: what a join does with a conflict: the name of a merge policy, a policy, a function `(Conflict) ->
            value`, or a dict from path pattern to one of these. By default a conflict raises. In a pattern, dots are
            between keys, `*` matches one key and `**` any number of keys; a tuple is a path without wildcards.
            A pattern that ends with a key applies to all below it, and the one
            with the longest part before its first wildcard decides.
            A merged value that no branch had is validated once more; one that is refused fails the join.
        keep: further fields that last over the runs of a thread, or `"all"`. Those of type `Kept[...]` and
            conversations (`Messages`, `add_messages`) last anyway; all others begin every run with their defaults.
        conversation: whether the nodes share one, in the field `messages`, which the schema need not have: each node
            with a predictor adds its turns and is shown its own, and the last message of another author, in the inputs
            `history` and `last_message` that its signature gets. A node that names `messages` does what it says.

    Raises:
        ValueError: if a merge policy is unknown.
        GraphError: if the schema cannot be the schema of a state, `keep` or a pattern of `merge` names an unknown
            field, a pattern decides nothing, or a shared conversation has no schema or its field another type.
        TypeError: for an option that was removed (`errors.REMOVED`).

    Example:
        >>> graph = Graph()
        >>> graph = graph.add_node("greet", lambda state: {
        ...     "greeting": f"Hello {state['name']}"})
        >>> program = graph.add_path(START, "greet", END).compile()
        >>> program(name="Ada").greeting
        'Hello Ada'
    """

    @names_options("Graph")
    def __init__(
        self,
        schema: type[BaseModel] | None = None,
        *,
        name: str | None = None,
        inputs: Iterable[str] | None = None,
        outputs: Iterable[str] | None = None,
        merge: object = None,
        keep: Iterable[str] = (),
        required: Iterable[str] | None = None,
        conversation: bool = False,
    ) -> None:
        # Checked here and not by `compile`: the traceback then shows the line with the mistake.
        if wrong := flag_problems(conversation=conversation):
            raise GraphError(wrong)
        fields = Schema.of(schema, conversation=conversation)
        if conversation:
            check_shared(fields)
        self._options = GraphOptions(
            name or (schema.__name__ if schema is not None else "Graph"),
            bool(name),
            fields,
            None if inputs is None else as_names(inputs),
            None if required is None else NEEDED if required is NEEDED else as_names(required),
            None if outputs is None else as_names(outputs),
            checked_policies("merge", merge, fields),
            None if keep == "all" else fields.lasting.union(as_names(keep)),
            frozenset([MESSAGES] if conversation else ()),  # a graph around it goes on with its own conversation
            conversation,
        )
        check_fields("keep", self._options.keep or (), [fields])
        self._nodes: dict[str, NodeOptions] = {}
        self._edges: list[AnyEdge] = []
        self._join_policies: dict[str, Policies] = {}
        self._settle_policies: dict[str, Policies] = {}  # of joins of an agent, where no edge has one
        self._least_steps = 0  # how many a search needs, whose rounds are bounded by its trials
        self._layers: list[Layer] = []  # around its nodes unless `compile` gets others of their kinds

    @names_options("Graph")
    def add_node(
        self,
        name: str | Callable[..., Any],
        node: object = None,
        *,
        reads: Collection[str] | Mapping[str, str | View | Fill] | None = None,
        writes: Collection[str] | Mapping[str, str] | None = None,
        modules: Mapping[str, dspy.Module | Graph] | None = None,
        frozen: bool | None = None,
        goto: Sequence[str] = (),
        condense: Mapping[str, dspy.Module] | None = None,
        retry: Retry | int | OfGraph | None = OfGraph.RETRY,
        timeout: float | None = None,
        cache: Cache | bool | None = None,
        layers: Iterable[Layer] = (),
        lm: dspy.BaseLM | None = None,
        conversation: bool = True,
    ) -> Graph:
        """Add a node: a function of the state's fields, a `dspy.Module`, or another graph.

        Args:
            name: name of the node, an identifier; `add_node(search)` takes the function's own. Its modules become the
                attribute of the program with this name, so a node with modules cannot be called like one that a program
                has, such as `run`.
            node: the function, module or graph. A `Graph` is compiled as it is now, without options. The patch of a
                graph is what its commits changed: of a field with a reducer their updates, of any other its value at
                the end, which replaces a mapping unless the graph reads the field. A compiled graph in several nodes
                shares its modules, tuned once and named after the first; compile it again for modules of their own.
            reads: the fields that the node sees, as a list, or as a map from its own names to the state's, to views of
                its fields, `{"findings": view("findings").new()}`, or to templates, `{"task": fill("Find {topic}")}`.
            writes: the fields that the node may write, as a list, or as a map from its own names to the state's.
            modules: DSPy modules that the function calls, by the name of its parameter. Programs and graphs too, which
                the function calls with `ctx.call`.
            frozen: True hides the node's modules from optimizers, False opens modules that one has compiled before.
            goto: the targets that a `Command` of the node may name.
            condense: by field, a module with one input and one output that shortens what the node writes there before
                it is committed. One that takes a list gets a whole update, any other one entry after the other.
            retry: which failed attempts are followed by another one: `Retry(...)`, or the most attempts, the first
                included; None for none. By default the policy of `compile(retry=)`, which a graph as a node ignores.
            timeout: the seconds of one attempt, None for no limit. One that takes longer fails with `NodeTimeoutError`:
                async code is cancelled; a graph is stopped, and keeps what it has committed; sync code is left running
                in a daemon thread, and nothing of it counts any more. Its `ctx` raises `AttemptOverError`, its next LM
                call ends it, and an effect in progress happens all the same. It is not retried by default, since two
                calls of it would run at once: `Retry(3, on=(is_transient, NodeTimeoutError))` does. A sync node with a
                timeout opens itself what belongs to a thread, such as an SQLite connection.
            cache: True or a `Cache` for a pure function, one whose patch depends on what it reads alone: its results
                are kept on disk, and a call that reads the same again is not made (`commit.cached`).
            layers: what else surrounds its calls, `dspyer.extend.Layer`s, the first one outermost in its place.
            lm: the language model of each predictor of the node that has none, in graphs inside too: the node nearest
                to it decides. It is not a part of saved states; `program.set_lm` comes before it.
            conversation: False leaves it out of the conversation of a `Graph(conversation=True)`.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if the name is taken, reserved or no identifier, a `Graph` that it gets cannot be compiled, or
                the place of a layer is unknown.
            TypeError: if a layer is none.

        Example:
            >>> graph = Graph().add_node("double", lambda state: {"n": 2 * state["n"]},
            ...     writes=["n"])
            >>> graph.add_path(START, "double", END).compile()(n=21).n
            42
        """
        if not isinstance(name, str):
            if node is not None:
                raise GraphError("add_node takes a name and a node: write add_node('search', search)")
            name, node = node_name(name), name
        if node is None:
            check_name(name, self._nodes)  # a wrong name is told first
            raise GraphError(f"node {name!r} has no function or module: write add_node({name!r}, function)")
        return self._add(
            name,
            node,
            modules,
            layers,
            reads=reads,
            writes=writes,
            goto=goto,
            frozen=frozen,
            condense=condense,
            retry=retry,
            timeout=timeout,
            cache=cache,
            lm=lm,
            conversation=conversation,
        )

    def add_map(
        self,
        name: str,
        node: object,
        *,
        over: str,
        item: str,
        into: str,
        failures: str | None = None,
        min_success: float = 0.0,
        max_concurrency: int | None = None,
        retry: Retry | int | OfGraph | None = OfGraph.RETRY,
        timeout: float | None = None,
        reads: Collection[str] | Mapping[str, str | View | Fill] | None = None,
        writes: Collection[str] | Mapping[str, str] | None = None,
        modules: Mapping[str, dspy.Module | Graph] | None = None,
        frozen: bool | None = None,
        layers: Iterable[Layer] = (),
        lm: dspy.BaseLM | None = None,
    ) -> Graph:
        """Add one node that runs another once per item of a list, and commits all results once, in the order of the
        items.

        Whether a map with `failures` completes depends on its items alone, not on the order in which they end; an empty
        list is a success. Errors that every layer lets pass fail it at once, a question of an item suspends it, and an
        error edge takes its `MapError`, which repeats the text of an item. On a thread each item that has succeeded is
        kept: a resume calls only the others, those that failed before the map has committed too.

        Args:
            name: name of the node.
            node: what runs for each item, a function, module or graph. Its result is the value that it returns; of a
                dict or a module with one output that output's value, of several a dict of them. Without `failures`, an
                item that raises ends the run.
            over: the field with the items.
            item: the name under which `node` gets one item.
            into: the field that gets the list of results. The first one that does not fit it stops the map.
            failures: the field that gets a `dspyer.Failure` for each item that failed, with the `index` of the item.
                All items run then, and `into` gets the results of those that succeeded.
            min_success: with `failures`, the share of the items that must succeed, from 0 to 1; at least one must.
                Otherwise the node fails with `MapError`, and no further item starts. It also fails if the first 20
                items all fail with one type of error that no retry would mend, as with a wrong API key.
            max_concurrency: most items at the same time, by default as many as the program allows nodes.
            retry: which failed attempts of an item are followed by another one, as in `add_node`.
            timeout: the seconds of one attempt of an item, as in `add_node`.
            reads: further fields that `node` sees.
            writes: the outputs of `node` for one item, if its signature does not declare them.
            modules: modules that a function calls.
            frozen: as in `add_node`.
            layers: as in `add_node`; those in the places `"retry"`, `"attempt"` and `"call"` surround each item.
            lm: as in `add_node`.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if the name is taken, reserved or no identifier, or a `Graph` that it gets cannot be compiled.

        Example:
            >>> size = lambda doc: {"size": len(doc)}
            >>> graph = Graph().add_map("measure", size, over="docs", item="doc",
            ...     into="sizes")
            >>> program = graph.add_path(START, "measure", END).compile()
            >>> program(docs=["a", "bcd"]).sizes
            [1, 3]
            >>> number = lambda text: {"number": int(text)}
            >>> graph = Graph().add_map("read", number, over="texts", item="text",
            ...     into="numbers", failures="unread")
            >>> run = graph.add_path(START, "read", END).compile().run(
            ...     {"texts": ["1", "two", "3"]})
            >>> list(run.state["numbers"]), run.state["unread"][0].index
            ([1, 3], 1)
        """
        check_one_name(over=over, item=item, into=into)
        if failures is not None:
            check_one_name(failures=failures)
        return self._add(
            name,
            node,
            modules,
            layers,
            reads=reads,
            writes=writes,
            map=MapOptions(over, item, into, max_concurrency, failures, min_success),
            frozen=frozen,
            retry=retry,
            timeout=timeout,
            lm=lm,
        )

    def add_interrupt(
        self,
        name: str,
        *,
        question: str | Callable[..., str],
        answer: Any = bool,
        into: str | None = None,
        expires: float | datetime | None = None,
        default: Any = MISSING,
    ) -> Graph:
        """Add a node that asks a question outside the program and waits for the answer: no code runs in it.

        The run ends with status `interrupted` after its other branches have run as far as they can; no process waits.
        If a part around it fails and an error edge takes the failure, the question is closed.
        On a thread `thread.resume(answers={name: ...})` continues the run, in any process, and calls no node again.

        Args:
            name: name of the node, and key of its question.
            question: a text with fields of the state in braces, or a function of fields that returns the text.
            answer: the type of the answer, any that pydantic validates; None for a question that only waits for a
                resume. An answer is an instance of it, or is read as strict JSON: a date as text, a set as a list, an
                enum by its value, a model as an object; no text becomes a yes, or a number.
            into: the field that gets the answer, one that lives for one run. A question with an answer needs it, so
                that a no cannot be overlooked.
            expires: when the question expires: seconds from when it is first asked, or a `datetime` with a time zone;
                None for never. With `answer=None` it is a timer. The first resume after it goes on. It counts by the
                clock of the process that asks, and is compared with that of the one that resumes; exports and copies
                keep it.
            default: the answer then, given `by="expired"`; without it the node raises `QuestionExpired`, which an error
                edge may take.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if the name is taken, reserved or no identifier.

        Example:
            >>> graph = Graph().add_interrupt("approve", question="Send {draft}?",
            ...     answer=bool, into="approved")
            >>> run = graph.add_path(START, "approve", END).compile().run(
            ...     {"draft": "Dear Ada"})
            >>> run.status, run.questions[0].text
            ('interrupted', 'Send Dear Ada?')
        """
        return self._add(name, InterruptOptions(question, answer, into, expires, default))

    def add_check(
        self,
        name: str,
        check: Callable[..., object] | type[BaseModel] | dspy.Module | Graph,
        *,
        of: str,
        max_fixes: int = 2,
        fix: dspy.Module | Graph | Callable[..., Any] | None = None,
        into: str = "problems",
        accept: bool = False,
    ) -> Graph:
        """Check what a node gives, and ask for corrections: `of -> name -> of_fix -> name -> ...`.

        The check and the fix are ordinary nodes. The edges and routers that are declared for `of`, before or after this
        call, begin at the check, once it has passed; error edges of `of` stay there. An error edge of the check takes
        its `CheckError`: the handler finds the last output in the state, what is wrong with it in the message of the
        `Failure`, and in `into` the problems of the output before.

        In a loop each visit of `of` has its own `max_fixes`, and so has each branch of a `Send`. A refused step stays
        in the trace with a copy of its predictor (`"rejected"` in `run.trace_steps`), so no optimizer that finds
        predictors by identity makes a demo of it; what `accept=True` let through counts like any other output.

        Args:
            name: name of the check.
            check: a function of fields that returns a list of problems, empty if the output is good; a pydantic model
                that validates the fields of its names; or a module or program with an output `problems: list[str]`.
                Blank texts of a module do not count; one of a function fails the check.
            of: the node whose output is checked, a module or a function.
            max_fixes: the most corrections of one output; after them the check raises `CheckError`.
            fix: what corrects the output, as the node `of_fix`. It may take the inputs of `of`, `previous_<output>`,
                `problems`, and fields. By default a predictor that takes these and gives what `of` gives; it is tuned
                and saved like any other. A function as `of` needs one. What it leaves out stays as it was refused; each
                correction has the `retry` and `timeout` of `of`.
            into: the field that gets the problems, a list of texts; a check that passes empties it. Checks that run in
                parallel need different ones.
            accept: whether the last output is accepted instead of the error, with its problems in `into`.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if the name is taken, reserved or no identifier, or `of` or `into` is no name; `compile` finds
                the rest.

        Example:
            >>> import dspy
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("draft", dspy.Predict("question -> answer"))
            >>> graph = graph.add_check("short", lambda answer: ["too long"]
            ...     if len(answer) > 3 else [], of="draft")
            >>> program = graph.add_path(START, "draft", END).compile()
            >>> with ScriptedLM([{"answer": "four"}, {"answer": "4"}]):
            ...     run = program.run({"question": "2 + 2?"})
            >>> [commit.node for commit in run.commits], run.state["answer"]
            (['START', 'draft', 'short', 'draft_fix', 'short'], '4')
        """
        check_one_name(of=of, into=into)
        # `of` is looked up by `compile`: the node may be added after its check.
        return self._add(name, CheckOptions(compiled(check, name), of, max_fixes, compiled(fix, name), into, accept))

    def _add(self, name: str, node: object, modules: Any = None, layers: Any = (), **options: Any) -> Graph:
        """Add a node of any kind; the graph is as it was if something raises."""
        # First what may raise, then the change. Modules that are no mapping are a problem that `compile` reports.
        check_name(name, self._nodes)
        if isinstance(modules, Mapping):
            modules = {parameter: compiled(module, name) for parameter, module in modules.items()}
        given = checked_layers(layers, f"node {name!r}: layers=")
        self._nodes[name] = node_options(
            name, compiled(node, name), self._options.schema, modules=modules, layers=given, **options
        )
        return self

    def add_edge(self, source: str | Sequence[str], target: str | Sequence[str], *, policy: object = None) -> Graph:
        """Add edges. Several targets fork, in that order; several sources are several edges.

        Args:
            source: a node, `START`, or a list of nodes.
            target: a node, `END`, or a list of nodes.
            policy: the merge policy of joins at the target, in the forms of `Graph(merge=...)`.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if one end of the edge is no name, an edge to the target has another `policy`, or a pattern of
                `policy` names an unknown field or decides nothing.
            ValueError: if the merge policy is unknown.

        Example:
            >>> graph = Graph().add_node("left", lambda: {"side": "l"}).add_node(
            ...     "right", lambda: {"side": "r"})
            >>> graph = graph.add_edge(START, ["left", "right"]).add_node("judge",
            ...     lambda side: {"winner": side})
            >>> graph = graph.add_edge(["left", "right"], "judge",
            ...     policy="last_write_wins").add_edge("judge", END)
            >>> graph.compile()().winner
            'r'
        """
        sources, targets = checked_edge_ends(source), checked_edge_ends(target)
        if policy is not None:
            given = {}  # all are checked before one is kept: a graph that raises here is as it was
            for node in targets:
                # Laid over what joins there do without the policy of an edge: a second edge with the same one gives the
                # same table.
                below = self._settle_policies.get(node, self._options.policies)
                given[node] = checked_policies("policy", policy, self._options.schema, below)
                if self._join_policies.get(node, given[node]) != given[node]:
                    raise GraphError(f"joins at {target!r} have another policy already: give it to one of the edges")
            self._join_policies |= given
        self._edges.append(EdgeDeclaration(sources, targets))
        return self

    def add_path(self, *nodes: str) -> Graph:
        """Add a chain of edges.

        Args:
            nodes: at least two names; `START` and `END` included.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if there are fewer than two names.

        Example:
            >>> graph = Graph().add_node("first", lambda: {"n": 1}).add_node("second",
            ...     lambda n: {"n": n + 1})
            >>> graph.add_path(START, "first", "second", END).compile()().n
            2
        """
        if len(nodes) < 2:
            raise GraphError("add_path takes at least two nodes: add_path(START, 'first', END)")
        for source, target in pairwise(nodes):  # with the checks and messages of single edges
            self.add_edge(source, target)
        return self

    def add_conditional_edges(
        self,
        source: str,
        route: Callable[..., object] | str | dspy.Module,
        path_map: Mapping[Any, str | Sequence[str]] | Sequence[str] | None = None,
        *,
        name: str | None = None,
        writes: Collection[str] | Mapping[str, str] | None = None,
    ) -> Graph:
        """Add a router, which decides at run time where a branch goes.

        It is pure: it does not await, and writes nothing. An unknown target or an empty list raises `RouteError`. The
        `Send`s of a router are found in its code; one that calls a function of another file to create them is annotated
        `-> list[Send]`, and a node that returns them `-> Command[Send]`.

        Args:
            source: the node that the branch leaves, or `START`.
            route: a sync function of the state's fields, the name of a field, or a `dspy.Module` with one `Literal`
                output.
            path_map: by label a target, or a list of targets that fork; or the list of all targets. By default the
                `Literal` that the function returns.
            name: name of a module router, by default the source's with `_router`.
            writes: the field that gets the label of a module router.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if the name is taken, reserved or no identifier, or the source is not one name.

        Example:
            >>> def route(score):
            ...     return "done" if score > 2 else "again"
            >>> graph = Graph().add_node("add", lambda score: {"score": score + 1},
            ...     writes=["score"])
            >>> graph = graph.add_edge(START, "add")
            >>> graph = graph.add_conditional_edges("add", route,
            ...     {"again": "add", "done": END})
            >>> graph.compile()(score=0).score
            3
        """
        if name is not None:
            check_name(name, self._nodes)
        sources = checked_edge_ends(source)
        if len(sources) != 1:
            raise GraphError(
                f"a router follows one node, not {list_names(sources)}: lead them to one node, and add it there"
            )
        self._edges.append(RouterOptions(*sources, route, path_map, name, writes))
        return self

    def add_error_edge(
        self,
        source: str | Sequence[str],
        target: str,
        *,
        on: RetryOn | tuple[RetryOn, ...] = Exception,
        into: str | None = None,
    ) -> Graph:
        """Add an edge that a branch takes when a node has failed, after all attempts that its `retry=` allows.

        The failed node commits nothing but the failure, and the branch goes on at the handler. The edge takes what the
        node raised, also while its output was validated or condensed. It does not take errors of the node's routers or
        of the join before it, nor those that every layer lets pass: `GraphError`, `RouteError`, `LimitError`,
        `RunStoppedError`, `StoreError`, `ThreadError`, `AttemptError`, `BrokenExecutor`, and a group with one of them.
        Of several error edges of a node, the first one that takes the exception counts, in the order of declaration.

        Joins wait for a branch that may still fail into them. After a failure in a fork the other branches go on, and
        the node where they join runs without the failed branch, in parallel to a handler that leads elsewhere; if both
        write one field, `compile()` refuses the graph: lead the handler to that node, or say what wins by
        `merge={"reply": prefer("apologize")}`. Failed branches of a `Send` join at the handler, which runs once, with
        all failures. An edge that leads back makes a loop, which only `max_steps` or a budget ends. If several branches
        of a graph inside the node would fail, it depends on time which of them have started: the failure is that of the
        first of these in branch order.

        Posts of the failed node to live fields stay. Its predictor calls are no steps of the trace; their tokens
        count. On a thread the failure is written before the handler starts, so a resume does not call the node again.

        Args:
            source: the node, or a list of nodes.
            target: the node that handles the failure; `END` ends the branch.
            on: what it takes: an exception type, a predicate `error -> bool`, or a tuple of both.
            into: the field that gets the `dspyer.Failure`, of type `Failure | None`, or a list of failures with the
                reducer `append`, as sources need that may fail in parallel; None for none. It counts as a field that
                the source writes.

        Returns:
            The graph itself, changed.

        Raises:
            GraphError: if an end of the edge is no name, the source is `START`, or `on` is neither a type nor a
                function.

        Example:
            >>> graph = Graph().add_node("half", lambda n: {"result": 1 / n},
            ...     writes=["result"])
            >>> graph = graph.add_node("excuse", lambda problem: {
            ...     "result": problem.message}, writes=["result"])
            >>> graph = graph.add_path(START, "half", END).add_edge("excuse", END)
            >>> graph = graph.add_error_edge("half", "excuse", on=ZeroDivisionError,
            ...     into="problem")
            >>> graph.compile()(n=0).result
            'division by zero'
        """
        self._edges += error_edges(source, target, on, into)
        return self

    @names_options("Graph")
    def compile(
        self,
        *,
        store: Store | str | PathLike[str] | None = None,
        max_steps: int | None = None,
        max_concurrency: int = 32,
        budget: Budget | None = None,
        retry: Retry | int | None = None,
        answers: Answers = None,
        redact: Redact = None,
        record_lm_calls: Recorded | Choose = "usage",
        layers: Iterable[Layer] = (),
    ) -> CompiledGraph:
        """Check the whole graph and make a program of it. `graph.compile()` builds, `optimizer.compile()` tunes.

        Args:
            store: where `program.thread(...)` keeps its runs: the path of an SQLite file, `":memory:"`, a
                `postgresql://` address, or a `Store`.
            max_steps: longest chain of commits in a run: bounds loops, however wide the graph forks. By default 1000,
                for a search as many more as its trials need; then the turns of an agent do not count, which `max_turns`
                bounds.
            max_concurrency: most nodes that work at the same time in one run, and in each run inside of its nodes.
                Inside another graph it has no effect.
            budget: what a run may spend, unless its call gives another budget. Inside another graph it has no effect.
            retry: the retry policy of every node that has none of its own and is no graph, as in `add_node`.
            answers: answers to questions by key, or a function from a `Question` to its answer, for runs
                without a person: under an optimizer, `dspy.Evaluate` or a test. Keys that no node asks are ignored,
                since those of `ctx.interrupt` show only in a run; the error names a question without an answer.
            redact: what is hidden in all that dspyer prints, draws, sends or writes for people: patterns of paths
                (`["user.email", "**.token"]`), or a function of a path and a plain value that returns what is shown.
                Values in the process, stores and exports are whole. Readers of a store obey the patterns too.
                A pattern begins with a field of this graph or of a graph inside it, and goes on with parts of its type.
                `notes.*.text` hides a part of each item of a list. What comes after `**` is not checked; any other
                pattern that can hide nothing is refused. Hidden values of at least 4 characters are replaced in all
                other texts of the run too, such as messages of exceptions. What a node derives from them, which
                `explain()` lists, the keys of a hidden mapping and the frames of a traceback are not. Give it to the
                outermost program: inside another graph it hides values in the events of the inner run alone.
            record_lm_calls: what a run on a thread records of its LM calls (`thread.lm_calls`). `"usage"`: predictor,
                model, tokens, cost, times. `"full"`: messages and responses, too; with `redact` these are stored only.
                `"none"`: nothing. A function gets each `dspyer.events.LMCall` with its texts, and returns what to
                write, such as `dataclasses.replace(call, messages=None)`, or None for nothing; if it raises, the run
                fails. Inside another graph it has no effect.
            layers: what surrounds every node: `Breakpoints(...)`, `Conversations(...)`, and what you make of
                `dspyer.extend.Layer`; they come before those of the nodes.

        Returns:
            A `dspy.Module` with copies of the modules; the graph can be changed and compiled again.

        Raises:
            GraphError: if anything is wrong with the graph, with all problems and their fixes.
            ValueError: if `record_lm_calls` is unknown, a pattern of `redact` is malformed, or `retry` is less than 1.
            TypeError: if `answers` is neither a dict nor a function, or `retry`, `budget` or a layer is of another
                kind; for an option that was removed (`errors.REMOVED`).

        Example:
            >>> from dspyer import END
            >>> Graph().add_node("hello", lambda state: {"text": "hi"}).add_edge(
            ...     "hello", END).compile()
            Traceback (most recent call last):
            dspyer.errors.GraphError: nothing starts: add an edge from START, for
            example add_edge(START, 'first')
        """
        from dspyer.runtime.program import make_program

        # Not a default of the parameter: a search needs more steps than a graph, and what the user gives counts always.
        counts_all = max_steps is not None
        if max_steps is None:
            max_steps = max(1000, self._least_steps)
        check_limits(max_steps=max_steps, max_concurrency=max_concurrency)
        given = checked_layers(layers, "compile(layers=)")
        # What `compile` is given takes the place of what an agent or a converted graph has of the same kind.
        of_graph = [one for one in self._layers if type(one) not in map(type, given)]
        copies: dict[int, dspy.Module] = {}  # of modules that get more inputs: one of several nodes is copied only once
        nodes = [_sharing(one, copies) if self._options.conversation else one for one in self._nodes.values()]
        # With copies of the collections: the graph may be changed before an optimizer asks for its text.
        declared = Declarations(
            self._options,
            tuple(nodes),
            tuple(self._edges),
            self._settle_policies | self._join_policies,
        )
        graph, modules = compile_graph(
            declared,
            max_steps,
            counts_all,
            Retry.from_option(retry),
            [*of_graph, *given],
            answer=answer_source(answers),
            max_concurrency=max_concurrency,
            budget=Budget.of(budget),
            record_lm_calls=check_recorded(record_lm_calls),
        )
        # Last, when the modules are known: a pattern may name a field of a graph inside.
        graph = with_redaction(graph, redact, modules.values())
        text = SourceText(partial(source_text, declared))
        if store is None:
            return make_program(graph, modules, text)
        # Here: a program without threads needs no store, and does not pay for the import.
        from dspyer.stores import open_store

        return make_program(graph, modules, text, open_store(store))

    def __repr__(self) -> str:
        return f"<{self._options.name}: {', '.join(self._nodes)}>"

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise GraphError(f"graph {self._options.name!r} cannot be called: {_COMPILE_FIRST}")

    def __getattr__(self, name: str) -> NoReturn:
        # Private names get the plain error: `copy` and `pickle` ask for methods that need not exist.
        if name in _OF_PROGRAMS or (not name.startswith("_") and hasattr(dspy.Module, name)):
            raise AttributeError(f"a Graph has no {name!r}: {_COMPILE_FIRST}")
        if not name.startswith("_") and hasattr(GraphSpec, name):
            raise AttributeError(f"a Graph has no {name!r}: compile() it, and ask its program, program.graph.{name}")
        hint = f": {_OTHERS[name]}" if name in _OTHERS else ""
        raise AttributeError(f"'Graph' object has no attribute {name!r}{hint}")


def compiled(node: Any, name: str) -> Any:
    """The program of a graph that node `name` was given; anything else as it is."""
    if not isinstance(node, Graph):
        return node
    with noting(f"in the graph {node._options.name!r} that was given for node {name!r}"):
        return node.compile()  # as it is now: later changes of the graph do not reach the node


_OTHERS = {
    "set_entry_point": "write add_edge(START, 'first')",
    "set_finish_point": "write add_edge('last', END)",
    "add_sequence": "write add_path(START, 'first', 'second', END)",
    "invoke": "it is the plan of a program: compile() it, and call what that returns, program(question=...)",
}
"""Methods of other graph libraries, with what to write here."""

_OF_PROGRAMS = frozenset({"run", "arun", "stream", "astream", "thread", "threads", "with_resources", "with_executor"})
"""Methods of a compiled graph that `dspy.Module` does not have."""

_COMPILE_FIRST = "it is the plan of a program. Call .compile() first, and use or tune the program that it returns"


# --- `Graph(conversation=True)`: the declarations by which the nodes of a graph share one conversation

# They are made of the options of the nodes when the graph is compiled, and what is built of them knows nothing of it: a
# node does what it would do if the user had written them.

LAST, HISTORY = "last_message", "history"
"""The inputs in which a node gets the last message of another author, and its own turns."""

_LAST_OF_OTHERS, _OWN = view(MESSAGES).others().last(1), view(MESSAGES).own()


def check_shared(schema: Schema) -> None:
    """Refuse a state in which nodes cannot share a conversation."""
    if schema.model is None:
        raise GraphError("conversation=True adds a field to a schema, and there is none: write Graph(Schema, ...)")
    if not is_conversation(MESSAGES, schema):
        raise GraphError(
            f"conversation=True: {schema.model.__name__} has a field {MESSAGES!r} of another type: give it the type "
            "dspyer.Messages, or rename it"
        )


def _sharing(options: NodeOptions, copies: dict[int, dspy.Module]) -> NodeOptions:
    """The options of a node, with the declarations of a shared conversation.

    Left as they are: nodes that the user has left out or that name the conversation themselves, maps, and what is no
    module.
    """
    module, named = options.node, {*(options.reads or {}).values(), *(options.writes or {}).values()}
    named |= {name for source in options.computed.values() for name in source.names}
    is_module = isinstance(module, dspy.Module) and not isinstance(module, (KindOptions, Node))
    if not options.conversation or options.map or MESSAGES in named or not is_module:
        return options
    found = module_io(module)
    if is_program(module):
        return _sharing_graph(options, found, module)
    if MESSAGES in (*found.inputs, *(found.outputs or ())) or (found.outputs is None and options.writes is None):
        return options  # without `writes` nothing can be made of it, which is reported when it is built
    history = next((name for name, kind in found.inputs.items() if kind is dspy.History), HISTORY)
    views = {LAST: _LAST_OF_OTHERS, history: _OWN}
    known = (*found.inputs, *(found.outputs or ()), *found.by_products)
    added = [name for name in views if name not in known] if takes_more(module) else []
    module = _with_inputs(module, added, copies)
    writes = options.writes if options.writes is not None else {name: name for name in found.outputs or ()}
    shared = _reading(options._replace(node=module), found, views, added)
    return shared._replace(writes={**writes, MESSAGES: MESSAGES})


def _sharing_graph(options: NodeOptions, found: ModuleIO, program: Any) -> NodeOptions:
    """The options of a graph inside, whose nodes add their messages to the conversation if it has one of its own."""
    inner = program.graph
    if MESSAGES not in (*found.inputs, *found.extras) or not is_conversation(MESSAGES, inner.topology.schema):
        return options
    # An agent would be shown the tool calls of another one as its own. Nodes of other graphs are told apart.
    is_agent = any(node.bounded for node in inner.nodes.values())
    shared = _reading(options, found, {LAST: _LAST_OF_OTHERS, MESSAGES: _OWN if is_agent else MESSAGES}, [MESSAGES])
    return shared if options.writes is None else shared._replace(writes={**options.writes, MESSAGES: MESSAGES})


def _reading(
    options: NodeOptions, found: ModuleIO, sources: Mapping[str, View | str], added: Collection[str]
) -> NodeOptions:
    """The options with the sources of inputs that are added, and of others where neither `reads` nor a field is one."""
    fields, own = options.schema.fields, options.reads
    taken = {
        name: one
        for name, one in sources.items()
        if name not in (own or ()) and (name in added or (name in found.inputs and name not in fields))
    }
    if not taken:
        return options
    # What it reads by the names of its fields has to be said, now that something is.
    reads = {name: name for name in found.inputs if name in fields} if own is None else own
    views = {**options.views, **{name: one for name, one in taken.items() if isinstance(one, View)}}
    return options._replace(reads={**reads, **dict.fromkeys(taken, MESSAGES)}, views=views)


def _with_inputs(module: Any, names: list[str], copies: dict[int, dspy.Module]) -> Any:
    """A copy of a module whose signature has these inputs too, as if the user had written them last."""
    if not names or id(module) in copies:
        return copies.get(id(module), module)
    copies[id(module)] = longer = copy.copy(module)
    if isinstance(module, dspy.Predict):
        longer.signature = _with_fields(module.signature, names)
    else:
        part = "predict" if isinstance(module, dspy.ChainOfThought) else "module"
        setattr(longer, part, _with_inputs(getattr(module, part), names, copies))
    return longer


def _with_fields(signature: type[dspy.Signature], names: Iterable[str]) -> type[dspy.Signature]:
    longer = signature
    for name in names:
        longer = longer.append(name, dspy.InputField(), type_=str if name == LAST else dspy.History)
    # The instructions that DSPy writes where the user writes none name the inputs.
    before, after = map(_default_instructions, (signature, longer))
    return longer.with_instructions(after) if signature.instructions == before else longer


def _default_instructions(signature: type[dspy.Signature]) -> Any:
    outputs = [name for name in signature.output_fields if name != "reasoning"]  # `ChainOfThought` adds it afterwards
    return dspy.Signature(f"{', '.join(signature.input_fields)} -> {', '.join(outputs)}").instructions

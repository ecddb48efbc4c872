"""Gold runs: a program runs on an example, and each value that has gold is judged and replaced when it is written.

So every node reads right values, and all nodes that are wrong by themselves show at once. A `Sheet` has what the nodes
of one call of a program have written, at any depth, and what they had read. `blame` names the culprits.

- A value is **right** if its metric says so, if gold was put in its place, or if it was right in the run itself.
- A value is **wrong** if its metric says so and no gold is put in. Nothing that was made from it can be blamed.
- A value without a metric is **unknown**: it carries the predictors that made it, and those of what its node had read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as made
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import dspy

from dspyer.errors import RunStoppedError, always_raised, annotate, brief, shows_removed, with_article
from dspyer.events import TraceStep
from dspyer.extend import Address, Call, Node, Output, freeze, part_id, same, thaw, using, whole_execution
from dspyer.lm.not_public import CALLERS, TRACE
from dspyer.lm.tracing import executing, original_id
from dspyer.nodes.router import Router
from dspyer.optimize.examples import validate_examples
from dspyer.optimize.field_functions import NO_GOLD, FieldResult, wrong_text
from dspyer.optimize.field_metric import FieldMetric, graphs_in
from dspyer.optimize.gold_layer import SHEET, GoldLayer, ItemLayer
from dspyer.patch import Replace

Scope = tuple[str, tuple[str, ...]]
"""A run: the key of the outermost one in the call of the program, and the executions around it."""


OUTSIDE: Scope = ("", ())
"""In place of a run: what a hand-written module calls itself."""


class PredictorCall(NamedTuple):
    """One call of a predictor: its full name in the program, its inputs, and what it gave."""

    predictor: str
    inputs: Mapping[str, Any]
    outputs: Any


class Part(NamedTuple):
    """The part of gold that a value is compared with, if it is a part of a list.

    Attributes:
        position: the index of the entry that a `Send` target adds; None for a map, whose items are compared one by one.
        entry: that entry.
    """

    position: int | None = None
    entry: Any = None


@dataclass(slots=True, eq=False)
class Value:
    """A value that a node, an item of a map, or a router has written.

    Attributes:
        scope: the run in which it was written.
        commit: the id of its commit in that run.
        path: the node, after the nodes around it and the attribute of its graph in a module.
        field: the field of its graph.
        output: the name that the node has for it.
        value: what was written, before gold was put in its place.
        state: the state with it.
        kind: `"node"`, `"graph"` for a node that passes on what the nodes inside of it have written, `"fix"` for one
            that corrects what a check has refused, `"router"`, `"failure"` for what led to the handler of one.
        part: how it is compared with a list; None for a whole value.
        item: its index in the list of a map; None for a whole value.
        key: the key of its metric; None if it has none.
        result: what the metric found; None if it was not judged.
        gold: what is right; `NO_GOLD` if that is unknown.
        may_replace: whether gold can be put in its place: not in a live field, nor in what a reducer folds.
        folds: whether a reducer folds it into what others have written: it is judged with that, where it is read.
        leads: whether it decides what runs next: of a router, or of a node that gives a `Command`.
        lost: whether a merge policy has preferred another one, before anything has read it.
        replaced: whether gold was put in its place.
        steps: the calls of predictors that made it; known after `Sheet.link`, as is the next.
        reads: the values that were read for it.
    """

    scope: Scope
    commit: str
    path: tuple[str, ...]
    field: str
    output: str
    value: Any
    state: Any
    kind: str = "node"
    part: Part | None = None
    item: int | None = None
    key: str | None = None
    result: FieldResult | None = None
    gold: Any = NO_GOLD
    may_replace: bool = True
    folds: bool = False
    leads: bool = False
    lost: bool = False
    replaced: bool = False
    steps: tuple[PredictorCall, ...] = ()
    reads: list[Value] = made(default_factory=list)

    @property
    def verdict(self) -> str:
        """`"right"`, `"wrong"` or `"unknown"`, of what was written."""
        return "unknown" if self.result is None else self.result.verdict

    @property
    def predictors(self) -> tuple[str, ...]:
        """The full names of the predictors that made it; of a function and of a graph, none."""
        return () if self.kind == "graph" else tuple(dict.fromkeys([step.predictor for step in self.steps]))

    @property
    def name(self) -> str:
        """The path of its node as a text."""
        return ".".join(self.path)

    @property
    def place(self) -> tuple[Any, ...]:
        """The place where it was written, the same in two runs of an example."""
        return self.scope, self.commit, self.path, self.field, self.item

    @property
    def text(self) -> str:
        """The words of its metric; "" without a verdict."""
        return "" if self.result is None else wrong_text(self.output, self.value, self.result, self.gold)


class _Ended:
    """The facts of one run, once it has ended."""

    def __init__(self, run: Any) -> None:
        self.graph = run.graph
        self.entries = {entry.commit.id: entry for entry in run.run.log}
        self.ids = list(self.entries)
        self.parents = {id_: [self.ids[at] for at in entry.parents] for id_, entry in self.entries.items()}
        self.written = dict.fromkeys(field for entry in run.run.log[1:] for field in entry.commit.patch)
        self.given = run.run_start.state
        self.of_example: dict[str, bool] = {}  # the inputs that are those of the example, as far as that was asked
        self.last = next((one.commit.id for one in reversed(run.run.log) if not one.commit.branch), "")
        self.reads = run.reads()
        self.steps: dict[str, list[TraceStep]] = {}
        for step in run.trace_steps(run.run):
            self.steps.setdefault(step.execution, []).append(step)
        self.values: dict[tuple[str, str], list[Value]] = {}  # by commit and field
        self.unchanged: set[tuple[str, str]] = set()  # those that are what another commit has written
        self.labels: dict[str, list[Value]] = {}  # of the routers after a commit, or of a `Command` in it
        modules = {way.module_name for ways in self.graph.exits.values() for way in ways if isinstance(way, Router)}
        parts = [vars(run.program)[name] for name in modules if name is not None]
        self.of_routers = {id(one) for part in parts for _, one in part.named_predictors()}


class Sheet:
    """The values that the nodes of one call of a program have written, and those that they had read.

    Args:
        metric: the metric by field.
        example: the example; None if `judge` gives it later: then nothing is replaced.
        replaces: the keys whose gold is put in the place of what is wrong.
        unused: the keys that are treated as having no metric.

    Attributes:
        values: what was written, in the order of arrival.
        prediction: what the program returned; None if it raised.
        error: what it raised; None if nothing.
        problems: what checks have found in the output of a commit.
        program: the program.
        trace: the DSPy trace of the call.
        again: how often a node whose output is wrong is asked again.
        after_checks: whether gold is put in the place of a checked output only where its check accepts it, so that what
            is refused is corrected.
    """

    program: dspy.Module
    trace: Sequence[Any] = ()
    again = 0
    after_checks = False

    def __init__(
        self, metric: FieldMetric, example: Any = None, replaces: Collection[str] = (), unused: Collection[str] = ()
    ) -> None:
        self.values: list[Value] = []
        self.prediction: dspy.Prediction | None = None
        self.error: Exception | None = None
        self.problems: dict[tuple[Scope, str], list[str]] = {}
        self._metric, self._example, self._replaces, self._unused = metric, example, replaces, unused
        self._ended: dict[Scope, _Ended] = {}
        self._called: dict[tuple[Scope, str], dict[Scope, None]] = {}  # the runs that each execution has called
        self._paths: dict[tuple[Scope, str], tuple[str, ...]] = {}  # of the node of each execution that has begun
        self._items: dict[tuple[Scope, str], Sequence[Any]] = {}  # the steps of each item of a map
        self._unchecked: dict[tuple[Scope, str], list[list[Value]]] = {}  # what waits for the verdict of its check
        self._wholes: dict[tuple[Any, ...], Value] = {}  # of what a reducer has folded, by its parts
        self._names: dict[int, str] = {}  # of the predictors, by id
        self._callers: dict[str, tuple[Scope, str] | None] = {}  # the execution whose code began an outermost run
        self._prefixes: dict[str, tuple[str, ...]] = {}  # of each outermost run, the attribute of its graph
        self._lock = Lock()

    @cached_property
    def right(self) -> bool:
        """Tell if the result of the call is right. What its metric raises is the error of the call."""
        if self.prediction is None or self.error is not None:
            return False
        metric, field = self._metric, self._metric.goal.rpartition(".")[2]
        judged = [one for one in self.values if one.key == metric.goal and one.item is None]
        known = metric.weights is None and field in self.prediction and judged and judged[-1].verdict != "unknown"
        if known and same(freeze(judged[-1].value), freeze(self.prediction[field])):
            return judged[-1].verdict == "right"  # the metric may ask an LM: it is not called again
        try:
            return bool(metric(self._example, self.prediction) >= 1)
        except Exception as error:
            if always_raised(error):
                raise
            self.error = error
            return False

    # --- what the layer sees, from any thread

    def name_predictors(self, program: dspy.Module) -> None:
        """Learns the full names of the predictors."""
        self._names = self._names or {id(one): name for name, one in program.named_predictors()}

    def begin(self, graph: Any, around: str | None) -> str:
        """The key of an outermost run that begins, of a graph of the program, maybe by the code of a node."""
        program = (dspy.settings.get(CALLERS) or [graph])[0]
        path = next((path for path, one in graphs_in(program) if one is graph), ())
        with self._lock:
            self.name_predictors(program)
            here, caller = executing.get(), None
            if around is not None and here is not None:
                *outer, execution = Address.parse(here.id).inside
                caller = (around, tuple(outer)), execution
            # The same in another run, in which items may begin in another order.
            root = f"{caller or ''}{[*self._callers.values()].count(caller):05}"
            self._callers[root], self._prefixes[root] = caller, path
            return root

    def enter(self, root: str, call: Call) -> None:
        """Notes the node of an execution before it is called: the runs inside of it ask for its path."""
        scope = (root, call.runner.session.scope)
        self._paths[scope, call.context.delegate.execution] = (*self._around(scope), call.node)

    def made_item(self, root: str, call: Call) -> None:
        """Notes the steps of an item of a map, which has been called."""
        scope = (root, call.runner.session.scope)
        self._items[scope, call.context.delegate.execution] = tuple(dspy.settings.get(TRACE) or ())

    def _around(self, scope: Scope) -> tuple[str, ...]:
        root, around = scope
        if not around:
            return self._prefixes[root]
        return self._paths[(root, around[:-1]), whole_execution(around[-1])]

    def judged(self, root: str, call: Call, node: Node, output: Output) -> list[list[Value]]:
        """The values that a node has written, judged if the example is known: a list per field, of items of a map."""
        session, execution = call.runner.session, call.context.delegate.execution
        graph, scope = session.graph, (root, session.scope)
        check = graph.rejecting.get(node.name)
        if check is not None:  # what it finds is no value of the program
            problems, refused = output.after.get(check.into, ()), output.goto is not None and check.fix is not None
            before = [(scope, commit) for commit in check.output_before(session.run.log, _head(call))]
            self.problems |= {place: list(problems) for place in before if problems}
            return [values for place in before if not refused for values in self._unchecked.pop(place, ())]
        schema, own = graph.topology.schema, {field: name for name, field in (node.writes or {}).items()}
        fixes = {check.fix for check in graph.checks.values()}
        passes = node.runs_graph and node.kind != "tool"  # of what a graph gives, a tool makes a message
        kind = "graph" if passes else "fix" if node.name in fixes else "node"
        leads, found = output.goto is not None and len(node.goto) > 1, list[list[Value]]()
        for field in dict.fromkeys((*output.patch, *output.updates, *node.always_writes)):
            if field not in output.after:
                continue
            value, path = thaw(output.after.raw(field)), self._paths[scope, execution]
            made = Value(scope, execution, path, field, own.get(field, field), value, output.after, kind)
            reducer = schema.reducer(field)
            if node.mapped is not None and field == node.mapped.into:
                made.part, outputs = Part(), () if node.inner is None else tuple(node.inner.writes or ())
                made.output = outputs[0] if len(outputs) == 1 else field  # an item is the one value, or a dict
            elif reducer is not None:
                made.part = sent_entry(call, output.updates.get(field), reducer.name)
            made.folds, made.leads = reducer is not None and made.part is None, leads
            made.may_replace = field not in schema.live_fields and not made.folds
            found.append(self._judged(made))
        if leads and not found:
            self._add([Value(scope, execution, self._paths[scope, execution], "", "", None, output.after, leads=True)])
        return found

    def failed(self, root: str, call: Call, output: Output) -> None:
        """Adds the failure of a node after which the run goes on: no metric judges it, but it has led to a handler."""
        scope, execution = (root, call.runner.session.scope), call.context.delegate.execution
        path, field = self._paths[scope, execution], next(iter(output.patch), "")
        self._add([Value(scope, execution, path, field, field, output.failure, output.after, "failure", leads=True)])

    def written(self, call: Call, found: Sequence[Sequence[Value]]) -> dict[str, Any]:
        """Adds what a node has written; returns the updates with gold for what is wrong, by field."""
        graph, gold = call.runner.session.graph, dict[str, Any]()
        waits = self.after_checks and any(check.of == call.node and check.fix for check in graph.checks.values())
        for values in found:
            field, is_new = values[0].field, call.node not in graph.rejecting
            reducer = graph.topology.schema.reducer(field)
            if is_new:
                self._add(values)
            if waits and reducer is None:
                self._unchecked.setdefault((values[0].scope, values[0].commit), []).append([*values])
                continue
            update = self._gold_of(values)
            if update is not NO_GOLD:
                gold[field] = Replace(update) if reducer is None else update if reducer.name == "append" else [update]
        return gold

    def label(self, root: str, call: Call, router: Any, prediction: dspy.Prediction) -> dspy.Prediction:
        """Adds the label that a router gave; returns the prediction, with gold in it if the label is wrong."""
        scope, field = (root, call.runner.session.scope), router.writes.get(router.label, "")
        label, path = prediction[router.label], (*self._around(scope), router.module_name)
        commit, state = whole_execution(call.context.delegate.execution), call.state
        after = state.set(field, label) if field else state
        found = Value(scope, commit, path, field, router.label, label, after, "router", leads=True)
        values = self._add(self._judged(found))
        gold = self._gold_of(values)
        return prediction if gold is NO_GOLD else dspy.Prediction(**{**dict(prediction.items()), router.label: gold})

    def _add(self, values: Sequence[Value]) -> Sequence[Value]:
        with self._lock:
            self.values += values
        return values

    def _gold_of(self, values: Sequence[Value]) -> Any:
        """The gold that is put in the place of a value, or of its items; `NO_GOLD` for none."""
        wrong = any(one.verdict == "wrong" for one in values) and values[0].key in self._replaces
        if not wrong or not all(one.may_replace and one.gold is not NO_GOLD for one in values):
            return NO_GOLD
        for one in values:
            one.replaced = True
        items = values[0].item is not None and values[0].part is None
        return [one.gold for one in values] if items else values[0].gold

    def end(self, root: str, run: Any) -> None:
        """Learns what the nodes of a run have read, at its end."""
        scope = (root, run.scope)
        self._ended[scope] = _Ended(run)
        if (caller := self._caller(scope)) is not None:  # by a part of an execution, too: an item of a map
            for execution in {caller[1], whole_execution(caller[1])}:
                self._called.setdefault((caller[0], execution), {})[scope] = None

    # --- verdicts

    def judge(self, example: Any) -> Sheet:
        """Judges the values of a call that was made without an example."""
        self._example = example
        self.values = [one for value in self.values for one in self._judged(value)]
        return self

    def _judged(self, value: Value) -> list[Value]:
        """A value with its verdict, if the example is known; the items of a list one by one, if gold has as many."""
        key, goal = self._metric._key_for(value.path, value.field), self._metric.goal
        if self._example is None or value.folds or key is None or (key in self._unused and key != goal):
            return [value]
        layer = (dspy.settings.get(SHEET) or [None])[-1]
        with dspy.context(**{SHEET: (None, "", layer), TRACE: None}):  # a metric may call an LM, or a graph
            return self._compared(value, key)

    def _compared(self, value: Value, key: str) -> list[Value]:
        metric, example = self._metric, self._example
        value.key, value.gold = key, metric._gold(key, example, value.state)
        part, gold = value.part, value.gold
        if part is not None and isinstance(gold, list | tuple):
            if part.position is None and isinstance(value.value, list) and len(value.value) == len(gold):
                pairs = [*enumerate(zip(value.value, gold, strict=True))]
                return [
                    replace(value, value=one, gold=want, item=at, part=None, result=metric._compared(key, one, want))
                    for at, (one, want) in pairs
                ]
            if part.position is not None and part.position < len(gold):
                value.value, value.gold, value.item = part.entry, gold[part.position], part.position
                value.result = metric._compared(key, value.value, value.gold)
                return [value]
        if part is not None and part.position is not None:  # gold has no entry for it: it is judged with the others
            value.part, value.folds, value.may_replace = None, True, False
            return [value]
        value.result = metric._judge(key, example, value.value, value.state)
        return [value]

    # --- what was read

    def link(self) -> Sheet:
        """Gives each value the steps that made it, and the values that were read for it, once the call has ended.

        They are put in the canonical order of their commits: branches and items come as fast as they are.
        """
        self._add_outside()
        self.values.sort(key=self._order)
        for value in self.values:
            ended = self._ended.get(value.scope)
            if ended is not None and value.commit in ended.entries:
                ended.values.setdefault((value.commit, value.field), []).append(value)
                if value.field not in ended.entries[value.commit].commit.patch:
                    ended.unchanged.add((value.commit, value.field))
                if value.leads:  # where a `Command` has gone is not mended by gold in what it writes
                    mended = value.kind == "router" or not value.replaced
                    ended.labels.setdefault(value.commit, []).append(
                        value if mended else replace(value, replaced=False)
                    )
        for scope, ended in self._ended.items():  # before what has read only the beginning of a list
            for field in ended.written:
                self._last(scope, ended, field)
        for value in self.values:
            ended = self._ended.get(value.scope)
            if value.scope == OUTSIDE:
                value.reads = [] if self._is_given(value.steps[0].inputs) else [*self._made_before(value)]
            if ended is not None and value.commit in ended.entries:
                value.steps = self._steps(value, ended)
                value.reads = [one for one in dict.fromkeys(self._reads(value, ended)) if one is not value]
        read = {id(one) for value in self.values for one in value.reads}
        for ended in self._ended.values():
            self._note_lost(ended, read)
        return self

    def _note_lost(self, ended: _Ended, read: Collection[int]) -> None:
        """Notes which values have lost a merge, unread."""
        for id_, entry in ended.entries.items():
            for (field, *rest), winner in entry.winners.items():
                for side in () if rest else ended.reads.of(id_).node.get(field, ()):
                    for one in ended.values.get((side, field), ()):
                        one.lost = side != ended.ids[winner] and id(one) not in read

    def _add_outside(self) -> None:
        """Adds what predictors have given that a hand-written module calls itself, outside of its graphs."""
        runs = self._ended.values()
        inside = {id(step.outputs) for ended in runs for steps in ended.steps.values() for step in steps}
        for at, (predictor, inputs, outputs) in enumerate(self.trace):
            name = self._names.get(original_id(predictor))
            if id(outputs) in inside or name is None:
                continue
            step, state, place = PredictorCall(name, inputs, outputs), {**inputs, **outputs}, (OUTSIDE, f"{at}")
            for field, value in outputs.items():
                made = Value(
                    *place, tuple(name.split(".")), field, field, value, state, steps=(step,), may_replace=False
                )
                self.values += self._judged(made)

    def _order(self, value: Value) -> list[Any]:
        """The key of a value in the canonical order: by step and branch of its commit, those around it first."""
        root, around = value.scope
        found: list[Any] = [root]
        for depth, execution in enumerate((*around, value.commit)):
            ended = self._ended.get((root, around[:depth]))
            entry = None if ended is None else ended.entries.get(whole_execution(execution))
            found += [(math.inf, ()) if entry is None else (entry.commit.step, entry.commit.branch), execution]
        return [*found, (math.inf, ()), value.item or 0]  # a node after those inside of it

    def _steps(self, value: Value, ended: _Ended) -> tuple[PredictorCall, ...]:
        own = _own_execution(value)
        if own != value.commit:
            found = [(original_id(step[0]), step[1], step[2]) for step in self._items.get((value.scope, own), ())]
        else:
            kept = [step for step in ended.steps.get(own, ()) if step.status != "lost" or value.kind == "failure"]
            found = [(original_id(step.predictor), step.inputs, step.outputs) for step in kept]
        routed = value.kind == "router"
        inside = {id(step.outputs) for _, run in self._inside(value) for one in run.steps.values() for step in one}
        found = [step for step in found if (step[0] in ended.of_routers) is routed and step[0] in self._names]
        found = [step for step in found if id(step[2]) not in inside]
        return tuple([PredictorCall(self._names[at], inputs, outputs) for at, inputs, outputs in found])

    def _reads(self, value: Value, ended: _Ended) -> Iterator[Value]:
        passed = value.kind == "graph" and ended.graph.nodes[value.path[-1]].mapped is None
        for scope, inner in self._inside(value) if value.kind != "router" else ():
            for name in [value.output] if passed else inner.graph.outputs or inner.written:
                yield from self._last(scope, inner, name)
        if value.kind == "graph":
            return
        sources, parents = ended.reads.of(value.commit), ended.parents[value.commit]
        at = value.commit if value.kind == "router" else parents[0]
        found = {**sources.routers} if value.kind == "router" else {**sources.node}
        for check in ended.graph.rejecting.values():
            found.pop(check.into, None)  # problems are no values of the program
        for field, commits in found.items():
            yield from self._at(value.scope, ended, field, commits, at)
        for parent in parents:  # what led here; a router that is a function passes on what it read
            yield from ended.labels.get(parent, ())
            for field, commits in {} if parent in ended.labels else ended.reads.of(parent).routers.items():
                yield from self._at(value.scope, ended, field, commits, parent)

    def _caller(self, scope: Scope) -> tuple[Scope, str] | None:
        """The run and the execution in which a run was called; None if that was outside of all graphs."""
        root, around = scope
        return ((root, around[:-1]), around[-1]) if around else self._callers.get(root)

    def _inside(self, value: Value) -> Iterator[tuple[Scope, _Ended]]:
        """The runs that were called where a value was made, as graphs of the node or by its code."""
        for scope in self._called.get((value.scope, _own_execution(value)), ()):
            yield scope, self._ended[scope]

    def _last(self, scope: Scope, ended: _Ended, field: str) -> list[Value]:
        """The values of a field at the end of a run."""
        return self._at(scope, ended, field, ended.reads.behind(field, ended.last), ended.last)

    def _at(self, scope: Scope, ended: _Ended, field: str, commits: Iterable[str], at: str) -> list[Value]:
        """The values of a field after a commit, given those behind it; what a reducer has folded is judged there."""
        found = [*dict.fromkeys(self._behind(scope, ended, field, _last_authors(ended, field, [*commits], at)))]
        parts = [one for one in found if one.folds and one.scope == scope and one.field == field]
        if not parts or {*commits} != {*ended.reads.behind(field, at)}:  # a view shows only some of it
            return found
        state = ended.entries[at].state
        key = (scope, field, *map(id, parts))
        whole = self._wholes.get(key)
        if whole is None:
            whole = parts[0]
            if len(parts) > 1:
                commit = " ".join([one.commit for one in parts])
                whole = replace(parts[-1], commit=commit, kind="graph", steps=(), reads=parts)
            whole.value, whole.state, whole.folds = thaw(state.raw(field)), state, False
            self._judged(whole)
            if whole.verdict == "wrong" and at != ended.last:  # others may add to it
                rest, is_list = iter(whole.gold if isinstance(whole.gold, list) else ()), isinstance(whole.gold, list)
                begun = is_list and all(one in rest for one in whole.value)
                whole.result = FieldResult(1.0) if begun else whole.result if is_list else None
            whole.folds = len(parts) == 1
            if len(parts) > 1 and whole.result is not None:
                self.values.append(whole)
            self._wholes[key] = whole
        return found if whole.result is None else [*(one for one in found if one not in parts), whole]

    def _behind(self, scope: Scope, ended: _Ended, field: str, commits: Iterable[str]) -> Iterator[Value]:
        """The values of a field, given the commits behind it."""
        for commit in commits:
            known = ended.values.get((commit, field))
            if known:
                yield from known
            elif not ended.entries[commit].parents:
                yield from self._given(scope, field)
            elif len(ended.entries[commit].parents) > 1:  # a merge policy made it of what branches wrote
                yield from self._behind(scope, ended, field, ended.reads.of(commit).node.get(field, ()))
            elif field not in ended.entries[commit].commit.patch:  # a `Send` brought it: what its router had read
                for name, behind in ended.reads.of(commit).routers.items():
                    if name != field:
                        yield from self._behind(scope, ended, name, behind)

    def _is_given(self, inputs: Mapping[str, Any]) -> bool:
        """Tell if inputs are those of the example, and not made by the code around the graphs."""
        example = self._example
        return all(name in example and same(freeze(value), freeze(example[name])) for name, value in inputs.items())

    def _made_before(self, value: Value | None, root: str = "") -> Iterator[Value]:
        """The values that code around graphs may have used: of earlier runs, of calls of predictors, of its node."""
        caller = self._callers.get(root)
        for one in self.values:
            if one.scope == OUTSIDE and (value is None or int(one.commit) < int(value.commit)) and caller is None:
                yield one
        for other, its_caller in self._callers.items():
            if its_caller == caller and (value is not None or other < root):
                ended = self._ended[other, ()]
                for name in ended.written:
                    yield from self._last((other, ()), ended, name)
        if caller is not None and caller[0] in self._ended:
            scope, commit = caller[0], whole_execution(caller[1])
            for name in self._ended[scope].reads.of(commit).node if commit in self._ended[scope].entries else ():
                yield from self._read_by(scope, commit, name)

    def _read_by(self, scope: Scope, commit: str, field: str) -> list[Value]:
        """The values of a field that the node of a commit has read."""
        ended = self._ended[scope]
        commits, (parent, *_) = ended.reads.of(commit).node.get(field, ()), ended.parents[commit]
        return self._at(scope, ended, field, commits, parent)

    def _given(self, scope: Scope, field: str) -> Iterator[Value]:
        """The values behind an input of a run: those that the node around it had read."""
        root, around = scope
        outer = (root, around[:-1])
        if not around:  # code around the graphs gave it: of the example, or made of what an earlier graph gave
            ended = self._ended[scope]
            if field not in ended.of_example:
                state = ended.given
                ended.of_example[field] = field not in state or self._is_given({field: thaw(state.raw(field))})
            if not ended.of_example[field]:
                yield from self._made_before(None, root)
            return
        around_it, commit = self._ended.get(outer), whole_execution(around[-1])
        if around_it is None or commit not in around_it.entries:
            return
        node = around_it.graph.nodes[around_it.entries[commit].commit.node]
        if node.mapped is not None and field == node.mapped.item:
            name = node.mapped.over
        else:
            name = ((node if node.inner is None else node.inner).reads or {}).get(field, field)
        yield from self._read_by(outer, commit, name)


def _last_authors(ended: _Ended, field: str, commits: list[str], at: str) -> Iterable[str]:
    """The commits behind a field after a commit, with those that have left it as it was: such a node is its author."""
    if not any(name == field for _, name in ended.unchanged):
        return commits
    found, passed, pending = dict[str, None](), set[str](), [at]
    for commit in pending:
        if commit in commits or (commit, field) in ended.unchanged:
            found[commit] = None
        elif commit not in passed:
            passed.add(commit)
            pending += ended.parents[commit]
    return found or commits


def _own_execution(value: Value) -> str:
    """The execution that made a value: of an item of a map, that of the item."""
    return value.commit if value.item is None or value.part is not None else part_id(value.commit, value.item)


def _head(call: Call) -> int:
    """The place in the log of the commit before an execution of a run."""
    position = call.context.delegate.position
    assert position is not None
    return position.head


def sent_entry(call: Call, update: Any, reducer: str) -> Part | None:
    """The entry that the target of a `Send` adds to a list, and the position of its `Send`; None for anything else."""
    entries = [update] if reducer == "append" else update
    if call.overlay is None or not isinstance(entries, list | tuple) or len(entries) != 1:
        return None
    before = call.runner.session.run.log[_head(call)]
    rest = call.context.branch[len(before.commit.branch) :] if len(before.sends) > 1 else (0,)
    return Part(rest[0], entries[0]) if before.sends and rest else None


def observe(
    program: dspy.Module,
    example: dspy.Example,
    metric: FieldMetric,
    replaces: Collection[str] = (),
    unused: Collection[str] = (),
    again: int = 0,
    after_checks: bool = False,
) -> Sheet:
    """One call of a program on an example: what its nodes have written, judged, with gold for some keys.

    What the program raises is in `sheet.error`, but for what must not be held back: a budget, a stop, Ctrl-C. With
    `again`, a node whose output is wrong is asked up to so many times more before gold is put in; with `after_checks`,
    a checked output waits for its check.
    """
    sheet = Sheet(metric, example, replaces, unused)
    sheet.program, sheet.again, sheet.after_checks = program, again, after_checks
    sheet.name_predictors(program)
    with using(GoldLayer(lambda: sheet), ItemLayer()), dspy.context(**{TRACE: []}):
        sheet.trace = dspy.settings[TRACE]
        try:
            sheet.prediction = program(**example.inputs())
        except Exception as error:
            if isinstance(error, RunStoppedError):
                raise
            if names := dict.fromkeys(f"`{value.key}`" for value in sheet.values if value.replaced):
                annotate(error, f"in a gold run, with gold for {' and '.join(names)}")
            sheet.error = error
    return sheet.link()


# --- who is responsible


class Fault(NamedTuple):
    """A value that is wrong though nothing that was read for it is known to be wrong.

    Attributes:
        value: the value, in the gold run.
        causes: the values one of which is the mistake: itself, and those without a metric before it.
        known: whether all that was read for it is right: its author is a culprit.
    """

    value: Value
    causes: tuple[Value, ...]
    known: bool

    @property
    def suspects(self) -> tuple[str, ...]:
        """The full names of the predictors that made the causes; none of what no optimizer can change."""
        return tuple(dict.fromkeys([name for value in self.causes for name in value.predictors]))


class _Carried:
    """The unknown values that values carry for what was made from them; None if something is known to be wrong."""

    def __init__(self, right: Collection[Any]) -> None:
        self._right = right  # the places of values that were right in the run itself
        self._known: dict[Value, tuple[Value, ...] | None] = {}

    def by(self, value: Value) -> tuple[Value, ...] | None:
        """The unknown values that a value carries; none if it is right."""
        if value not in self._known:
            self._known[value] = ()  # siblings may have read each other's posts: a cycle carries nothing
            self._known[value] = self._found(value)
        return self._known[value]

    def _found(self, value: Value) -> tuple[Value, ...] | None:
        if value.replaced or value.verdict == "right" or value.place in self._right:
            return ()
        read = None if value.verdict == "wrong" else self.read(value)
        return read if read is None or not value.predictors else (*read, value)  # a function passes on what it read

    def read(self, value: Value) -> tuple[Value, ...] | None:
        """The unknown values that all carry which were read for a value."""
        found: dict[Value, None] = {}
        for one in value.reads:
            carried = self.by(one)
            if carried is None:
                return None
            found.update(dict.fromkeys(carried))
        return tuple(found)


def is_read(run: Sheet, keys: Collection[str]) -> bool:
    """Tell if a wrong value that has gold was read later: without it, a gold run would be the same run."""

    def through(values: Iterable[Value]) -> Iterator[Value]:
        for value in values:
            yield value
            if value.kind == "graph":  # it is no reader: it passes on what those inside of it have written
                yield from through(value.reads)

    read = {id(one) for value in run.values if value.kind != "graph" for one in through(value.reads)}
    wrong = [one for one in run.values if one.verdict == "wrong" and one.may_replace and one.gold is not NO_GOLD]
    return any(id(one) in read for one in wrong if one.key in keys)


def misled(run: Sheet) -> set[Value]:
    """The values for which something was read that is known to be wrong; but for what a node has to correct."""
    carried = _Carried(())
    return {
        value
        for value in run.values
        for one in value.reads
        if carried.by(one) is None and not (value.kind == "fix" and value.field == one.field)
    }


def faults(run: Sheet, gold: Sheet | None) -> list[Fault]:
    """The faults of a run, as its gold run shows them; of one without, as it shows them itself."""
    right = {one.place for one in run.values if one.lost or (gold is not None and one.verdict == "right")}
    carried, found = _Carried(right), list[Fault]()
    for value in (gold or run).values:
        if value.verdict != "wrong" or value.place in right or (value.kind == "fix" and gold is not None):
            continue
        read = carried.read(value)
        if read is not None:
            found.append(Fault(value, (*read, value), not any(one.predictors for one in read)))
    if gold is not None:  # in a gold run, a node that corrects has nothing to correct
        carried = _Carried(())
        for value in run.values:
            if value.kind == "fix" and value.verdict == "wrong":
                others = [carried.by(one) for one in value.reads if one.field != value.field]
                found += [] if None in others else [Fault(value, (value,), True)]
    return found


@shows_removed
class Culprits(NamedTuple):
    """The predictors that are responsible for what is wrong on an example. It prints as a table.

    Attributes:
        shares: the share of each, the largest first; they add up to 1. Empty if nothing is known to be wrong. What no
            optimizer can change stands under the path of its node.
        suspects: those among them of which it is not known whether they have made a mistake.
        not_tunable: those among them that no optimizer can change: functions, tools, frozen modules.
        texts: what is wrong, by who is responsible.
    """

    shares: Mapping[str, float]
    suspects: tuple[str, ...]
    not_tunable: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        lists = {"suspects": list(self.suspects), "not_tunable": list(self.not_tunable)}
        return {"shares": dict(self.shares), **lists, "texts": {name: list(one) for name, one in self.texts.items()}}

    def __str__(self) -> str:
        if not self.shares:
            return "culprits: none, nothing is known to be wrong"
        lines = []
        for name, share in self.shares.items():
            kind = " (suspect)" if name in self.suspects else " (not tunable)" if name in self.not_tunable else ""
            lines.append(f"{100 * share:.0f} % {name}{kind}: {' '.join(self.texts[name])}")
        return "\n".join(lines)


def culprits(program: dspy.Module, example: dspy.Example, metric: FieldMetric) -> Culprits:
    """The predictors that are responsible for what is wrong on an example, by a run and a gold run.

    The program runs on the example. If a value that has gold is wrong and was read later, it runs again: each value is
    judged when it is written, and replaced by gold. A **culprit** is what has written a wrong value though all that it
    had read is right. If values without a metric were read, those who made them are **suspects** with it, with equal
    shares.

    Args:
        program: the program: a graph, or a module around graphs.
        example: the example, with inputs and gold.
        metric: the metric, as `by_field` makes it.

    Returns:
        The culprits and suspects.

    Raises:
        TypeError: for a run instead of a program, or another metric.
        ValueError: if the metric or the example does not fit the program.
        Exception: what the program raises.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.optimize import by_field, equals
        >>> graph = Graph().add_node("count", lambda text: {"words": len(text)}, writes=["words"])
        >>> graph = graph.add_node("grade", lambda words: {"long": words > 4}, writes=["long"])
        >>> program = graph.add_path(START, "count", "grade", END).compile()
        >>> metric = by_field({"words": equals("words"), "long": equals("long")}, goal="long")
        >>> print(culprits(program, dspy.Example(text="high tide", words=2, long=False).with_inputs("text"), metric))
        100 % count (not tunable): `words` is 9, expected 2.
    """
    check_arguments("culprits", program, [example], metric)
    run = observe(program, example, metric)
    gold = observe(program, example, metric, metric.gold_keys) if is_read(run, metric.gold_keys) else None
    for one in (run, gold):
        if one is not None and one.error is not None:
            raise one.error
    found, tunable = faults(run, gold), {name for name, _ in program.named_predictors()}
    shares: dict[str, float] = {}
    texts: dict[str, dict[str, None]] = {}
    for fault in found:
        names = fault.suspects or (fault.value.name,)
        for name in names:
            shares[name] = shares.get(name, 0.0) + 1 / (len(found) * len(names))
            texts.setdefault(name, {})[fault.value.text] = None
    known = {name for fault in found if fault.known for name in fault.suspects or (fault.value.name,)}
    ordered = dict(sorted(shares.items(), key=lambda part: -part[1]))
    return Culprits(
        ordered,
        tuple([name for name in ordered if name not in known]),
        tuple([name for name in ordered if name not in tunable]),
        {name: tuple(texts[name]) for name in ordered},
    )


def check_arguments(who: str, program: Any, examples: Iterable[Any], metric: Any) -> list[Any]:
    """The examples. Refuses what an experiment cannot be made with, before anything is called."""
    if not isinstance(program, dspy.Module):
        form = "culprits(program, example, metric)" if who == "culprits" else f"{who}(program, examples, metric)"
        raise TypeError(f"{who} takes a program, and got {with_article(type(program).__name__)}: call {form}")
    if not isinstance(metric, FieldMetric):
        raise TypeError(f"{who} takes a metric by field, as optimize.by_field makes it, and got {brief(metric)}")
    found = [*examples]
    validate_examples(program, found, "example" if who == "culprits" else "devset")
    metric.validate(program, found)
    return found

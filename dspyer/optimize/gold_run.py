"""Gold runs: a program runs on an example, and each value that has gold is judged and replaced when it is written.

So every node reads right values, and all nodes that are wrong by themselves show at once. A `Sheet` has what the nodes
of one call of a program have written, at any depth, and what they had read. `faults` are what is wrong by itself.

- A value is **right** if its metric says so, if gold was put in its place, or if it was right in the run itself.
- A value is **wrong** if its metric says so and no gold is put in. Nothing that was made from it can be blamed.
- A value without a metric is **unknown**: it carries the predictors that made it, and those of what its node had read.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as made
from functools import cache, cached_property
from threading import Lock
from typing import Any, NamedTuple

import dspy

from dspyer import Replace
from dspyer.errors import RunStoppedError, always_raised, annotate, shows_removed
from dspyer.events import TraceStep
from dspyer.extend import Address, Call, Node, Output, freeze, part_id, same, thaw, using, whole_execution
from dspyer.lm.not_public import TRACE
from dspyer.lm.tracing import original_id
from dspyer.optimize.examples import validate
from dspyer.optimize.field_metric import NO_GOLD, FieldMetric, FieldResult, graphs_in, wrong_text
from dspyer.optimize.gold_layer import GoldLayer, ItemLayer

Scope = tuple[str, tuple[str, ...]]
"""A run: the key of the outermost one in the call of the program, and the executions around it."""


OUTSIDE: Scope = ("", ())
"""In place of a run: what a hand-written module calls itself."""


class PredictorCall(NamedTuple):
    """One call of a predictor: its full name in the program, its inputs, and what it gave."""

    predictor: str
    inputs: Mapping[str, Any]
    outputs: Any


@dataclass(slots=True, eq=False)
class Value:
    """A value that a node, an item of a map, or a router has written.

    Attributes:
        output: the name that the node has for its field.
        value: what was written, before gold was put in its place.
        kind: `"node"`, `"graph"` for a node that passes on what the nodes inside of it have written, `"fix"` for one
            that corrects what a check has refused, `"router"`, `"failure"` for what led to the handler of one.
        mapped: whether it is the list of a map, or an item of it.
        item: its index in such a list, or in the one to which a `Send` target adds it; None for a whole value.
        may_replace: whether gold can be put in its place: not in a live field, nor in what a reducer folds.
        folds: whether a reducer folds it into what others have written: it is judged with that, where it is read.
        leads: whether it decides what runs next: of a router, or of a node that gives a `Command`.
        harmless: whether it misled none: a merge policy has preferred another one before anything has read it, or
            it is the messages of a node with a conversation, and all else that the node has written is right.
        steps: the calls of predictors that made it, none of a graph; known after `Sheet.link`, as is the next.
    """

    scope: Scope
    commit: str
    path: tuple[str, ...]
    field: str
    output: str
    value: Any
    state: Any
    kind: str = "node"
    mapped: bool = False
    item: int | None = None
    key: str | None = None
    result: FieldResult | None = None
    gold: Any = NO_GOLD
    may_replace: bool = True
    folds: bool = False
    leads: bool = False
    harmless: bool = False
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
        return tuple(dict.fromkeys([step.predictor for step in self.steps]))

    @property
    def is_item(self) -> bool:
        """Return whether it is an item of a map."""
        return self.mapped and self.item is not None

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


class Watched(NamedTuple):
    """A call of a node: the place in the log of the commit before it, the run, the execution, the path of the node."""

    call: Call
    head: int
    scope: Scope
    execution: str
    path: tuple[str, ...]


class _Run:
    """One run, once it has ended: what its nodes have read, and the values that they have written."""

    def __init__(self, scope: Scope, run: Any) -> None:
        self.scope, self.graph, begin = scope, run.graph, run.run_start
        self.given = {name: begin.state.raw(name) for name in begin.patch if name in begin.state}
        self.made = set[str]()  # the inputs that are not those of the example: code around the graphs made them
        self.entries = {entry.commit.id: entry for entry in run.run.log}
        self.ids = list(self.entries)
        self.parents = {id_: [self.ids[at] for at in entry.parents] for id_, entry in self.entries.items()}
        self.last = next((id_ for id_ in reversed(self.ids) if not self.entries[id_].commit.branch), "")
        self.written = dict.fromkeys(field for entry in run.run.log[1:] for field in entry.commit.patch)
        self.reads = run.reads()
        self.of = cache(self.reads.of)
        self.steps = defaultdict[str, list[TraceStep]](list)
        for step in run.trace_steps(run.run):
            self.steps[step.execution].append(step)
        self.values = defaultdict[tuple[str, str], list[Value]](list)  # by commit and field
        self.unchanged = defaultdict[str, set[str]](set)  # by field, the commits that have left it as it was
        self.labels = defaultdict[str, list[Value]](list)  # of the routers after a commit, or of a `Command` in it
        self.wholes: dict[tuple[Any, ...], Value] = {}  # of what a reducer has folded, by its parts
        parts = [vars(run.program)[one.module_name] for one in self.graph.routers if one.module_name is not None]
        self.of_routers = {id(one) for part in parts for _, one in part.named_predictors()}

    def authors(self, field: str, commits: Sequence[str], at: str) -> Iterable[str]:
        """The commits behind a field after one, with those that have left it as it was: such a node is its author."""
        unchanged, found, passed, pending = self.unchanged.get(field, ()), dict[str, None](), set[str](), [at]
        for commit in pending if unchanged else ():
            if commit in commits or commit in unchanged:
                found[commit] = None
            elif commit not in passed:
                passed.add(commit)
                pending += self.parents[commit]
        return found or commits


@dataclass(eq=False)
class Sheet:
    """The values that the nodes of one call of a program have written, and those that they had read.

    Attributes:
        example: the example; None if `judge` gives it later: then nothing is replaced.
        replaces: the keys whose gold is put in the place of what is wrong.
        unused: the keys that are treated as having no metric.
        again: how often a node whose output is wrong is asked again.
        after_checks: whether gold is put in the place of a checked output only where its check accepts it, so that what
            is refused is corrected.
        values: what was written, in the order of arrival.
        prediction: what the program returned; None if it raised.
        problems: what checks have found in the output of a commit.
    """

    program: dspy.Module
    example: Any
    metric: FieldMetric
    replaces: Collection[str] = ()
    unused: Collection[str] = ()
    again: int = 0
    after_checks: bool = False
    trace: Sequence[Any] = ()
    values: list[Value] = made(default_factory=list)
    prediction: dspy.Prediction | None = None
    error: Exception | None = None
    problems: dict[tuple[Scope, str], list[str]] = made(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = {id(one): name for name, one in self.program.named_predictors()}
        self._graphs = {id(graph): path for path, graph in graphs_in(self.program)}
        self._runs: dict[Scope, _Run] = {}  # those inside of another one before it
        self._paths: dict[tuple[Scope, str], tuple[str, ...]] = {}  # of nodes by execution; by '' of the graph
        self._items: dict[tuple[Scope, int], int] = {}  # the item of a map that made a step, by id of its outputs
        self._owners: dict[int, _Run] = {}  # the innermost run of each step
        self._inside = defaultdict[Any, list[_Run]](list)  # runs, by the scope and the execution that has called them
        self._unchecked: dict[tuple[Scope, str], list[Value]] = {}  # what waits for the verdict of its check
        self._callers: dict[str, tuple[Scope, str]] = {}  # the execution whose code began an outermost run
        self._counts = Counter[Any]()  # of the runs that each has begun
        self._begun: dict[str, int] = {}  # how long the trace was when each outermost run began
        self._lock = Lock()

    def observe(self) -> Sheet:
        """Calls the program on the example, and notes what its nodes write, with gold for some keys.

        What the program raises is in `error`, but for what must not be held back: a budget, a stop, Ctrl-C.
        """
        with using(GoldLayer(lambda: self), ItemLayer()), dspy.context(**{TRACE: []}):
            self.trace = dspy.settings[TRACE]
            try:
                self.prediction = self.program(**self.example.inputs())
            except Exception as error:
                if isinstance(error, RunStoppedError):
                    raise
                if names := dict.fromkeys(f"`{value.key}`" for value in self.values if value.replaced):
                    annotate(error, f"in a gold run, with gold for {' and '.join(names)}")
                self.error = error
        return self.link()

    @cached_property
    def right(self) -> bool:
        """Tell if the result of the call is right. What its metric raises is the error of the call."""
        if self.prediction is None or self.error is not None:
            return False
        metric, field = self.metric, self.metric.goal.rpartition(".")[2]
        judged = [one for one in self.values if one.key == metric.goal and one.item is None]
        known = metric.weights is None and field in self.prediction and judged and judged[-1].verdict != "unknown"
        if known and same(freeze(judged[-1].value), freeze(self.prediction[field])):
            return judged[-1].verdict == "right"  # the metric may ask an LM: it is not called again
        try:
            return bool(metric(self.example, self.prediction) >= 1)
        except Exception as error:
            if always_raised(error):
                raise
            self.error = error
            return False

    # --- what the layer sees, from any thread

    def begin(self, run: Any, around: str | None) -> str:
        """The key of an outermost run that begins, maybe by the code of a node in another one."""
        caller: tuple[Scope, str] = (OUTSIDE, "")
        if around is not None and run.ids.called_in:
            *outer, execution = Address.parse(run.ids.called_in).inside
            caller = (around, tuple(outer)), execution
        with self._lock:
            # The same in another run, in which items may begin in another order.
            root = f"{caller if caller[1] else ''}{self._counts[caller]:05}"
            self._counts[caller] += 1
            self._begun[root] = len(self.trace)
            self._callers[root], self._paths[(root, ()), ""] = caller, self._graphs.get(id(run.program), ())
            return root

    def enter(self, root: str, call: Call) -> Watched:
        """Notes the node of an execution before it is called: the runs inside of it ask for its path."""
        scope, execution = (root, call.runner.session.scope), call.context.delegate.execution
        path = self._paths[scope, execution] = (*self._around(scope), call.node)
        position: Any = call.context.delegate.position
        return Watched(call, position.head, scope, execution, path)

    def made_item(self, root: str, call: Call) -> None:
        """Notes the steps of an item of a map, which has been called."""
        scope, index = (root, call.runner.session.scope), call.context.delegate.index or 0
        self._items |= {(scope, id(step[2])): index for step in dspy.settings.get(TRACE) or ()}

    def _around(self, scope: Scope) -> tuple[str, ...]:
        root, around = scope
        return self._paths[(root, around[:-1]), whole_execution(around[-1]) if around else ""]

    def judged(self, visit: Watched, node: Node, output: Output) -> list[Value]:
        """The values that a node has written, judged if the example is known."""
        call, head, place = visit.call, visit.head, visit[2:]
        graph = call.runner.session.graph
        schema, own = graph.topology.schema, {field: name for name, field in (node.writes or {}).items()}
        fixes = {check.fix for check in graph.checks.values()}
        passes = node.runs_graph and node.kind != "tool"  # of what a graph gives, a tool makes a message
        kind = "graph" if passes else "fix" if node.name in fixes else "node"
        leads, found = output.goto is not None and len(node.goto) > 1, list[Value]()
        for field in dict.fromkeys((*output.patch, *output.updates, *node.always_writes)):
            if field not in output.after:
                continue
            value = thaw(output.after.raw(field))
            made = Value(*place, field, own.get(field, field), value, output.after, kind, leads=leads)
            reducer = schema.reducer(field)
            if node.mapped is not None and field == node.mapped.into:
                made.mapped, outputs = True, () if node.inner is None else tuple(node.inner.writes or ())
                made.output = outputs[0] if len(outputs) == 1 else field  # an item is the one value, or a dict
            elif reducer is not None:
                made.item, made.value = sent_entry(call, head, output.updates.get(field), reducer.name) or (None, value)
                made.folds = made.item is None
            made.may_replace = field not in schema.live_fields and not made.folds
            found += self._judged(made)
        if leads and not found:
            self.values.append(Value(*place, "", "", None, output.after, leads=True))
        return found

    def failed(self, visit: Watched, output: Output) -> None:
        """Adds the failure of a node after which the run goes on: no metric judges it, but it has led to a handler."""
        field = next(iter(output.patch), "")
        self.values.append(Value(*visit[2:], field, field, output.failure, output.after, "failure", leads=True))

    def checked(self, visit: Watched, output: Output) -> dict[str, Any]:
        """Notes what a check has found, which is no value of the program; returns the gold that has waited for it."""
        session = visit.call.runner.session
        check = session.graph.rejecting[visit.call.node]
        problems, refused = output.after.get(check.into, ()), output.goto is not None and check.fix is not None
        before = [(visit.scope, one) for one in check.output_before(session.run.log, visit.head)]
        self.problems |= {place: list(problems) for place in before if problems}
        found = [one for place in before if not refused for one in self._unchecked.pop(place, ())]
        return self._gold_in(session.graph, found)

    def written(self, visit: Watched, found: Sequence[Value]) -> dict[str, Any]:
        """Adds what a node has written; returns the updates with gold for what is wrong, by field."""
        graph = visit.call.runner.session.graph
        self.values.extend(found)
        if self.after_checks and any(check.of == visit.call.node and check.fix for check in graph.checks.values()):
            reducer = graph.topology.schema.reducer
            self._unchecked[visit.scope, visit.execution] = [one for one in found if reducer(one.field) is None]
            found = [one for one in found if reducer(one.field) is not None]
        return self._gold_in(graph, found)

    def label(self, root: str, call: Call, router: Any, prediction: dspy.Prediction) -> dspy.Prediction:
        """Adds the label that a router gave; returns the prediction, with gold in it if the label is wrong."""
        scope, field = (root, call.runner.session.scope), router.writes.get(router.label, "")
        label, path = prediction[router.label], (*self._around(scope), router.module_name)
        commit, state = whole_execution(call.context.delegate.execution), call.state
        after = state.set(field, label) if field else state
        (value,) = self._judged(Value(scope, commit, path, field, router.label, label, after, "router", leads=True))
        self.values.append(value)
        gold = self._gold_of([value])
        return prediction if gold is NO_GOLD else dspy.Prediction(**{**dict(prediction.items()), router.label: gold})

    def _gold_in(self, graph: Any, found: Sequence[Value]) -> dict[str, Any]:
        """The updates with gold for what is wrong, by field."""
        gold = dict[str, Any]()
        for field in dict.fromkeys([one.field for one in found]):
            update = self._gold_of([one for one in found if one.field == field])
            reducer = graph.topology.schema.reducer(field)
            if update is not NO_GOLD:
                gold[field] = Replace(update) if reducer is None else update if reducer.name == "append" else [update]
        return gold

    def _gold_of(self, values: Sequence[Value]) -> Any:
        """The gold that is put in the place of a value, or of its items; `NO_GOLD` for none."""
        wrong = any(one.verdict == "wrong" for one in values) and values[0].key in self.replaces
        if not wrong or not all(one.may_replace and one.gold is not NO_GOLD for one in values):
            return NO_GOLD
        for one in values:
            one.replaced = True
        return [one.gold for one in values] if values[0].is_item else values[0].gold

    def end(self, root: str, run: Any) -> None:
        """Learns what the nodes of a run have read, at its end."""
        ended = self._runs[root, run.scope] = _Run((root, run.scope), run)
        for step in [step for steps in ended.steps.values() for step in steps]:
            self._owners.setdefault(id(step.outputs), ended)

    # --- verdicts

    def judge(self, example: Any) -> Sheet:
        """Judges the values of a call that was made without an example."""
        self.example = example
        self.values = [one for value in self.values for one in self._judged(value)]
        return self

    def _judged(self, value: Value, folded: bool = False) -> list[Value]:
        """A value with its verdict, if the example is known; the items of a list one by one, if gold has as many."""
        metric, example = self.metric, self.example
        key = metric._key_for(value.path, value.field)
        if key is None or (key in self.unused and key != metric.goal) or example is None or value.folds > folded:
            return [value]
        value.key, value.gold = key, metric.functions[key].expected(example, value.state)
        golds = value.gold if isinstance(value.gold, list | tuple) else ()
        if value.mapped and isinstance(value.value, list) and len(value.value) == len(golds):
            items = [replace(value, value=one, item=at) for at, one in enumerate(value.value)]
        elif value.item is not None and value.item >= len(golds):  # a `Send` too much: it is judged with the others
            value.item, value.folds, value.may_replace = None, True, False
            return [value]
        else:
            items = [value]
        for one in items:
            if one.item is None:
                one.result = metric.functions[key].judge(key, example, one.value, one.state)
            else:
                one.gold = golds[one.item]
                equals: Any = metric.functions[key]  # only `equals` has gold
                one.result = FieldResult(float(equals.is_equal(one.value, one.gold)))
        return items

    def text_of(self, value: Value) -> str:
        """The words of the metric for a value, and what a check has found in it, in this run or its gold run."""
        problems = self.problems.get((value.scope, value.commit))
        return f"{value.text} A check found: {'; '.join(problems)}" if problems else value.text

    # --- what was read

    def link(self) -> Sheet:
        """Gives each value the steps that made it, and the values that were read for it, once the call has ended.

        They are put in the canonical order of their commits: branches and items come as fast as they are.
        """
        for (root, around), run in self._runs.items():
            outer, at = ((root, around[:-1]), around[-1]) if around else self._callers[root]
            for execution in {at, whole_execution(at)}:
                self._inside[outer, execution].append(run)
            given = {name: one for name, one in run.given.items() if not around and name in run.graph.inputs}
            run.made = {name for name, one in given.items() if not self._is_given({name: thaw(one)})}
        self._add_outside()
        self.values.sort(key=self._order)
        linked = [(one, run) for one in self.values for run, _ in self._entry(one.scope, one.commit)]
        for value, run in linked:
            run.values[value.commit, value.field].append(value)
            if value.field not in run.entries[value.commit].commit.patch:
                run.unchanged[value.field].add(value.commit)
            if value.leads:  # where a `Command` has gone is not mended by gold in what it writes
                mended = value.kind == "router" or not value.replaced
                run.labels[value.commit].append(value if mended else replace(value, replaced=False))
        for run in self._runs.values():  # before what has read only the beginning of a list
            for field in run.written:
                self._last(run, field)
        for value in [one for one in self.values if one.scope == OUTSIDE]:
            value.reads = [] if self._is_given(value.steps[0].inputs) else [*self._made_before(value)]
        for value, run in linked:
            value.steps = self._steps(value, run)
            value.reads = [one for one in dict.fromkeys(self._reads(value, run)) if one is not value]
        read = {id(one) for value in self.values for one in value.reads}
        for run in self._runs.values():
            self._note_harmless(run, read)
        return self

    def _note_harmless(self, run: _Run, read: Collection[int]) -> None:
        """Notes what has lost a merge, unread, and the messages of a conversation that say what is right."""
        for id_, entry in run.entries.items():
            for (name, *rest), winner in entry.winners.items():
                lost = [] if rest else [one for one in run.of(id_).node.get(name, ()) if one != run.ids[winner]]
                for value in [one for side in lost for one in run.values.get((side, name), ())]:
                    value.harmless = id(value) not in read
        for (commit, field), said in run.values.items():
            reducer = run.graph.topology.schema.reducer(field)
            if reducer is not None and reducer.name == "conversation":
                others = [name for name in run.entries[commit].commit.patch if name != field]
                beside = {one.verdict for name in others for one in run.values.get((commit, name), ())}
                for one in said:
                    one.harmless = beside == {"right"}

    def _entry(self, scope: Scope, execution: str) -> list[tuple[_Run, Any]]:
        """The run of an execution, and what it has committed; nothing if it has not."""
        run = self._runs.get(scope)
        entry = None if run is None else run.entries.get(whole_execution(execution))
        return [] if run is None or entry is None else [(run, entry)]

    def _add_outside(self) -> None:
        """Adds what predictors have given that a hand-written module calls itself, outside of its graphs."""
        for at, (predictor, inputs, outputs) in enumerate(self.trace):
            name = self._names.get(original_id(predictor))
            if id(outputs) in self._owners or name is None:
                continue
            place, state = (OUTSIDE, f"{at}", tuple(name.split("."))), {**inputs, **outputs}
            steps = (PredictorCall(name, inputs, outputs),)
            for field, value in outputs.items():
                self.values += self._judged(Value(*place, field, field, value, state, steps=steps, may_replace=False))

    def _order(self, value: Value) -> list[Any]:
        """The key of a value in the canonical order: by step and branch of its commit, those around it first."""
        root, around = value.scope
        found: list[Any] = [root]
        for depth, execution in enumerate((*around, value.commit)):
            known = self._entry((root, around[:depth]), execution)
            found += [(known[0][1].commit.step, known[0][1].commit.branch) if known else (math.inf, ()), execution]
        return [*found, (math.inf, ()), value.item or 0]  # a node after those inside of it

    def _steps(self, value: Value, run: _Run) -> tuple[PredictorCall, ...]:
        found = list[PredictorCall]()
        for step in run.steps.get(value.commit, ()) if value.kind != "graph" else ():
            at, outputs = original_id(step.predictor), id(step.outputs)
            made = self._owners[outputs] is run and (at in run.of_routers) is (value.kind == "router")
            made = made and (not value.is_item or self._items.get((value.scope, outputs)) == value.item)
            if made and at in self._names and (step.status != "lost" or value.kind == "failure"):
                found.append(PredictorCall(self._names[at], step.inputs, step.outputs))
        return tuple(found)

    def _reads(self, value: Value, run: _Run) -> Iterator[Value]:
        own = part_id(value.commit, value.item) if value.is_item else value.commit
        passed = value.kind == "graph" and run.graph.nodes[value.path[-1]].mapped is None
        for inner in self._inside.get((value.scope, own), ()) if value.kind != "router" else ():
            for name in [value.output] if passed else inner.graph.outputs or inner.written:
                yield from self._last(inner, name)
        if value.kind == "graph":
            return
        sources, parents = run.of(value.commit), run.parents[value.commit]
        routed = value.kind == "router"
        yield from self._all(run, *(sources.routers, value.commit) if routed else (sources.node, parents[0]))
        for parent in parents:  # what led here; a router that is a function passes on what it read
            yield from run.labels.get(parent) or self._all(run, run.of(parent).routers, parent)

    def _all(self, run: _Run, found: Mapping[str, Sequence[str]], at: str) -> Iterator[Value]:
        """The values of fields after a commit, given those behind each."""
        for field, commits in found.items():
            yield from self._at(run, field, commits, at)

    def _last(self, run: _Run, field: str) -> list[Value]:
        """The values of a field at the end of a run."""
        return self._at(run, field, run.reads.behind(field, run.last), run.last)

    def _at(self, run: _Run, field: str, commits: Sequence[str], at: str) -> list[Value]:
        """The values of a field after a commit, given those behind it; what a reducer has folded is judged there."""
        found = [*dict.fromkeys(self._behind(run, field, run.authors(field, commits, at)))]
        parts = [one for one in found if one.folds and one.scope == run.scope and one.field == field]
        if not parts or {*commits} != {*run.reads.behind(field, at)}:  # a view shows only some of it
            return found
        key = (field, *map(id, parts))
        whole = run.wholes.get(key)
        if whole is None:
            state, whole = run.entries[at].state, parts[0]
            if len(parts) > 1:
                commit = " ".join([one.commit for one in parts])
                whole = replace(parts[-1], commit=commit, kind="graph", steps=(), reads=parts, folds=False)
            whole.value, whole.state = thaw(state.raw(field)), state
            self._judged(whole, folded=True)
            if whole.verdict == "wrong" and at != run.last:  # others may add to it
                rest = iter(whole.gold if isinstance(whole.gold, list) else ())
                begun = all(one in rest for one in whole.value)
                whole.result = FieldResult(1.0) if begun else whole.result if isinstance(whole.gold, list) else None
            if len(parts) > 1 and whole.result is not None:
                self.values.append(whole)
            run.wholes[key] = whole
        return found if whole.result is None else [*(one for one in found if one not in parts), whole]

    def _behind(self, run: _Run, field: str, commits: Iterable[str]) -> Iterator[Value]:
        """The values of a field, given the commits behind it."""
        for commit in commits:
            if known := run.values.get((commit, field)):
                yield from known
            elif not run.parents[commit]:
                yield from self._given(run, field)
            elif len(run.parents[commit]) > 1:  # a merge policy made it of what branches wrote
                yield from self._behind(run, field, run.of(commit).node.get(field, ()))
            elif field not in run.entries[commit].commit.patch:  # a `Send` brought it: what its router had read
                for name, behind in run.of(commit).routers.items():
                    yield from self._behind(run, name, behind) if name != field else ()

    def _is_given(self, inputs: Mapping[str, Any]) -> bool:
        """Tell if inputs are those of the example, and not made by the code around the graphs."""
        example = self.example
        return all(name in example and same(freeze(value), freeze(example[name])) for name, value in inputs.items())

    def _made_before(self, value: Value | None, root: str = "") -> Iterator[Value]:
        """The values that code around graphs may have used: of earlier runs, of calls of predictors, of its node."""
        caller = scope, execution = self._callers.get(root, (OUTSIDE, ""))
        time = self._begun[root] if value is None else int(value.commit)
        for one in self.values if scope == OUTSIDE else ():
            if one.scope == OUTSIDE and int(one.commit) < time:
                yield one
        for run in self._inside.get(caller, ()):
            if run.scope[0] < root if value is None else self._begun[run.scope[0]] <= time:
                for name in run.written:
                    yield from self._last(run, name)
        for run, entry in self._entry(scope, execution):
            yield from self._all(run, run.of(entry.commit.id).node, run.parents[entry.commit.id][0])

    def _given(self, run: _Run, field: str) -> Iterator[Value]:
        """The values behind an input of a run: those that the node around it had read."""
        root, around = run.scope
        if not around:  # code around the graphs gave it: of the example, or made of what an earlier graph gave
            yield from self._made_before(None, root) if field in run.made else ()
            return
        for outer, entry in self._entry((root, around[:-1]), around[-1]):
            node, commit = outer.graph.nodes[entry.commit.node], entry.commit.id
            of_item = node.mapped is not None and field == node.mapped.item
            name = node.mapped.over if of_item else ((node.inner or node).reads or {}).get(field, field)
            yield from self._at(outer, name, outer.of(commit).node.get(name, ()), outer.parents[commit][0])


def sent_entry(call: Call, head: int, update: Any, reducer: str) -> tuple[int, Any] | None:
    """The position of its `Send` and the entry that its target adds to a list; None for anything else."""
    entries = [update] if reducer == "append" else update
    if call.overlay is None or not isinstance(entries, list | tuple) or len(entries) != 1:
        return None
    position = call.runner.session.run.log[head].send_of(call.context.branch)
    return None if position is None else (position, entries[0])


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


class Carried:
    """The unknown values that values carry for what was made from them; None if something is known to be wrong."""

    def __init__(self, run: Sheet, right: Collection[Any] = ()) -> None:
        self._right = right  # the places of values that were right in the run itself
        self._known: dict[Value, tuple[Value, ...] | None] = {}
        for value in run.values:  # in the order of their commits, so that what was read is known: a run may be long
            self.by(value)

    def by(self, value: Value) -> tuple[Value, ...] | None:
        """The unknown values that a value carries; none if it is right."""
        if value not in self._known:
            self._known[value] = ()  # siblings may have read each other's posts: a cycle carries nothing
            if not (value.replaced or value.harmless or value.verdict == "right" or value.place in self._right):
                read = None if value.verdict == "wrong" else self.read(value)
                # A function passes on what it read.
                self._known[value] = read if read is None or not value.predictors else (*read, value)
        return self._known[value]

    def read(self, value: Value) -> tuple[Value, ...] | None:
        """The unknown values that all carry which were read for a value."""
        found = [self.by(one) for one in value.reads]
        return None if None in found else tuple(dict.fromkeys(one for carried in found for one in carried or ()))

    def is_right(self, value: Value) -> bool:
        """Tell if all that was read for a value is right: what it is depends on its author alone."""
        read = self.read(value)
        return read is not None and not any(one.predictors for one in read)


def is_read(run: Sheet, keys: Collection[str]) -> bool:
    """Tell if a wrong value that has gold was read later: without it, a gold run would be the same run."""
    read = dict.fromkeys(one for value in run.values if value.kind != "graph" for one in value.reads)
    pending = [*read]
    for value in pending:  # a graph is no reader: it passes on what those inside of it have written
        inside = [one for one in value.reads if one not in read] if value.kind == "graph" else ()
        read.update(dict.fromkeys(inside))
        pending += inside
    wrong = [one for one in read if one.verdict == "wrong" and one.may_replace and one.gold is not NO_GOLD]
    return any(one.key in keys for one in wrong)


def right_places(run: Sheet, gold: Sheet | None) -> set[tuple[Any, ...]]:
    """The places of values that count as right, whatever gold has made of them."""
    return {one.place for one in run.values if one.harmless or (gold is not None and one.verdict == "right")}


def faults(run: Sheet, gold: Sheet | None) -> list[Fault]:
    """The faults of a run, as its gold run shows them; of one without, as it shows them itself."""
    right = right_places(run, gold)
    carried, found = Carried(gold or run, right), list[Fault]()
    for value in (gold or run).values:
        if value.verdict == "wrong" and value.place not in right and (value.kind != "fix" or gold is None):
            read = carried.read(value)
            found += [] if read is None else [Fault(value, (*read, value), carried.is_right(value))]
    fixes = [one for one in run.values if one.kind == "fix" and one.verdict == "wrong" and gold is not None]
    carried = Carried(run) if fixes else carried
    for value in fixes:  # in a gold run, a node that corrects has nothing to correct
        if None not in [carried.by(one) for one in value.reads if one.field != value.field]:
            found.append(Fault(value, (value,), True))
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
        >>> graph = Graph().add_node("count", lambda text: {"words": len(text)},
        ...     writes=["words"])
        >>> graph = graph.add_node("grade", lambda words: {"long": words > 4},
        ...     writes=["long"])
        >>> program = graph.add_path(START, "count", "grade", END).compile()
        >>> metric = by_field({"words": equals("words"), "long": equals("long")},
        ...     goal="long")
        >>> print(culprits(program, dspy.Example(text="last order", words=2,
        ...     long=False).with_inputs("text"), metric))
        100 % count (not tunable): `words` is 10, expected 2.
    """
    validate(program, metric, "culprits", example=[example])
    run, keys = Sheet(program, example, metric).observe(), metric.gold_keys
    gold = Sheet(program, example, metric, keys).observe() if is_read(run, keys) else None
    if error := run.error or (gold and gold.error):
        raise error
    found, tunable = faults(run, gold), {name for name, _ in program.named_predictors()}
    shares, texts, known = defaultdict[str, float](float), defaultdict[str, dict[str, None]](dict), set[str]()
    for fault in found:
        names = fault.suspects or (fault.value.name,)
        known |= {*names} if fault.known else set()
        for name in names:
            shares[name] += 1 / len(names)
            texts[name][run.text_of(fault.value)] = None
    ordered = {name: share / len(found) for name, share in sorted(shares.items(), key=lambda part: -part[1])}
    return Culprits(
        ordered,
        tuple([name for name in ordered if name not in known]),
        tuple([name for name in ordered if name not in tunable]),
        {name: tuple(texts[name]) for name in ordered},
    )

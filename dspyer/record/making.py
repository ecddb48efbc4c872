"""`RecordStep`, one thing that a run did, and how the steps of a run are made of what is known of it.

A run is commits, and what executions have left besides: results of items, LM calls, questions, posts. Each belongs to
an execution, whose id says what is around it (`ids.Address`); so the tree of steps follows from ids alone, whatever
order the rows came in. Where a run has stopped follows from its commits: each branch leads to a node that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from dspyer.events import Answer, BranchPath, Commit, LMCall, MergedConflict, Posted, Question
from dspyer.failure import Failure
from dspyer.ids import (
    Address,
    execution_id,
    full_id,
    id_order,
    ids_around,
    outermost_execution,
    part_id,
    whole_execution,
)
from dspyer.log.execution_records import usage_alone
from dspyer.log.rows import UnreadablePatch
from dspyer.patch import DELETE, Members, Replace, SealedPatch, Tail
from dspyer.record.drawn import DrawnGraph, Mapped
from dspyer.record_codec import changed, size_text
from dspyer.redaction import Redactor
from dspyer.reducers import Updates
from dspyer.scheduler.lineage import LogEntry, sent_to
from dspyer.scheduler.provenance import Writers
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, thaw

JOIN = "join:"
AFTER = "after"
"""The key of a question that is asked when its execution has committed."""

ITEMS = ("item", "trial")
"""The kinds of the parts of a map."""

MOST_ITEMS = 1_000_000
"""Items of one visit of a map that are steps: a damaged row may claim any number."""


class Wrote(NamedTuple):
    """The frozen value of a field after a step, `DELETE` for none; and the id of the step that made it, if another."""

    value: Any
    by: str | None = None

    def __repr__(self) -> str:
        return f"Wrote({size_text(self.value)}, by={self.by!r})"


class StepQuestion(NamedTuple):
    """A question that a step asked, when, and its answer, with a frozen value; None for none yet."""

    question: Question
    at: float | None = None
    answer: Answer | None = None

    @property
    def span(self) -> tuple[float, float]:
        """The time in which it was open."""
        begun, ended = self.at, None if self.answer is None else self.answer.at
        return (0.0, 0.0) if begun is None or ended is None else (begun, max(begun, ended))


@dataclass(frozen=True, slots=True)
class RecordStep:
    """One thing that a run did: a commit, an item of a map, a called program, or where the run has stopped.

    Attributes:
        id: that of its commit; of a step without one, that of its execution.
        node: the node; `"join:NAME"` of a join, `"NAME[2]"` of an item.
        kind: `"start"`, `"function"`, `"module"`, `"agent"`, `"graph"`, `"map"`, `"item"`, `"tool"`, `"check"`,
            `"question"`, `"join"`, `"edit"`, `"search"` or `"trial"`.
        status: `"done"`, `"failed"`, `"waiting"` for an answer, `"running"`, `"stopped"` or `"unreadable"`.
        parent: the id of the step around it; None for none.
        branch: the path of its branch.
        visit: how often the node has run in the lineage of the branch.
        rank: its place in the longest chain of steps up to it.
        version: the version of its commit; None for none.
        started: when it began, seconds since the epoch; None if that is not known.
        seconds: how long it took; of a step around others, from their first start to their last end.
        waited: the part of it in which it waited for answers.
        after: the ids of the steps that it follows.
        to: the nodes to which its branch went on.
        reason: why an LM router chose them; of an unreadable step, why it cannot be read.
        sent: what a `Send` has brought to it, besides the state before it, frozen.
        wrote: by field, its value after the step. A join wrote what differs from its first branch; the first step, all
            that the run began with. In a graph inside of a node, whose inputs are not stored, of a field with a
            reducer what the step added.
        lm: its LM calls.
        failed: the attempts that raised before the last one.
        failure: why it failed.
        asked: its question.
        conflicts: of a join, the conflicts of its branches.
        posts: its posts to live fields.
        commit: its commit.
    """

    id: str
    node: str
    kind: str = "function"
    status: str = "stopped"
    parent: str | None = None
    branch: BranchPath = ()
    visit: int = 1
    rank: int = 0
    version: int | None = None
    started: float | None = None
    seconds: float = 0.0
    waited: float = 0.0
    after: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    reason: str | None = None
    sent: Mapping[str, Any] = FrozenDict()
    wrote: Mapping[str, Wrote] = FrozenDict()
    lm: tuple[LMCall, ...] = ()
    failed: tuple[Failure, ...] = ()
    failure: Failure | None = None
    asked: StepQuestion | None = None
    conflicts: tuple[MergedConflict, ...] = ()
    posts: tuple[Posted, ...] = ()
    commit: Commit | None = None
    _state: ImmutableState | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        wrote = ", ".join([f"{name}: {size_text(one.value)}" for name, one in self.wrote.items()])
        return f"RecordStep({self.id!r}, {self.node!r}, {self.kind!r}, {self.status!r}, wrote={{{wrote}}})"


def span_of(one: RecordStep | LMCall) -> tuple[float, float]:
    """The begin and the end of a step or an LM call."""
    return (0.0, 0.0) if one.started is None else (one.started, one.started + one.seconds)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of time that some spans cover.

    Example:
        >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
        4.0
    """
    total, end = 0.0, 0.0
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


# --- where a run has stopped


class Branches:
    """The branches of a graph that no commit has continued, kept while its commits come, parents first.

    One that has reached `END` waits there for the others.
    """

    def __init__(self, commits: Iterable[Commit] = ()) -> None:
        self._ways: dict[BranchPath, tuple[str, Commit]] = {}  # by branch, the node to which it leads, and its head
        self._lengths: dict[BranchPath, int] = {}
        for commit in commits:
            self.add(commit)

    def add(self, commit: Commit) -> None:
        """Add a commit."""
        node, route, path = commit.node.removeprefix(JOIN), commit.route, commit.branch
        behind = [path]
        if path not in self._ways or (self._ways[path][1].id,) != commit.parents:  # that of a join ends several
            ways = {one: goal for one, (goal, head) in self._ways.items() if head.id in commit.parents}
            # Of a commit that cannot be read, the way is not known.
            behind = [one for one, goal in ways.items() if goal == node] or list(ways)[:1]
        # What a commit follows is taken from the ways that are open: those that are left at the end are active.
        goals = [self._ways.pop(one)[0] for one in behind]
        route = route or tuple(goals[:1])  # a manual commit has no route: it leads where its branch has led
        ahead = [path] if len(route) < 2 else [(*path, index) for index in range(len(route))]
        self._ways |= {one: (goal, commit) for one, goal in zip(ahead, route, strict=False)}
        self._lengths[path] = max(self._lengths.get(path, 0), Address.parse(commit.id).index + 1)

    def active(self) -> dict[BranchPath, tuple[str, Commit]]:
        """The node to which each branch leads, and the commit from which, by the paths of the branches, in order."""
        return dict(sorted(self._ways.items()))

    def stops(
        self, scope: str, status: str, failures: Iterable[Failure] = (), committed: Container[str] = ()
    ) -> Iterator[BranchStop]:
        """The executions at which the branches of a graph have stopped, or are.

        Args:
            scope: the execution in which the graph runs; "" for that of the run.
            status: how the run has ended, or the step around the graph.
            failures: those that have ended the run.
            committed: the executions that have a commit.
        """
        if status == "completed":
            return
        active = self.active()
        stopped: set[BranchPath] = set()
        for failure in sorted(failures, key=lambda failure: failure.branch):
            came: tuple[BranchPath, ...] = (failure.branch,)
            if failure.node.startswith(JOIN):
                node = failure.node.removeprefix(JOIN)
                came = tuple([path for path, (goal, _) in active.items() if goal == node])
            stopped.update(came)
            heads = {path: active[path][1] for path in came if path in active}
            local = full_id(scope, Address.parse(failure.execution).own)
            if local in committed:  # a router raised after the commit, or a question after it was refused
                local = f"{local}[route]"
            yield BranchStop(scope, local, failure.node, failure.branch, heads, "failed", failure)
        # Of a graph inside of a node that failed, the only branch is the one that has.
        here = "failed" if scope and status == "failed" and len(active) == 1 else "stopped"
        for path, (goal, head) in active.items():
            if path not in stopped and not (goal == END and len(active) == 1):
                local = full_id(scope, execution_id(path, self._lengths.get(path, 0)))
                yield BranchStop(scope, local, goal, path, {path: head}, "running" if status == "running" else here)


class BranchStop(NamedTuple):
    """An execution at which a branch has stopped, or is; `heads` are the commits before it, by branch."""

    scope: str
    local: str
    node: str
    branch: BranchPath
    heads: Mapping[BranchPath, Commit]
    status: str
    failure: Failure | None = None


# --- what is known of a run


class RunEnding(NamedTuple):
    """The end of a run, as far as it has one.

    Attributes:
        status: `"running"` or `"crashed"` for a run without an end.
        ended: when it ended.
        usage: what it used by language model.
        failures: those that ended it.
        failed: the attempts before these, which other attempts followed.
        damaged: by place, why rows cannot be read that say how it ended.
    """

    status: str
    ended: float | None = None
    usage: Mapping[str, Mapping[str, Any]] = FrozenDict()
    failures: Sequence[Failure] = ()
    failed: Sequence[Failure] = ()
    damaged: Mapping[str, str] = FrozenDict()


@dataclass(slots=True)
class Facts:
    """The traces of one execution of the run's own graph besides its commit, with all that ran inside of it.

    Ids are those within the run.

    Attributes:
        inside: the commits of graphs inside of it, parents first, by the ids of their executions.
        items: the results of items of maps.
        calls: its LM calls.
        posts: its posts to live fields.
        asked: its questions, by execution and key, in the order of asking.
        failed: the attempts that failed before the failure that ended the run.
        damaged: why rows cannot be read, by what is known of their place.
        stops: where the run has stopped.
    """

    inside: dict[str, Commit] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    calls: list[LMCall] = field(default_factory=list)
    posts: list[Posted] = field(default_factory=list)
    asked: dict[tuple[str, str], StepQuestion] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    stops: list[BranchStop] = field(default_factory=list)


Order = tuple[int, int, BranchPath, Any]
"""The place of a step among those with the same parent: commits before failures, and these before other stops."""


class RunSteps:
    """The facts of a run, and the steps made of them. More may be added at any time, from rows or from a process.

    The executions of the run's own graph are independent of each other: steps are made again only of those of which
    something new is known. So what a follower pays for a change does not grow with the run.

    Args:
        label: what global ids begin with.
        graph: its graph.
        earlier: returns, for the fields that it began with, the commits before it that have written them.
        redactor: hides values; None for none. What it learns anywhere is hidden in all steps.
        keeps_texts: whether prompts and responses are shown although values are hidden.

    Attributes:
        log: its commits with their states, parents first. Their indexes stay; a version comes once it is known.
        places: the index of each, by its id.
        labels: what the global id of each begins with, by its id.
        facts: the facts of its executions, by the outermost one.
        ending: those that hold only for how the run has ended up to now.
        held: the ids of steps after which a question is open.
        fields: by step, the fields of the state after it, as far as they were asked for.
        into: by step of an item, the field that gets its result.
    """

    def __init__(
        self,
        label: str,
        graph: DrawnGraph,
        earlier: Callable[[], Mapping[str, Commit]] = dict,
        redactor: Redactor | None = None,
        keeps_texts: bool = False,
    ) -> None:
        self.label, self.graph, self.earlier = label, graph, earlier
        self.redactor, self.keeps_texts = redactor, keeps_texts
        self.log: list[LogEntry] = []
        self.places: dict[str, int] = {}
        self.labels: dict[str, str] = {}
        self.facts: dict[str, Facts] = {}
        self.ending: dict[str, Facts] = {}
        self.held: set[str] = set()
        self.fields: dict[str, Mapping[str, Wrote]] = {}
        self.writers = Writers(self.log)
        self._order: list[int] = []  # the log indexes in canonical order, of which the first ones are settled for good
        self._settled = 0
        self._branches = Branches()
        self._changed: dict[str, None] = {}
        self.into: dict[str, str] = {}
        self.whole: dict[str, tuple[RecordStep, ...]] = {}  # as they are stored, with what is hidden
        self._made: dict[str, tuple[RecordStep, ...]] = {}  # as they may be shown
        self._loose: dict[str, Order] = {}  # the places of those without a commit

    def commit(self, entry: LogEntry, label: str) -> None:
        """Add a commit of the run's own graph; its parents were added before."""
        commit = entry.commit
        self.places[commit.id], self.labels[commit.id] = len(self.log), label
        self.log.append(entry)
        self._branches.add(commit)
        self._changed[commit.id] = None

    def settle(self, count: int, first: int) -> None:
        """Give versions to the first commits, from `first` on: up to the last one at which one branch was active.

        Commits come in the order in which they were made, which differs between runs of one fork. Sorted by step and
        branch, every run of the same graph with the same results has the same versions.
        """
        done, log = self._settled, self.log
        # A settled commit comes after all before it in either order: what was sorted up to one stays.
        behind = range(done, len(log))
        self._order[done:] = sorted(behind, key=lambda i: (i >= count, log[i].commit.step, log[i].commit.branch))
        for place in range(done, count):
            index = self._order[place]
            commit = changed(log[index].commit, version=first + place)
            log[index] = log[index]._replace(commit=commit)
            self._changed[commit.id] = None
        self._settled = count

    def of(self, execution: str) -> Facts:
        """The facts of the execution of the run's own graph that is another one, or is around it, to be added to."""
        outermost = outermost_execution(execution)
        self._changed[outermost] = None
        return self.facts.setdefault(outermost, Facts())

    def ask(self, asked: StepQuestion) -> None:
        """Add a question, or its answer."""
        question = asked.question
        self.of(question.execution).asked[question.execution, question.key] = asked
        if question.key == AFTER and question.execution in self.places:
            name = self.id_of(question.execution)
            (self.held.add if asked.answer is None else self.held.discard)(name)
            # What follows a commit comes after it.
            self._changed |= dict.fromkeys([one.commit.id for one in self.log[self.places[question.execution] + 1 :]])

    def id_of(self, local: str) -> str:
        """The global id of a commit or an execution."""
        return full_id(self.labels.get(local, self.label), local)

    def in_order(self) -> Iterator[LogEntry]:
        """The commits in canonical order."""
        return map(self.log.__getitem__, self._order)

    def make(self, ending: RunEnding) -> tuple[RecordStep, ...]:
        """The steps of the run, each before those inside of it, in canonical order."""
        # Both those that it has said something of until now, and those of which it does now, are made again.
        self._changed |= dict.fromkeys(self.ending)
        self.ending = {}
        for failure in ending.failed:
            if Address.parse(failure.execution).index >= 0:  # else where it was is hidden, or not known
                self._ended_at(failure.execution).failed.append(failure)
        for stop in self.stops(ending):
            self._ended_at(stop.local).stops.append(stop)
        for place, reason in ending.damaged.items():
            self._ended_at(place).damaged[place] = reason
        self._changed |= dict.fromkeys(self.ending)
        for execution in self._changed:
            self._loose.pop(execution, None)
        new: dict[str, tuple[RecordStep, ...]] = {}
        for execution, order, new[execution] in _Maker(self, self._changed).made():
            if execution not in self.places:
                self._loose[execution] = order
        self.whole |= new
        hides_more = self.redactor is not None and self._learn(self.redactor, chain.from_iterable(new.values()))
        for execution, steps in (self.whole if hides_more else new).items():
            shown = steps if self.redactor is None else tuple(self._shown(self.redactor, steps))
            # Who follows a run is sent the steps that are other objects than before.
            if not (hides_more and self._made.get(execution) == shown):
                self._made[execution] = shown
        self._changed.clear()
        return tuple(self.in_place(self._made))

    def in_place(self, made: Mapping[str, tuple[RecordStep, ...]]) -> Iterator[RecordStep]:
        """The steps of all executions in canonical order."""
        loose = sorted(self._loose, key=self._loose.__getitem__)
        own = [(index, self.log[index].commit.id) for index in self._order]
        # Rows that say nothing of their commits may have one id.
        between = [name for index, name in own if self.places[name] == index]
        before, after = [[one for one in loose if bool(self._loose[one][0]) is late] for late in (False, True)]
        return chain.from_iterable([made[name] for name in (*before, *between, *after)])

    def _learn(self, redactor: Redactor, steps: Iterable[RecordStep]) -> bool:
        """Let a redactor know what is new; return whether it hides more than before: then no step stays as it is."""
        known = redactor.known
        for step in steps:
            redactor.learn_patch(dict(step.sent))
            if step.commit is not None:
                redactor.learn_patch(step.commit.patch)
                if step.parent is None and not step.after:  # the state with which the run begins
                    redactor.learn_patch({name: one.value for name, one in step.wrote.items()})
            for post in step.posts:
                redactor.learn(post)
            is_inside = bool(Address.parse(step.id).scope)
            for failure in (*step.failed, *([] if step.failure is None else [step.failure])):
                self._learn_failure(redactor, failure, is_inside)
        return redactor.known > known

    def _learn_failure(self, redactor: Redactor, failure: Failure, is_inside: bool) -> None:
        """A failure is hidden as in the fields that may get it, also those of graphs around the one of its node."""
        for _, graph in self.graph.within():
            for node, fields in graph.failures.items():
                if node == failure.node or (is_inside and node in graph.inner):
                    for field in fields:
                        redactor.learn_patch({field: failure})
            mapped = graph.maps.get(failure.node)
            if mapped is not None and mapped.failures is not None:
                redactor.learn_value((mapped.failures, failure.index or 0), failure)

    def _shown(self, redactor: Redactor, steps: Iterable[RecordStep]) -> Iterator[RecordStep]:
        """The steps of an execution as they may be shown."""
        told: dict[int, Failure | None] = {}  # by identity, the failures that are hidden as in the field that got them

        def failure(one: Failure) -> Failure:
            return told.get(id(one)) or redactor.failure(one)

        for step in steps:
            commit, asked, is_item = step.commit, step.asked, step.kind in ITEMS
            into = self.into.get(step.id)
            if commit is not None:
                failures = *commit.failed_attempts, commit.failure
                commit = redactor.shown(commit)
                told |= zip(map(id, failures), (*commit.failed_attempts, commit.failure), strict=True)
            if asked is not None and asked.answer is not None:  # who is to answer must see all
                answer = redactor.redact(asked.answer)
                asked = StepQuestion(answer.question, asked.at, replace(answer, value=freeze(answer.value)))
            yield replace(
                step,
                reason=redactor.redact(step.reason),
                sent={name: redactor.field(name, value) for name, value in step.sent.items()},
                wrote={
                    name: one._replace(value=redactor.field(into or name, one.value, appended=is_item))
                    for name, one in step.wrote.items()
                },
                lm=tuple([redactor.redact(call) if self.keeps_texts else usage_alone(call) for call in step.lm]),
                failed=tuple(map(failure, step.failed)),
                failure=None if step.failure is None else failure(step.failure),
                asked=asked,
                conflicts=tuple(map(redactor.shown, step.conflicts)),
                posts=tuple(map(redactor.shown, step.posts)),
                commit=commit,
            )

    def stops(self, ending: RunEnding) -> Iterator[BranchStop]:
        """The executions of the run's own graph at which it has stopped, or is."""
        return self._branches.stops("", ending.status, ending.failures, self.places)

    def _ended_at(self, execution: str) -> Facts:
        return self.ending.setdefault(outermost_execution(execution), Facts())


# --- steps


class _Maker:
    """The steps of some executions while they are put together: the arguments of `RecordStep`, by execution."""

    def __init__(self, run: RunSteps, executions: Iterable[str]) -> None:
        self._of = run
        self._held = set(run.held)
        self._fields: dict[str, dict[str, Any]] = {}
        self._order: dict[str, Order] = {}
        self._graphs: dict[str, DrawnGraph] = {}
        self._addresses: dict[str, Address] = {}  # a map has an id for each item, and each is taken apart once
        self._own = [run.places[one] for one in executions if one in run.places]
        self._facts = [known[one] for one in executions for known in (run.facts, run.ending) if one in known]

    def made(self) -> Iterator[tuple[str, Order, tuple[RecordStep, ...]]]:
        """Each of the executions with its place and its steps."""
        # All commits, then where branches have stopped: the rest belongs to executions that are known by then.
        self._commits_and_stops()
        self._attempts_and_items()
        for facts in self._facts:
            for call in facts.calls:
                self._add(self._place(call.execution), call.node, "lm", call)
            for post in facts.posts:
                self._add(post.execution, post.node, "posts", post)
            for asked in facts.asked.values():
                self._ask(asked)
        for step in self._fields.values() if self._held else ():
            if step["status"] != "failed" and not self._held.isdisjoint(step.get("after", ())):
                step["status"] = "waiting"
        for facts in self._facts:
            for place, reason in facts.damaged.items():
                self._step(place, "?").update(status="unreadable", reason=reason)
        inside: dict[str, list[str]] = {}
        for local in self._fields:
            inside.setdefault(_around(local), []).append(local)
        for execution in inside.get("", ()):
            yield execution, self._order[execution], tuple(self._steps(inside, execution, None))

    def _commits_and_stops(self) -> None:
        own = [(index, self._of.log[index].commit) for index in self._own]
        for index, _ in sorted(own, key=lambda one: (one[1].version is None, one[1].step, one[1].branch)):
            self._own_commit(index)
        inner: dict[str, list[Commit]] = {}
        for facts in self._facts:
            for local, commit in facts.inside.items():
                inner.setdefault(_around(local), []).append(commit)
                self._inner_commit(local, commit)
        for stop in chain.from_iterable([facts.stops for facts in self._facts]):
            self._stop(stop)
        # From the outside to the inside: how a graph has ended follows from the step around it.
        for scope in sorted(inner, key=len):
            commits = sorted(inner[scope], key=lambda commit: (commit.step, commit.branch))
            for stop in Branches(commits).stops(scope, self._step(scope)["status"]):
                self._stop(stop)

    def _attempts_and_items(self) -> None:
        for failure in chain.from_iterable([facts.failed for facts in self._facts]):
            self._add(self._place(failure.execution), failure.node, "failed", failure)
        for local in list(self._fields):
            self._items_of(local)
        # The row of an item has its result whole; what its map has committed may lack it.
        for facts in self._facts:
            for execution, value in facts.items.items():
                self._step(execution).update(status="done", wrote={"result": Wrote(value)})
        for step in self._fields.values():  # of an item without a result, the last of its failures has ended it
            if step["status"] == "stopped" and (lost := step.get("failed")) and lost[-1].index is not None:
                step |= {"status": "failed", "failure": lost[-1], "failed": lost[:-1]}

    def _add(self, local: str, node: str, name: str, one: Any) -> None:
        """Add to one of the lists of a step."""
        self._step(local, node).setdefault(name, []).append(one)

    # --- commits

    def _own_commit(self, index: int) -> None:
        """The step of a commit of the run's own graph: what it wrote is read from the states, which are folded."""
        run, entry = self._of, self._of.log[index]
        commit, state = entry.commit, entry.state
        before = run.log[entry.parents[0]].state if entry.parents else None
        wrote: dict[str, Wrote] = {}
        if isinstance(commit.patch, UnreadablePatch):
            pass
        elif before is None:
            # The first step has all that the run begins with: so a reader need not know what was before the run.
            carried = run.earlier() if state.keys() - commit.patch.keys() else {}
            for name, value in state.raw_items():
                writer = None if name in commit.patch else carried.get(name)
                wrote[name] = Wrote(value, None if writer is None else writer.id)
        elif len(entry.parents) > 1:
            joined, first = run.writers.at(index), run.writers.at(entry.parents[0])
            for name in {**state, **before}:
                value, held, last = state.raw(name, DELETE), before.raw(name, DELETE), joined.under(name).writer
                # Branches may have written one value: a walk along the first of them would find the wrong writer.
                if last != first.under(name).writer or not (value is held or same(value, held)):
                    by = None if last is None or last == index else run.id_of(run.log[last].commit.id)
                    wrote[name] = Wrote(value, by)
        else:
            wrote = {name: Wrote(state.raw(name, DELETE)) for name in commit.patch}
        self._commit(commit.id, commit, wrote, entry.conflicts)
        self._fields[commit.id]["_state"] = state
        self._sent(commit.id, entry.parents, commit.branch)

    def _inner_commit(self, local: str, commit: Commit) -> None:
        """The step of a commit of a graph inside of a node, which has no states: what it wrote is its patch."""
        scope = local[: len(local) - len(commit.id)]
        wrote = {name: Wrote(value_of_update(update)) for name, update in commit.patch.items()}
        self._commit(local, commit, wrote, scope=scope)

    def _sent(self, local: str, parents: tuple[int, ...], branch: BranchPath) -> None:
        """Notes what a `Send` has brought to a step of the run's own graph."""
        sent = sent_to(self._of.log, parents, branch) if parents else FrozenDict()
        if sent:
            self._fields[local]["sent"] = dict(sent.raw_items())

    def _commit(
        self,
        local: str,
        commit: Commit,
        wrote: Mapping[str, Wrote],
        conflicts: tuple[MergedConflict, ...] = (),
        scope: str = "",
    ) -> None:
        after = tuple(
            [self._of.id_of(scope + one) for one in commit.parents if not scope or scope + one in self._fields]
        )
        name, reason = self._of.id_of(local), commit.reason
        if isinstance(commit.patch, UnreadablePatch):
            status, reason = "unreadable", commit.patch.error
        else:
            status = "done" if commit.failure is None else "failed"
        self._fields[local] = {
            "id": name,
            "node": commit.node,
            "branch": commit.branch,
            "visit": commit.visit,
            "rank": commit.step,
            "version": commit.version,
            "status": status,
            "started": commit.started or None,
            "seconds": commit.duration,
            "after": after,
            "to": commit.route,
            "reason": reason,
            "wrote": wrote,
            "failed": [one for one in commit.failed_attempts if one.index is None],
            "failure": commit.failure,
            "conflicts": conflicts,
            "commit": changed(commit, id=name, parents=after),
        }
        self._order[local] = (int(not scope and commit.version is None), commit.step, commit.branch, ())
        for failure in commit.failed_attempts:
            if failure.index is not None:
                self._add(f"{local}[{failure.index}]", "", "failed", failure)

    def _items_of(self, local: str) -> None:
        """The steps of the items of a map that has committed: its results are in order, without those that failed."""
        step, graph = self._fields[local], self._graph_of(local)
        mapped = graph.maps.get(step["node"])
        if mapped is None or "commit" not in step or step["status"] != "done":
            return
        for index, failure, result in items_of_commit(graph, mapped, step["commit"], step.get("_state")):
            if failure is not None:
                self._step(f"{local}[{index}]").update(status="failed", failure=failure)
            else:
                self._step(f"{local}[{index}]").update(status="done", wrote={"result": Wrote(freeze(result))})

    # --- stops

    def _stop(self, stop: BranchStop) -> None:
        scope, local, node, branch, heads, status, failure = stop
        step = self._step(local, node)
        step.update(node=node, branch=branch, status=status)
        step["rank"] = 1 + max([head.step for head in heads.values()], default=-1)
        step["after"] = tuple([self._of.id_of(full_id(scope, head.id)) for head in heads.values()])
        if failure is not None:
            step["failure"] = failure
        if status == "running" and heads:
            step["started"] = max(head.ended for head in heads.values())
        if not scope:
            self._sent(local, tuple([self._of.places[head.id] for head in heads.values()]), branch)
        self._order[local] = (2 if status == "failed" else 3, 0, branch, ())

    def _ask(self, asked: StepQuestion) -> None:
        """A question belongs to the execution that asks; a further one of it is a step of its own inside of that."""
        question, answer = asked.question, asked.answer
        step = self._step(self._place(question.execution), question.node)
        # An error edge of what is around it has closed it.
        ended = any("commit" in self._fields.get(one, ()) for one in ids_around(question.execution))
        is_open = answer is None and question.key != AFTER and not ended and "commit" not in step
        if answer is None and question.key == AFTER:
            self._held.add(step["id"])
        if "asked" in step:
            step = self._step(part_id(question.execution, question.key), question.key)
            step |= {"kind": "question", "status": "done"}
        step["asked"] = asked
        if is_open and step["status"] != "failed":
            step["status"] = "waiting"

    # --- the tree

    def _place(self, execution: str) -> str:
        """The step that has made a call: an item, a program, or, of a router or a condenser, the node's."""
        while execution.endswith("]") and execution not in self._fields:
            if Address.parse(execution).keys[-1].isdigit():
                break
            execution = _around(execution)
        return execution

    def _step(self, local: str, node: str = "") -> dict[str, Any]:
        """The fields of the step of an execution, which is made if need be, with those around it."""
        if local not in self._fields:
            found = self._address(local)
            self._fields[local] = {"id": self._of.id_of(local), "node": node, "status": "stopped"}
            self._fields[local]["branch"] = found.path
            self._order[local] = (0, -1, (), id_order(local)) if found.part else (3, 0, found.path, ())
            if around := _around(local):
                self._step(around)
        return self._fields[local]

    def _address(self, local: str) -> Address:
        if local not in self._addresses:
            self._addresses[local] = Address.parse(local)
        return self._addresses[local]

    def _graph_of(self, local: str) -> DrawnGraph:
        """The graph in which an execution is."""
        if local not in self._graphs:
            around, found = _around(local), self._of.graph
            if around:
                found = self._graph_of(around)
                if self._address(local).is_commit:
                    found = found.inside(self._fields[whole_execution(around)]["node"], around) or DrawnGraph("")
            self._graphs[local] = found
        return self._graphs[local]

    def _steps(self, inside: Mapping[str, list[str]], local: str, parent: str | None) -> list[RecordStep]:
        """A step, followed by those inside of it, in order."""
        fields = self._fields[local]
        self._name(local, fields)
        below: list[RecordStep] = []
        for one in sorted(inside.get(local, ()), key=self._order.__getitem__):
            below += self._steps(inside, one, fields["id"])
        timed = [*fields.get("lm", ()), *below]
        spans = [(one.started, one.started + one.seconds) for one in timed if one.started is not None]
        if fields.get("started") is not None:
            spans.append((fields["started"], fields["started"] + fields.get("seconds", 0.0)))
        if below or fields.get("started") is None:
            begun, ended = min([at for at, _ in spans], default=None), max([at for _, at in spans], default=0.0)
            fields |= {"started": begun, "seconds": 0.0 if begun is None else round(ended - begun, 6)}
        if fields["status"] == "stopped" and any(one.status == "waiting" for one in below):
            fields["status"] = "waiting"
        asked = [one for one in (fields.get("asked"), *[step.asked for step in below]) if one is not None]
        fields["waited"] = round(covered([one.span for one in asked]), 6)
        fields |= {name: tuple(fields[name]) for name in ("lm", "failed", "posts") if name in fields}
        return [RecordStep(**fields, parent=parent), *below]

    def _name(self, local: str, fields: dict[str, Any]) -> None:
        """Sets the kind of a step, and the name of one that is a part of another."""
        node, graph = fields["node"], self._graph_of(local)
        keys = self._address(local).keys
        if "kind" in fields:
            pass
        elif keys:
            whole = self._fields[_around(local)]
            fields["node"] = f"{whole['node']}[{keys[-1]}]"
            is_item = keys[-1].isdigit()
            if is_item and (mapped := graph.maps.get(whole["node"])) is not None:
                self._of.into[fields["id"]] = mapped.into
            fields["kind"] = ("trial" if graph.is_search else "item") if is_item else "graph"
            if fields["status"] == "stopped":  # of an item that has left nothing, what is said of its map
                fields["status"] = whole["status"]
        elif node == START:
            fields["kind"] = "start"
        elif node.startswith(JOIN) or (fields.get("commit") and len(fields["after"]) > 1):
            fields["kind"] = "join"
        elif (commit := fields.get("commit")) and (commit.is_manual() or (not fields["after"] and commit.step == 0)):
            fields["kind"] = "edit"
        else:
            fields["kind"] = graph.kind(node)


def items_of_commit(
    graph: DrawnGraph, mapped: Mapped, commit: Commit, state: ImmutableState | None
) -> Iterator[tuple[int, Failure | None, Any]]:
    """The items of a map that has committed: the index of each, its failure if it failed, and its result if not.

    `state` is that after the commit; None if it is not known.
    """
    folded = {field.name for field in graph.fields if field.reducer}

    def given(name: str | None) -> list[Any]:
        """The results that the map has given for a field; a patch lacks what the state had before."""
        if name is None:
            return []
        if name in commit.patch or name in folded:
            return _entries(commit.patch.get(name))
        return [] if state is None else _entries(state.raw(name, None))

    lost = {one.index: one for one in given(mapped.failures) if isinstance(one, Failure)}
    results = iter(given(mapped.into))
    for index in range(MOST_ITEMS):
        if index in lost:
            yield index, lost[index], None
        elif (result := next(results, DELETE)) is not DELETE:
            yield index, None, result
        else:
            break


def _around(local: str) -> str:
    """The execution around another one, or of which it is a part; "" for none."""
    return local[: max(local.rfind("/"), local.rfind("["), 0)]


def _entries(update: Any) -> list[Any]:
    """The entries that an update of a list holds."""
    if isinstance(update, Updates):
        return [entry for part in update.updates for entry in _entries(part)]
    value = update.frozen if isinstance(update, Replace) else update
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def value_of_update(update: Any) -> Any:
    """The writes of an update, as a value: of several for a field with a reducer all of them, in order."""
    if isinstance(update, Updates):
        return freeze([value_of_update(part) for part in update.updates])
    if isinstance(update, Replace):
        return update.frozen
    if isinstance(update, Tail | Members):  # what a join made of a list, or of a set
        return freeze(update.items if isinstance(update, Tail) else update.got)
    if type(update) in (dict, SealedPatch):
        return freeze({key: value_of_update(part) for key, part in update.items() if part is not DELETE})
    return update if update is DELETE else freeze(update)


# --- items of maps


class Items(NamedTuple):
    """The items of a map at its last visit, as far as the run has come.

    Attributes:
        node: the map.
        total: how many there are; 0 of a map that the run has not reached.
        done: how many have a result.
        failed: how many have failed.
        waiting: how many wait for an answer.
        results: the results by index.
        failures: the failures by index. Those that `failures=` lets pass are known once the map has ended.
    """

    node: str
    total: int
    done: int
    failed: int
    waiting: int
    results: Mapping[int, Any]
    failures: Mapping[int, Failure]

    def __repr__(self) -> str:
        return f"<items of {self}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of the numbers."""
        return {name: getattr(self, name) for name in ("node", "total", "done", "failed", "waiting")}

    def __str__(self) -> str:
        items = "item" if self.total == 1 else "items"
        more = "".join([f", {n:,} {what}" for n, what in ((self.failed, "failed"), (self.waiting, "waiting")) if n])
        return f"{self.node}: {self.done:,} of {self.total:,} {items}{more}"


def items_of(steps: RunSteps, ending: RunEnding, node: str) -> Items:
    """The items of a map of the run's own graph.

    Raises:
        KeyError: if the graph has no such map; it lists those that it has.
    """
    graph = steps.graph
    if node not in graph.maps:
        known = ", ".join(map(repr, graph.maps)) or "none"
        raise KeyError(f"{node!r} is no map of graph {graph.name!r}; its maps: {known}")
    entry = next((one for one in reversed(list(steps.in_order())) if one.commit.node == node), None)
    if entry is not None and entry.commit.failure is None and all(one.node != node for one in steps.stops(ending)):
        return _committed(graph, entry, node)  # a fifth of the time that the steps of many items take
    steps.make(ending)
    made = list(steps.in_place(steps.whole))
    visit = next((step for step in reversed(made) if (step.parent, step.node) == (None, node)), None)
    if visit is None:
        return Items(node, 0, 0, 0, 0, {}, {})
    items = {
        int(Address.parse(step.id).keys[-1]): step for step in made if step.parent == visit.id and step.kind in ITEMS
    }
    results = {index: thaw(step.wrote["result"].value) for index, step in items.items() if step.status == "done"}
    failures = {index: step.failure for index, step in items.items() if step.failure is not None}
    lost = visit.failure
    if lost is not None and lost.index is not None and lost.index not in results:
        failures[lost.index] = lost  # the one that has failed its map may have left nothing of its own
    total = len({*items, *failures})
    if visit.status != "done" and visit.after:  # it has committed no results: the list says how many there are
        over, state = graph.maps[node].over, next((step._state for step in made if step.id == visit.after[0]), None)
        total = max(total, len(visit.sent.get(over, () if state is None else state.get(over, ()))))
    waiting = sum([step.status == "waiting" for step in items.values()])
    return Items(node, total, len(results), len(failures), waiting, results, failures)


def _committed(graph: DrawnGraph, entry: LogEntry, node: str) -> Items:
    """The items of the map that an entry of the log has committed."""
    items = list(items_of_commit(graph, graph.maps[node], entry.commit, entry.state))
    results = {index: thaw(result) for index, failure, result in items if failure is None}
    failures = {index: failure for index, failure, _ in items if failure is not None}
    return Items(node, len(results) + len(failures), len(results), len(failures), 0, results, failures)

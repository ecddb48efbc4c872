"""`RecordStep`, one thing that a run did, and how the steps of a run are made of what is known of it.

A run is commits, and what executions have left besides: results of items, LM calls, questions, posts. Each belongs to
an execution, whose id says what is around it (`ids.Address`); so the tree of steps follows from ids alone, whatever
order the rows came in. Where a run has stopped follows from its commits: each branch leads to a node that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, cast

from dspyer.events import Answer, BranchPath, Commit, LMCall, MergedConflict, Posted, Question
from dspyer.failure import Failure
from dspyer.ids import Address, execution_id, full_id, id_order, outermost_execution, part_id, whole_execution
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
from dspyer.values.frozen import FrozenDict

JOIN = "join:"
AFTER = "after"
"""The key of a question that is asked when its execution has committed."""

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


def children_of(commit: Commit) -> tuple[BranchPath, ...]:
    """The branches that a commit forks into, one for each target; none without a fork."""
    return tuple((*commit.branch, index) for index in range(len(commit.route))) if len(commit.route) > 1 else ()


def came_from(parent: Commit, commit: Commit) -> BranchPath:
    """The branch that leads from a parent to a commit."""
    children = children_of(parent)
    if not children:
        return parent.branch
    if commit.branch in children and not commit.node.startswith(JOIN):
        return commit.branch
    node = commit.node.removeprefix(JOIN)
    # An edge from the fork straight to the join; of a commit that cannot be read, the way is not known.
    return children[parent.route.index(node) if node in parent.route else 0]


class Branches:
    """The branches of a graph that no commit has continued, kept while its commits come, parents first.

    One that has reached `END` waits there for the others.
    """

    def __init__(self, commits: Iterable[Commit] = ()) -> None:
        self._by_id: dict[str, Commit] = {}
        self._ways: dict[tuple[str, BranchPath], str] = {}  # by commit and branch, the node to which it leads
        self._lengths: dict[BranchPath, int] = {}
        for commit in commits:
            self.add(commit)

    def add(self, commit: Commit) -> None:
        """Add a commit."""
        behind = [
            (parent, came_from(self._by_id[parent], commit)) for parent in commit.parents if parent in self._by_id
        ]
        # What a commit follows is taken from the ways that are open: those that are left at the end are active.
        goals = [self._ways.pop(way) for way in behind if way in self._ways]
        route = commit.route or tuple(goals[:1])  # a manual commit has no route: it leads where its branch has led
        paths = children_of(commit) or (commit.branch,)
        self._ways |= {(commit.id, path): goal for path, goal in zip(paths, route, strict=False)}
        self._by_id[commit.id] = commit
        length = Address.parse(commit.id).index + 1
        self._lengths[commit.branch] = max(self._lengths.get(commit.branch, 0), length)

    def active(self) -> dict[BranchPath, tuple[str, Commit]]:
        """The node to which each branch leads, and the commit from which, by the paths of the branches, in order."""
        found = {path: (goal, self._by_id[head]) for (head, path), goal in self._ways.items()}
        return dict(sorted(found.items()))

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
        self._made: dict[str, tuple[RecordStep, ...]] = {}
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
        hides_more = self.redactor is not None and self._learn(self.redactor)
        if hides_more:
            self._changed |= dict.fromkeys([*self.places, *self.facts])
        for execution in self._changed:
            self._loose.pop(execution, None)
        for execution, order, steps in _Maker(self, self._changed).made():
            # Who follows a run is sent the steps that are other objects than before.
            if not (hides_more and self._made.get(execution) == steps):
                self._made[execution] = steps
            if execution not in self.places:
                self._loose[execution] = order
        self._changed.clear()
        loose = sorted(self._loose, key=self._loose.__getitem__)
        before = [step for one in loose if not self._loose[one][0] for step in self._made[one]]
        after = [step for one in loose if self._loose[one][0] for step in self._made[one]]
        return (*before, *self._steps_of_commits(), *after)

    def _learn(self, redactor: Redactor) -> bool:
        """Let a redactor know what is new; return whether it hides more than before: then no step stays as it is."""
        known = redactor.known
        for execution in self._changed:
            if (at := self.places.get(execution)) is not None:
                entry = self.log[at]
                if not entry.parents:  # the state with which the run begins
                    redactor.learn_patch(dict(entry.state.raw_items()))
                for sent in filter(None, entry.sends):
                    redactor.learn_patch(dict(sent.raw_items()))
                self._learn_commit(redactor, entry.commit, "")
            for facts in filter(None, (self.facts.get(execution), self.ending.get(execution))):
                for local, commit in facts.inside.items():
                    self._learn_commit(redactor, commit, local)
                for post in facts.posts:
                    redactor.learn(post)
                for failure in (*facts.failed, *[stop.failure for stop in facts.stops if stop.failure is not None]):
                    self._learn_failure(redactor, failure, failure.execution)
        return redactor.known > known

    def _learn_commit(self, redactor: Redactor, commit: Commit, local: str) -> None:
        redactor.learn_patch(commit.patch)
        for failure in (*commit.failed_attempts, *([] if commit.failure is None else [commit.failure])):
            self._learn_failure(redactor, failure, local)

    def _learn_failure(self, redactor: Redactor, failure: Failure, local: str) -> None:
        """A failure is hidden as in the fields that may get it, also those of graphs around the one of its node."""
        is_inside = bool(Address.parse(local).scope)
        for _, graph in self.graph.within():
            for node, fields in graph.failures.items():
                if node == failure.node or (is_inside and node in graph.inner):
                    for field in fields:
                        redactor.learn_patch({field: failure})
            mapped = graph.maps.get(failure.node)
            if mapped is not None and mapped.failures is not None:
                redactor.learn_value((mapped.failures, failure.index or 0), failure)

    def stops(self, ending: RunEnding) -> Iterator[BranchStop]:
        """The executions of the run's own graph at which it has stopped, or is."""
        return self._branches.stops("", ending.status, ending.failures, self.places)

    def _steps_of_commits(self) -> Iterator[RecordStep]:
        for index in self._order:
            name = self.log[index].commit.id
            if self.places[name] == index:  # rows that say nothing of their commits may have one id
                yield from self._made[name]

    def _ended_at(self, execution: str) -> Facts:
        return self.ending.setdefault(outermost_execution(execution), Facts())


# --- steps


class _Maker:
    """The steps of some executions while they are put together: the arguments of `RecordStep`, by execution."""

    def __init__(self, run: RunSteps, executions: Iterable[str]) -> None:
        self._of = run
        self._redactor = run.redactor
        self._held = set(run.held)
        self._fields: dict[str, dict[str, Any]] = {}
        self._order: dict[str, Order] = {}
        self._graphs: dict[str, DrawnGraph] = {}
        self._raw: dict[str, Commit] = {}  # as they are stored, with what is hidden
        self._own = [run.places[one] for one in executions if one in run.places]
        self._facts = [known[one] for one in executions for known in (run.facts, run.ending) if one in known]

    def made(self) -> Iterator[tuple[str, Order, tuple[RecordStep, ...]]]:
        """Each of the executions with its place and its steps."""
        # All commits, then where branches have stopped: the rest belongs to executions that are known by then.
        self._commits_and_stops()
        self._attempts_and_items()
        for facts in self._facts:
            for call in facts.calls:
                self._add(self._place(call.execution), call.node, "lm", self._shown_call(call))
            for post in facts.posts:
                shown = post if self._redactor is None else self._redactor.shown(post)
                self._add(post.execution, post.node, "posts", shown)
            for asked in facts.asked.values():
                self._ask(asked)
        for step in self._fields.values() if self._held else ():
            if step["status"] != "failed" and not self._held.isdisjoint(step.get("after", ())):
                step["status"] = "waiting"
        for facts in self._facts:
            for place, reason in facts.damaged.items():
                self._step(place, "?").update(status="unreadable", reason=self._text(reason))
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
            self._add(self._place(failure.execution), failure.node, "failed", self._failure(failure))
        for local in list(self._fields):
            self._items_of(local)
        # The row of an item has its result whole; what its map has committed may lack it.
        for facts in self._facts:
            for execution, value in facts.items.items():
                self._step(execution).update(status="done", wrote={"result": Wrote(self._result(execution, value))})
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
        behind = [run.log[parent].commit for parent in entry.parents]
        self._commit(commit.id, commit, behind, wrote, entry.conflicts)
        self._fields[commit.id]["_state"] = state
        self._sent(commit.id, entry.parents, commit.branch)

    def _inner_commit(self, local: str, commit: Commit) -> None:
        """The step of a commit of a graph inside of a node, which has no states: what it wrote is its patch."""
        scope = local[: len(local) - len(commit.id)]
        behind = [self._raw[scope + parent] for parent in commit.parents if scope + parent in self._raw]
        wrote = {name: Wrote(value_of_update(update)) for name, update in commit.patch.items()}
        self._commit(local, commit, behind, wrote, scope=scope)

    def _sent(self, local: str, parents: tuple[int, ...], branch: BranchPath) -> None:
        """Notes what a `Send` has brought to a step of the run's own graph."""
        sent = sent_to(self._of.log, parents, branch) if parents else FrozenDict()
        if sent:
            self._fields[local]["sent"] = {name: self._shown(name, value) for name, value in sent.raw_items()}

    def _commit(
        self,
        local: str,
        commit: Commit,
        behind: Sequence[Commit],
        wrote: Mapping[str, Wrote],
        conflicts: tuple[MergedConflict, ...] = (),
        scope: str = "",
    ) -> None:
        hidden = self._redactor
        parents = [self._of.id_of(scope + parent.id) for parent in behind]
        shown = changed(commit, id=self._of.id_of(local), parents=tuple(parents))
        self._raw[local] = commit
        if hidden is not None:
            shown, conflicts = hidden.shown(shown), tuple(map(hidden.shown, conflicts))
            wrote = {field: one._replace(value=self._shown(field, one.value)) for field, one in wrote.items()}
        self._fields[local] = {
            "id": shown.id,
            "node": commit.node,
            "branch": commit.branch,
            "visit": commit.visit,
            "rank": commit.step,
            "version": commit.version,
            "status": "done" if commit.failure is None else "failed",
            "started": commit.started or None,
            "seconds": commit.duration,
            "after": shown.parents,
            "to": commit.route,
            "reason": shown.reason,
            "wrote": wrote,
            "failed": [one for one in shown.failed_attempts if one.index is None],
            "failure": shown.failure,
            "conflicts": conflicts,
            "commit": shown,
        }
        if isinstance(commit.patch, UnreadablePatch):
            self._fields[local] |= {"status": "unreadable", "reason": self._text(commit.patch.error)}
        self._order[local] = (int(not scope and commit.version is None), commit.step, commit.branch, ())
        for failure in shown.failed_attempts:
            if failure.index is not None:
                self._add(f"{local}[{failure.index}]", "", "failed", failure)

    def _shown(self, name: str, value: Any) -> Any:
        return value if self._redactor is None else self._redactor.field(name, value)

    def _text(self, text: str) -> str:
        return text if self._redactor is None else str(self._redactor.redact(text))

    def _failure(self, failure: Failure) -> Failure:
        return failure if self._redactor is None else self._redactor.failure(failure)

    def _result(self, execution: str, value: Any) -> Any:
        """The result of an item, as the field of its map may be shown."""
        around = _around(execution)
        mapped = self._graph_of(execution).maps.get(self._fields.get(around, {}).get("node", ""))
        return self._item("result" if mapped is None else mapped.into, value)

    def _item(self, name: str, value: Any) -> Any:
        return value if self._redactor is None else self._redactor.field(name, value, appended=True)

    def _shown_call(self, call: LMCall) -> LMCall:
        if self._redactor is None:
            return call
        return cast("LMCall", self._redactor.redact(call)) if self._of.keeps_texts else usage_alone(call)

    def _items_of(self, local: str) -> None:
        """The steps of the items of a map that has committed: its results are in order, without those that failed."""
        step, graph, commit = self._fields[local], self._graph_of(local), self._raw.get(local)
        mapped = graph.maps.get(step["node"])
        if mapped is None or commit is None or step["status"] != "done":
            return
        for index, failure, result in items_of_commit(graph, mapped, commit, step.get("_state")):
            if failure is not None:
                self._step(f"{local}[{index}]").update(status="failed", failure=self._failure(failure))
            else:
                wrote = {"result": Wrote(self._item(mapped.into, freeze(result)))}
                self._step(f"{local}[{index}]").update(status="done", wrote=wrote)

    # --- stops

    def _stop(self, stop: BranchStop) -> None:
        scope, local, node, branch, heads, status, failure = stop
        step = self._step(local, node)
        step.update(node=node, branch=branch, status=status)
        step["rank"] = 1 + max([head.step for head in heads.values()], default=-1)
        step["after"] = tuple([self._of.id_of(full_id(scope, head.id)) for head in heads.values()])
        if failure is not None:
            step["failure"] = self._failure(failure)
        if status == "running" and heads:
            step["started"] = max(head.ended for head in heads.values())
        if not scope:
            self._sent(local, tuple([self._of.places[head.id] for head in heads.values()]), branch)
        self._order[local] = (2 if status == "failed" else 3, 0, branch, ())

    def _ask(self, asked: StepQuestion) -> None:
        """A question belongs to the execution that asks; a further one of it is a step of its own inside of that."""
        if self._redactor is not None and asked.answer is not None:  # who is to answer must see all
            answered = self._redactor.redact(asked.answer)
            answered = replace(answered, value=freeze(answered.value))
            asked = asked._replace(question=answered.question, answer=answered)
        question, answer = asked.question, asked.answer
        step = self._step(self._place(question.execution), question.node)
        is_open = answer is None and question.key != AFTER and "commit" not in step
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
            found = Address.parse(local)
            self._fields[local] = {"id": self._of.id_of(local), "node": node, "status": "stopped"}
            self._fields[local]["branch"] = found.path
            self._order[local] = (0, -1, (), id_order(local)) if found.part else (3, 0, found.path, ())
            if around := _around(local):
                self._step(around)
        return self._fields[local]

    def _graph_of(self, local: str) -> DrawnGraph:
        """The graph in which an execution is."""
        if local not in self._graphs:
            around, found = _around(local), self._of.graph
            if around:
                found = self._graph_of(around)
                if Address.parse(local).is_commit:
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
        keys = Address.parse(local).keys
        if "kind" in fields:
            pass
        elif keys:
            whole = self._fields[_around(local)]
            fields["node"] = f"{whole['node']}[{keys[-1]}]"
            is_item = keys[-1].isdigit()
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

"""The node of a search that makes trials: it runs a module once for each chosen trial, each on a state of its own.

A trial begins with the state of its parent: that of the root, with the patches on the path to it. It stores only its
own patch, so a trial costs what it changed. Like the items of a map, the trials of a round are executions of their own,
which run at once; their results, failures too, are recorded, so that a resumed run makes only those that have none.

The steps of a trial are held back from the trace of the node until the search has picked its best trial
(`trials_in`); those of the judge are none of its steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import Any, ClassVar, Final, NamedTuple, cast

import dspy

from dspyer import DELETE, Failure, ImmutableState, Replace
from dspyer.errors import (
    NodeOutputError,
    brief,
    list_names,
    unwrap_stop_iteration,
)
from dspyer.extend import (
    Built,
    Call,
    Flaws,
    FrozenDict,
    FrozenList,
    KindOptions,
    LogEntry,
    Look,
    Node,
    NodeOptions,
    Output,
    Reply,
    Schema,
    Script,
    apply_value,
    freeze,
    hidden_problems,
    module_io,
    part_id,
    plan_binding,
    read_signature,
    thaw,
)
from dspyer.lm.requests import in_rollout
from dspyer.lm.tracing import step_count, take_steps
from dspyer.log.execution_records import MISSING
from dspyer.nodes.check import function_finder
from dspyer.nodes.map import Item, results_of
from dspyer.nodes.module import build_module
from dspyer.nodes.node import MapOptions
from dspyer.nodes.steps import Within
from dspyer.patch import each_update, resets
from dspyer.schema.type_fit import fits, shown_type

TREE: Final = "tree"
BEST: Final = "best"
TRIALS: Final = "trials"
"""The field with the results of the last round, which `grow` adds to the tree."""

CHOSEN: Final = "chosen"
"""What `choose` sends: the trials to make."""

FINISH: Final = "finish"
"""The node that picks the best trial."""

REWARD: Final = "reward"
"""The attribute of the program with the judge."""

ROOT: Final = "0"
"""The name in front of all others: that of the state with which the search begins."""


@dataclass(frozen=True, slots=True)
class TrialOptions(KindOptions):
    """Options that make a node one that makes trials.

    Attributes:
        module: what is run: a module or a program.
        reward: rates a trial: a function of fields, or a module or program with one number as its output.
        done: says whether a trial is a solution, which no other trial continues: a function of fields; None for none.
        rollout_id: the number of the first trial.
        temperature: that of the requests in a trial, where a predictor has none of its own.
    """

    module: object
    reward: object
    done: object
    rollout_id: int
    temperature: float

    def build(self, options: NodeOptions) -> Built:
        """The node, and what is wrong with it."""
        module = build_module(cast("Any", self.module), options._replace(node=self.module))
        reward = build_reward(self.reward, options._replace(name=REWARD, reads=None, writes=None))
        done = None
        if self.done is not None:
            done = _build_function(self.done, options._replace(name="done", reads=None, writes=None), "done")
        parts = [module, reward, *([] if done is None else [done])]
        problems = tuple(problem for part in parts for problem in (*part.problems, *part.unknown))
        more = {} if reward.module is None else {REWARD: reward.module}
        if module.node is None or reward.node is None or (done is not None and done.node is None):
            return Built(None, module.module, problems, more=more)
        inner = module.node
        nodes = [part.node for part in parts if part.node is not None]
        reads = {field: field for node in nodes for field in (node.reads or {}).values()}
        node = TrialNode(
            name=options.name,
            reads=reads | {TREE: TREE},
            takes=frozenset([CHOSEN]),  # the trials to make
            # A reward reads what the module writes.
            optional=frozenset(reads) - (frozenset((inner.reads or {}).values()) - inner.optional),
            writes={TRIALS: TRIALS},
            resources={name: kind for node in nodes for name, kind in node.resources.items()},
            templates=inner.templates,
            inner=inner,
            mapped=MapOptions(CHOSEN, "trial", TRIALS),
            reward=reward.node,
            done=None if done is None else done.node,
            judged=reward.module is not None,
            frozen_modules=tuple(more),  # optimizers tune what is rated, not what rates it
            schema=options.schema,
            rollout_id=self.rollout_id,
            temperature=self.temperature,
        )
        return Built(node, module.module, problems, more=more)

    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node."""
        tried, reward = show(self.module), show(self.reward)
        return f'graph.add_trials("{name}", {tried}, reward={reward})  # the tree keeps the best'


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialNode(Node):
    """A node that makes the chosen trials of a search, and commits their results in the order of the choice.

    Attributes:
        reward: rates what the module gave.
        done: says whether a trial is a solution; None if it cannot be one.
        judged: whether the reward calls an LM: then what the module gave is recorded before.
        schema: the fields of the state.
        rollout_id: the number of the first trial.
        temperature: that of the requests in a trial.
    """

    kind: ClassVar[str] = "map"

    inner: Node
    mapped: MapOptions
    reward: Node
    done: Node | None
    judged: bool
    schema: Schema
    rollout_id: int
    temperature: float

    @property
    def may_give(self) -> frozenset[str] | None:
        """The fields of the state that its outputs are meant for: those of the module, which the best trial writes."""
        given = self.inner.may_give
        return None if given is None else given | frozenset(self.writes or ())

    @property
    def look(self) -> Look:
        """The look in pictures; by its label, readers of a run know a search."""
        return Look("map", "trials")

    def trials_in(self, log: Iterable[LogEntry]) -> dict[str, list[tuple[str, bool]]]:
        """The trials of each of its executions: the execution of each, and whether it led to the best trial."""
        best = ""
        made: dict[str, list[str]] = {}
        for entry in log:
            commit = entry.commit
            if commit.node == FINISH:
                best = commit.patch.get(BEST, best)
            elif commit.node == self.name:
                made[commit.id] = [trial["name"] for trial in commit.patch.get(TRIALS, ())]
        led = {ROOT, *path_to(best)} if best else set()
        return {
            execution: [(part_id(execution, index), name in led) for index, name in enumerate(names)]
            for execution, names in made.items()
        }

    def script(self, call: Call) -> Script[Reply]:
        """Make the trials, as many at once as the runner allows."""
        # The choice comes with the `Send` and in no field, so nothing else can write it.
        chosen = () if call.overlay is None else list(call.overlay.raw(CHOSEN, FrozenList()).raw_items())
        trials = [self._trial(call, entry, index, len(chosen)) for index, entry in enumerate(chosen)]
        return Reply({TRIALS: freeze((yield from results_of(trials, call)), (TRIALS,))})

    def _trial(self, call: Call, chosen: FrozenDict[str, Any], index: int, count: int) -> _Trial:
        # Made before the trials run at once: the tree does not change in a round.
        before = state_of(call.state, call.state.raw(TREE, None), chosen.raw("parent"), self.schema)
        return _Trial(self, chosen, call, index, count, state=before, overlay=None)


class _Trial(Item):
    """One trial of one call; its result is its entry in the tree.

    Attributes:
        chosen: its place in the tree: its name, that of its parent, and its number in the order of all trials.
        steps: how many steps of the DSPy trace the module made.
    """

    def __init__(
        self, node: TrialNode, chosen: FrozenDict[str, Any], call: Call, index: int, count: int, **changes: Any
    ) -> None:
        super().__init__(call, index, count, **changes)
        self.node, self.chosen, self.steps = node, chosen, 0

    def place(self, number: int) -> str:
        """The place of an attempt, for the notes of its errors."""
        return f"in the trial {self.chosen['name']!r} of the search {self.node.name!r}, attempt {number}"

    def ended(self, result: Any, steps: int) -> Script[Any]:
        """Its entry, recorded."""
        attempt = self.call.context.delegate
        # What the judge has called is no step of the trial: it would become an example of the program.
        attempt.host.lose_steps(attempt, attempt.last.number, take_steps(steps + self.steps))
        # The steps of the best trial are put into the trace at the end, and no others.
        attempt.host.hold_steps(attempt, take_steps(steps))
        yield from self.record(attempt, result)
        return result

    def failed(self, error: BaseException, number: int) -> Script[Any]:
        """The entry of a trial that failed, recorded."""
        raised = unwrap_stop_iteration(error)
        assert isinstance(raised, Exception)
        attempt = self.call.context.delegate
        # The error itself is in no state: `finish` raises the first one as the cause if all trials have failed.
        if not self.chosen["number"]:
            attempt.host.first_trial_error = raised
        entry = self._entry(NO_CHANGE, None, True) | {"failure": attempt.failure(raised, number)}
        result = freeze(entry, (TRIALS, self.index))
        yield from self.record(attempt, result)
        return result

    def _entry(self, change: TrialChange, reward: float | None, done: bool) -> dict[str, Any]:
        found = {
            "name": self.chosen["name"],
            "parent": self.chosen["parent"],
            "patch": change.patch,
            "reward": reward,
            "value": reward or 0.0,
            "visits": 1,
            "done": done,
            "failure": None,
        }
        return found | {"whole": change.whole} if change.whole else found

    def made(self) -> Script[Any]:
        """Run the module, and rate what it gave."""
        node, attempt, begun = self.node, self.call.context.delegate, step_count()
        part = attempt.of_part("module") if node.judged else None
        found = MISSING if part is None else part.recorded_result()
        if found is MISSING:
            # By the number in the tree and not by time: a resumed search asks DSPy's cache the same questions.
            number = self.chosen["number"] + node.rollout_id
            wrap = partial(Within, context=lambda _: in_rollout(number, node.temperature))
            output = yield from self.called(node.inner, self.call._replace(made=self._made), wrap)
            change = TrialChange.of(output.patch, output.after, node.schema)
            # It was paid for, and a judge is called next, which may be the call that fails.
            if part is not None and attempt.host.records.journal is not None:
                yield from self.record(part, freeze(change._asdict(), (TRIALS, self.index)))
        else:
            change = change_of(found)
        self.steps = step_count() - begun
        after = self.call._replace(state=change.applied(self.call.state, node.schema))
        # A part of its own: an answer or an effect of the judge must not be taken for one of the module.
        judge = self.inside(after, attempt.of_part(REWARD))
        reward = yield from self.part(judge, self._judge)
        done = False if node.done is None else (yield from self._done(after))
        return freeze(self._entry(change, reward, done), (TRIALS, self.index))

    def _made(self, call: Call, reply: Reply) -> Output:
        """The changes of the module."""
        node = self.node
        if reply.goto is not None:
            raise NodeOutputError(f"{node.who}: its module returned Command(goto=...), and a trial goes nowhere")
        patch, after = node.schema.commit(
            call.state, reply.updates, node=node.name, commit_id=call.execution, whole_values=reply.whole
        )
        call.context.delegate.finish()
        return Output(patch, after, None, None, False, None, call, reply.updates)

    def _judge(self, call: Call) -> Script[float]:
        rated = self.node.reward
        try:
            reply = yield from rated.script(call)
            reward = _number(thaw(reply.updates.get(REWARD)), self.node.who)
        except NodeOutputError as error:
            # What a judge has said may be right at the next attempt; a function would say the same again.
            error.of_module = error.of_module or self.node.judged
            raise
        call.context.delegate.finish()
        return reward

    def _done(self, call: Call) -> Script[bool]:
        assert self.node.done is not None
        reply = yield from self.node.done.script(self.inside(call, call.context.delegate.of_part("done")))
        found: Any = without_class(reply.updates.get("done"))
        if not isinstance(found, bool):
            raise NodeOutputError(f"{self.node.who}: done gave {brief(found)}: it says True or False")
        return found


def _number(found: object, who: str) -> float:
    """The reward as a number; True counts as 1."""
    value = as_float(found)
    if value is None:
        raise NodeOutputError(f"{who}: the reward is {brief(found)}: a reward is a number, the higher the better")
    return value


# --- what a trial has changed


class TrialChange(NamedTuple):
    """The changes of a trial to its parent's state, as values that a state can hold.

    Attributes:
        patch: an RFC 7396 merge patch; of a field with a reducer the list of its updates.
        whole: the new values of fields for which such a patch cannot be written: it knows no None as a value.
    """

    patch: FrozenDict[str, Any]
    whole: FrozenDict[str, Any]

    @classmethod
    def of(cls, patch: Mapping[str, Any], after: ImmutableState, schema: Schema) -> TrialChange:
        """The change of a patch of `Schema.commit`; `after` is the state with it."""
        found: dict[str, Any] = {}
        whole: dict[str, Any] = {}
        for field, update in patch.items():
            folds = schema.reducer(field) is not None
            # In order and one by one: the reducer must fold them again as it did.
            written = [list(each_update(update))] if folds and not resets(update) else _as_merge_patch(update)
            # What replaces the value of a reducer is no update of it.
            if written and not (folds and resets(update)):
                found[field] = written[0]
            elif field in after:
                whole[field] = after.raw(field)
            else:
                found[field] = None
        return cls(freeze(found), freeze(whole))

    def applied(self, state: ImmutableState, schema: Schema) -> ImmutableState:
        """The state with this change."""
        for field, update in self.patch.raw_items():
            value = state.raw(field, DELETE)
            if update is not None and schema.reducer(field) is not None:
                for part in update.raw_items():
                    value = schema.fold(field, value, part)
            else:
                value = apply_value(value, update)
            state = state.discard(field) if value is DELETE else state.set(field, value)
        for field, value in self.whole.raw_items():
            state = state.set(field, value)
        return state


def _as_merge_patch(update: Any) -> list[Any]:
    """An update of `diff` as one of a JSON merge patch, in a list; `[]` if it cannot be written as one."""
    if update is DELETE:
        return [None]
    if isinstance(update, Replace):
        return [] if update.frozen is None or isinstance(update.frozen, FrozenDict) else [update.frozen]
    if not isinstance(update, dict):
        return [update]
    found = {key: _as_merge_patch(part) for key, part in update.items()}
    return [{key: part[0] for key, part in found.items()}] if all(found.values()) else []


NO_CHANGE = TrialChange(FrozenDict(), FrozenDict())


def change_of(entry: FrozenDict[str, Any]) -> TrialChange:
    """The change of an entry of the tree."""
    return TrialChange(entry.raw("patch"), entry.raw("whole", NO_CHANGE.whole))


def path_to(name: str) -> list[str]:
    """The names of the trials on the path to one, itself included; the root is none.

    Example:
        >>> path_to("0.1.0")
        ['0.1', '0.1.0']
    """
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(1, len(parts))]


def state_of(root: ImmutableState, tree: Any, name: str, schema: Schema) -> ImmutableState:
    """The state of a trial: that of the root with the changes on its path. Reads the entries of the path alone."""
    for above in path_to(name):
        root = change_of(tree.raw(above)).applied(root, schema)
    return root


# --- building the node


def build_reward(reward: object, options: NodeOptions) -> Built:
    """The node that rates a trial, and what is wrong with it. Its reply has the reward."""
    if not isinstance(reward, dspy.Module):
        return _build_function(reward, options, REWARD)
    name, problem = _rated_output(reward, options.who)
    if problem:
        return Built(None, reward, (problem,))
    one = MapOptions("", "", REWARD)  # its output is no field of the state, as that of the node of a map is none
    return build_module(reward, options._replace(node=reward, writes={name: REWARD}, map=one))


def _rated_output(reward: dspy.Module, who: str) -> tuple[str, str]:
    """The output of a judge, or what is wrong with its outputs."""
    line = "a judge has one output, a number: dspy.Predict('question, answer -> quality: float')"
    found = module_io(reward)
    kinds = {name: found.type_of(name) for name in found.outputs or ()}
    if len(kinds) != 1:
        return "", f"{who}: its outputs are {list_names(kinds) if kinds else 'not known'}: {line}"
    [(name, kind)] = kinds.items()
    if not fits(kind, float):
        return name, f"{who}: its output {name!r} is {shown_type(kind)}: {line}"
    return name, ""


def _build_function(fn: Any, options: NodeOptions, into: str) -> Built:
    if not callable(fn) or isinstance(fn, type):
        what = "a function of fields" if into != REWARD else "a function of fields, or a module with one number"
        return Built(None, None, (f"{options.who} is {brief(fn)}, of type {type(fn).__name__}: give {what}",))
    found = Flaws(options.who)
    binding = plan_binding(read_signature(fn, options.who), options, found)
    fix = "give the module itself as the reward, reward={name}"
    if into != REWARD:
        fix = "let the module of the search write a field that this function reads"
    found.problems += hidden_problems(fn, options.who, fix)
    return found.built(function_finder(fn, binding, options, into))


# The tree of a search as its policy sees it: trials by name, in the order in which they were chosen.


class Trial(NamedTuple):
    """One candidate of a search.

    Attributes:
        name: the positions on the path to it, as `"0.1.0"`: the first child of the second child of the root `"0"`.
        parent: the name of the trial that it continues; `""` for the root, which is no trial.
        patch: what it changed of its parent's state, a JSON merge patch; of a field with a reducer the list of its
            updates. A field that it set to None, or to a mapping that holds a None, is in `whole` instead, with its
            new value.
        reward: its reward; None if it failed, and for the root.
        value: the sum of the rewards of the trial and all trials below it.
        visits: the number of these trials, those that failed included.
        done: whether no trial may continue it: it is a solution, or it failed.
        failure: the record of what it raised; None if it did not fail.
        whole: the fields whose new value cannot be written as a JSON merge patch.
    """

    name: str
    parent: str
    patch: Mapping[str, Any]
    reward: float | None
    value: float
    visits: int
    done: bool
    failure: Failure | None
    whole: Mapping[str, Any] = {}

    @property
    def depth(self) -> int:
        """The number of trials on the path to it, itself included; 0 for the root."""
        return self.name.count(".")


class Tree(Mapping[str, Trial]):
    """The trials of a search by name, in the order in which they were chosen. What a policy of `search.tree` gets.

    Nothing is copied: reading one trial costs the same in a tree of ten and of ten thousand.

    Args:
        entries: the field `tree` of a state.
        last: the names of the trials of the last round.

    Example:
        >>> entry = {"name": "0.0", "parent": "0", "patch": {"n": 1}, "reward": 0.5,
        ...     "value": 0.5, "visits": 1}
        >>> tree = Tree({"0.0": {**entry, "done": False, "failure": None}}, ["0.0"])
        >>> (tree["0.0"].reward, [trial.name for trial in tree.children(tree.root)],
        ...     tree.root.visits)
        (0.5, ['0.0'], 1)
    """

    def __init__(self, entries: Mapping[str, Any], last: Sequence[str] = ()) -> None:
        self._entries = entries
        self._last = last

    def __getitem__(self, name: str) -> Trial:
        return Trial(**self._entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def root(self) -> Trial:
        """The state with which the search began: it is no trial, and not among the values of the tree."""
        value = sum(trial.value for trial in self.children(ROOT))
        return Trial(ROOT, "", {}, None, value, len(self), False, None)

    @property
    def last(self) -> list[Trial]:
        """The trials of the last round, in their order; none before the first round."""
        return [self[name] for name in self._last]

    def children(self, parent: Trial | str) -> list[Trial]:
        """The trials that continue a trial, or the root, in their order.

        Args:
            parent: the trial, or its name.

        Returns:
            The trials.

        Example:
            >>> Tree({}).children("0")
            []
        """
        found: list[Trial] = []
        name = parent if isinstance(parent, str) else parent.name
        while (child := f"{name}.{len(found)}") in self._entries:
            found.append(self[child])
        return found

    def next_place(self, parent: Trial | str) -> int:
        """The place of the next child of a trial, or of the root: the number of its children.

        Args:
            parent: the trial, or its name.

        Returns:
            The place, counted from 0.

        Example:
            >>> Tree({}).next_place("0")
            0
        """
        name = parent if isinstance(parent, str) else parent.name
        # Doubled, then halved: a wide parent has thousands of children, and each look is one in a mapping.
        most = 1
        while f"{name}.{most - 1}" in self._entries:
            most *= 2
        return bisect_left(range(most), 1, key=lambda place: f"{name}.{place}" not in self._entries)

    def __repr__(self) -> str:
        return f"<Tree of {len(self)} trials>"


# The policies of `best_of`, `beam` and `mcts`: pure functions from a tree to the trials of the next round.


Choice = list[tuple[str, int]]
"""The trials of a round: the parent of each, and its place among the children of the parent."""


class Bounds(NamedTuple):
    """The bounds of the size of a search; None for unknown.

    Attributes:
        depth: the longest path.
        trials: the most trials.
        rounds: the most rounds.
    """

    depth: int | None = None
    trials: int | None = None
    rounds: int | None = None


def _reached(trials: Sequence[Trial], threshold: float | None) -> bool:
    """Return whether one of some trials reaches a threshold."""
    if threshold is None:
        return False
    return any(trial.reward is not None and trial.reward >= threshold for trial in trials)


@dataclass(frozen=True)
class BestOf:
    """`n` trials from the root, `per_round` at once."""

    n: int
    threshold: float | None
    per_round: int

    @property
    def bounds(self) -> Bounds:
        """The size of the search."""
        return Bounds(1, self.n, math.ceil(self.n / self.per_round))

    def __call__(self, tree: Tree) -> Choice:
        made = len(tree)
        if _reached(tree.last, self.threshold):
            return []
        return [(ROOT, place) for place in range(made, min(made + self.per_round, self.n))]


@dataclass(frozen=True)
class Beam:
    """The `width` best trials of a level are continued `branch` times each, down to `depth`.

    Trials that are done are set aside: they take no place in the beam.
    """

    width: int
    branch: int
    depth: int
    threshold: float | None
    stops_when_done: bool

    @property
    def bounds(self) -> Bounds:
        """The size of the search."""
        return Bounds(self.depth, self.branch + (self.depth - 1) * self.width * self.branch, self.depth)

    def __call__(self, tree: Tree) -> Choice:
        level = tree.last
        solved = [trial for trial in level if trial.done] if self.stops_when_done else level
        if not level:
            return [(ROOT, place) for place in range(self.branch)]
        if level[0].depth >= self.depth or _reached(solved, self.threshold):
            return []
        alive = [trial for trial in level if not trial.done and trial.reward is not None]
        best = sorted(alive, key=lambda trial: -(trial.reward or 0.0))[: self.width]  # stable: the first of equal ones
        return [(trial.name, place) for trial in best for place in range(self.branch)]


@dataclass(frozen=True)
class MonteCarlo:
    """Upper confidence bounds applied to trees (UCT; Kocsis and Szepesvári 2006), each trial being its own simulation.

    A parent with less than `branch` children gets the next one; otherwise the search descends to the child with the
    largest mean reward plus `c * sqrt(ln(visits of the parent) / visits)`, the first of equal ones. Within a round,
    each chosen trial counts as a visit without a reward (a virtual loss; Chaslot, Winands and van den Herik 2008).
    """

    branch: int
    depth: int
    max_trials: int
    c: float
    per_round: int
    threshold: float | None
    stops_when_done: bool

    @property
    def bounds(self) -> Bounds:
        """The size of the search."""
        return Bounds(self.depth, self.max_trials, self.max_trials)

    def __call__(self, tree: Tree) -> Choice:
        last = [trial for trial in tree.last if trial.done or not self.stops_when_done]
        if _reached(last, self.threshold):
            return []
        # Each choice of a round depends on those before it, and on no result.
        chosen: Choice = []
        losses: dict[str, int] = {}  # the visits of this round, by trial
        while len(chosen) < min(self.per_round, self.max_trials - len(tree)):
            found = self._descend(tree, ROOT, len(tree), losses)
            if found is None:
                break
            chosen.append(found)
            parent, place = found
            for name in (ROOT, *path_to(f"{parent}.{place}")):
                losses[name] = losses.get(name, 0) + 1
        return chosen

    def _descend(self, tree: Tree, name: str, visits: int, losses: dict[str, int]) -> tuple[str, int] | None:
        """The next trial below one; None if all are tried, or chosen in this round."""
        children = tree.children(name)
        chosen = 0
        # Those of this round are no children yet.
        while f"{name}.{len(children) + chosen}" in losses:
            chosen += 1
        if len(children) + chosen < self.branch:
            return name, len(children) + chosen
        total = math.log(visits + losses.get(name, 0))

        def bound(child: Trial) -> float:
            count = child.visits + losses.get(child.name, 0)
            return child.value / count + self.c * math.sqrt(total / count)

        for child in sorted((child for child in children if not child.done), key=bound, reverse=True):
            if child.depth < self.depth:
                found = self._descend(tree, child.name, child.visits, losses)
                if found is not None:
                    return found
        return None


def as_float(value: object) -> float | None:
    """Return a real number of any class, also of numpy or of a tensor without axes, as a `float`; True is 1.

    None for anything else, and for NaN, which is no reward and no threshold.

    Example:
        >>> from decimal import Decimal
        >>> as_float(Decimal("0.5")), as_float(True), as_float("1")
        (0.5, 1.0, None)
    """
    found = without_class(value)
    number = float(cast(Any, found)) if isinstance(found, Number) and not isinstance(found, complex) else math.nan
    return None if math.isnan(number) else number


def without_class(value: object) -> Any:
    """Return a number or truth value of numpy, or of a tensor without axes, as Python's own; any other value as it is.

    Example:
        >>> without_class("text")
        'text'
    """
    found: Any = value
    single = getattr(found, "ndim", None) == 0 and callable(getattr(found, "item", None))
    return found.item() if single else found

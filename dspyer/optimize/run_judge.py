"""Judges the values of a run by the metrics of their fields: right, wrong or unknown, and which node is responsible.

- A value is **right** if its metric says so. Nothing that follows from it can blame what came before it.
- It is **wrong** if its metric says so, if a check refused it, if its node failed, or if something from which it
  follows is wrong. Only where nothing that it follows from is wrong, it is a **fault**: the cause of what follows.
- Everything else is **unknown**. The authors of unknown values are suspects of the faults that follow from them.

The suspects of a fault are its authors, and all authors with a language model of the unknown values from which it
follows, up to those that are right. They share the responsibility for it equally, and the faults of one commit count as
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from dspyer import Run
from dspyer.events import TraceStep
from dspyer.extend import thaw
from dspyer.graph.spec import GraphSpec
from dspyer.lm.parameters import path_in_program
from dspyer.lm.tracing import is_apart
from dspyer.nodes.router import Router
from dspyer.optimize.written_values import NO_FIELD, FieldJudge, FieldRead, FieldResult, WrittenValue, WrittenValues


class FieldNote(NamedTuple):
    """The finding about one field that a commit wrote.

    Attributes:
        commit: id of the commit.
        node: its author: a node, a router that wrote the field under its own name, or `"join:NAME"`.
        visit: the visit of the node.
        field: the field; empty for a commit that failed and wrote none.
        verdict: `"right"`, `"wrong"` or `"unknown"`.
        cause: the node that caused a wrong value, if it is known: the author itself for a culprit.
        suspects: the nodes that share the responsibility for a wrong value; of an unknown value, for the first wrong
            one that follows from it.
        feedback: what the author is told of the field.
    """

    commit: str
    node: str
    visit: int
    field: str
    verdict: str
    cause: str | None = None
    suspects: tuple[str, ...] = ()
    feedback: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**self._asdict(), "suspects": list(self.suspects)}


class Culprits(NamedTuple):
    """The nodes that are responsible for what is wrong in a run, as `culprits` returns it. It prints as a table.

    Attributes:
        shares: the share of each responsible node, the largest first; they add up to 1. Empty if nothing is known to be
            wrong. A router that wrote a wrong field, or may have, stands under its own name.
        notes: what is known of each field that a commit wrote, in the order of the commits.
        not_tunable: the nodes among them that no optimizer can change: functions, tools, joins and frozen modules.
    """

    shares: Mapping[str, float]
    notes: tuple[FieldNote, ...]
    not_tunable: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "shares": dict(self.shares),
            "notes": [note.to_dict() for note in self.notes],
            "not_tunable": list(self.not_tunable),
        }

    def __str__(self) -> str:
        fixed = dict.fromkeys(self.not_tunable, ", which no optimizer can change")
        lines = [f"{name}: {100 * share:.0f} %{fixed.get(name, '')}" for name, share in self.shares.items()]
        lines = ["culprits: " + ("; ".join(lines) or "none, nothing is known to be wrong")]
        for note in self.notes:
            said = " ".join(note.feedback.split()) if note.verdict == "wrong" else ""
            said = f": {said[:100]}{'...' if len(said) > 100 else ''}" if said else ""
            lines.append(f"  {note.commit} {note.node} (visit {note.visit}) {note.field or '-'}: {note.verdict}{said}")
        return "\n".join(lines)


class Judgement(NamedTuple):
    """The culprits of a run, and what optimizers ask of it.

    Attributes:
        culprits: what users see.
        feedback: the texts for the author of a commit, by commit and author.
        goal: the text for an author of nothing that can be judged, who has no known part in what is wrong.
    """

    culprits: Culprits
    feedback: Mapping[tuple[str, str], tuple[str, ...]]
    goal: str


class _Status(NamedTuple):
    """The status of a value, or of several that were read together.

    Attributes:
        right: whether its metric says so.
        fault: the first fault from which it follows, or that it is; None if it is not wrong.
        via: the wrong value by which a reader follows from that fault.
        suspects: of an unknown value, the authors with a language model of it and of the unknown values before it.
    """

    right: bool = False
    fault: WrittenValue | None = None
    via: WrittenValue | None = None
    suspects: tuple[str, ...] = ()


_RIGHT: Final = _Status(right=True)
_UNKNOWN: Final = _Status()


def _together(found: Iterable[_Status]) -> _Status:
    """The status of values that were read together: wrong if one of them is."""
    suspects: dict[str, None] = {}
    for status in found:
        if status.fault is not None:
            return status
        suspects.update(dict.fromkeys(status.suspects))
    return _Status(suspects=tuple(suspects)) if suspects else _UNKNOWN


class RunJudge:
    """Judges one run by one example.

    `known` has results of metrics by commit and field, those of the final values under the empty id; the others that
    are needed are added.
    """

    def __init__(
        self, run: Run, example: Any, judge: FieldJudge, goal: str, known: dict[tuple[str, str], FieldResult]
    ) -> None:
        self._run = run
        self._example = example
        self._judge = judge
        self._goal = goal
        self._known = known
        self._graph = run.internals.graph
        self._values = WrittenValues(run)
        self._with_lm, self._tunable = authors_with_lm(run, self._graph)
        self._results: dict[WrittenValue, FieldResult] = {}
        self._status: dict[WrittenValue, _Status] = {}
        self._seen: dict[WrittenValue, _Status] = {}  # as those see it that follow from it
        self._part: dict[WrittenValue, _Status] = {}  # the same without what it builds on
        self._suspects: dict[WrittenValue, tuple[str, ...]] = {}  # of each fault
        self._whole: dict[WrittenValue, WrittenValue] = {}  # the right value into which a join has folded a part
        self._suspected: dict[WrittenValue, WrittenValue] = {}  # the first fault that may follow from an unknown value

    def judgement(self) -> Judgement:
        """Judges all values, in the order in which they were written."""
        for value in self._values.values:
            self._add(value)
        for value in self._values.values:
            if value in self._results and self._status[value].right and value.commit.node.startswith("join:"):
                self._mark_parts(value)
        for fault in self._suspects:
            self._mark_suspected(fault)
        shares = self._shares()
        values = [value for value in self._values.values if value.field != NO_FIELD or value.failed]
        notes = tuple([self._note(value) for value in values])
        texts: dict[tuple[str, str], dict[str, None]] = {}
        for value, note in zip(values, notes, strict=True):
            for author in value.authors if note.feedback else ():
                texts.setdefault((note.commit, author), {})[note.feedback] = None
        fixed = tuple([name for name in shares if name not in self._tunable])
        feedback = {author: tuple(found) for author, found in texts.items()}
        return Judgement(Culprits(shares, notes, fixed), feedback, self._goal_text())

    @property
    def faults(self) -> frozenset[str]:
        """The ids of the commits in which a fault was made, once there is a judgement."""
        return frozenset(fault.commit.id for fault in self._suspects)

    # --- verdicts

    def _add(self, value: WrittenValue) -> None:
        result = self._result(value)
        beside = [self._seen[one] for one in value.beside]
        is_right = result is not None and result.verdict == "right"
        if is_right or (any(one.right for one in beside) and all(one.fault is None for one in beside)):
            self._status[value] = self._seen[value] = self._part[value] = _RIGHT
            return
        read = _together([*map(self._read_status, value.reads), *map(self._seen.__getitem__, value.follows), *beside])
        whole = _together([read, *map(self._seen.__getitem__, value.builds_on)]) if value.builds_on else read
        status, part = whole, read
        if whole.fault is None:
            wrong = bool(value.problems) or value.failed or (result is not None and result.verdict == "wrong")
            if wrong:
                self._suspects[value] = tuple(dict.fromkeys((*value.authors, *whole.suspects)))
                status = part = _Status(fault=value)
            else:
                own = [author for author in value.authors if author in self._with_lm]
                status, part = (
                    _Status(suspects=tuple(dict.fromkeys((*own, *found.suspects)))) for found in (whole, read)
                )
        self._status[value] = status
        if value.passes_on:
            status = part = read
        elif value.field != NO_FIELD or value.failed:
            status = status._replace(via=value) if status.fault is not None else status
            part = part._replace(via=value) if part.fault is not None else part
        self._seen[value], self._part[value] = status, part

    def _read_status(self, read: FieldRead) -> _Status:
        """The status of a field that was read; a value that is right need not have been written again."""
        status = self._value_status(read)
        return status if status.right else _together([status, *map(self._seen.__getitem__, read.kept_by)])

    def _value_status(self, read: FieldRead) -> _Status:
        """The status of the value itself: by the metric of the whole if it could tell, else of the parts read."""
        if read.parts is not None and read.value not in self._results:
            return _together([self._part_status(value) for value in self._parts(read)])
        return _UNKNOWN if read.value is None else self._seen[read.value]

    def _parts(self, read: FieldRead) -> list[WrittenValue]:
        found = [self._values.written.get((commit, read.field)) for commit in read.parts or ()]
        return [value for value in found if value is not None]

    def _part_status(self, value: WrittenValue) -> _Status:
        known = self._part.get(value)
        if known is None:  # by a sibling at the same time: whether it is wrong depends on this reader in turn
            return _Status(suspects=tuple([author for author in value.authors if author in self._with_lm]))
        return known

    def _result(self, value: WrittenValue) -> FieldResult | None:
        """The result of the metric for a value; None if there is none, or it cannot tell."""
        field, commit = value.field, value.commit.id
        if field not in self._judge.metrics or value.unjudged or value.failed or value.problems:
            return None
        key = (commit, field)
        if key not in self._known and self._values.final.get(field) is value and (NO_FIELD, field) in self._known:
            key = NO_FIELD, field
        if key not in self._known:
            state = self._run.at(commit)
            if field not in state:
                return None
            self._known[key] = self._judge.judge(field, self._example, thaw(state.raw(field)), state)
        result = self._known[key]
        if result.score is None:
            return None
        self._results[value] = result
        return result

    def _mark_parts(self, whole: WrittenValue) -> None:
        """Mark as right what branches have added to a right value: it could not be judged alone."""
        stack = [*whole.builds_on]
        while stack:
            value = stack.pop()
            if value.unjudged and value not in self._whole and self._status[value].fault is None:
                self._whole[value] = whole
                self._status[value] = _RIGHT
                stack.extend(value.builds_on)

    # --- responsibility

    def _mark_suspected(self, fault: WrittenValue) -> None:
        """Mark the unknown values from which a fault follows: each may be its cause."""
        stack, seen, names = [fault], {fault}, set(self._suspects[fault])
        while stack:
            value = stack.pop()
            before = [*value.follows, *value.builds_on]
            for read in value.reads:
                if not self._value_status(read).right:
                    before += [*self._parts(read), *read.kept_by, *([] if read.value is None else [read.value])]
            for one in before:
                if one in seen or one in self._suspected or not self._seen[one].suspects:
                    continue
                seen.add(one)
                stack.append(one)
                if not one.passes_on and not names.isdisjoint(one.authors):
                    self._suspected[one] = fault

    def _shares(self) -> dict[str, float]:
        faults: dict[str, list[WrittenValue]] = {}
        for fault in self._suspects:
            faults.setdefault(fault.commit.id, []).append(fault)
        parts: dict[str, float] = {}
        for together in faults.values():
            for fault in together:
                for name in self._suspects[fault]:
                    part = 1 / (len(faults) * len(together) * len(self._suspects[fault]))
                    parts[name] = parts.get(name, 0.0) + part
        if not parts and not self._goal_is_right():  # nothing that is known to be wrong has led to it
            parts = dict.fromkeys(self._with_lm, 1 / len(self._with_lm)) if self._with_lm else {}
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    def _goal_is_right(self) -> bool:
        known = self._known.get((NO_FIELD, self._goal))
        return known is not None and known.verdict == "right"

    # --- words

    def _note(self, value: WrittenValue) -> FieldNote:
        status, commit = self._status[value], value.commit
        verdict = "right" if status.right else "unknown" if status.fault is None else "wrong"
        fault = status.fault or self._suspected.get(value)
        suspects = () if fault is None else self._suspects[fault]
        cause = suspects[0] if status.fault is not None and len(suspects) == 1 else None
        text = self._text(value, status, fault)
        author = commit.node if commit.node.startswith("join:") else value.authors[0]
        return FieldNote(commit.id, author, commit.visit, value.field, verdict, cause, suspects, text)

    def _text(self, value: WrittenValue, status: _Status, fault: WrittenValue | None) -> str:
        """The feedback for the authors of a value."""
        if status.right:
            own = self._results[self._whole.get(value, value)].feedback
            return f"`{value.field}` is right." + (f" {own}" if own else "")
        found = []
        if value.problems:
            found.append(f"A check refused it: {'; '.join(value.problems)}")
        if status.fault is not None and status.fault is not value:
            found.append(self._follows_text(value, status))
        elif fault is not None and (fault is not value or len(self._suspects[fault]) > 1):
            found.append(self._suspect_text(fault))
        elif fault is value and not value.problems:
            found.append(self._fault_text(value))
        return " ".join(found)

    def _fault_text(self, fault: WrittenValue) -> str:
        """Faults of a value; nothing is known to be wrong that it follows from, so the gold value applies."""
        if fault.failed:
            assert fault.commit.failure is not None
            failure = fault.commit.failure
            return f"`{fault.commit.node}` failed: {failure.type}: {failure.message}"
        if fault.problems:
            return f"A check refused `{fault.field}`: {'; '.join(fault.problems)}"
        value = thaw(self._run.at(fault.commit.id).raw(fault.field))
        return self._judge.text(fault.field, self._example, value, self._results[fault])

    def _suspect_text(self, fault: WrittenValue) -> str:
        goal = self._values.final.get(self._goal)
        texts = [self._fault_text(fault)]
        if goal is not None and goal is not fault and goal in self._suspects:
            texts.insert(0, self._fault_text(goal))
        name = f"`{fault.field}` is the first field known to be wrong" if fault.field else "That is the first fault"
        return " ".join([*texts, f"{name}; this step may be the cause."])

    def _follows_text(self, value: WrittenValue, status: _Status) -> str:
        via = status.via
        name = f"`{value.field}`" if value.field else "This failure"
        if via is None or via.failed:
            node = (via or value).commit.node
            return f"{name} follows from a failure of `{node}`: nothing to fix here."
        earlier = f"an earlier `{via.field}`" if via.field == value.field else f"`{via.field}`"
        return f"{name} follows from {earlier}, which was already wrong: nothing to fix here."

    def _goal_text(self) -> str:
        """The feedback for an author who has written nothing that can be judged, nor caused anything wrong."""
        goal, known = self._goal, self._known.get((NO_FIELD, self._goal))
        if known is not None and known.verdict == "right":
            return f"`{goal}` is right."
        if self._suspects:
            return f"`{goal}` is wrong; nothing in this step is known to be the cause."
        if known is None:
            return f"The run wrote no `{goal}`; this step may be the cause."
        value = thaw(self._run.state.raw(goal))
        return f"{self._judge.text(goal, self._example, value, known)} This step may be the cause."


# --- authors


def author_of(step: TraceStep, graph: GraphSpec) -> str:
    """The node that made a call, or the router or condenser after it, under its own name."""
    root = _root(step)
    parts = {part.name for part in graph.condensers.get(step.node, {}).values()}
    parts |= {way.module_name for way in graph.exits.get(step.node, ()) if isinstance(way, Router) and way.module_name}
    return root if root in parts else step.node


def _root(step: TraceStep) -> str:
    """The attribute of the program that holds the predictor of a step."""
    path = path_in_program(step.predictor) or ""
    return path.partition(".")[0].partition("[")[0]


def authors_with_lm(run: Run, graph: GraphSpec) -> tuple[dict[str, None], set[str]]:
    """The authors in a run that call language models, and those among them that optimizers can change."""
    found: dict[str, None] = {}
    tunable: set[str] = set()
    for commit in run.commits:  # also of a module that failed before it had a step
        node = graph.nodes.get(commit.node)
        if node is not None and (node.inner or node).kind in ("module", "mode"):
            found[commit.node] = None
            tunable |= {commit.node} - graph.frozen
    for step in run.trace_steps:
        author = author_of(step, graph)
        found[author] = None
        if not is_apart(step.predictor) and not {author, _root(step)} & graph.frozen:
            tunable.add(author)
    return found, tunable

"""A run as rows for reports and pictures: its commits with their forks and joins, then the places where it stopped.

Also the words for versions, durations, writes and conflicts that both use.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, NamedTuple

from dspyer.errors import brief, error_text
from dspyer.events import BranchPath, Commit, MergedConflict, Question
from dspyer.failure import Failure
from dspyer.ids import Address, path_of_id
from dspyer.message_list import ROLES
from dspyer.patch import DELETE, Replace
from dspyer.reducers import Updates
from dspyer.values.frozen import thaw

SHOWN = 12  # fields of a commit, or authors of a conflict, that are listed


class ErrorText(NamedTuple):
    """What is shown of an exception: of a stored run there is no other trace of it.

    Attributes:
        type: name of its class.
        message: its text.
        notes: its notes.
    """

    type: str
    message: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> ErrorText:
        """The text of an exception."""
        return cls(type(error).__name__, error_text(error), tuple(map(str, getattr(error, "__notes__", ()))))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class FailedAt(NamedTuple):
    """Where a run has failed.

    Attributes:
        node: the node, router or join that raised.
        branch: the branch of its commit, if it had made one.
        came: the branches that it has stopped.
        error: what it raised.
        conflicts: of a join, the conflicts that no policy resolved.
        execution: id of the execution.
    """

    node: str
    branch: BranchPath
    came: tuple[BranchPath, ...]
    error: ErrorText
    conflicts: tuple[MergedConflict, ...] = ()
    execution: str = ""


class DisplayRow(NamedTuple):
    """A commit of a run, or a place where the run stopped before one.

    Attributes:
        node: the node; `"join:NAME"` for a join.
        branch: the branch that holds the commit.
        step: of the commit, or that it would have had.
        came: the incoming branches, several for a join; none for the first row.
        parents: the id of the last commit of each of them.
        children: the branches that start here, empty without a fork.
        commit: the commit, None if there is none.
        conflicts: the conflicts of a join.
        error: what was raised instead of a commit; None also for a node that was not started.
        questions: the questions asked instead of a commit.
        execution: the id of the execution that failed or asks; "" if nothing was started.
    """

    node: str
    branch: BranchPath
    step: int
    came: tuple[BranchPath, ...]
    parents: tuple[str, ...]
    children: tuple[BranchPath, ...] = ()
    commit: Commit | None = None
    conflicts: tuple[MergedConflict, ...] = ()
    error: ErrorText | None = None
    questions: tuple[Question, ...] = ()
    execution: str = ""

    @property
    def failure(self) -> Failure | None:
        """The failure after which the branch went along an error edge."""
        return self.commit.failure if self.commit else None

    @property
    def attempts(self) -> str:
        """The attempts that raised before the one that was committed, in words; "" for none."""
        failed = self.commit.failed_attempts if self.commit else ()
        kinds: dict[str, int] = {}
        for failure in failed:
            kinds[failure.type] = kinds.get(failure.type, 0) + 1
        texts = [kind if count == 1 else f"{count} × {kind}" for kind, count in kinds.items()]
        return f"attempts that failed before: {', '.join(texts)}" if texts else ""

    @property
    def outcome(self) -> str:
        """Why there is no commit, in words."""
        return "failed" if self.error else "waits for an answer" if self.questions else "was not started"


def display_rows(
    commits: Sequence[Commit],
    conflicts: Mapping[str, tuple[MergedConflict, ...]],
    failures: Iterable[FailedAt] = (),
    questions: Iterable[Question] = (),
    branches: Iterable[BranchPath] = (),
    depth: int = 0,
) -> list[DisplayRow]:
    """The rows of a run: the commits in canonical order, then what failed, then what was not started.

    Forks and joins are read from the commits alone, so that a resumed run looks like one that was never interrupted: a
    commit with several targets forks, and its children extend its path by their index in the route.

    `conflicts` are those of joins by the id of the join's commit, `questions` the open ones of an interrupted run,
    `branches` the paths that were active at its end, none for a completed run. `depth` is the length of the run's
    scope: the number of executions of outer graphs that the run is part of.
    """
    forks = {commit.id: _children(commit) for commit in commits if len(commit.route) > 1}
    by_id = {commit.id: commit for commit in commits}
    rows = []
    for commit in commits:
        parents = tuple([parent for parent in commit.parents if parent in by_id])
        came = tuple([_came(by_id[parent], commit) for parent in parents])
        children = forks.get(commit.id, ())
        found = conflicts.get(commit.id, ())
        rows.append(DisplayRow(commit.node, commit.branch, commit.step, came, parents, children, commit, found))
    asked: dict[BranchPath, list[Question]] = {}
    for question in questions:
        asked.setdefault(_asking(question, depth), []).append(question)
    return rows + [_with_questions(row, asked) for row in _stops(commits, failures, list(branches))]


def _children(commit: Commit) -> tuple[BranchPath, ...]:
    """The branches that a commit forks into, one for each target."""
    return tuple((*commit.branch, index) for index in range(len(commit.route)))


def _came(parent: Commit, commit: Commit) -> BranchPath:
    """The branch that leads from a parent to a commit."""
    if len(parent.route) < 2:
        return parent.branch
    children = _children(parent)
    if commit.branch in children and not commit.node.startswith("join:"):
        return commit.branch
    return children[parent.route.index(commit.node.removeprefix("join:"))]  # an edge from the fork straight to the join


def _asking(question: Question, depth: int) -> BranchPath:
    """The branch whose node asks. A question of a nested graph, or of an item of a map, belongs to their node."""
    return path_of_id(Address.parse(question.execution).inside[depth])


def _with_questions(row: DisplayRow, asked: Mapping[BranchPath, Sequence[Question]]) -> DisplayRow:
    """A row with the questions asked there.

    A program that stops after a node (`interrupt_after`) holds back all branches that fork from it, so its question is
    listed at each of them.
    """
    if row.error is not None or row.commit is not None:
        return row
    here = [question for question in asked.get(row.branch, ()) if question.key != "after"]
    behind = [row.branch[:length] for length in range(len(row.branch) + 1)]
    here += [question for path in behind for question in asked.get(path, ()) if question.key == "after"]
    own = next((question.execution for question in here if question.key != "after"), "")
    return row._replace(questions=tuple(here), execution=own)


def _stops(commits: Sequence[Commit], failures: Iterable[FailedAt], active: list[BranchPath]) -> list[DisplayRow]:
    """Where the active branches of a run were when it ended early."""
    latest: dict[BranchPath, Commit] = {}
    for commit in commits:
        if commit.branch not in latest or latest[commit.branch].step < commit.step:
            latest[commit.branch] = commit
    heads = {path: _head(latest, path) for path in active}
    stops: list[DisplayRow] = []
    stopped: set[BranchPath] = set()
    for failure in sorted(failures, key=lambda failure: failure.branch):
        came = failure.came
        stopped.update(came)
        row = _stop(failure.node, failure.branch, came, {path: _head(latest, path) for path in came})
        stops.append(row._replace(conflicts=failure.conflicts, error=failure.error, execution=failure.execution))
    waiting = [path for path in active if path not in stopped]
    return stops + [_stop(_goal(heads[path], path, commits), path, (path,), heads) for path in waiting]


def _stop(
    node: str, branch: BranchPath, came: tuple[BranchPath, ...], heads: Mapping[BranchPath, Commit | None]
) -> DisplayRow:
    behind = {path: head for path in came if (head := heads[path]) is not None}
    step = 1 + max((head.step for head in behind.values()), default=-1)
    return DisplayRow(node, branch, step, tuple(behind), tuple(head.id for head in behind.values()))


def _head(latest: Mapping[BranchPath, Commit], path: BranchPath) -> Commit | None:
    """The last commit of an active branch: the latest on its path or on one from which it was forked."""
    behind = [latest[path[:length]] for length in range(len(path) + 1) if path[:length] in latest]
    return max(behind, key=lambda commit: commit.step, default=None)


def _goal(head: Commit | None, path: BranchPath, commits: Sequence[Commit]) -> str:
    """The node that a branch would have started next."""
    while head is not None and not head.route:  # a manual commit has no route: the target is that of the commit before
        (parent,) = head.parents
        head = next((commit for commit in commits if commit.id == parent), None)
    if head is None:
        return "START"
    return head.route[path[-1] if len(head.route) > 1 else 0]


def active_at_end(commits: Sequence[Commit]) -> dict[BranchPath, str]:
    """The branches of a run that is not completed, each with the node to which it leads, read from the commits alone.

    One that has reached `END` waits there for the others.
    """
    by_id: dict[str, Commit] = {}
    ways: dict[tuple[str, BranchPath], str] = {}  # by commit and branch, the node to which it leads
    for commit in commits:
        behind = [(parent, _came(by_id[parent], commit)) for parent in commit.parents if parent in by_id]
        goals = [ways.pop(way) for way in behind if way in ways]
        route = commit.route or tuple(goals[:1])  # a manual commit has no route: it leads where its branch has led
        paths = _children(commit) if len(commit.route) > 1 else (commit.branch,)
        ways |= {(commit.id, path): goal for path, goal in zip(paths, route, strict=False)}
        by_id[commit.id] = commit
    return {path: goal for (_, path), goal in sorted(ways.items(), key=lambda one: one[0][1])}


def leaves_of(rows: Iterable[DisplayRow]) -> dict[BranchPath, tuple[int, int]]:
    """The first and last lane of each path and all paths forked from it.

    The children of a fork get neighbouring lanes in their order, so that no lines cross where it forks. A path that
    forks no further has a lane of its own, and keeps it when a later round of a loop forks into it again.
    """
    paths = {()} | {path for row in rows for path in (row.branch, *row.came, *row.children)}
    ordered = sorted({path[:length] for path in paths for length in range(len(path) + 1)})
    lanes: dict[BranchPath, tuple[int, int]] = {}
    count = 0
    for i, path in enumerate(ordered):  # a path comes right before those that extend it
        if i + 1 == len(ordered) or ordered[i + 1][: len(path)] != path:
            for length in range(len(path) + 1):
                lanes[path[:length]] = (lanes.get(path[:length], (count, 0))[0], count)
            count += 1
    return lanes


def row_label(commit: Commit) -> str:
    """The label of a commit: its version, or its id inside a fork that never joined."""
    return commit.id if commit.version is None else f"v{commit.version}"


def written(commit: Commit, without: Iterable[str] = ()) -> list[str]:
    """What a commit wrote, one field a line; at `START` the fields that begin empty share the last line."""
    if commit.node != "START":
        return writes(commit.patch, without)
    values = {field: one.value if isinstance(one, Replace) else one for field, one in commit.patch.items()}
    empty = [field for field, value in values.items() if value is None or (isinstance(value, Sized) and not len(value))]
    lines = writes({field: value for field, value in values.items() if field not in empty}, without)
    return [*lines, f"empty: {', '.join(empty)}"] if empty else lines


def writes(patch: Mapping[str, Any], without: Iterable[str] = ()) -> list[str]:
    """What a patch writes, one field a line, leaving out the fields of `without`."""
    fields = [field for field in patch if field not in set(without)]
    lines = [f"{field}: {write_text(patch[field])}" for field in fields[:SHOWN]]
    if len(fields) > SHOWN:
        lines.append(f"and {len(fields) - SHOWN} more fields")
    return lines


def write_text(update: object) -> str:
    """What an update of a patch writes, in a few words."""
    if update is DELETE:
        return "deleted"
    if isinstance(update, Replace):  # differs from a plain update for mappings only: these would be merged
        return f"{'replaced by ' if isinstance(update.value, Mapping) else ''}{_brief(update.value)}"
    if isinstance(update, Updates):
        more = ", ..." if len(update.updates) > 4 else ""
        return ", then ".join(write_text(one) for one in update.updates[:4]) + more
    return _brief(update)


def _brief(value: object) -> str:
    if value is DELETE:
        return "nothing"
    plain = thaw(value)
    if isinstance(plain, Failure):
        return _short(str(plain), 76)
    items = plain if isinstance(plain, list) else [plain]
    for is_kind, text in ((_is_message, _message_text), (_is_trial, _trial_text)):
        if items and all(map(is_kind, items)):
            more = f" | and {len(items) - 4} more" if len(items) > 4 else ""
            return " | ".join(map(text, items[:4])) + more
    return brief(plain, 76)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in ROLES


def _is_trial(value: Any) -> bool:
    """Whether a value is a trial of a search, as its field `trials` holds it."""
    return isinstance(value, dict) and value.keys() >= {"name", "parent", "patch", "reward"}


def _trial_text(trial: dict[str, Any]) -> str:
    """A trial in a few words: its name, and its reward or why it has none."""
    failure = trial.get("failure")
    outcome = f"failed with {failure.type}" if isinstance(failure, Failure) else f"reward {brief(trial['reward'])}"
    return one_line(f"{trial['name']} {outcome}")


def _message_text(message: dict[str, Any]) -> str:
    """A chat message in a few words: its author, its content, and the tools that it calls."""
    content, calls = message.get("content"), message.get("tool_calls")
    texts = [_short(content if isinstance(content, str) else brief(content), 60)] if content else []
    texts += [", ".join(map(_call_text, calls))] if isinstance(calls, list) and calls else []
    mark = " (error)" if message.get("error") is True else ""
    return one_line(f"{message.get('name') or message['role']}{mark}: {' -> '.join(texts)}")


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return brief(call)
    return f"{function.get('name')}({_short(str(function.get('arguments', '')), 60)})"


def _short(text: str, length: int) -> str:
    return textwrap.shorten(one_line(text), length, placeholder=" ...")


def one_line(text: str) -> str:
    """A text on one line, without control characters: a terminal would obey those."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def outcome(conflict: MergedConflict) -> list[str]:
    """A conflict in words: its outcome by which policy, and what each author wrote."""
    path = ".".join(map(str, conflict.path))
    if conflict.winner is None:
        end = f"not resolved (policy {conflict.policy!r})"
    elif conflict.winner.startswith("join:"):
        end = f"{_brief(conflict.value)}, made of them by policy {conflict.policy!r}"
    else:
        end = f"{conflict.winner} won by policy {conflict.policy!r}"
    lines = [f"! conflict at {path}: {end}"]
    lines += [f"  {author} wrote {_brief(value)}" for author, value in conflict.values[:SHOWN]]
    if len(conflict.values) > SHOWN:
        lines.append(f"  and {len(conflict.values) - SHOWN} more")
    return lines

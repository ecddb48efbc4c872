"""A run as text for a terminal: what `run.report()` returns.

The steps come one below the other in canonical order, as a tree: what is inside of a node, and what a fork leads to, is
further to the right. Of the items of maps and the trials of searches those that failed are listed.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from datetime import datetime
from textwrap import wrap
from typing import Any

from dspyer import DELETE, Replace
from dspyer.display.amounts import count_of, duration_text, one_line
from dspyer.display.tokens import total_of
from dspyer.errors import brief, error_text
from dspyer.events import Answered, Commit, MergedConflict, Question
from dspyer.extend import path_text, thaw
from dspyer.failure import Failure
from dspyer.message_list import ROLES
from dspyer.record import Record, RecordStep
from dspyer.reducers import Updates

WIDTH = 100  # characters of a line
DEEPEST = 24  # characters to the right; what is deeper is not further to the right
SHOWN = 12  # fields of a commit, authors of a conflict, or failed items of a node that are listed
TOLD = 20  # lines of an error
ROWS = 400  # steps that are listed: the first and the last half of them

OUTCOMES = {"failed": "failed", "waiting": "waits for an answer", "running": "runs", "stopped": "was not started"}
"""What `outcome` says of a step that has not begun, by its status."""

_MARKS = {"failed": "✗", "waiting": "?", "running": "○", "stopped": "○"}


def outcome(step: RecordStep) -> str:
    """The reason why a step has no commit, in words."""
    begun = step.status == "stopped" and step.started is not None
    return "was stopped" if begun else OUTCOMES.get(step.status, step.status)


def describe_run(record: Record, error: BaseException | None = None) -> str:
    """The report of a run, at most 100 columns wide: one line that sums it up, its commits, and its error.

    `error` is why it is not completed, if more is known than the failures that ended it.
    """
    own = [step for step in record.steps if step.parent is None]
    rows, depths = _shown(record)
    if len(rows) > ROWS:
        rows = own
    labels = {step.id: f"{_label(step)} {step.node}".lstrip() for step in record.steps if step.commit}
    questions = _questions(record, {row.id for row in rows})
    lines = [*wrap(_summary(record, own), WIDTH), ""]
    for number, row in enumerate(rows):
        if not ROWS // 2 <= number < len(rows) - ROWS // 2:
            lines += _row_lines(row, depths[row.id], labels, questions.get(row.id, ()))
        elif number == ROWS // 2:
            lines.append(f"... {len(rows) - 2 * (ROWS // 2)} more: run.commits has them all")
    if texts := _failure_lines(record.failures) if error is None else _error_lines(error):
        lines.append("")
        for text in texts[:TOLD]:
            lines += _wrapped(text)
    return "\n".join(lines)


def _shown(record: Record) -> tuple[list[RecordStep], dict[str, int]]:
    """The steps that are listed, and how deep each is: in nodes, and in forks."""
    rows, depths, failed = list[RecordStep](), dict[str, int](), Counter[str]()
    in_parts = set[str]()  # items, trials, and what is inside of them
    for step in record.steps:
        parent = step.parent
        depths[step.id] = len(step.branch) + (0 if parent is None else depths[parent] + 1)
        if parent in in_parts or step.kind in ("item", "trial"):
            in_parts.add(step.id)
        if parent is None:
            rows.append(step)
        elif step.kind in ("item", "trial") and step.failure is not None and parent not in in_parts:
            failed[parent] += 1
            rows += [step] if failed[parent] <= SHOWN else []
        elif step.id not in in_parts and (step.kind not in ("start", "join") or step.status != "done"):
            rows.append(step)
    return rows, depths


def _questions(record: Record, shown: Container[str]) -> dict[str, list[str]]:
    """The answers and the open questions, by the step at which they are listed: their own, or one around it."""
    found: dict[str, list[str]] = {}
    parents = {step.id: step.parent for step in record.steps}
    for step in record.steps:
        place: str | None = step.id
        while place is not None and place not in shown:
            place = parents[place]
        if place is None or step.asked is None:
            continue
        question, answer = step.asked.question, step.asked.answer
        if answer is not None:
            found.setdefault(place, []).append(Answered(answer).label())
        elif record.status != "completed":
            found.setdefault(place, []).append(f"{question.key}{_until(question)}: {question.text}")
    return found


def _until(question: Question) -> str:
    if question.expires is None:
        return ""
    return f" (expires {datetime.fromtimestamp(question.expires).astimezone():%Y-%m-%d %H:%M:%S})"


def _error_lines(error: BaseException) -> list[str]:
    """An error on one line, and one line for each of its notes."""
    return [_error_line(type(error).__name__, error_text(error)), *map(str, getattr(error, "__notes__", ()))]


def _error_line(kind: str, message: str) -> str:
    return f"{kind}: {_clip(one_line(message), 600)}" if one_line(message) else kind


def _failure_lines(failures: Sequence[Failure]) -> list[str]:
    """The first failure, with the others in its notes, as in `Run.error`: of a stored run there is no other trace."""
    if not failures:
        return []
    first, *others = failures
    lines = [_error_line(first.type, first.message), *filter(None, _around_text(first)[1].split("\n"))]
    for other in others:
        text = f"{_around_text(other)[0]}{other.type}: {other.message}".partition("\n")[0]
        lines.append(f"also failed: {other.node!r} (branch {path_text(other.branch)}): {text}")
    return lines


def _around_text(failure: Failure) -> tuple[str, str]:
    """The text of a traceback on the line of the exception before its text, and its notes, which follow the text."""
    text = f"{failure.type}: {failure.message}" if failure.message else failure.type
    # The note of a failure beside it may repeat the text.
    before, found, after = failure.traceback.partition("\nalso failed: ")[0].rpartition(text)
    return (before.rpartition("\n")[2], after) if found else ("", "")


# --- the first line


def _summary(record: Record, rows: Sequence[RecordStep]) -> str:
    commits = sum(row.commit is not None for row in rows)
    conflicts = sum(len(row.conflicts) for row in rows)
    begun = [
        row
        for row in rows
        if row.kind not in ("start", "join", "edit")
        and (row.commit is not None or (row.status == "failed" and not _is_limit(row)) or row.asked is not None)
    ]
    facts = [f"graph {record.graph.name!r}", count_of(commits, "commit"), count_of(len(begun), "node call")]
    facts += [count_of(conflicts, "conflict")] if conflicts else []
    names = {row.id: row.node for row in rows}
    items: dict[str, Counter[str]] = {}
    for step in record.steps:
        if step.kind in ("item", "trial") and step.parent in names:
            items.setdefault(names[step.parent], Counter())[step.status] += 1
    for node, counts in items.items():
        text = f"{count_of(counts['done'], 'item')} of {node!r}"
        facts.append(text + (f", {counts['failed']} failed" if counts["failed"] else ""))
    tokens = sum(total_of(of_model) for of_model in record.usage.values())
    facts += [count_of(tokens, "token")] if tokens else []
    ends = [row.started + row.seconds for row in rows if row.started is not None]
    took = max(0.0, (record.ended or max(ends, default=record.started)) - record.started)
    how = "in" if record.status == "completed" else "after"
    return f"Run {record.status} {how} {duration_text(took)}: {', '.join(facts)}"


def _is_limit(row: RecordStep) -> bool:
    return row.failure is None or row.failure.type == "StepLimitError" or row.node.startswith("join:")


# --- the lines of one commit


def _row_lines(row: RecordStep, depth: int, labels: Mapping[str, str], questions: Iterable[str]) -> list[str]:
    """The lines of one step."""
    indent = "  " * min(depth, DEEPEST // 2)
    lines = [_headline(row, indent + ("●" if row.commit else _MARKS.get(row.status, "●")), _details(row))]
    asked = [_clip(one_line(one), 240) for one in questions]
    for text in [*_facts(row, labels), *_first(asked, "more questions")]:
        below = indent + ("      " if text.startswith("  ") else "    ")
        lines += [below + line for line in _wrapped(text, WIDTH - len(below))]
    return lines


def _label(row: RecordStep) -> str:
    """The label of a commit: its version, its id inside a fork that never joined; none inside of a node."""
    if row.parent is not None:
        return ""
    return row.id if row.version is None else f"v{row.version}"


def _headline(row: RecordStep, mark: str, details: str) -> str:
    if row.commit:
        route = [] if row.node.startswith("join:") else [one_line(node) for node in _grouped(row.to)]
        arrow = f" → {', '.join(route)}" if route else ""
        failed = " failed" if row.failure else ""
        text = f"{mark} {one_line(f'{_label(row)} {row.node}')}{failed}{arrow}"
    else:
        text = f"{mark} {one_line(row.node)}{'' if row.status == 'done' else f' {outcome(row)}'}"
    return f"{_clip(text, WIDTH - len(details) - 2)}  {details}"


def _grouped(names: Iterable[str]) -> list[str]:
    """Names, such as those of a route; one that is there several times is named once, with their number."""
    return [name if count == 1 else f"{name} × {count}" for name, count in Counter(names).items()]


def _first(texts: Sequence[str], more: str, limit: int = SHOWN) -> list[str]:
    """Texts, and of many the first ones and how many `more` there are."""
    return [*texts[:limit], *([f"and {len(texts) - limit} {more}"] if len(texts) > limit else [])]


def _details(row: RecordStep) -> str:
    facts = [f"step {row.rank}"]
    if row.branch:
        facts.append(f"branch {path_text(row.branch)}")
    if row.commit:
        if row.visit > 1:
            facts.append(f"visit {row.visit}")
        if row.commit.attempt > 1:
            facts.append(f"attempt {row.commit.attempt}")
        if row.seconds and row.kind != "join":
            facts.append(duration_text(row.seconds - row.waited))
    return f"({', '.join(facts)})"


def _facts(row: RecordStep, labels: Mapping[str, str]) -> list[str]:
    """The lines below the headline of a row: what was joined, conflicts, writes, reason, error."""
    facts = []
    if len(row.after) > 1:
        facts.append(f"joins {', '.join(_first([labels[parent] for parent in row.after], 'more'))}")
    facts += [text for conflict in row.conflicts for text in _outcome(conflict)]
    if row.failure:
        facts.append(f"{row.failure.type}: {_clip(one_line(row.failure.message), 240 if row.commit else 600)}")
    if row.commit:
        if raised := _grouped([failure.type for failure in row.commit.failed_attempts]):
            facts.append(f"attempts that failed before: {', '.join(raised)}")
        resolved = {conflict.path[0] for conflict in row.conflicts if conflict.path}
        facts += _written(row.commit, resolved)
    if row.reason:
        facts.append(f"because: {_clip(one_line(row.reason), 240)}")
    return facts


def _wrapped(text: str, width: int = WIDTH) -> list[str]:
    return wrap(_clip(one_line(text), 1000), width, subsequent_indent="  ")


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# --- what a commit wrote, in words


def _written(commit: Commit, without: Iterable[str] = ()) -> list[str]:
    """The writes of a commit, one field a line; at `START` the fields that begin empty share the last line."""
    values = {field: one.value if isinstance(one, Replace) else one for field, one in commit.patch.items()}
    empty = [
        field
        for field, value in values.items()
        if commit.node == "START" and (value is None or (isinstance(value, Sized) and not len(value)))
    ]
    told = [f"{field}: {_write_text(one)}" for field, one in commit.patch.items() if field not in {*without, *empty}]
    return [*_first(told, "more fields"), *([f"empty: {', '.join(empty)}"] if empty else [])]


def _write_text(update: object) -> str:
    """The effect of an update of a patch, in a few words."""
    if update is DELETE:
        return "deleted"
    if isinstance(update, Replace):  # differs from a plain update for mappings only: these would be merged
        return f"{'replaced by ' if isinstance(update.value, Mapping) else ''}{_brief(update.value)}"
    if isinstance(update, Updates):
        return ", then ".join(_first(list(map(_write_text, update.updates)), "more", 4))
    return _brief(update)


def _brief(value: object) -> str:
    if value is DELETE:
        return "nothing"
    plain = thaw(value)
    if isinstance(plain, Failure):
        return _short(str(plain), 76)
    items = plain if isinstance(plain, list) else [plain]
    if not items or not all(isinstance(one, dict) and one.get("role") in ROLES for one in items):
        return brief(plain, 76)
    return " | ".join(_first(list(map(_message_text, items)), "more", 4))


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


def _outcome(conflict: MergedConflict) -> list[str]:
    """A conflict in words: its outcome by which policy, and what each author wrote."""
    path = ".".join(map(str, conflict.path))
    if conflict.winner is None:
        end = f"not resolved (policy {conflict.policy!r})"
    elif conflict.winner.startswith("join:"):
        end = f"{_brief(conflict.value)}, made of them by policy {conflict.policy!r}"
    else:
        end = f"{conflict.winner} won by policy {conflict.policy!r}"
    lines = [f"! conflict at {path}: {end}"]
    wrote = _first([f"{author} wrote {_brief(value)}" for author, value in conflict.values], "more")
    return [*lines, *[f"  {text}" for text in wrote]]

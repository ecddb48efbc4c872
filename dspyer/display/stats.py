"""`Stats`: how reliable the nodes of a run were, and what they cost, counted from its commits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from dspyer.display.amounts import cost_text
from dspyer.display.tables import ShownTable
from dspyer.display.tokens import total_of
from dspyer.events import LMCall
from dspyer.failure import Failure
from dspyer.log.rows import sum_usage
from dspyer.record import Checked, Record, RecordStep

TIMEOUT = "NodeTimeoutError"


@dataclass(slots=True)
class NodeStats:
    """The figures of one node.

    Attributes:
        node: its name.
        visits: how often it ran.
        items: of a map, how many items ended; None for any other node. The figures from `first_try` to `failed` count
            items then, and visits of any other node.
        first_try: succeeded in the first attempt, and no check refused the output.
        retried: succeeded in a later attempt.
        corrected: succeeded after a check had refused an output.
        accepted: a check accepted the last output with its problems (`accept=True`).
        failed: failed after the last attempt.
        failed_visits: of a map, how many visits failed as a whole.
        attempts: attempts of all visits or items.
        problems: how often a check found each problem; those that ended with a `CheckError` are in that alone.
        exceptions: how often each class was raised, in all attempts. For a visit of a map that failed as a whole these
            are `MapError` and what was retried; the last error of each item is in `MapError.failures`.
        timeouts: attempts that took longer than their `timeout`.
        cached: visits whose patch came from the node's cache.
        durations: seconds of each visit that was committed, with its attempts and pauses.
        rejected_seconds: the part of them spent on outputs that a check refused, corrections included.
        lm_calls: LM calls, failed ones too; None if unknown.
        lm_cached: those whose response came from DSPy's cache.
        fallbacks: those whose response came from a backup of `dspyer.lms.reliable`.
        tokens: tokens of its LM calls; None if unknown.
        rejected_tokens: the part of them spent on outputs that a check refused.
        cost: US dollars; None if unknown.
        rejected_cost: the part of it spent on outputs that a check refused.
    """

    node: str
    visits: int = 0
    items: int | None = None
    first_try: int = 0
    retried: int = 0
    corrected: int = 0
    accepted: int = 0
    failed: int = 0
    failed_visits: int = 0
    attempts: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    timeouts: int = 0
    cached: int = 0
    durations: list[float] = field(default_factory=list)
    rejected_seconds: float = 0.0
    lm_calls: int | None = None
    lm_cached: int | None = None
    fallbacks: int | None = None
    tokens: int | None = None
    rejected_tokens: int | None = None
    cost: float | None = None
    rejected_cost: float | None = None

    @property
    def total(self) -> int:
        """The number of items that ended, or of visits if it is no map."""
        return self.visits if self.items is None else self.items

    @property
    def seconds(self) -> float:
        """Seconds of all visits that were committed."""
        return math.fsum(self.durations)

    def percentile(self, share: float) -> float | None:
        """The seconds that this share of the visits took at most, by the nearest rank; None without a visit."""
        if not self.durations:
            return None
        return sorted(self.durations)[max(0, math.ceil(share * len(self.durations)) - 1)]

    @property
    def mean_attempts(self) -> float | None:
        """Attempts per visit or item; None if nothing was called."""
        return self.attempts / self.total if self.total else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "durations"}
        outcomes = ("first_try", "retried", "corrected", "accepted", "failed")
        return {
            **found,
            **{f"{name}_percent": _percent(found[name], self.total) for name in outcomes},
            "mean_attempts": self.mean_attempts,
            "problems": dict(self.problems),
            "exceptions": dict(self.exceptions),
            "seconds": self.seconds,
            "p50": self.percentile(0.5),
            "p95": self.percentile(0.95),
        }


@dataclass(eq=False, repr=False)
class Stats(ShownTable):
    """The reliability and cost of the nodes of a run. As text it is a table, in a notebook too.

    Attributes:
        nodes: the figures of each node that ran, in the order of the graph.
        usage: tokens by language model, of the whole run.
        unknown: what the figures do not cover, one sentence each.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("half", lambda n: {"h": 1 / n},
        ...     writes=["h"]).add_path(START, "half", END)
        >>> stats = graph.compile().run({"n": 0}).stats()
        >>> stats.nodes["half"].failed, dict(stats.nodes["half"].exceptions)
        (1, {'ZeroDivisionError': 1})
    """

    nodes: dict[str, NodeStats]
    usage: Mapping[str, Mapping[str, Any]]
    unknown: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a list of nodes, the usage, and what is unknown.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).stats().to_dict()["nodes"][0][
            ...     "first_try_percent"]
            100.0
        """
        nodes = [one.to_dict() for one in self.nodes.values()]
        return {"nodes": nodes, "usage": self.usage, "unknown": list(self.unknown)}

    def shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """The columns in which a node has something to show, and what they do not say."""
        columns = [[title, *map(cell, self.nodes.values())] for title, cell in _COLUMNS.items()]
        kept = [column for column in columns if column[0] in _ALWAYS or any(column[1:])]
        return [], [list(row) for row in zip(*kept, strict=True)], self._remarks()

    def _remarks(self) -> list[str]:
        lines = []
        for one in self.nodes.values():
            counted = [("problem", one.problems), ("exception", one.exceptions)]
            parts = [
                f"{count} x {text if what == 'exception' else repr(text)}"
                for what, found in counted
                for text, count in found.most_common(5)
            ]
            if parts:
                lines.append(f"{one.node}: {', '.join(parts)}")
        seconds = math.fsum(one.rejected_seconds for one in self.nodes.values())
        if seconds:
            tokens = sum(one.rejected_tokens or 0 for one in self.nodes.values())
            cost = math.fsum(one.rejected_cost or 0.0 for one in self.nodes.values())
            spent = [f"{_seconds(seconds)} s"]
            spent += [f"{tokens:,} tokens"] if tokens else []
            spent += [f"{cost_text(cost)} USD"] if cost else []
            lines.append(f"spent on outputs that a check refused: {', '.join(spent)}")
        if not any(one.tokens for one in self.nodes.values()):
            totals = {name: total_of(tokens) for name, tokens in self.usage.items()}
            lines += [f"{total:,} tokens of {name}" for name, total in totals.items() if total]
        return [*lines, *self.unknown]


# --- the columns of the table


def _share(name: str) -> Callable[[NodeStats], str]:
    return lambda one: _percent_text(getattr(one, name), one.total)


def _count(name: str) -> Callable[[NodeStats], str]:
    return lambda one: f"{getattr(one, name):,}" if getattr(one, name) else ""


_COLUMNS: Mapping[str, Callable[[NodeStats], str]] = {
    "node": lambda one: one.node,
    "visits": _count("visits"),
    "items": lambda one: "" if one.items is None else f"{one.items:,}",
    "first try": _share("first_try"),
    "retried": _share("retried"),
    "corrected": _share("corrected"),
    "accepted": _share("accepted"),
    "failed": _share("failed"),
    "failed visits": _count("failed_visits"),
    "attempts": lambda one: f"{one.attempts / one.total:.2f}" if one.total else "",
    "timeouts": _count("timeouts"),
    "cached": _count("cached"),
    "p50 s": lambda one: _seconds(one.percentile(0.5)),
    "p95 s": lambda one: _seconds(one.percentile(0.95)),
    "seconds": lambda one: _seconds(one.seconds),
    "LM calls": _count("lm_calls"),
    "LM cached": _count("lm_cached"),
    "fallbacks": _count("fallbacks"),
    "tokens": _count("tokens"),
    "USD": lambda one: cost_text(one.cost) if one.cost else "",
}
_ALWAYS = ("node", "visits", "first try", "failed", "attempts", "p50 s", "p95 s", "seconds")


def _percent(count: int, total: int) -> float | None:
    return round(100 * count / total, 2) if total else None


def _percent_text(count: int, total: int) -> str:
    """Counts that are not 0 or all never show as 0 % or 100 %."""
    if not count or not total:
        return ""
    share = 100 * count / total
    return "100 %" if count == total else f"{min(max(share, 0.1), 99.9):.1f} %"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.1f}"


# --- counting


def count_stats(records: Iterable[Record], unknown: Iterable[str] = (), recorded: bool = True) -> Stats:
    """The figures of runs, oldest first; `unknown` is what they do not cover."""
    counter = VisitCounter()
    missing = list(unknown)
    usages = []
    for record in records:
        counter.read(record)
        usages.append(record.usage)
        missing += [KILLED] if record.status == "crashed" else []
        missing += [step.reason or "" for step in record.steps if step.status == "unreadable"]
    usage = sum_usage(usages)
    tokens = sum(used.get("total_tokens", 0) for used in usage.values())
    unfinished, known = counter.unfinished, counter.tokens
    missing += [f"{unfinished:,} tokens were used by visits that have not finished"] if unfinished else []
    if recorded and tokens > known:
        more = tokens - known
        missing.append(f"{more:,} tokens are of LM calls that were not recorded: the figures of nodes lack them")
    if not recorded or (not counter.calls and tokens):  # tokens without a call: the program has recorded none
        counter.forget_calls()
    return Stats({one.node: one for one in counter.ended()}, usage, tuple(dict.fromkeys(missing)))


KILLED = "of a process that was killed, LM calls are known as far as it had written them"


class Submitted(NamedTuple):
    """The last turn of an agent since its run began, and the turns whose outputs its check has refused since."""

    turn: str = ""
    refused: tuple[str, ...] = ()


@dataclass(slots=True)
class Visit:
    """One visit of a node: how it ended, as far as the commits up to now show it."""

    node: str
    outcome: str
    duration: float
    refused: bool = False


class VisitCounter:
    """Counts visits. How a visit of a checked node ended is known after the last check of its corrections."""

    def __init__(self) -> None:
        self.calls = self.tokens = 0  # LM calls that were counted, and their tokens
        self.unfinished = 0  # tokens of visits that are not known to have ended
        self._stats: dict[str, NodeStats] = {}
        self._visits: dict[str, Visit] = {}  # by step
        self._origins: dict[str, str] = {}  # of checks and fixes: the step of the node that is checked
        self._submitted: dict[str, Submitted] = {}  # by step, of an agent with a check
        self._record: Record

    def read(self, record: Record) -> None:
        """Counts what a run did."""
        self._record = record
        for name in record.graph.looks:
            self._stats.setdefault(name, NodeStats(name, lm_calls=0, lm_cached=0, fallbacks=0, tokens=0, cost=0.0))
        checks = record.graph.checks
        self._fixes = {check.fix for check in checks.values()}
        self._modes = frozenset(mode for check in checks.values() for mode in check.modes)
        items: dict[str, list[RecordStep]] = {}
        own = []
        for step in record.steps:
            if step.parent is None:
                own.append(step)
            elif step.kind in ("item", "trial"):
                items.setdefault(step.parent, []).append(step)
        for step in own:
            if step.id not in self._visits:  # runs of a thread may share steps
                self._count(step, items.get(step.id, ()))
        outermost = ""
        for step in record.steps:
            outermost = step.id if step.parent is None else outermost
            for call in step.lm:
                self._use(call, self._visits.get(outermost))

    def _count(self, step: RecordStep, items: Sequence[RecordStep]) -> None:
        if self._modes:
            self._follow_agent(step)
        stats, commit = self._stats.get(step.node), step.commit
        if stats is None or (commit is None and step.failure is None) or step.status == "unreadable":
            return  # inputs, a join, or where the run has stopped
        before = step.after[0] if step.after else ""
        stats.visits += 1
        failed = [*step.failed, *([] if step.failure is None else [step.failure])]
        failed += [failure for item in items for failure in item.failed]
        _count_raised(stats, failed)
        if commit is not None:
            stats.durations.append(commit.duration)
            stats.cached += commit.cached
        duration = 0.0 if commit is None else commit.duration
        if step.kind == "map":
            self._visits[step.id] = Visit(step.node, "", duration)
            self._count_items(stats, items, as_whole=step.failure is not None)
            return
        attempt = max(commit.attempt if commit else 0, step.failure.attempt if step.failure else 0)
        stats.attempts += max(attempt, len(failed))
        outcome = "failed" if step.failure is not None else "retried" if attempt > 1 else "first_try"
        self._visits[step.id] = Visit(step.node, outcome, duration)
        check = self._record.graph.checks.get(step.node)
        if check is not None:
            self._check(step, check, before)
        elif step.node in self._fixes:
            origin = self._origins[step.id] = self._origins.get(before, "")
            if step.failure is not None and origin in self._visits:
                self._visits[origin].outcome = "failed"

    def _follow_agent(self, step: RecordStep) -> None:
        """Notes which turn was the last one after a step; a run begins without one."""
        before = self._submitted.get(step.after[0], Submitted()) if step.after else Submitted()
        self._submitted[step.id] = before._replace(turn=step.id) if step.node in self._modes else before

    def _problems(self, step: RecordStep, check: Checked) -> Sequence[str]:
        """The problems that a check has written, counted; one that failed has written none."""
        if step.failure is not None:
            return ()
        held = self._record.fields(step.id).get(check.into)
        found = [] if held is None or held.value is None else held.value
        texts = [found] if isinstance(found, str) else [str(text) for text in found]  # one text if all is hidden
        self._stats[step.node].problems.update(texts)
        return texts

    def _check(self, step: RecordStep, check: Checked, before: str) -> None:
        """Follows a check: whether it has refused what it was given, what it has found, and how visits end by that.

        It judges the last output. So end the visit of the node that it checks, and, of an agent, the turns of all
        outputs that it has refused since it last accepted one: all as the correction of the last one.
        """
        if check.modes:
            output, refused = self._submitted[step.id]
            judged = (*refused, output)
        else:
            output, origin = before, self._origins.get(before, before)
            self._origins[step.id], judged = origin, (origin,)
        problems = self._problems(step, check)
        refuses = step.failure is None and bool(step.to) and step.to[0] in (check.modes or (check.fix,))
        if (refuses or step.failure is not None) and (visit := self._visits.get(output)) is not None:
            visit.refused = True
            self._stats[visit.node].rejected_seconds += visit.duration
        for visit in filter(None, map(self._visits.get, judged)):
            if step.failure is not None or refuses:
                visit.outcome = "refused" if refuses else "failed"
            elif problems or visit.refused:
                visit.outcome = "accepted" if problems else "corrected"
        if check.modes:
            self._submitted[step.id] = Submitted(output, judged if refuses else ())

    def _count_items(self, stats: NodeStats, items: Sequence[RecordStep], *, as_whole: bool) -> None:
        """Counts the items of a visit; of one that failed as a whole, those that are known to have ended."""
        stats.failed_visits += as_whole
        ended = [item for item in items if item.status == "done" or item.failure is not None]
        again = [item for item in ended if item.failed and item.failure is None]
        lost = [item.failure for item in ended if item.failure is not None]
        stats.items = (stats.items or 0) + len(ended)
        stats.failed += len(lost)
        stats.retried += len(again)
        stats.first_try += len(ended) - len(lost) - len(again)
        stats.attempts += len(ended) + sum(len(item.failed) for item in items)
        _count_raised(stats, lost)

    def _use(self, call: LMCall, visit: Visit | None) -> None:
        """Counts what an LM call has used."""
        self.calls += 1
        self.tokens += call.tokens
        if visit is None:
            self.unfinished += call.tokens
            return
        stats, cost = self._stats[visit.node], call.cost
        stats.lm_calls = (stats.lm_calls or 0) + 1
        stats.lm_cached = (stats.lm_cached or 0) + call.cached
        stats.fallbacks = (stats.fallbacks or 0) + call.fallback
        stats.tokens = (stats.tokens or 0) + call.tokens
        # One call without a price makes the cost unknown: the sum of the others would look like all of it.
        stats.cost = None if cost is None or stats.cost is None else stats.cost + cost
        if visit.refused:
            stats.rejected_tokens = (stats.rejected_tokens or 0) + call.tokens
            stats.rejected_cost = None if stats.cost is None else (stats.rejected_cost or 0.0) + (cost or 0.0)

    def forget_calls(self) -> None:
        """Says of each node that its LM calls are not known."""
        for stats in self._stats.values():
            stats.lm_calls = stats.lm_cached = stats.fallbacks = stats.tokens = stats.cost = None

    def ended(self) -> list[NodeStats]:
        """The figures of the nodes that ran."""
        for visit in self._visits.values():
            # A visit whose output is still refused when the run ends counts in none of these: its correction may yet
            # come.
            if visit.outcome in ("first_try", "retried", "corrected", "accepted", "failed"):
                stats = self._stats[visit.node]
                setattr(stats, visit.outcome, getattr(stats, visit.outcome) + 1)
        return [stats for stats in self._stats.values() if stats.visits]


def _count_raised(stats: NodeStats, failures: Iterable[Failure]) -> None:
    for failure in failures:
        stats.exceptions[failure.type] += 1
        stats.timeouts += failure.type == TIMEOUT

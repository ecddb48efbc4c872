"""The filters of lists of runs: some are asked of the store, some of the entry of a run, some of its record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dspyer.archive.run_info import RunInfo
from dspyer.errors import list_names, removed, suggestion
from dspyer.record import Record
from dspyer.stores.base import RunPlace, RunQuery

ENDED = ("completed", "failed", "interrupted", "stopped")
"""How a run may have ended."""

OPEN = ("running", "crashed")
"""The status of a run that has written no end."""

SAID = ("node", "reason", "lm", "failed", "failure", "asked", "messages")
"""What the JSON form of a step has of texts that are no values."""

IDS = ("more", "id", "execution", "messages", "response", "value")
"""What these have beside what was said: names of steps and of values."""


class RunFilters(NamedTuple):
    """The filters of `Archive.runs`, which says what each is."""

    status: str | None = None
    graph: str | None = None
    thread: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    contains: str | None = None
    node: str | None = None
    model: str | None = None
    min_cost: float | None = None
    min_seconds: float | None = None
    after: str | None = None
    limit: int = 100

    @classmethod
    def of(cls, method: str, given: Mapping[str, Any]) -> RunFilters:
        """The filters that a method of `Archive` was given by name; an unknown one is a `TypeError`."""
        for name in [one for one in given if one not in cls._fields]:
            said = removed("Archive", f"{method}({name}=)") or removed("Archive", f"runs({name}=)")
            raise TypeError(said or f"{method}() has no filter {name!r}.{suggestion(name, cls._fields)}")
        return cls(**given)

    def query(self, *, last: bool) -> RunQuery:
        """The question to the store; `last` for the last run of each thread alone. Raises for what is no filter."""
        for name in ("graph", "thread", "contains", "node", "model"):
            if not isinstance(given := getattr(self, name), str | None):
                raise TypeError(f"{name}={given!r}: give a {'text' if name == 'contains' else 'name'}")
        for name, least in {"min_cost": self.min_cost, "min_seconds": self.min_seconds}.items():
            if not isinstance(least, int | float | None):
                raise TypeError(f"{name}={least!r}: give a number")
            if least is not None and not least >= 0:
                raise ValueError(f"{name}={least!r}: give a number that is 0 or more")
        if isinstance(self.limit, bool | float) or int(self.limit) != self.limit or self.limit < 1:
            raise ValueError(f"limit={self.limit!r}: give a whole number, 1 or more")
        known = (*ENDED, *OPEN)
        if self.status is not None and self.status not in known:
            raise ValueError(
                f"no status {self.status!r}.{suggestion(self.status, known)} It is one of {list_names(known)}"
            )
        # A store knows how runs have ended, and not whether the owner of one without an end is alive: it has one status
        # for those that run and those that have crashed.
        statuses = None if self.status is None else frozenset([self.status if self.status in ENDED else ""])
        times = as_seconds("since", self.since), as_seconds("until", self.until)
        # No store holds more runs than an index of SQLite or PostgreSQL can count.
        limit = min(self.limit, 2**31)
        return RunQuery(
            self.thread,
            self.graph,
            statuses,
            *times,
            None if self.after is None else RunPlace.of(self.after),
            limit,
            last,
        )

    @property
    def chosen_by_store(self) -> bool:
        """Return whether the store knows which runs it has asked for."""
        beside = (self.contains, self.node, self.model, self.min_cost, self.min_seconds)
        return beside == (None,) * 5 and self.status not in OPEN

    def allow(self, info: RunInfo) -> bool:
        """Return whether the entry of a run fits, as far as it tells."""
        # Of a run without an end the status is known only here, and it may have ended since the list was read.
        if self.status not in (None, info.status):
            return False
        if self.min_seconds is not None:
            ended = info.ended or (datetime.now(UTC) if info.status == "running" else info.started)
            if (ended - info.started).total_seconds() < self.min_seconds:
                return False
        return info.ended is None or self._spent(info)

    def _spent(self, run: RunInfo | Record) -> bool:
        least, cost = self.min_cost, run.cost
        return self.model in (None, *run.usage) and (least is None or (cost is not None and cost >= least))

    def look_inside(self, info: RunInfo) -> bool:
        """Return whether the record of a run is needed."""
        spent = self.model is not None or self.min_cost is not None
        return bool(self.contains) or self.node is not None or (spent and info.ended is None)

    def fit(self, info: RunInfo, record: Record | None) -> bool:
        """Return whether a run fits by its entry and its record; None for one that cannot be read."""
        return (
            self._spent(record or info)
            and (self.node is None or (record is not None and self.node in node_paths(record)))
            and (not self.contains or holds(self.contains, info, record))
        )


def node_paths(record: Record) -> Iterator[str]:
    """The names of the nodes of the steps of a run; of those inside of others, their paths too: `"lead/check"`."""
    paths: dict[str, str] = {}
    for step in record.steps:
        around = paths.get(step.parent or "", "")
        name = "" if step.kind in ("item", "trial") else step.node  # the nodes in an item are those of its map
        paths[step.id] = "/".join(filter(None, (around, name)))
        yield step.node
        yield paths[step.id]


def holds(text: str, info: RunInfo, record: Record | None) -> bool:
    """Return whether a run has a text in its names, values, prompts or failures, as they may be shown, in any case."""
    parts: list[Any] = [info.thread, info.graph, said_in(None if info.failure is None else info.failure.to_dict())]
    if record is not None:
        written = record.to_dict(shared=True)  # each value once, of a list its items
        steps = [[step[name] for name in SAID] for step in written["steps"]]
        parts += [record.id, said_in(steps), *written["values"].values()]
    # As JSON: to look at each text of a value by itself takes several times as long.
    apart = ("\n", "\n")  # what stands between texts is in none of them
    wanted, found = [json.dumps(one, ensure_ascii=False, separators=apart).casefold() for one in (text, parts)]
    return wanted[1:-1] in found


def said_in(form: Any) -> list[str]:
    """The texts of a JSON form that are no names of its keys, of steps or of values."""
    if isinstance(form, str | int | float | None):
        return [form] if isinstance(form, str) else []
    parts = [part for name, part in form.items() if name not in IDS] if isinstance(form, dict) else form
    return [one for part in parts for one in said_in(part)]


# --- what is given


def as_seconds(option: str, time: datetime | None) -> float | None:
    """The seconds since the Unix epoch of a time, which is local time without a time zone."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise TypeError(f"{option}={time!r}: give a datetime, for example datetime.now() - timedelta(days=1)")
    try:
        return time.timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{option}={time!r} is too far away to be a local time: give it a time zone") from error

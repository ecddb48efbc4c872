"""The filters of lists of runs: some are asked of the store, some of the entry of a run, some of its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

from dspyer.archive.run_info import RunInfo
from dspyer.errors import list_names, removed, suggestion
from dspyer.record import Record
from dspyer.stores.base import RunPlace, RunQuery

ENDED = ("completed", "failed", "interrupted", "stopped")
"""How a run may have ended."""

OPEN = ("running", "crashed")
"""The status of a run that has written no end."""

SAID = ("node", "reason", "call", "lm", "failed", "failure", "asked", "messages")
"""What the JSON form of a step has of texts that are no values."""

IDS = ("more", "id", "execution")
"""What they have beside what was said."""


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
        """The question to the store; `last` for the last run of each thread alone.

        Raises:
            ValueError: a filter can be no number, no status or no cursor.
            TypeError: a filter is of another type.
        """
        known = (*ENDED, *OPEN)
        if self.status is not None and self.status not in known:
            raise ValueError(
                f"no status {self.status!r}.{suggestion(self.status, known)} It is one of {list_names(known)}"
            )
        for name in ("graph", "thread", "contains", "node", "model"):
            check_name(name, getattr(self, name))
        for name, least in {"min_cost": self.min_cost, "min_seconds": self.min_seconds}.items():
            if not isinstance(least, int | float | None):
                raise TypeError(f"{name}={least!r}: give a number")
            if least is not None and not least >= 0:
                raise ValueError(f"{name}={least!r}: give a number that is 0 or more")
        check_limit(self.limit)
        # A store knows how runs have ended, and not whether the owner of one without an end is alive: it has one status
        # for those that run and those that have crashed.
        statuses = None if self.status is None else frozenset([self.status if self.status in ENDED else ""])
        times = as_seconds("since", self.since), as_seconds("until", self.until)
        # No store holds more runs than an index of SQLite or PostgreSQL can count.
        limit = min(self.limit, 2**31)
        return RunQuery(self.thread, self.graph, statuses, *times, place_of(self.after), limit, last)

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
        failure = [] if info.failure is None else [info.failure.type, info.failure.message]
        texts = chain((info.thread, info.graph, *failure), () if record is None else texts_of(record))
        return (
            self._spent(record or info)
            and (self.node is None or (record is not None and self.node in node_paths(record)))
            and (not self.contains or any(self.contains.casefold() in text.casefold() for text in texts))
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


def texts_of(record: Record) -> Iterator[str]:
    """The names, values, prompts and failures of a run, as they may be shown."""
    written = record.to_dict()
    yield record.id
    for value in written["values"].values():
        yield from _texts(value, keys=True)
    for step in [written["run"], *written["steps"]]:
        for name in SAID:
            yield from _texts(step.get(name), keys=False)


def _texts(value: Any, *, keys: bool) -> Iterator[str]:
    if isinstance(value, dict):
        if keys:
            yield from value
        value = [part for name, part in value.items() if keys or name not in IDS]
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    for part in value if not isinstance(value, str | int | float | None) else ():
        yield from _texts(part, keys=keys)


# --- what is given


def check_limit(limit: int) -> None:
    """Raise `ValueError` for a number of runs that is none."""
    if isinstance(limit, bool) or int(limit) != limit or limit < 1:
        raise ValueError(f"limit={limit!r}: give a whole number, 1 or more")


def check_name(option: str, name: object) -> None:
    """Raise `TypeError` for a name that is no text."""
    if not isinstance(name, str | None):
        raise TypeError(f"{option}={name!r}: give a {'text' if option == 'contains' else 'name'}")


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


def cursor_of(place: RunPlace) -> str:
    """The text of a place in a list."""
    return f"{place.started!r},{place.run},{place.thread}"


def place_of(cursor: str | None) -> RunPlace | None:
    """The place in a list that a cursor names."""
    if cursor is None:
        return None
    started, run, thread, *_ = (*cursor.split(",", 2), "", "")
    try:
        if not (run and run.isascii() and run.isprintable() and thread.encode()):
            raise ValueError(cursor)
        return RunPlace(float(started), run, thread)
    except ValueError:
        raise ValueError(f"after={cursor!r} is no cursor: pass page.next of the page before") from None

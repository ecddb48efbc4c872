"""Entries of runs in lists, from the first and the last row of each, and the `Page` that lists are given out in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, TypeVar

from dspyer.events import Question
from dspyer.failure import Failure
from dspyer.log.reader import HistoryReader, read_run
from dspyer.log.rows import EndRow, sum_usage
from dspyer.log.time_travel import current_status, waiting_at
from dspyer.record.stored import failures_of_run
from dspyer.record_codec import encode
from dspyer.stores.base import ListedRun, Point

T = TypeVar("T")


class Page(tuple[T, ...]):  # noqa: SLOT001 - a tuple has no slots for more
    """A part of a list: a sequence of its items, and where the next part begins.

    Attributes:
        next: what `after=` takes for the next page; None on the last one.

    Example:
        >>> page = Page(["a", "b"], next="b")
        >>> list(page), page[0], page.next
        (['a', 'b'], 'a', 'b')
    """

    next: str | None

    def __new__(cls, items: Iterable[T], next: str | None = None) -> Self:  # noqa: A002 - the name of the attribute
        """Make a page of its items and the cursor."""
        page = super().__new__(cls, items)
        page.next = next
        return page

    def __repr__(self) -> str:
        return f"Page({list(self)!r}, next={self.next!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `items` and `next`."""
        return {"items": [one.to_dict() if hasattr(one, "to_dict") else one for one in self], "next": self.next}


class RunInfo(NamedTuple):
    """A stored run, as lists show it.

    Attributes:
        thread: the name of its thread.
        run_id: its id, as `Run.run_id`.
        graph: the name of its graph.
        status: `"running"`, `"completed"`, `"failed"`, `"interrupted"`, `"stopped"` or `"crashed"`, as `Thread.status`.
        steps: how many commits it has, without those of graphs inside its nodes.
        started: when it was started.
        ended: when it ended; None for a run that has written no end.
        usage: what it used by language model, as far as it has written its end.
        cost: US dollars; None if a language model has no price, or the run has written no end.
        questions: its questions that have no answer.
        failure: the first failure with which it ended, without traceback; None if it did not fail. Of a run of which
            something cannot be read, the reason, with the node `"archive"`.
    """

    thread: str
    run_id: str
    graph: str
    status: str
    steps: int
    started: datetime
    ended: datetime | None
    usage: Mapping[str, Mapping[str, Any]]
    cost: float | None
    questions: tuple[Question, ...] = ()
    failure: Failure | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; times as ISO 8601, in UTC."""
        return encode(self)


class Waiting(NamedTuple):
    """A question that waits for an answer: `archive.questions()` lists them.

    Attributes:
        thread: the thread that is to be resumed with the answer.
        run_id: the run that has asked, as `Run.run_id`.
        question: the question as it was asked.
        since: when.
        graph: the graph of the run.
    """

    thread: str
    run_id: str
    question: Question
    since: datetime
    graph: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; the time as ISO 8601."""
        return encode(self)


def run_info(reader: HistoryReader, listed: ListedRun) -> RunInfo:
    """The entry of a run in a list. Rows that cannot be read leave gaps, and the reason as its failure."""
    listed, status = current_status(reader.store, listed)
    thread, run, started, ending, last, _ = listed
    # Of an end that cannot be read its status is known all the same: stores list runs by it.
    end, at, steps, cost = EndRow(ending), Point(run.id, last), 0, None
    failures: tuple[Failure, ...] = ()
    questions: tuple[Question, ...] = ()
    try:
        if listed.end is not None:
            end = EndRow.of(listed.end)
            steps, cost = end.steps, end.cost
        else:
            steps = 0 if last < 0 else read_run(reader.store, at).step_count
        if status != "completed" and last >= 0:
            # Its own failures first: why the run failed says more than what cannot be read of it.
            failures = failures_of_run(reader, listed)
            questions = tuple([question for question, _ in waiting_at(reader, at)])
    except Exception as error:  # noqa: BLE001 - whatever is wrong with this run, the others stay listed
        failures = (*failures, Failure.of(error, node="archive"))
    return RunInfo(
        thread.name,
        run.id,
        str(run.header.get("graph", "")),
        status,
        steps,
        datetime.fromtimestamp(started, UTC),
        None if end.ended is None else datetime.fromtimestamp(end.ended / 1_000, UTC),
        sum_usage((end.usage,)),
        cost,
        questions,
        next((one.model_copy(update={"traceback": ""}) for one in failures), None),
    )

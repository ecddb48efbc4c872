"""The status, failures, token usage and open questions of a thread, from its last rows: no state is computed.

Only what hides values of a thread, where its program redacts some, reads all of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import cast

from dspyer.display.redaction import Redaction, Redactor
from dspyer.events import Question
from dspyer.failure import Failure
from dspyer.persistence.execution_records import ExecutionRecords
from dspyer.persistence.leases import is_alive
from dspyer.persistence.reader import HistoryReader, ending_row, newest_rows, read_runs
from dspyer.persistence.rows import COMMITS, CommitRow, EndRow, ResumeRow, RowKind, read_commit_content
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, Store

PROGRESS = (RowKind.COMMIT, RowKind.JOIN, RowKind.ITEM, RowKind.ONCE, RowKind.ANSWER, RowKind.END)
"""Rows that show that a run has made progress since it was resumed."""


def status_of(store: Store, thread: str) -> str:
    """`"new"`, `"running"`, `"crashed"`, or how the last run ended."""
    row = store.thread(thread)
    while row is not None and row.head is not None:
        end = last_end(store, row.head)
        if end is not None:
            return EndRow.of(end).status
        if is_alive(row):
            return "running"
        now = store.thread(thread)
        if now is None or now.head == row.head:  # its owner is gone and has written no end
            return "crashed"
        row = now  # the owner wrote between the two reads: read again
    return "new"


def failures_of(store: Store, thread: str) -> tuple[Failure, ...]:
    """The failures with which the last run ended."""
    row = store.thread(thread)
    return failures_in(store, None if row is None or row.head is None else last_end(store, row.head))


def failures_in(store: Store, end: Row | None) -> tuple[Failure, ...]:
    """The failures in the row of the end of a run."""
    failures = () if end is None else EndRow.read(end, store.blobs).failures
    return tuple([Failure.model_validate(failure) for failure in failures])


def last_end(store: Store, at: Point) -> Row | None:
    """The row that says how the run up to `at` ended; None if it has not ended, or was resumed since."""
    return ending_row(row for _, row in newest_rows(store, at, 1))


def thread_redactor(
    reader: HistoryReader, thread: str, redaction: Redaction | None, load: Callable[[], ImmutableState]
) -> Redactor | None:
    """What hides values of a thread where it is read: it knows all that its runs have written, also inside of nodes.

    `load` gives the state of the thread: a pruned history has not written all that is in it.
    """
    row = reader.store.thread(thread)
    if redaction is None or row is None or row.head is None:
        return None
    redactor = Redactor(redaction, dict(load().raw_items()))
    for run in read_runs(reader.store, [row.head], row.root):
        for written in run.rows:
            if written.kind in (RowKind.OPEN, RowKind.POST, *COMMITS):
                with suppress(Exception):  # what cannot be read is shown nowhere
                    content = read_commit_content(written.content, reader.fetch, reader.decode)
                    for field, update in (content.patch or {}).items():
                        redactor.learn_update(field, update)
    return redactor


def shown_questions(
    reader: HistoryReader, thread: str, redactor: Callable[[], Redactor | None]
) -> tuple[Question, ...]:
    """The open questions of the last run, without what `redactor` hides; it is made only if there are some."""
    row = reader.store.thread(thread)
    questions = () if row is None or row.head is None else questions_at(reader, row.head)
    hiding = redactor() if questions else None
    return questions if hiding is None else cast("tuple[Question, ...]", hiding.redact(questions))


def questions_at(reader: HistoryReader, at: Point) -> tuple[Question, ...]:
    """The questions that had no answer when a row was written."""
    records = ExecutionRecords()
    oldest_first = list(_question_rows(reader.store, at))[::-1]
    records.read(oldest_first, reader.fetch, reader.decode)
    return records.open_questions()


def _question_rows(store: Store, at: Point) -> Iterator[Row]:
    """The rows of questions that may be open, of answers, and of commits that close them, newest first.

    A commit after which one branch was active leaves no question open: every execution before it had ended. So nothing
    before such a commit has to be read.
    """
    for _, row in newest_rows(store, at, 4):
        if row.kind in (RowKind.ASK, RowKind.ANSWER):
            yield row
        elif row.kind == RowKind.OPEN:
            return
        elif row.kind in (RowKind.COMMIT, RowKind.JOIN):
            yield row
            head = CommitRow.of(row)
            if head.settled and not head.scope:
                return


def resumes_without_progress(rows: Sequence[Row]) -> int:
    """How often a run was resumed since it last made progress."""
    count = 0
    for row in reversed(rows):
        # The first part of a rerun begins with a RESUME row of number 0, which is no resume after a crash.
        if row.kind in PROGRESS or (row.kind == RowKind.RESUME and not ResumeRow.of(row).attempt):
            break
        count += row.kind == RowKind.RESUME
    return count

"""A run up to one of its commits, in canonical order, whatever had arrived in between.

Rows are kept in order of arrival. So the commits up to a version are no prefix of the rows inside a fork: a part of a
run that goes on from there says which of the rows before it do not count. Nothing is written a second time, and a
commit stays the row that it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dspyer.durable.rows import COMMITS, CommitHeader, RowKind
from dspyer.stores.base import Row

RowNumbers = tuple[int, int]
"""First and last of some places."""


def left_out(rows: Sequence[Row], kept: Collection[int]) -> tuple[int, list[RowNumbers]]:
    """Which rows do not count where a run is cut.

    Args:
        rows: the rows of the run.
        kept: places of the commits that stay, among these rows: with each of them, those it builds on.

    Returns:
        The place of the last row that counts, and the rows before it that do not: other commits, and what executions
        have left behind that have no commit up to there.
    """
    last = max(kept)
    committed = {CommitHeader.of(rows[place].head).id: place for place in kept}
    gone = []
    for place, row in enumerate(rows[:last]):
        if row.kind in COMMITS:
            head = CommitHeader.of(row.head)
            stays = committed.get(outermost(head.scope[0]), -1) > place if head.scope else place in kept
        elif row.kind in (RowKind.ITEM, RowKind.ONCE, RowKind.ASK, RowKind.ANSWER):
            stays = committed.get(outermost(str(row.head[0])), -1) > place
        else:
            stays = True
        if not stays:
            gone.append(place)
    return last, spans(gone)


def outermost(execution: str) -> str:
    """The execution that another one is a part of: `"trunk:2"` of `"trunk:2[0]/trunk:1"`."""
    return execution.partition("/")[0].partition("[")[0]


def spans(places: Iterable[int]) -> list[RowNumbers]:
    """Ascending places as spans."""
    found: list[RowNumbers] = []
    for place in places:
        if found and found[-1][1] == place - 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found


def without(rows: Sequence[Row], gone: Iterable[Sequence[int]]) -> tuple[list[Row], list[int]]:
    """The rows that count, and their places; the commits among them refer to each other by their new places.

    Args:
        rows: rows of a run.
        gone: spans of those that do not count.
    """
    dropped = {place for first, last in gone for place in range(max(first, 0), min(last + 1, len(rows)))}
    moved: dict[tuple[str, ...], dict[int, int]] = {}
    counts: dict[tuple[str, ...], int] = {}
    found: list[Row] = []
    places: list[int] = []
    for place, row in enumerate(rows):
        if row.kind in COMMITS:
            head = CommitHeader.of(row.head)
            old = counts.get(head.scope, 0)
            counts[head.scope] = old + 1
            if place in dropped:
                continue
            known = moved.setdefault(head.scope, {})
            parents = head.parents if head.parents is not None else ((old - 1,) if old else ())
            now = tuple([known[parent] for parent in parents])
            known[old] = len(known)
            found.append(row._replace(head=head._replace(parents=now).packed()) if now != parents else row)
        elif place in dropped:
            continue
        else:
            found.append(row)
        places.append(place)
    return found, places

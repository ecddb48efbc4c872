"""Lists of the runs in an SQLite file. They read the columns of the runs and the ends of those that are listed."""

from __future__ import annotations

import sqlite3
from typing import Any

from dspyer.stores.base import END, ListedRun, Point, Row, RunQuery, RunRow, ThreadRow, is_listed
from dspyer.stores.columns import (
    decode_content,
    decode_json,
    decode_owner,
    decode_point,
    decode_points,
    decode_text,
    encode_text,
)
from dspyer.stores.sqlite_tables import MASK, SHIFT, ending_in, pack_id, unpack_id, unpack_refs

_RANGE = f"BETWEEN run.key << {SHIFT} AND (run.key << {SHIFT}) + {MASK}"
_LAST = f"(SELECT max(entry.id) FROM entry WHERE entry.id {_RANGE})"

# CROSS JOIN: the runs come first, in the order of the list, so that reading ends with the last one that is wanted.
_LISTED = f"""
    SELECT run.key, run.id, run.thread, run.parents, run.header, run.started, run.ended, {_LAST},
    thread.name, head.id, head_seq, fencing, owner, ends, root.id, root_seq, runs
    FROM run CROSS JOIN thread ON %s
    LEFT JOIN run AS head ON head.key = head_run LEFT JOIN run AS root ON root.key = root_run
    WHERE %s ORDER BY run.started DESC, run.id DESC, thread.name DESC LIMIT ?"""
_ENDS = f"SELECT id, head, content, refs FROM entry WHERE id BETWEEN ? AND ? AND kind = '{END}' ORDER BY id"


def list_runs(connection: sqlite3.Connection, query: RunQuery, now: float) -> list[ListedRun]:
    """The runs that a query asks for."""
    found: list[ListedRun] = []
    while len(found) < query.limit:
        statement, values = _statement(query)
        batch = [_listed(connection, columns, query.last, now) for columns in connection.execute(statement, values)]
        found += [listed for listed in batch if is_listed(listed, query._replace(after=None))]
        if len(batch) < query.limit:
            break
        query = query._replace(after=batch[-1].place)
    return found[: query.limit]


def _statement(query: RunQuery) -> tuple[str, list[Any]]:
    """The statement of a query, and its values. It may find runs that the query does not ask for."""
    terms: list[str] = []
    values: list[Any] = []
    if query.statuses is not None:
        ended = [encode_text(status) for status in sorted(query.statuses) if status]
        chosen = [f"run.ended IN ({', '.join('?' * len(ended))})"] * bool(ended)
        chosen += ["run.ended IS NULL"] * ("" in query.statuses)
        chosen += [f"head_seq <> {_LAST} & {MASK}"] * query.last  # a copy of a part of a run: see `_listed`
        terms.append(f"({' OR '.join(chosen) or 'false'})")
        values += ended
    for term, value in (
        ("thread.name = ?", query.thread),
        ("run.id = ?", None if query.run is None else pack_id(query.run)),
        ("run.graph = ?", None if query.graph is None else encode_text(query.graph)),
        ("run.started >= ?", query.since),
        ("run.started < ?", query.until),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    if query.after is not None:
        terms.append("(run.started, run.id, thread.name) < (?, ?, ?) AND run.started <= ?")
        values += [query.after.started, pack_id(query.after.run), query.after.thread, query.after.started]
    join = "thread.head_run = run.key" if query.last else "thread.name = run.thread"
    return _LISTED % (join, " AND ".join(terms) or "true"), [*values, query.limit]


def _listed(connection: sqlite3.Connection, columns: tuple[Any, ...], is_last: bool, now: float) -> ListedRun:
    key, run_id, own_thread, parents, header, started, ended, last_id, name, head, head_seq, *of_thread = columns
    epoch, owner, lease_end, root, root_seq, runs = of_thread
    lease = 0.0 if lease_end is None else lease_end - now
    bounds = _point(head, head_seq), _point(root, root_seq)
    thread = ThreadRow(name, bounds[0], epoch, decode_owner(owner), lease, bounds[1], runs)
    run = RunRow(unpack_id(run_id), own_thread or "", decode_points(parents), decode_json(header))
    last = -1 if last_id is None else last_id & MASK
    if is_last and last != head_seq:  # the thread reaches a part of the run
        last = head_seq
        ended = ending_in(connection, key, last)
    ends = [
        Row(row_id & MASK, END, decode_json(head) if head else {}, decode_content(data, unpack_refs(refs)))
        for row_id, head, data, refs in connection.execute(_ENDS, (key << SHIFT, (key << SHIFT) + max(last, 0)))
    ]
    return ListedRun(thread, run, started, "" if ended is None else decode_text(ended), last, tuple(ends))


def _point(run: bytes | str | None, seq: int | None) -> Point | None:
    return None if run is None else decode_point(unpack_id(run), seq)

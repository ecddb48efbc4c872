"""LM calls in the rows of a run: those that are not written yet, and the compact form of those that are.

The calls of an execution that committed are in the content of its commit's row, so that they go where the commit goes:
into copies, reruns, exports; and the row numbers of commits stay what they are without LM calls. Calls of an execution
that has no commit, or not yet (it failed, it waits for an answer, an item of a map), are in rows of the kind `lm_call`.

Long texts of messages and responses are blobs: a system prompt is stored once. They are read only when calls are asked
for: the content names them in another form than `Content.value` looks for.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Literal, get_args

from dspyer.errors import LMCallError, StoreError, brief, with_article
from dspyer.events import LMCall
from dspyer.ids import is_within
from dspyer.log.reader import newest_rows, own_commit, read_runs
from dspyer.log.rows import (
    COMMITS,
    CommitContent,
    CommitRow,
    DraftRow,
    EndRow,
    LMCallsRow,
    LMUsage,
    RowKind,
    Totals,
    is_readable,
    sum_usage,
    total_cost,
    usage_of_calls,
)
from dspyer.record_codec import MALFORMED, decode, encode
from dspyer.stores.base import Point, Row, Store
from dspyer.stores.content import Fetch, ReadBudget, blob_id
from dspyer.stores.sql import CHANGED

# --- Calls on their way to a row

Choose = Callable[[LMCall], LMCall | None]
"""Decides what is written of an LM call; None for nothing."""

Recorded = Literal["usage", "full", "none"]
"""How much of LM calls is written."""


def check_recorded(given: Any) -> Recorded | Choose:
    """Return what an option `record_lm_calls=` means; raise `TypeError` or `ValueError` for anything else."""
    if isinstance(given, str) and given in get_args(Recorded):
        level: Recorded = given  # type: ignore[assignment]  # it is one of them
        return level
    form = (
        "give 'usage' (models, tokens, cost and times), 'full' (messages and responses, too), 'none', or a function "
        "that gets each LMCall and returns what to write, or None"
    )
    if isinstance(given, str):
        raise ValueError(f"record_lm_calls={given!r} is unknown: {form}")  # noqa: TRY004 - the type is right
    if not callable(given) or isinstance(given, type):
        raise TypeError(f"record_lm_calls={brief(given)}: {form}")
    if inspect.iscoroutinefunction(given):
        raise TypeError(f"record_lm_calls={brief(given)} is async: {form}. It is called while a node runs")
    function: Choose = given
    return function


class LMCallLog:
    """LM calls on their way to the rows of a run. May be used from several threads.

    Args:
        recorded: how much of them is written, or what decides it.
        redacts: whether the graph hides values. Then readers show messages and responses only if a function has
            decided about them.
    """

    def __init__(self, recorded: Recorded | Choose, redacts: bool) -> None:
        self.wants_texts = recorded not in ("usage", "none")
        self._choose = None if isinstance(recorded, str) else recorded
        self._hidden = redacts and self._choose is None
        self._waiting: dict[str, list[LMCall]] = {}
        self._lock = Lock()
        self._failed: tuple[LMCall, Exception] | None = None

    def add(self, call: LMCall) -> LMCall:
        """Take a call to be written; return it as the run shows it."""
        written: LMCall | None = call
        if self._choose is not None:
            try:
                written = _checked(self._choose(call), call)
            except Exception as error:  # noqa: BLE001 - raised by the next write: DSPy drops what a callback raises
                written = usage_alone(call)
                self._failed = self._failed or (written, error)
        if written is not None:
            with self._lock:
                self._waiting.setdefault(written.execution, []).append(written)
        return usage_alone(call) if written is None or self._hidden else written

    def take_error(self) -> LMCallError | None:
        """Return, once, the error of a function that has raised, or has returned neither a call nor None."""
        failed, self._failed = self._failed, None
        if failed is None:
            return None
        error = LMCallError(*failed)
        error.__cause__ = failed[1]
        return error

    @property
    def waits(self) -> bool:
        """Whether calls wait for a row."""
        return bool(self._waiting)

    def calls_of(self, execution: str, taken: list[LMCall]) -> StoredCalls:
        """Take the calls of an execution for its commit, and add them to `taken`."""
        with self._lock:
            calls = self._waiting.pop(execution, [])
        taken += calls
        return self._encoded(calls)

    def rows_inside(self, execution: str, taken: list[LMCall]) -> list[DraftRow]:
        """Take the calls that were made inside of an execution and have no row yet: of attempts that failed there."""
        return self._rows(lambda name: name != execution and is_within(name, execution), taken)

    def put_back(self, taken: list[LMCall]) -> None:
        """Let calls wait again that were taken with commits whose rows were not written."""
        with self._lock:
            for call in taken:
                self._waiting.setdefault(call.execution, []).append(call)
        taken.clear()

    def rows_of(self, execution: str) -> list[DraftRow]:
        """Take the calls of an execution, and of those inside of it."""
        return self._rows(lambda name: is_within(name, execution))

    def all_rows(self) -> list[DraftRow]:
        """Take all calls."""
        return self._rows(lambda _: True)

    def _rows(self, wanted: Callable[[str], bool], taken: list[LMCall] | None = None) -> list[DraftRow]:
        with self._lock:
            waiting = [self._waiting.pop(name) for name in [*self._waiting] if wanted(name)]
        rows = []
        for calls in waiting:
            if taken is not None:
                taken += calls
            stored, texts = self._encoded(calls)
            rows.append(LMCallsRow(calls[0].execution, calls[0].node, stored).row(texts))
        return rows

    def _encoded(self, calls: Iterable[LMCall]) -> StoredCalls:
        texts: dict[str, bytes] = {}
        return [encode_call(call, texts, self._hidden) for call in calls], texts


def _checked(chosen: Any, call: LMCall) -> LMCall | None:
    """Return what a function has chosen to write; the place of the call stays what it is."""
    if chosen is None:
        return None
    if not isinstance(chosen, LMCall):
        if inspect.iscoroutine(chosen):
            chosen.close()  # else Python warns of a coroutine that was never awaited
        kind = with_article(type(chosen).__name__)
        raise TypeError(f"it returned {kind}, not an LMCall (such as dataclasses.replace(call, messages=None)) or None")
    kept: LMCall = replace(chosen, execution=call.execution, node=call.node)
    encode_call(kept, {})
    return kept


INLINE = 256
"""The longest text of a message that stays in its row; longer ones become blobs."""

# --- The form of a call

StoredCall = dict[str, Any]
"""The JSON form of an LM call."""

StoredCalls = tuple[Sequence[StoredCall], Mapping[str, bytes]]
"""LM calls on their way to a row, and the long texts in them by id."""


def encode_call(call: LMCall, blobs: dict[str, bytes], hidden: bool = False) -> StoredCall:
    """Return the JSON form of a call; its long texts are added to `blobs`.

    Args:
        call: the call. Its execution and its node are those of the row.
        blobs: long texts by id.
        hidden: whether readers show its usage alone: its graph redacts values, and no function has decided about texts.
    """
    found = encode(call, omit_defaults=True, omit=("execution", "node", *_TEXTS))
    found["started"], found["seconds"] = round(call.started, 3), round(call.seconds, 6)
    if call.cost is not None:
        found["cost"] = round(call.cost, 12)
    for name in _TEXTS:
        if (said := getattr(call, name)) is not None:
            plain = json.loads(json.dumps(said, ensure_ascii=False, default=str))  # of an object its text
            found[name] = _mapped(plain, lambda text: _stored_text(text, blobs))
    if hidden and found.keys() & {*_TEXTS, "failed"}:
        found["hidden"] = True
    return found


_TEXTS = ("messages", "response")
"""The attributes of a call that hold what was said."""

_MARK = "$"
"""What the reference to a long text begins with, before the id of the blob; any other such text has it twice."""

_REFERENCE = re.compile(r'"\$([0-9A-F]{32})"(?!:)')  # no key


def _mapped(value: Any, of: Callable[[str], str]) -> Any:
    """Return JSON values with other texts."""
    if isinstance(value, str):
        return of(value)
    if isinstance(value, dict):
        return {_encodable(key): _mapped(item, of) for key, item in value.items()}
    return [_mapped(item, of) for item in value] if isinstance(value, list) else value


def _encodable(text: str) -> str:
    """Return a text; half a surrogate pair, which no file can hold, is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _stored_text(text: str, blobs: dict[str, bytes]) -> str:
    """Return a text, or a reference to a long one, which is added to `blobs`."""
    text = _encodable(text)
    data = text.encode()
    if len(data) <= INLINE:
        return _MARK + text if text.startswith(_MARK) else text
    name = blob_id(data)
    blobs[name] = data
    # In capitals: `Content.value` looks for the ids of blobs in the bytes, and reads those that it finds.
    return _MARK + name.upper()


def _said_text(stored: str, blobs: Mapping[str, bytes]) -> str:
    if not stored.startswith(_MARK):
        return stored
    text = stored[1:]
    return text if text.startswith(_MARK) else blobs[text.lower()].decode()


def decode_call(stored: Mapping[str, Any], execution: str, node: str, fetch: Fetch | None = None) -> LMCall:
    """Return a call from its JSON form; without `fetch`, without its texts.

    Raises:
        StoreError: if the form is malformed.
    """
    try:
        plain = {**stored, "execution": execution, "node": node}
        hidden = plain.pop("hidden", False)
        texts = {name: plain.pop(name) for name in _TEXTS if name in plain}
        call = decode(LMCall, plain)
        if hidden:
            return usage_alone(call)
        if fetch is not None and texts:
            names = {name.lower() for name in _REFERENCE.findall(json.dumps(texts))}
            blobs = fetch(names) if names else {}
            call = replace(call, **_mapped(texts, lambda text: _said_text(text, blobs)))
    except MALFORMED as error:
        raise StoreError(
            f"an LM call of execution {execution!r} is stored as {brief(stored)}, which cannot be read ({error}): "
            f"{CHANGED}"
        ) from error
    return call


def usage_alone(call: LMCall) -> LMCall:
    """Return a call without messages, response and the text of an error.

    Example:
        >>> call = LMCall("trunk:1", "a", "a", "lm", None, 1, 1, 0.0, 0.1, 0.0, failed="ValueError: odd", response="x")
        >>> usage_alone(call).failed, usage_alone(call).response
        ('ValueError', None)
    """
    failed = None if call.failed is None else call.failed.partition(":")[0]
    return replace(call, messages=None, response=None, failed=failed)


# --- Rows with calls


def calls_in(row: Row, fetch: Fetch | None = None) -> list[LMCall]:
    """Return the LM calls that a row holds: a commit's own, or those of an `lm_call` row; none for other rows.

    Args:
        row: the row.
        fetch: loads blobs by id, as `Store.blobs` does; None for calls without messages and responses.
    """
    content = row.content
    if not (row.kind in COMMITS or row.kind == RowKind.LM_CALL) or not is_readable(row) or content is None:
        return []
    if content.original is not None:  # of a store in memory
        record: CommitContent | LMCallsRow = content.original
        found: Sequence[Mapping[str, Any]] = record.lm_calls
    elif b'"lm_calls":' in content.data:  # not `content.value`, which reads the long values of the patch, too
        try:
            found = json.loads(ReadBudget().spend(content.data)).get("lm_calls", ())
        except MALFORMED as error:
            raise StoreError(f"row {row.seq} has a content that cannot be read ({error}): {CHANGED}") from error
    else:
        found = ()
    if not found:
        return []
    header = LMCallsRow.of(row) if row.kind == RowKind.LM_CALL else CommitRow.of(row)
    return [decode_call(one, header.execution, header.node, fetch) for one in found]


# What the runs of a thread have used: its totals, which the row of the end of each run holds.


def totals_at(store: Store, heads: Sequence[Point], root: Point | None = None) -> Totals:
    """Return the totals of a thread up to its head, or heads: those at the last end of a run, and the LM calls since.

    A run without an end, whose process was killed, counts once it has ended; of it, the LM calls in its rows count.
    What histories that were merged have used is the sum of their runs, some of which they may have in common.
    """
    calls: list[LMCall] = []
    found = Totals()
    while len(heads) == 1:
        (at,), heads = heads, ()
        for run, row in newest_rows(store, at):
            heads = run.parents
            if row.kind == RowKind.END:
                found, heads = EndRow.of(row).totals, ()
                break
            if at == root:
                heads = ()
                break
            calls += _readable_calls(row)
    for merged in read_runs(store, heads, root):
        if merged.points[-1] == root and merged.rows[-1].kind == RowKind.END:  # counts what was pruned, too
            pruned = EndRow.of(merged.rows[-1]).totals
            found = found.with_run(pruned.usage, pruned.steps, pruned.runs)
        else:
            commits = sum(own_commit(row) is not None for row in merged.rows)
            found = found.with_run(run_usage(merged.rows), commits)
    usage = sum_usage((found.usage, usage_of_calls(calls)))
    return Totals(found.runs, usage, total_cost(usage), found.steps)


def thread_usage(store: Store, thread: str) -> dict[str, LMUsage]:
    """Return what all runs of a thread have used, by language model."""
    row = store.thread(thread)
    if row is None or row.head is None:
        return {}
    return sum_usage([totals_at(store, (row.head,), row.root).usage])


def run_usage(rows: Iterable[Row]) -> dict[str, LMUsage]:
    """Return what the rows of a run say that it has used, by language model.

    It is what its last end says, and the LM calls after that: of processes that were killed. Calls that cannot be read
    count nothing: a run with such a row can be resumed and stopped.
    """
    used: Mapping[str, Mapping[str, Any]] = {}
    since: list[LMCall] = []
    for row in rows:
        if row.kind == RowKind.END:
            used, since = EndRow.of(row).usage, []
        else:
            since += _readable_calls(row)
    return sum_usage((used, usage_of_calls(since)))


def _readable_calls(row: Row) -> Sequence[LMCall]:
    with suppress(StoreError, ValueError):
        return calls_in(row)
    return ()

"""Runs with an idempotency key: `thread.run(inputs, key="order-7")` starts one run, however often it is called.

The key determines the id of the run, with a salt of the thread, so it is found by its primary key. The epoch of the
thread guards the look-up: of two calls that both find nothing, one starts the run, as of any two starts, and the write
of the other is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from itertools import count
from secrets import token_hex
from typing import Any

from dspyer.errors import ConcurrentRunError, InputError, StateError, ThreadError, brief
from dspyer.graph.spec import check_inputs, check_inputs_by_name
from dspyer.ids import new_run_id
from dspyer.log.execution_records import ExecutionRecords, RecordKey
from dspyer.log.reader import read_run
from dspyer.log.rows import EffectRow, EndRow, RowKind
from dspyer.log.time_travel import last_end
from dspyer.runtime.request import Request
from dspyer.stores.base import Point, RunRow, ThreadRow
from dspyer.threads.start import DONE, MAX_RESUMES, WAIT, Delivery, FirstWrite, StoredThread, ThreadHead
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze

INPUTS = RecordKey("", "inputs")
"""Where the digests of the inputs of a run are: with the results of effects, since headers are not encrypted."""


class KeyedRun:
    """The run of a key on a thread: to be started, to be resumed, or done.

    Raises `ThreadError` for a key that cannot name a run, and `InputError` for inputs that the graph does not take.
    """

    def __init__(
        self, thread: StoredThread, key: object, inputs: Mapping[str, Any], request: Request, if_open: str
    ) -> None:
        if not isinstance(key, str) or not key:
            raise ThreadError(
                f"key={brief(key)}: a key is a text that is not empty, the id of the request or of the message that "
                "asks for the run"
            )
        check_inputs_by_name(thread.graph, inputs)
        check_inputs(thread.graph, inputs, thread.graph.required)  # what is missing may be kept from the run before
        self._thread, self._store, self._name = thread, thread.store, thread.name
        self._key = key
        self._inputs = inputs
        self._request = request
        self._if_open = if_open
        try:
            given = _digest(_comparable(freeze(dict(inputs))))
        except StateError as error:
            raise InputError(
                f"key={key!r}: a later delivery is compared with this one by the digest of the inputs, and these have "
                f"none: {error}"
            ) from error
        # Two deliveries with one digest in common have the same inputs: as they are given, or as the graph reads them,
        # with the defaults of the others. A value that is made anew each time is equal in the first alone.
        self._digests, schema = [given], thread.graph.topology.schema
        self._refusal: Exception | None = None
        own = {name for name in inputs if name not in schema.fields or not schema.fields[name].reads_other_fields}
        schema.initial_state({name: value for name, value in inputs.items() if name in own})
        try:
            read, again = schema.initial_state(inputs), schema.initial_state(inputs)
        except Exception as error:
            if not (thread.graph.keep is None or thread.graph.keep):
                raise  # nothing lasts from the run before that a validator may read
            self._refusal = error
        else:
            found = {name: _comparable(read.raw(name)) for name in {*thread.graph.inputs, *inputs} if name in read}
            for name in found.keys() - inputs.keys():  # an input that lasts may have another value than its default
                if thread.graph.lasts(name) or found[name] != _comparable(again.raw(name)):
                    del found[name]
            self._digests.append(_digest(found))

    def first_write(self, head: ThreadHead) -> FirstWrite | Request:
        """Return a new run, or the open one of the key resumed, or the one that is done as it is stored."""
        # The look-up comes after the read of the head: a run that another delivery begins in between has another
        # epoch, under which nothing is written here.
        salt = self._salt(head.row, None if head.last_run is None else head.last_run.run)
        known, run_id = self._find(head.row, salt) if salt else (None, "")
        if known is not None:
            return self._stored_if_done(known, head.row) or self._thread.resumed_run(
                head, Delivery(), self._request, MAX_RESUMES, allow=False
            )
        if head.open and head.last_run is not None and head.last_run.status is None and self._if_open != "abandon":
            raise ConcurrentRunError(
                f"the last run of thread {self._name!r} crashed, and the delivery that began it will resume it: "
                "try again later. If it has no key, resume it with thread.resume(), or abandon it with "
                "thread.run(..., if_open='abandon')"
            )
        # An open run is amended in a part of its own, with the id of the key: by that a second delivery finds it.
        first = self._thread.new_run(head, self._inputs, self._request, self._if_open, own_part=True)
        salt = salt or token_hex(8)
        run_id = run_id or self._id(salt)
        opening, *others = first.rows
        return first._replace(
            run=first.run._replace(id=run_id, header={**first.run.header, "keys": salt}),
            rows=[opening, EffectRow(*INPUTS, tuple(self._digests)).row(), *others],
            start=first.start._replace(run_id=run_id),
        )

    def as_stored(self) -> Request | None:
        """Return the run as it is stored, if it is done: also while another run owns the thread."""
        row = self._store.thread(self._name)
        salt = "" if row is None else self._salt(row)
        if row is None or not salt:
            return None
        known, _ = self._find(row, salt)
        return None if known is None else self._stored_if_done(known, row)

    def _salt(self, row: ThreadRow, newest: RunRow | None = None) -> str:
        """The salt of the keys of the thread; "" for none. `newest` is the run at its head, if that was read."""
        at = row.head
        run = newest if at is None or (newest is not None and newest.id == at.run) else self._store.run(at.run)
        return "" if run is None else self._thread.key_salt(run)

    def _id(self, salt: str, number: int = 0) -> str:
        return new_run_id(json.dumps([self._name, self._key, salt, number]).encode())

    def _find(self, row: ThreadRow, salt: str) -> tuple[RunRow | None, str]:
        """The run of the key; or None, and the id that its run will have.

        What was pruned may still be there: a run that a copy has, or the last row of one, at which the pruned history
        begins. Such a run keeps its id, and the key gets the next one, which it has even after the first one is free
        again. So the key has no run only if two ids are free. The run with which the pruned history begins still names
        the one before it, whose id is therefore not used again.
        """
        free = ""
        begin = None if row.root is None else self._store.run(row.root.run)
        named = set() if begin is None else {point.run for point in begin.parents}
        for number in count():
            run_id = self._id(salt, number)
            run = self._store.run(run_id)
            if run is None and run_id in named:
                continue
            if run is None and free:
                break
            if run is None:
                free = run_id
            elif run.thread == self._name and (row.root is None or row.root.run != run_id):
                self._check_inputs(run)
                return run, run_id
        return None, free

    def _check_inputs(self, run: RunRow) -> None:
        records = ExecutionRecords()
        records.read(self._store.rows(run.id, 0, 1), self._thread.reader.fetch)
        known = records.effects.get(INPUTS)
        if known is not None and not {*self._digests}.intersection(known):
            raise self._refusal or ThreadError(
                f"key {self._key!r} identifies a run of thread {self._name!r} that began with other inputs: a key "
                "stands for one request. Give another request another key"
            )

    def _stored_if_done(self, run: RunRow, row: ThreadRow) -> Request | None:
        """The run as it is stored, if nothing is left to do; None if it is open, and the last one of the thread."""
        end = self._end_of(run, row)
        ending = None if end is None else last_end(self._store, end)
        status = None if ending is None else EndRow.of(ending).status
        if end is not None and (status == "completed" or end == row.head):
            return self._thread.as_stored(read_run(self._store, end), self._request) if status in DONE else None
        now = self._store.thread(self._name)
        if now is None or (now.epoch, now.head) != (row.epoch, row.head):
            raise ConcurrentRunError(
                f"another process has changed thread {self._name!r} since it was read. Nothing was written: {WAIT}"
            )
        raise ThreadError(
            f"the run of key {self._key!r} on thread {self._name!r} was abandoned, or replaced by a rerun, before it "
            "had completed, and a key starts no second run. To do it again, give the request another key"
        )

    def _end_of(self, run: RunRow, row: ThreadRow) -> Point | None:
        """The first end of the run, or the head of the thread if that is where it goes on; None for neither.

        A changed graph, a manual commit or a rerun may have continued it in other parts. What comes after its first
        completion, a rerun, is no part of the request: the key returns the same result for good.
        """
        if row.head is not None and row.head.run == run.id:
            return row.head
        parts = {run.id}
        end = self._completion_of(run.id)
        if end is None:
            # What the run of the root continued was deleted, and its id may be free again.
            root = "" if row.root is None else row.root.run
            others = [one for one in self._store.runs(self._name) if one.header.get("continues") and one.id != root]
            # Each time from the first one on: by clocks that differ, a part may have started before what it continues.
            while end is None and (found := next((one for one in others if one.parents[0].run in parts), None)):
                others.remove(found)
                parts.add(found.id)
                end = self._completion_of(found.id)
        return row.head if end is None and row.head is not None and row.head.run in parts else end

    def _completion_of(self, part: str) -> Point | None:
        """The last row of a part of a run, if the run has completed there."""
        rows = self._store.rows(part)
        completed = bool(rows) and rows[-1].kind == RowKind.END and EndRow.of(rows[-1]).status == "completed"
        return Point(part, rows[-1].seq) if completed else None


def _comparable(frozen: Any) -> Any:
    """The JSON form of a value without what makes no difference between two deliveries of it.

    That is the order of mappings, which fields of a model were set, and the name of a time zone: ISO text has none.
    """
    return _plain(encoding.encode(frozen))


def _plain(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_plain(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    tag = encoded.get(encoding.TAG)
    if tag == "datetime":
        return {encoding.TAG: tag, "value": encoding.decode(encoded).isoformat()}
    found = {name: _plain(item) for name, item in encoded.items()}
    if tag == "dict":  # one with keys that are no texts: pairs
        found["value"] = sorted(found["value"], key=json.dumps)
    elif tag == "model":
        found["value"].pop("$set", None)
    return found


def _digest(plain: Any) -> str:
    """The digest of plain JSON, which is ASCII whatever texts it holds."""
    return blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).hexdigest()

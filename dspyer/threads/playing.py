"""Play a run while holding its thread; stop the run that holds it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from dspyer.display.redaction import Redactor
from dspyer.errors import ConcurrentRunError, InputError, StateError, ThreadError, brief
from dspyer.graph.spec import GraphSpec, check_inputs, check_inputs_by_name
from dspyer.ids import new_run_id
from dspyer.log.execution_records import ExecutionRecords, RecordKey
from dspyer.log.journal import STOPPING, CheckedStore, Journal, is_alive, leases, new_owner
from dspyer.log.lm_calls import run_usage, totals_at
from dspyer.log.reader import HistoryReader, read_run
from dspyer.log.rows import EffectRow, EndRow, RowKind, end_row
from dspyer.log.time_travel import ThreadReader, check_thread_name, last_end, thread_redactor
from dspyer.runtime.drivers import arun_program, resources_of_call, run_program, stored_run
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.stores.base import Change, Point, RunRow, Store, ThreadRow
from dspyer.stores.memory import Memory
from dspyer.threads.changes import ThreadMerger, first_write_of_rerun
from dspyer.threads.graph_changes import AllowChanged, StorableCheck, decoder, fingerprint_of
from dspyer.threads.merge_on_finish import MergeOnFinish
from dspyer.threads.ownership import WAIT, WAIT_OR_REPLACE, HandOver, StoredRun, ThreadLock
from dspyer.threads.start import DONE, AnswersByKey, FirstWrite, RunStarter, ThreadHead, ThreadProgram
from dspyer.threads.views_across_runs import recent_indexes
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.scalars import check_flags
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import run_in_thread

if TYPE_CHECKING:
    from dspyer.threads.thread import Thread


# Runs with an idempotency key: `t.run(inputs, key="order-7")` starts one run, however often it is called.
#
# The key determines the id of the run, with a salt of the thread, so it is found by its primary key. The epoch of the
# thread guards the look-up: of two calls that both find nothing, one starts the run, as of any two starts, and the
# write
# of the other is refused.


INPUTS = RecordKey("", "inputs")
"""Where the digest of the inputs of a run is: with the results of effects, since headers are not encrypted."""

MAX_RESUMES = 10
"""How often deliveries resume a run without progress: the default of `resume(max_resumes=)`."""


class RunKey(NamedTuple):
    """A key as it was delivered.

    Attributes:
        text: the key.
        inputs: the digests of the inputs that came with it: as they were given, and as the graph reads them. Deliveries
            with one in common have the same inputs: a value that validation makes anew each time, such as an id by
            `default_factory`, is in the second one alone.
        first: one more for the first run of a thread, which has no earlier value that a field could keep.
        refusal: why a validator refuses the inputs; None if none does.
    """

    text: str
    inputs: tuple[str, ...]
    first: str = ""
    refusal: Exception | None = None

    @classmethod
    def of(cls, key: object, inputs: Mapping[str, Any], on_conflict: str, graph: GraphSpec) -> RunKey:
        """Checks a key and its inputs: `ThreadError` for a key that cannot name a run, `InputError` for the inputs."""
        if not isinstance(key, str) or not key:
            raise ThreadError(
                f"key={brief(key)}: a key is a text that is not empty, the id of the request or of the message that "
                "asks for the run"
            )
        if on_conflict == "merge":
            raise ThreadError(
                f'key={key!r} with on_conflict="merge": a run that is merged at its end cannot be resumed, so that a '
                'second delivery could not continue it. Use on_conflict="wait"'
            )
        check_inputs_by_name(graph, inputs)
        check_inputs(graph, inputs, graph.required)  # what is missing may be kept from the run before
        try:
            given = _digest(_comparable(freeze(dict(inputs))))
        except StateError as error:
            raise InputError(
                f"key={key!r}: a later delivery is compared with this one by the digest of the inputs, and these have "
                f"none: {error}"
            ) from error
        schema = graph.topology.schema
        validated = {name for name in inputs if name in schema.fields and schema.fields[name].reads_other_fields}
        schema.initial_state({name: value for name, value in inputs.items() if name not in validated})
        try:
            read = schema.initial_state(inputs)
        except Exception as error:  # noqa: BLE001 - a validator may read what the thread has: it decides at the start
            return cls(key, (given,), refusal=error)
        default = schema.initial_state({})
        lasting = schema.fields if graph.keep is None else graph.keep  # left out, they have the value of the run before
        values = {name: _comparable(read.raw(name)) for name in inputs if name in read}
        same = {name for name in values if name in default and values[name] == _comparable(default.raw(name))}
        first, later = (
            _digest([when, {name: values[name] for name in values if name not in left_out}])
            for when, left_out in (("first", same), ("later", same.difference(lasting)))
        )
        return cls(key, (given, later), first)


class KeyedRuns:
    """Starts, resumes or returns the run of a key, on one thread."""

    def __init__(self, starter: RunStarter) -> None:
        self._starter = starter
        self._store = starter.store
        self._thread = starter.thread

    def start(
        self,
        inputs: Mapping[str, Any],
        key: RunKey,
        request: Request,
        hand_over: HandOver,
        *,
        abandon: bool,
        take_over: bool,
    ) -> None:
        """Hands over the run of a key: a new one, the open one resumed, or the one that is done as it is stored."""

        def first_write(head: ThreadHead) -> FirstWrite | StoredRun:
            # The look-up comes after the read of the head: a run that another delivery begins in between has another
            # epoch, under which nothing is written here.
            salt = self._salt(head.row, None if head.last_run is None else head.last_run.run)
            known, run_id = self._find(key, head.row, salt) if salt else (None, "")
            if known is not None:
                stored = self._stored_if_done(known, key, head.row, request)
                return stored or self._starter.resumed_run(head, {}, MAX_RESUMES, allow=False)
            if head.open and head.last_run is not None and head.last_run.status is None and not abandon:
                raise ConcurrentRunError(
                    f"the last run of thread {self._thread!r} crashed, and the delivery that began it will resume it: "
                    "try again later. If it has no key, resume it with thread.resume(), or abandon it with "
                    "thread.run(..., abandon=True)"
                )
            first = self._starter.first_of_new(head, inputs, request, abandon)
            salt = salt or token_hex(8)
            run_id = run_id or self._id_of(key, salt)
            return first._replace(
                run=first.run._replace(id=run_id, header={**first.run.header, "keys": salt}),
                rows=[*first.rows, EffectRow(*INPUTS, key.inputs if head.row.head else (*key.inputs, key.first)).row()],
                start=first.start._replace(run_id=run_id),
            )

        try:
            self._starter.acquire(first_write, request, hand_over, take_over, WAIT_OR_REPLACE)
        except ConcurrentRunError:
            row = self._store.thread(self._thread)
            salt = "" if row is None else self._salt(row)
            known = self._find(key, row, salt)[0] if row is not None and salt else None
            stored = None if row is None or known is None else self._stored_if_done(known, key, row, request)
            if stored is None:
                raise
            hand_over(stored)  # it needs no ownership: another run may own the thread

    def _salt(self, row: ThreadRow, newest: RunRow | None = None) -> str:
        """The salt of the keys of the thread; "" for none. `newest` is the run at its head, if that was read."""
        at = row.head
        run = newest if at is None or (newest is not None and newest.id == at.run) else self._store.run(at.run)
        return "" if run is None else self._starter.key_salt(run)

    def _id_of(self, key: RunKey, salt: str, number: int = 0) -> str:
        return new_run_id(json.dumps([self._thread, key.text, salt, number]).encode())

    def _find(self, key: RunKey, row: ThreadRow, salt: str) -> tuple[RunRow | None, str]:
        """The run of a key; or None, and the id that its run will have.

        What was pruned may still be there: a run that a copy has, or the last row of one, at which the pruned history
        begins. Such a run keeps its id, and the key gets the next one, which it has even after the first one is free
        again. So the key has no run only if two ids are free. The run with which the pruned history begins still names
        the one before it, whose id is therefore not used again.
        """
        free = ""
        begin = None if row.root is None else self._store.run(row.root.run)
        named = set() if begin is None else {point.run for point in begin.parents}
        for number in count():
            run_id = self._id_of(key, salt, number)
            run = self._store.run(run_id)
            if run is None and run_id in named:
                continue
            if run is None and free:
                break
            if run is None:
                free = run_id
            elif run.thread == self._thread and (row.root is None or row.root.run != run_id):
                self._check_inputs(run, key)
                return run, run_id
        return None, free

    def _check_inputs(self, run: RunRow, key: RunKey) -> None:
        records = ExecutionRecords()
        records.read(self._store.rows(run.id, 0, 1), self._starter.reader.fetch)
        known = records.effects.get(INPUTS)
        if known is not None and not {*key.inputs, key.first}.intersection(known):
            raise key.refusal or ThreadError(
                f"key {key.text!r} identifies a run of thread {self._thread!r} that began with other inputs: a key "
                "stands for one request. Give another request another key"
            )

    def _stored_if_done(self, run: RunRow, key: RunKey, row: ThreadRow, request: Request) -> StoredRun | None:
        """The run as it is stored, if nothing is left to do; None if it is open, and the last one of the thread."""
        end = self._end_of(run, row)
        ending = None if end is None else last_end(self._store, end)
        status = None if ending is None else EndRow.of(ending).status
        if end is not None and (status == "completed" or end == row.head):
            return self._starter.as_stored(read_run(self._store, end), request) if status in DONE else None
        now = self._store.thread(self._thread)
        if now is None or (now.epoch, now.head) != (row.epoch, row.head):
            raise ConcurrentRunError(
                f"another process has changed thread {self._thread!r} since it was read. Nothing was written: {WAIT}"
            )
        raise ThreadError(
            f"the run of key {key.text!r} on thread {self._thread!r} was abandoned, or replaced by a rerun, before it "
            "had completed, and a key starts no second run. To do it again, give the request another key"
        )

    def _end_of(self, run: RunRow, row: ThreadRow) -> Point | None:
        """Where the run has completed first, or the head of the thread if that is where it goes on; None for neither.

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
            others = [run for run in self._store.runs(self._thread) if run.header.get("continues") and run.id != root]
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


class Play(NamedTuple):
    """A run to play: with which inputs, under which lock, and as which request."""

    player: RunPlayer
    inputs: Mapping[str, Any]
    lock: ThreadLock
    request: Request

    def run(self) -> Run:
        """Play it."""
        return self.player.play(self.inputs, self.lock)

    async def arun(self) -> Run:
        """Play it in async code."""
        return await self.player.aplay(self.inputs, self.lock)

    def stream(self) -> Events:
        """Its events; it begins with the first one that is asked for."""
        return Events(partial(self.player.play, self.inputs, self.lock), self.request)

    def astream(self) -> AsyncEvents:
        """The same in async code."""
        return AsyncEvents(partial(self.player.aplay, self.inputs, self.lock), self.request)


class RunPlayer:
    """Plays the runs of one thread.

    `new`, `last` and `rerun` check a call, and return the run to play.
    """

    def __init__(
        self, program: ThreadProgram, starter: RunStarter, reader: ThreadReader, merge_on_finish: MergeOnFinish
    ) -> None:
        self._program = program
        self._starter = starter
        self._reader = reader
        self._merge_on_finish = merge_on_finish
        self._keyed_runs = KeyedRuns(starter)

    def new(
        self,
        inputs: Mapping[str, Any],
        request: Request,
        abandon: bool,
        take_over: bool,
        on_conflict: str,
        lock_timeout: float,
        key: str | None,
    ) -> Play:
        """The play of a new run, or of the run that a key identifies."""
        check_flags(abandon=abandon, take_over=take_over)
        resources_of_call(self._program, request)
        first = partial(self._starter.first_of_new, inputs=inputs, request=request, abandon=abandon)
        acquire = partial(self._starter.acquire, first, request, take_over=take_over, remedy=WAIT_OR_REPLACE)
        if key is not None:
            run_key = RunKey.of(key, inputs, on_conflict, self._starter.graph)
            acquire = partial(self._keyed_runs.start, inputs, run_key, request, abandon=abandon, take_over=take_over)
        elif on_conflict == "merge":
            acquire = partial(self._merge_on_finish.start, inputs, request, abandon=abandon)
        return Play(self, inputs, ThreadLock(acquire, request, on_conflict, lock_timeout), request)

    def last(
        self, answers: AnswersByKey, request: Request, take_over: bool, max_resumes: int, allow: AllowChanged
    ) -> Play:
        """The play of the last run, to be resumed."""
        check_flags(take_over=take_over)
        resources_of_call(self._program, request)
        resume = self._starter.first_of_last
        first = partial(resume, answers=answers, request=request, max_resumes=max_resumes, allow=allow)
        acquire = partial(self._starter.acquire, first, request, take_over=take_over)
        return Play(self, {}, ThreadLock(acquire, request, "raise", 0.0), request)

    def rerun(self, version: int | str, request: Request, take_over: bool) -> Play:
        """The play of a run that repeats what came after a commit."""
        check_flags(take_over=take_over)
        resources_of_call(self._program, request)
        first_write = partial(first_write_of_rerun, self._starter, self._reader, version)
        acquire = partial(self._starter.acquire, first_write, request, take_over=take_over)
        return Play(self, {}, ThreadLock(acquire, request, "raise", 0.0), request)

    # These hold no run in a variable: the traceback of its error refers to their frames, and would keep it alive.

    def play(self, inputs: Mapping[str, Any], lock: ThreadLock) -> Run:
        """The run, once it has ended."""
        return self._finish(self._play_held(inputs, lock), lock)

    async def aplay(self, inputs: Mapping[str, Any], lock: ThreadLock) -> Run:
        """The same in async code."""
        return await self._afinish(await self._aplay_held(inputs, lock), lock)

    def _play_held(self, inputs: Mapping[str, Any], lock: ThreadLock) -> Run:
        with lock.request.until_ctrl_c(), lock.held() as held:
            if isinstance(held, StoredRun):
                return stored_run(self._program, held.request)
            return run_program(self._program, inputs, held.request)

    async def _aplay_held(self, inputs: Mapping[str, Any], lock: ThreadLock) -> Run:
        async with lock.aheld() as held:
            if isinstance(held, StoredRun):
                return stored_run(self._program, held.request)
            return await arun_program(self._program, inputs, held.request)

    def _finish(self, run: Run, lock: ThreadLock) -> Run:
        for pause in self._merge_on_finish.attempts(run, lock):
            time.sleep(pause)
        return run

    async def _afinish(self, run: Run, lock: ThreadLock) -> Run:
        if lock.owned is None or lock.owned.journal.thread:  # it owns its thread: no worker thread is needed
            return run
        before = cancellation_count()
        attempt = partial(next, self._merge_on_finish.attempts(run, lock), None)
        while True:
            pause = await run_in_thread(attempt)
            if cancellation_count() > before:
                raise asyncio.CancelledError  # held back until the attempt has ended: none is made any more
            if pause is None:
                return run
            await anyio.sleep(pause)


def stop_run(starter: RunStarter) -> None:
    """Write the end of the run that owns a thread, under a new epoch: the owner can commit nothing more.

    Raises `ThreadError` if no run owns the thread.
    """
    owner = new_owner()
    owner = owner._replace(token=STOPPING + owner.token)
    fenced = False  # whether the run that owned the thread can write no more
    while True:
        row = starter.store.thread(starter.thread)
        if fenced and (row is None or row.owner is None or not row.owner.token.startswith(STOPPING)):
            return  # another call has written the end, or a later run has the thread
        if row is None or not is_alive(row):
            raise ThreadError(f"no run works on thread {starter.thread!r}: there is nothing to stop")
        journal: Journal | None = None
        try:
            # First the fence, then the head: the owner may commit until then, and all of that is kept.
            journal = starter.replace_owner(row, owner)
            fenced = True
            head = starter.load_head()
            if head.last_run is not None and head.last_run.status is None:
                _write_stopped(starter, head, journal.epoch)
        except ConcurrentRunError:
            continue  # another process was faster
        finally:
            if journal is not None:
                journal.release()  # of no effect after the write, which has released the thread
            leases.let_go(owner.token)
        if row.owner is not None:
            leases.renew_now(row.owner.token)
        return


def _write_stopped(starter: RunStarter, head: ThreadHead, epoch: int, next_epoch: int | None = None) -> None:
    """Write that the last run of a thread was stopped; the thread has no owner then."""
    at = head.row.head
    assert at is not None
    run = read_run(starter.store, at)
    steps = sum(1 for _ in run.own_commits())
    before = totals_at(starter.store, run.parents, head.row.root)
    end = end_row("stopped", None, (), run_usage(run.rows), steps, before).numbered(at.seq + 1)
    point = Point(at.run, end.seq)
    starter.store.write(
        Change(starter.thread, epoch, next_epoch, lease=0.0, head=point, rows_of=at.run, rows=[end], flush=True)
    )


def stop_waiting(thread: Thread) -> None:
    """End the last run of a thread if it waits for answers: it is stopped then, as by its user.

    Raises `ConcurrentRunError` if a run owns the thread.
    """
    starter = thread._starter
    head = starter.load_head_without_owner()
    if head.last_run is not None and head.last_run.status == "interrupted":
        _write_stopped(starter, head, head.row.epoch, head.row.epoch + 1)


# The parts of a `Thread` handle: what reads the thread, starts and merges its runs, and plays them.


class ThreadParts(NamedTuple):
    """What a handle passes its calls on to."""

    rows: HistoryReader
    history: ThreadReader
    redactor: Callable[[], Redactor | None]
    starter: RunStarter
    merger: ThreadMerger
    player: RunPlayer


def thread_parts(program: ThreadProgram, store: Store, name: str) -> ThreadParts:
    """The parts of the handle of a program on a thread."""
    check_thread_name(name)
    graph, schema, fingerprint = program.graph, program.graph.topology.schema, fingerprint_of(program)
    # A store in memory keeps the values themselves, whatever their classes are; others must be able to read them.
    check = () if isinstance(store, Memory) else (StorableCheck(graph.name, schema),)
    reader = HistoryReader(CheckedStore(store, *check), schema, decoder(schema), fingerprint.id)
    history = ThreadReader(reader, name)
    starter = RunStarter(graph, reader, name, fingerprint, history.cache.up_to, recent_indexes(program))
    merger = ThreadMerger(starter, history)
    player = RunPlayer(program, starter, history, MergeOnFinish(starter, merger))
    redactor = partial(thread_redactor, reader, name, graph.redaction, lambda: starter.load_head().state)
    return ThreadParts(reader, history, redactor, starter, merger, player)

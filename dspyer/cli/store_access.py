"""Open the store that a command works on, and what needs no program. It imports no DSPy.

Only `run` and `load` create a store. Commands import this module in their functions: `dspyer --help` needs none of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

from dspyer import Archive, ImmutableState
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.cli.arguments import CommonOptions, UsageError, version_of
from dspyer.errors import StoreError, ThreadError
from dspyer.events import Answer
from dspyer.extend import Address, full_id, whole_execution
from dspyer.log.journal import CheckedStore
from dspyer.log.reader import is_encrypted
from dspyer.log.rows import UnreadablePatch
from dspyer.patch import encode_update
from dspyer.record import Items, RecordStep
from dspyer.record import Record as RunRecord
from dspyer.record_codec import changed
from dspyer.stores import Store, open_store
from dspyer.stores.address import SQLITE
from dspyer.stores.base import RunQuery
from dspyer.threads.export import export, load
from dspyer.values import json as encoding

KEY_VARIABLE = "DSPYER_STORE_KEY"
NO_STORE = "no store: give --store, the path of a file or postgresql://..., or set DSPYER_STORE"
IN_MEMORY = "a store in memory ends with its process: give --store the path of a file"


def open_archive(common: CommonOptions, program: Any = None) -> Archive:
    """The archive of a store that exists, or of a program. It is opened for reading: nothing is created or changed."""
    redact: Literal[False] | None = False if common.unredacted else None
    if program is not None:
        return Archive(program._store, redact=redact)
    keys = None if common.key_file is None else _keys_in(common.key_file)
    with _refusing(_address_of(common)) as address:
        return Archive(address, key=keys, redact=redact)


def record_named(archive: Archive, name: str) -> RunRecord:
    """The record of the last run of a thread, or of a run by its label, which begins with the name of its thread."""
    try:
        return archive.thread(name).record()
    except ThreadError as error:
        try:
            thread = archive.thread(name.rpartition(".")[0])
        except ThreadError:
            raise error from None
        return thread.record(name)


def json_of(state: ImmutableState) -> dict[str, Any]:
    """The JSON form of a state, by field."""
    return cast(dict[str, Any], json.loads(state.to_json()))


def shown_state(t: ArchivedThread, run: str | None = None, at: int | str | None = None) -> ImmutableState:
    """The state of a run, or that after a commit, as it may be shown."""
    if at is None:
        return t._records.shown(t.state(run), run)
    return t._records.shown(t.at(at), Address.parse(t._thread_reader.id_of(at)).run)


def failed_calls(t: ArchivedThread, run: str | None) -> list[dict[str, Any]]:
    """The JSON form of the LM calls of the executions that have failed a run: no commit has them."""
    calls: list[dict[str, Any]] = []
    for failure in t.failures(run):
        try:
            calls += [call.to_dict() for call in t.lm_calls(failure.execution)]
        except LookupError:  # it has failed before its node was called: a join, a route
            continue
    return calls


Dicts = list[dict[str, Any]]


def facts_of(t: ArchivedThread, run: str | None) -> tuple[dict[str, Any], list[Items], Dicts, Dicts]:
    """The entry of a run, the items of its maps, the answers that it got, and the messages, with the unread ones."""
    info, record = t.info(run).to_dict(), t.record(run)
    messages = [*record.messages(), *[{**one.to_dict(), "step": None} for one in t.unread]]
    items = [found for node in record.graph.maps if (found := t.items(node, run)).total]
    return info, items, [one.to_dict() for one in record.answers()], messages


def step_of(t: ArchivedThread, name: int | str, run: str | None) -> tuple[dict[str, Any], bool]:
    """The JSON form of a commit, or of an execution that failed or asks, and whether it is a commit."""
    if isinstance(name, int):
        page = t.history(run=run, first=name, count=1)
        if not page or page[0].version != name:
            t.at(name)  # raises that there is none
        name = page[0].id
    record = t.record(run)
    if run is None and not record.has(name) and (label := Address.parse(name).run) not in ("", record.id):
        with suppress(ThreadError):
            record = t.record(label)
    stops = _stops(record)
    for one in (name, full_id(record.id, name)):
        step = record.step(one) if record.has(one) else None
        if step is not None and step.commit is not None:
            return _commit_facts(record, step), True
        # An item that has failed its map has no step of its own: the failure is that of the map.
        if found := stops.get(one) or step or stops.get(one.removesuffix(Address.parse(one).part)):
            return _execution_facts(record, found), False
    t.at(name)
    raise LookupError(f"no step of the run {record.id!r} has the id {name!r}")


def _commit_facts(record: RunRecord, step: RecordStep) -> dict[str, Any]:
    """A commit with the states before and after it, what differs, who had written each field, and its LM calls.

    Of one that cannot be read it says what it was, and why.
    """
    assert step.commit is not None
    is_readable = step.status != "unreadable"
    before = _values(record, step.after[0]) if step.after and is_readable else None
    after = _values(record, step.id) if is_readable else None
    # From what may be shown: the difference of the states themselves would tell what is hidden in them.
    differing = ImmutableState(before or {}).diff(ImmutableState(after or {}))
    return {
        "commit": changed(step.commit, reason=step.reason).to_dict(),
        "before": None if before is None else _encoded(before),
        "after": None if after is None else _encoded(after),
        "diff": patch_dict(differing),
        "conflicts": [conflict.to_dict() for conflict in step.conflicts],
        **_facts_around(record, step),
    }


def _execution_facts(record: RunRecord, step: RecordStep) -> dict[str, Any]:
    """An execution that has left no commit: what it could read, and its LM calls."""
    return {
        "execution": step.id,
        "node": step.node,
        "parents": list(step.after),
        "state": _encoded(_values(record, step.id)),
        **_facts_around(record, step),
    }


def _facts_around(record: RunRecord, step: RecordStep) -> dict[str, Any]:
    writers = record.fields(step.id) if step.status != "unreadable" else {}
    return {
        "blame": {name: {"node": record.node(one.by or ""), "commit": one.by} for name, one in writers.items()},
        "lm_calls": [call.to_dict() for call in record.calls(step.id)],
        "answers": [one.to_dict() for one in record.answers(step.id)],
        "sent": _encoded(step.sent),
    }


def _values(record: RunRecord, step: str) -> dict[str, Any]:
    return {name: one.value for name, one in record.fields(step).items()}


def _encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encoding.encode(value) for name, value in values.items()}


def _stops(record: RunRecord) -> dict[str, RecordStep]:
    """The executions that failed or ask, by their ids and by those of their questions.

    Of an item of a map, and of a node inside of a graph, this is the node of the run around it.
    """
    found: dict[str, RecordStep] = {}
    outermost: RecordStep | None = None
    for step in record.steps:
        outermost = step if step.parent is None else outermost
        assert outermost is not None
        if step.parent is None and step.commit is None and step.status in ("failed", "waiting"):
            found[step.id] = step
        if outermost.commit is None:
            if step.asked is not None:
                found[step.asked.question.id] = outermost
            if step.failure is not None:
                found[step.id] = outermost
    return found


def commits_of(
    t: ArchivedThread, run: str | None, inside: str | None, first: int | None, count: int, *, newest: bool
) -> tuple[list[dict[str, Any]], int | None, str | None]:
    """The JSON form of a page of commits, each with the answers that its node got.

    Also the version with which the next page begins, None for the last page; and why one of them cannot be read.
    """
    if inside is None:
        found = t.history(run=run, first=first, count=count + 1, newest=newest)  # one more tells whether there is one
    else:  # these have no pages
        found = t.history(version_of(inside), run=run)[:: -1 if newest else 1]
        if not found:
            t.at(version_of(inside))  # raises if there is no such commit
        count = len(found)
    given: dict[str, list[Answer]] = {}
    for answer in t.answers:
        executions = Address.parse(answer.question.execution).inside
        for depth, own in enumerate(executions):  # the commit of a node that runs a graph has those of nodes inside too
            name = full_id(answer.question.run, *executions[:depth], whole_execution(own))
            given.setdefault(name, []).append(answer)
    shown, problem = [], None
    for commit in found[:count]:
        shown.append(
            {**t._records.shown(commit).to_dict(), "answers": [one.to_dict() for one in given.get(commit.id, ())]}
        )
        if isinstance(commit.patch, UnreadablePatch):
            shown[-1]["patch"] = {"$type": "unreadable", "value": commit.patch.error}
            problem = problem or commit.patch.error
    return shown, found[count].version if len(found) > count else None, problem


def patch_dict(patch: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON form of a patch, by field."""
    return {name: encode_update(update) for name, update in patch.items()}


def open_to_write(common: CommonOptions, create: bool = False) -> Store:
    """A store for writing, which exists or may be created; encrypted if it is, or has no runs and there is a key."""
    address, key_file = _address_of(common), common.key_file
    try:
        # First read only: a name that is mistyped must not make a file.
        with _opened(address, read_only=True) as reading:
            checked = CheckedStore(reading)
            is_empty, encrypted = not checked.list_runs(RunQuery(limit=1)), is_encrypted(checked)
    except StoreError:
        if not create or Path(address.removeprefix(SQLITE)).exists():
            raise
        is_empty, encrypted = True, False
    if key_file is not None and not is_empty and not encrypted:
        raise StoreError(f"the store {reading.address!r} is not encrypted: leave out --key-file")
    has_key = key_file is not None or bool(os.environ.get(KEY_VARIABLE))
    return _opened(address, key_file, encrypted or (is_empty and has_key))


def _opened(address: str, key_file: str | None = None, encrypted: bool = False, read_only: bool = False) -> Store:
    with _refusing(address):
        store = open_store(address, read_only=read_only)
        if not encrypted:
            return store
        from dspyer.stores.encrypted import Encrypted

        return Encrypted(store, None if key_file is None else _keys_in(key_file))


def _address_of(common: CommonOptions) -> str:
    """The address of the store of a command, which lasts longer than its process."""
    if common.store in (None, ":memory:"):
        raise UsageError(NO_STORE if common.store is None else IN_MEMORY)
    return common.store


@contextmanager
def _refusing(address: str) -> Iterator[str]:
    """A block in which an address or a key that is no good is an error of who typed it."""
    try:
        yield address
    except (ValueError, ImportError) as error:
        raise UsageError(f"the store {address!r}: {error}") from error


def _keys_in(file: str) -> list[str | bytes]:
    """The keys in a file: 32 raw bytes, or URL-safe base64 with line ends or commas between several."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"--key-file {file!r} cannot be read: {error.strerror}") from error
    if len(data) == 32:  # base64 of a key has 43 or 44
        return [data]
    keys = data.decode("ascii", "replace").replace(",", " ").split()
    if not keys:
        raise UsageError(f"--key-file {file!r} is empty")
    return list(keys)


def export_thread(common: CommonOptions, thread: str, file: Path) -> str:
    """Write a thread to a file, with everything that it holds; return the digest."""
    with open_to_write(common) as store:
        checked = CheckedStore(store)
        row = checked.thread(thread)
        if row is None:
            raise ThreadError(f"there is no thread {thread!r} in {store.address}")
        return export(checked, row, file)


def load_thread(common: CommonOptions, thread: str, file: Path) -> None:
    """Make a thread from an exported file, in a store that is created if there is none."""
    with open_to_write(common, create=True) as store:
        load(CheckedStore(store, thread=thread), thread, file)

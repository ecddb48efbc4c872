"""Open the store that a command works on, and what needs no program. It imports no DSPy.

Only `run` and `load` create a store. Commands import this module in their functions: `dspyer --help` needs none of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspyer.archive.archive import Archive
from dspyer.archive.archived_thread import ArchivedThread, state_dict
from dspyer.archive.opening import is_encrypted
from dspyer.cli.arguments import UsageError, version_of
from dspyer.errors import StoreError, ThreadError
from dspyer.events import Commit
from dspyer.log.journal import CheckedStore
from dspyer.log.rows import UnreadablePatch
from dspyer.patch import encode_update
from dspyer.stores.address import SQLITE, open_store
from dspyer.stores.base import RunQuery, Store
from dspyer.threads.export import export, load

KEY_VARIABLE = "DSPYER_STORE_KEY"
NO_STORE = "no store: give --store, the path of a file or postgresql://..., or set DSPYER_STORE"
IN_MEMORY = "a store in memory ends with its process: give --store the path of a file"


def open_archive(address: str | None, key_file: str | None) -> Archive:
    """The archive of a store that exists. It is opened for reading: nothing is created or changed."""
    if address is None:
        raise UsageError(NO_STORE)
    if address == ":memory:":
        raise UsageError(IN_MEMORY)
    keys = None if key_file is None else _keys_in(key_file)
    try:
        return Archive(address, key=keys)
    except (ValueError, ImportError) as error:
        raise UsageError(f"the store {address!r}: {error}") from error


def state_of_run(t: ArchivedThread, run: str | None) -> dict[str, Any]:
    """The JSON form of the state that a run has left."""
    return state_dict(t.state(run))


def failed_calls(t: ArchivedThread, run: str | None) -> list[dict[str, Any]]:
    """The JSON form of the LM calls of the executions that have failed a run: no commit has them."""
    calls: list[dict[str, Any]] = []
    for failure in t.failures(run):
        try:
            calls += [call.to_dict() for call in t.lm_calls(failure.execution)]
        except LookupError:  # it has failed before its node was called: a join, a route
            continue
    return calls


UNREADABLE = "unreadable"


def commits_of(
    t: ArchivedThread, run: str | None, inside: str | None, first: int | None, count: int, *, newest: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """The JSON form of a page of commits, and the version with which the next page begins; None for the last page."""
    if inside is not None:
        found = t.history(version_of(inside), run=run)
        if not found:
            t.commit(version_of(inside))  # raises if there is no such commit
        return [_commit_dict(commit) for commit in (reversed(found) if newest else found)], None
    found = t.history(run=run, first=first, count=count + 1, newest=newest)
    more = found[count].version if len(found) > count else None
    return [_commit_dict(commit) for commit in found[:count]], more


def _commit_dict(commit: Commit) -> dict[str, Any]:
    """The JSON form of a commit; if its patch cannot be read, with the reason as its patch."""
    found = commit.to_dict()
    if isinstance(commit.patch, UnreadablePatch):
        found["patch"] = {"$type": UNREADABLE, "value": commit.patch.error}
    return found


def is_unreadable(commit: Mapping[str, Any]) -> bool:
    """Whether the patch of a commit cannot be read."""
    patch = commit["patch"]
    return isinstance(patch, Mapping) and patch.get("$type") == UNREADABLE


def state_at(t: ArchivedThread, version: int | str) -> dict[str, Any]:
    """The JSON form of the state after a commit."""
    return state_dict(t.at(version))


def patch_dict(patch: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON form of a patch, by field."""
    return {name: encode_update(update) for name, update in patch.items()}


def writers(t: ArchivedThread, paths: Sequence[str] | None, at: int | str | None) -> list[dict[str, Any]]:
    """The commits that have last written paths of the state, or each of its fields, with the path in front."""
    found = paths
    if found is None:
        found = list(t.state() if at is None else t.at(at))
    return [{"path": path, **t.blame(path if paths else (path,), at).to_dict()} for path in found]


def open_existing(address: str | None, key_file: str | None) -> Store:
    """A store that exists already, for writing; encrypted if it is, or if it is empty and there is a key."""
    if address is None:
        raise UsageError(NO_STORE)
    with _opened(address, read_only=True) as reading:
        checked = CheckedStore(reading)
        is_empty, encrypted = not checked.list_runs(RunQuery(limit=1)), is_encrypted(checked)
    if key_file is not None and not is_empty and not encrypted:
        raise StoreError(f"the store {reading.address!r} is not encrypted: leave out --key-file")
    return _opened(address, key_file, encrypted or (is_empty and _has_key(key_file)))


def open_or_create(address: str, key_file: str | None) -> Store:
    """A store for writing, which is created if there is none; then it is encrypted if there is a key."""
    try:
        return open_existing(address, key_file)
    except StoreError:
        if Path(address.removeprefix(SQLITE)).exists():
            raise
    return _opened(address, key_file, _has_key(key_file))


def _has_key(key_file: str | None) -> bool:
    return key_file is not None or bool(os.environ.get(KEY_VARIABLE))


def _opened(address: str, key_file: str | None = None, encrypted: bool = False, read_only: bool = False) -> Store:
    if address == ":memory:":
        raise UsageError(IN_MEMORY)
    try:
        store = open_store(address, read_only=read_only)
        if not encrypted:
            return store
        from dspyer.stores.encrypted import Encrypted  # only here: it needs an extra

        return Encrypted(store, None if key_file is None else _keys_in(key_file))
    except (ValueError, ImportError) as error:
        raise UsageError(f"the store {address!r}: {error}") from error


def _keys_in(file: str) -> list[str | bytes]:
    """The keys in a file: 32 raw bytes, or URL-safe base64 with line ends or commas between several."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"--key-file {file!r} cannot be read: {error.strerror}") from error
    if len(data) == 32:
        return [data]
    keys = data.decode("ascii", "replace").replace(",", " ").split()
    if not keys:
        raise UsageError(f"--key-file {file!r} is empty")
    return list(keys)


def export_thread(address: str | None, key_file: str | None, thread: str, file: Path) -> str:
    """Write a thread to a file, with everything that it holds; return the digest."""
    with open_existing(address, key_file) as store:
        checked = CheckedStore(store)
        row = checked.thread(thread)
        if row is None:
            raise ThreadError(f"there is no thread {thread!r} in {store.address}")
        return export(checked, row, file)


def load_thread(address: str | None, key_file: str | None, thread: str, file: Path) -> None:
    """Make a thread from an exported file, in a store that is created if there is none."""
    if address is None:
        raise UsageError(NO_STORE)
    with open_or_create(address, key_file) as store:
        load(CheckedStore(store), thread, file)

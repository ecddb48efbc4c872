"""Open the store that a command works on, and what needs no program. It imports no DSPy.

Only `run` and `load` create a store. Commands import this module in their functions: `dspyer --help` needs none of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from dspyer.cli.arguments import UsageError
from dspyer.errors import StoreError, ThreadError
from dspyer.persistence.checked_store import CheckedStore
from dspyer.persistence.reader import HistoryReader
from dspyer.schema.schema import Schema
from dspyer.stores.address import open_store
from dspyer.stores.base import Store
from dspyer.threads.export import export, load

KEY_VARIABLE = "DSPYER_STORE_KEY"
NO_STORE = "no store: give --store, the path of a file or postgresql://..., or set DSPYER_STORE"
POSTGRES = ("postgresql://", "postgres://")


def open_existing(address: str | None, key_file: str | None) -> Store:
    """A store that exists already."""
    if address is None:
        raise UsageError(NO_STORE)
    return open_writable(address, key_file, create=False)


def open_writable(address: str, key_file: str | None, create: bool) -> Store:
    """A store; one that is a file is created only with `create`."""
    if address == ":memory:":
        raise UsageError("a store in memory ends with its process: give --store the path of a file")
    try:
        store = open_store(address)
    except (ValueError, ImportError) as error:
        raise UsageError(f"--store: {error}") from error
    if not address.startswith(POSTGRES):
        path = Path(address.removeprefix("sqlite:///"))
        if path.is_dir():
            raise StoreError(f"the store {address!r} is a folder: give the path of the file in it")
        if not create and not path.exists():
            raise StoreError(f"there is no store at {address!r}")
    return with_key(store, key_file)


def with_key(store: Store, key_file: str | None) -> Store:
    """The store as it is decrypted, if there is a key: in a file, or in the environment."""
    if key_file is None and not os.environ.get(KEY_VARIABLE):
        return store
    try:
        from dspyer.stores.encrypted import Encrypted  # only here: it needs an extra
    except ImportError as error:
        raise UsageError("an encrypted store needs another package: pip install 'dspyer[crypto]'") from error
    try:
        return Encrypted(store, None if key_file is None else _keys_in(key_file))
    except ValueError as error:
        raise UsageError(f"{KEY_VARIABLE if key_file is None else repr(key_file)}: {error}") from error


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
        return export(HistoryReader(checked, Schema.of(None)), row, file)


def load_thread(address: str | None, key_file: str | None, thread: str, file: Path) -> None:
    """Make a thread from an exported file, in a store that is created if there is none."""
    if address is None:
        raise UsageError(NO_STORE)
    with open_writable(address, key_file, create=True) as store:
        load(CheckedStore(store), thread, file)

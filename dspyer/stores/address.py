"""`open_store`: the store at an address."""

from __future__ import annotations

import os

from dspyer.stores.base import Store
from dspyer.stores.memory import Memory
from dspyer.stores.sqlite import SQLite
from dspyer.values.scalars import check_flags

POSTGRES = ("postgresql://", "postgres://")
SQLITE = "sqlite:///"
KINDS = '":memory:", the path of a file ("runs.db" or "sqlite:///runs.db"), "postgresql://...", or a Store'


def open_store(address: Store | str | os.PathLike[str], *, read_only: bool = False) -> Store:
    """Open the store at an address.

    Args:
        address: the path of an SQLite file, plain or after `sqlite:///`; `":memory:"`; a `postgresql://` address; or a
            store, which is returned as it is.
        read_only: opens a file or a database without writing to it: it is neither created nor brought up to date.

    Returns:
        The store. A file or tables that do not exist are created by the first write, unless `read_only`.

    Raises:
        StoreError: `read_only`, and there is no such file.
        TypeError: `address` is neither text, a path nor a store.
        ValueError: no kind of store has such addresses.
        ImportError: it is a PostgreSQL address, and the driver is not installed.

    Example:
        >>> open_store(":memory:")
        Memory()
        >>> open_store("sqlite:////var/runs.db")
        SQLite('/var/runs.db')
    """
    check_flags(read_only=read_only)
    if isinstance(address, Store):
        return address
    if not isinstance(address, str | os.PathLike):
        raise TypeError(f"a store is {KINDS}, not {address!r}")
    text = os.fspath(address)
    if text == ":memory:":
        return Memory()
    if text.startswith(POSTGRES):
        from dspyer.stores.postgres import Postgres  # only here: its driver is an optional dependency

        return Postgres(text, read_only=read_only)
    path = text.removeprefix(SQLITE)
    if isinstance(address, str) and "://" in path:
        kind = path.partition("://")[0]
        raise ValueError(f"no store of kind {kind!r} is known: a store is {KINDS}")
    if not path or path == ":memory:" or path.startswith("file:"):
        raise ValueError(f"{text!r} names no file: a store is {KINDS}")
    return SQLite(path, read_only=read_only)

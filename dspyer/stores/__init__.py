"""Where runs are kept: the protocol of a store, and the stores."""

from __future__ import annotations

from os import PathLike, fspath

from dspyer.stores.base import Store

POSTGRES = ("postgresql://", "postgres://")


def open_store(address: Store | str | PathLike[str]) -> Store:
    """The store at an address.

    Args:
        address: the path of an SQLite file, `":memory:"`, a `postgresql://` address, or a store.

    Returns:
        The store. A file or database is made when it is first written to.
    """
    if isinstance(address, Store):
        return address
    text = fspath(address)
    if text == ":memory:":
        from dspyer.stores.memory import Memory

        return Memory()
    if text.startswith(POSTGRES):
        from dspyer.stores.postgres import Postgres

        return Postgres(text)
    from dspyer.stores.sqlite import SQLite

    return SQLite(text.removeprefix("sqlite:///"))


__all__ = ["Store", "open_store"]

"""Open a store for reading: nothing is created, and an encrypted one is recognized."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dspyer.errors import StoreError
from dspyer.log.journal import CheckedStore
from dspyer.stores import Store, open_store
from dspyer.stores.base import RunQuery

Key = str | bytes
Keys = Key | Sequence[Key] | None


def open_for_reading(store: Store | str | os.PathLike[str], key: Keys) -> Store:
    """Return the store of an archive.

    Raises:
        StoreError: the file or the tables do not exist.
    """
    if not isinstance(store, Store) and os.fspath(store) == ":memory:":
        raise StoreError(
            "':memory:' is a new store, which has no runs: give the address of a file or a database, or the store"
        )
    opened = open_store(store, read_only=True)
    if key is None and not is_encrypted(CheckedStore(opened)):
        return opened
    from dspyer.stores.encrypted import Encrypted  # only here: it needs a package that may be missing

    return opened if isinstance(opened, Encrypted) else Encrypted(opened, key)


def is_encrypted(store: Store) -> bool:
    """Return whether the contents of the newest run are encrypted."""
    # Lists read headers alone, which encryption leaves as they are. The first row with a content says how it is stored;
    # a store is encrypted as a whole, so the newest run speaks for all.
    for listed in store.list_runs(RunQuery(limit=1)):
        for row in store.rows(listed.run.id, 0, 1):
            if row.content is not None and row.content.is_encoded:
                return row.content.is_encrypted
    return False

"""A store whose failures are raised as `StoreError`.

A `Store` raises whatever its database raises (`sqlite3.OperationalError`, `OSError`, an error of a driver). The library
works with a `CheckedStore`, so that users catch one exception, with the original one as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from dspyer.ctrl_c import held_back
from dspyer.errors import DspyerError, StoreError
from dspyer.persistence.heads import Heads
from dspyer.stores.base import Change, Store, StoreAround
from dspyer.stores.content import blob_id

CheckChange = Callable[[Change], None]
"""Raises for a change that must not be written."""


class CheckedStore(StoreAround):
    """Delegates to a store, raises its failures as `StoreError`, and checks changes before they are written.

    Args:
        store: the store.
        check: raises for a change that must not be written; None for no check.

    Attributes:
        heads: what this process remembers of the threads of the store. A failure or a deletion forgets all of it.
    """

    def __init__(self, store: Store, check: CheckChange | None = None) -> None:
        super().__init__(store)
        self.check = check
        self.heads: Heads = store.heads if isinstance(store, CheckedStore) else Heads.of(store)

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Return large values by id. One that is not what its id says is damaged, and counts as lost."""
        return {name: data for name, data in super().blobs(ids).items() if blob_id(data) == name}

    def pass_on(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store, and convert what it raises."""
        if name in ("delete", "delete_unreachable"):
            self.heads.forget()
        try:
            if self.check is not None and name in ("write", "write_now"):
                self.check(args[0])
            with held_back():
                return getattr(self.store, name)(*args, **kwargs)
        except DspyerError:
            self.heads.forget()
            raise
        except Exception as error:
            self.heads.forget()
            raise StoreError(
                f"the store {self.store.address!r} failed: {type(error).__name__}: {error}. What was reported before "
                "is kept; repair the store, then call resume() on the thread"
            ) from error

"""A store whose failures are raised as `StoreError`.

A `Store` raises whatever its database raises (`sqlite3.OperationalError`, `OSError`, an error of a driver). The library
works with a `CheckedStore`, so that users catch one exception, with the original one as its cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from dspyer.ctrl_c import held_back
from dspyer.errors import DspyerError, StoreError
from dspyer.stores.base import Change, Store

P = ParamSpec("P")
T = TypeVar("T")

CheckChange = Callable[[Change], None]
"""Raises for a change that must not be written."""


def _delegated(method: Callable[Concatenate[Any, P], T], checked: bool = False) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a `CheckedStore` that calls this one of its store, and converts what it raises."""
    name = method.__name__

    def call(self: CheckedStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if checked and self.check is not None:
                self.check(cast("Change", args[0]))
            with held_back():
                found: T = getattr(self.store, name)(*args, **kwargs)
        except DspyerError:
            raise
        except Exception as error:
            raise StoreError(
                f"the store {self.store.address!r} failed: {type(error).__name__}: {error}. What was reported before "
                "is kept; repair the store, then call resume() on the thread"
            ) from error
        return found

    return call


class CheckedStore(Store):
    """Delegates to a store, raises its failures as `StoreError`, and checks changes before they are written.

    Args:
        store: the store.
        check: raises for a change that must not be written; None for no check.
    """

    def __init__(self, store: Store, check: CheckChange | None = None) -> None:
        self.store = store
        self.check = check

    @property
    def address(self) -> str:
        """Where it is."""
        return self.store.address

    write = _delegated(Store.write, checked=True)
    write_now = _delegated(Store.write_now, checked=True)
    thread = _delegated(Store.thread)
    threads = _delegated(Store.threads)
    run = _delegated(Store.run)
    runs = _delegated(Store.runs)
    list_runs = _delegated(Store.list_runs)
    rows = _delegated(Store.rows)
    blobs = _delegated(Store.blobs)
    snapshot = _delegated(Store.snapshot)
    delete = _delegated(Store.delete)
    delete_unreachable = _delegated(Store.delete_unreachable)
    drop_snapshots = _delegated(Store.drop_snapshots)
    vacuum = _delegated(Store.vacuum)
    close = _delegated(Store.close)

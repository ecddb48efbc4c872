"""The stores of runs: `open_store`, the protocol `Store`, and the stores that need no extra dependency."""

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names
from dspyer.stores.base import Store

if TYPE_CHECKING:
    from dspyer.stores.address import open_store
    from dspyer.stores.memory import Memory
    from dspyer.stores.sharded import Sharded
    from dspyer.stores.sqlite import SQLite

__all__ = ["Memory", "SQLite", "Sharded", "Store", "open_store"]

# Most programs have no store, or one kind of it.
__getattr__ = lazy_names(
    __name__, {"open_store": "address", "Memory": "memory", "Sharded": "sharded", "SQLite": "sqlite"}
)

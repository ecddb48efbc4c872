"""The stores of runs: `open_store`, the protocol `Store`, and the stores that need no extra dependency."""

from dspyer.stores.address import open_store
from dspyer.stores.base import Store
from dspyer.stores.memory import Memory
from dspyer.stores.sqlite import SQLite

__all__ = ["Memory", "SQLite", "Store", "open_store"]

"""Where runs are kept: the protocol of a store, and the stores."""

from dspyer.stores.base import Store
from dspyer.stores.opening import open_store

__all__ = ["Store", "open_store"]

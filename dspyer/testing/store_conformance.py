"""The tests that every store must pass. They are plain methods: any runner that passes them a `store` can run them."""

from __future__ import annotations

from dspyer.testing.store_races import Racing
from dspyer.testing.store_reading import Reading
from dspyer.testing.store_removing import Removing
from dspyer.testing.store_writing import Owning, Writing


class StoreConformance(Reading, Writing, Owning, Removing, Racing):
    """What a store promises, as tests.

    A subclass with a fixture of the name `store` is all that pytest needs. Each test gets a store that is empty. With
    `opener`, what other objects and other processes see of the data is tested too, and processes are killed while they
    write.

    Attributes:
        values: what is written and read again, by name; add what your users store.
        types: classes that these values may name beside the registered ones.

    Example:
        >>> from dspyer.stores.memory import Memory
        >>> StoreConformance().test_leases(Memory())

        With pytest:

        ```python
        class TestMyStore(StoreConformance):
            @pytest.fixture
            def store(self, tmp_path):
                with MyStore(tmp_path / "runs") as store:
                    yield store

            def opener(self, store):
                return partial(MyStore, store.address)  # what it gives must be picklable
        ```
    """

"""One executor of this process for all tests of a session: its worker keeps programs, as that of a pool does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dspyer.testing import no_pauses
from tests.executors.pools import BytesExecutor


@pytest.fixture(scope="session")
def pool() -> Iterator[BytesExecutor]:
    with BytesExecutor() as executor:
        yield executor


@pytest.fixture(autouse=True)
def pauses() -> Iterator[None]:
    with no_pauses():
        yield

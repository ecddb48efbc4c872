"""Some of these tests call a node by itself, without the driver that names what runs and takes the name back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dspyer.dspy_module.executing import executing


@pytest.fixture(autouse=True)
def _nothing_executes_afterwards() -> Iterator[None]:
    yield
    executing.set(None)

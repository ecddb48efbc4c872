"""Fixtures: schemas of a real PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.stores import postgres_server


@pytest.fixture(scope="session")
def postgres_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server, shared by all workers of a test session."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with postgres_server.server(shared / "postgres", durable=False) as address:
        yield address


@pytest.fixture
def postgres(postgres_address: str) -> Iterator[str]:
    """The address of an empty schema, dropped at the end."""
    address = postgres_server.fresh(postgres_address)
    yield address
    postgres_server.drop(address)

"""Fixtures: schemas of a real PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dspyer.stores.postgres import Postgres
from tests.stores import postgres_server
from tests.stores.postgres_server import split_schema
from tests.stores.proxy import Proxy, proxy


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


@pytest.fixture
def store(postgres: str) -> Iterator[Postgres]:
    with Postgres(postgres) as opened:
        yield opened


@pytest.fixture
def between(postgres: str) -> Iterator[Proxy]:
    """A network before the server, which a test lets fail."""
    with proxy(split_schema(postgres)[0]) as found:
        yield found

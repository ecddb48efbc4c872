"""Fixtures: a real PostgreSQL server."""

from tests.stores.conftest import postgres_address

__all__ = ["postgres_address"]

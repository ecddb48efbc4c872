"""Fixtures: a real PostgreSQL server, and an empty schema."""

from tests.stores.conftest import postgres, postgres_address

__all__ = ["postgres", "postgres_address"]

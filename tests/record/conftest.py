from tests.stores.conftest import postgres, postgres_address

__all__ = ["postgres", "postgres_address"]

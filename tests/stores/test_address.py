"""From addresses to stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspyer.stores import Memory, SQLite, open_store
from tests.rows import each


@each(
    ("address", "path"),
    [
        ("runs.db", "runs.db"),
        (Path("runs.db"), "runs.db"),
        ("sqlite:///sub/runs.db", "sub/runs.db"),
        ("sqlite:////var/runs.db", "/var/runs.db"),
        ("größe?mode=ro.db", "größe?mode=ro.db"),
        (Path("odd://runs.db"), "odd:/runs.db"),
    ],
)
def test_paths_open_sqlite_files(address: str | Path, path: str) -> None:
    store = open_store(address)
    assert isinstance(store, SQLite)
    assert store.address == str(Path(path).absolute())
    assert repr(store) == f"SQLite({store.address!r})"


def test_memory_and_existing_stores() -> None:
    store = open_store(":memory:")
    assert isinstance(store, Memory)
    assert open_store(store) is store


@each(
    ("address", "kind", "words"),
    [
        ("mysql://host/db", ValueError, "no store of kind 'mysql'"),
        ("", ValueError, "names no file"),
        ("sqlite:///", ValueError, "names no file"),
        ("sqlite:///:memory:", ValueError, "names no file"),
        ("file:runs.db", ValueError, "names no file"),
        (7, TypeError, "not 7"),
        (None, TypeError, "not None"),
    ],
)
def test_other_addresses_are_errors(address: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        open_store(address)
    assert words in str(caught.value)
    assert "postgresql://" in str(caught.value)

"""A test that takes `play` runs in sync and in async code."""

from __future__ import annotations

from tests.runtime.conftest import everywhere, play  # noqa: F401 - fixtures

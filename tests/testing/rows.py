"""Tables of a test as one item: a failure names its row, and the rows after it run all the same."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def rows(names: str | tuple[str, ...], table: Iterable[Any]) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, in one item. `tmp_path` is a folder of its own for each row.

    Args:
        names: the parameter that a row is given as, or the parameters that its values are.
        table: the rows.
    """
    listed = list(table)
    keys = (names,) if isinstance(names, str) else names

    def over_all(test: Test) -> Test:
        @functools.wraps(test)
        def whole(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for number, row in enumerate(listed):
                given = dict(zip(keys, (row,) if isinstance(names, str) else row, strict=True))
                if "tmp_path" in fixtures:
                    given["tmp_path"] = fixtures["tmp_path"] / f"row {number}"
                    given["tmp_path"].mkdir()
                try:
                    test(**{**fixtures, **given})
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised below
                    error.add_note(f"in row {number}: {row!r}")
                    failed.append(error)
            if failed:
                raise failed[0] if len(failed) == 1 else BaseExceptionGroup(f"of {len(listed)} rows", failed)

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        whole.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return whole

    return over_all


def in_turn(table: Iterable[Any], values: Iterable[Any] = ("sync", "async")) -> list[tuple[Any, Any]]:
    """Each row with one of the values, which take turns: for what does not depend on both at once."""
    return list(zip(table, itertools.cycle(values)))

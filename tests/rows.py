"""Tables of cases: many small ones in one item, and of a product of axes as many as its pairs need."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from tests.budget import deep


def each(
    names: str | Collection[str], rows: Iterable[Any], ids: Iterable[str] | Callable[[Any], str] = repr, items: int = 1
) -> Callable[..., Any]:
    """In place of `pytest.mark.parametrize` for rows that take milliseconds: a thousand items cost a second to collect.

    Args:
        names: the parameters that a row gives, as `parametrize` takes them.
        rows: the rows.
        ids: their names, or what gives the name of a value; by default what it is written as.
        items: how many items share the rows, so that none takes long.

    Returns:
        A decorator. The test keeps its other parameters, fixtures that all rows share;
        `tmp_path` is a folder of its own for each row.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [(row,) if len(given) == 1 else tuple(row) for row in rows]
    known = [", ".join(map(ids, row)) for row in table] if callable(ids) else list(ids)
    if not table or len(known) != len(table) or any(len(row) != len(given) for row in table):
        raise ValueError(
            f"{len(table)} rows of {names}, {len(known)} names of rows: nothing, or not all, would be tested"
        )

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        if inspect.iscoroutinefunction(test):
            raise TypeError("rows of an async test would not be awaited: `asyncio.run` in a sync one awaits them")

        @functools.wraps(test)
        def whole(*args: Any, part: int = 0, **fixtures: Any) -> None:
            failed: list[BaseException] = []
            skipped: list[BaseException] = []
            for place, (name, row) in [*enumerate(zip(known, table, strict=True))][part::items]:
                values = {**fixtures, **dict(zip(given, row, strict=True))}
                if "tmp_path" in fixtures:
                    values["tmp_path"] = fixtures["tmp_path"] / f"row {place}"
                    values["tmp_path"].mkdir()
                try:
                    test(*args, **values)
                except pytest.skip.Exception as skip:
                    skip.msg = f"in row {name}: {skip.msg}"
                    skipped.append(skip)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all failures are raised below
                    error.add_note(f"in row {name}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} rows failed", failed)
            if skipped:  # after the other rows
                raise skipped[0]

        signature = inspect.signature(test)
        kept = [value for name, value in signature.parameters.items() if name not in given]
        if items > 1:
            kept.append(inspect.Parameter("part", inspect.Parameter.KEYWORD_ONLY))
        vars(whole)["__signature__"] = signature.replace(parameters=kept)
        return pytest.mark.parametrize("part", range(items))(whole) if items > 1 else whole

    return decorate


def sampled(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows in which each value of an axis meets each value of every other axis; `make test-deep` takes all rows.

    Most faults need one value, or two that meet (Kuhn, Wallace and Gallo, Software Fault Interactions, 2004).
    """
    whole = list(itertools.product(*(range(len(axis)) for axis in axes)))
    rows = whole if deep else []
    size = min(2, len(axes))
    open_pairs = set() if deep else {pair for row in whole for pair in itertools.combinations(enumerate(row), size)}
    while open_pairs:
        row = max(whole, key=lambda row: len(open_pairs.intersection(itertools.combinations(enumerate(row), size))))
        open_pairs -= {*itertools.combinations(enumerate(row), size)}
        rows.append(row)
    return [tuple(axis[place] for axis, place in zip(axes, row, strict=True)) for row in rows]


def in_turn(table: Iterable[Any], values: Iterable[Any] = ("sync", "async")) -> list[tuple[Any, Any]]:
    """Each row with one of the values, which take turns: for what does not depend on both at once."""
    return list(zip(table, itertools.cycle(values)))

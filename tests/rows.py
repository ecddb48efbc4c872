"""Tables of small cases that are one item: each row runs, and the failure names the rows that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any


def each(
    names: str | Collection[str], rows: Iterable[Any], ids: Iterable[str] | Callable[[Any], str] = repr
) -> Callable[..., Any]:
    """In place of `pytest.mark.parametrize` for rows that take milliseconds: a thousand items cost a second to collect.

    Args:
        names: the parameters that a row gives, as `parametrize` takes them.
        rows: the rows.
        ids: their names, or what gives the name of a value; by default what it is written as.

    Returns:
        A decorator. The test keeps its other parameters, fixtures that all rows share.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [(row,) if len(given) == 1 else tuple(row) for row in rows]
    known = [", ".join(map(ids, row)) for row in table] if callable(ids) else list(ids)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def whole(*args: Any, **fixtures: Any) -> None:
            failed = []
            for name, row in zip(known, table, strict=True):
                try:
                    test(*args, **fixtures, **dict(zip(given, row, strict=True)))
                except Exception as error:  # noqa: BLE001 - all failures are raised below
                    error.add_note(f"in row {name}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} rows failed", failed)

        signature = inspect.signature(test)
        kept = [value for name, value in signature.parameters.items() if name not in given]
        vars(whole)["__signature__"] = signature.replace(parameters=kept)
        return whole

    return decorate

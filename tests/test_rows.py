"""The helpers of the tests: no row of a table, and no end of a child, goes unseen."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import run_python
from tests.rows import each, sampled


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_each_value_of_an_axis_meets_each_of_every_other(sizes: list[int]) -> None:
    rows = sampled(*map(range, sizes))
    assert len(set(rows)) == len(rows)
    for first, second in itertools.combinations_with_replacement(range(len(sizes)), 2):
        met = {(row[first], row[second]) for row in rows}
        pairs = {*itertools.product(range(sizes[first]), range(sizes[second]))}
        assert met == (pairs if first != second else {(value, value) for value in range(sizes[first])})


def test_a_skipped_row_hides_no_other() -> None:
    seen = []

    @each("number", range(4))
    def rows(number: int) -> None:
        seen.append(number)
        if number == 0:
            pytest.skip("not today")
        assert number != 2

    with pytest.raises(BaseExceptionGroup) as failed:
        rows()
    assert seen == [0, 1, 2, 3]
    assert [error.__notes__ for error in failed.value.exceptions] == [["in row 2"]]

    @each("number", [0, 1], ids=["zero", "one"])
    def others(number: int) -> None:
        if number == 0:
            pytest.skip("not today")

    with pytest.raises(pytest.skip.Exception, match="in row zero: not today"):
        others()


def test_a_table_that_would_test_nothing_is_refused() -> None:
    async def waits(number: int) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="would not be awaited"):
        each("number", [1])(waits)
    for rows, ids in (([], []), ([1], []), ([(1, 2)], ["a", "b"])):
        with pytest.raises(ValueError, match="would be tested"):
            each("number", rows, ids)


def test_a_child_may_print_much_and_may_not_take_long() -> None:
    done = run_python("import sys; sys.stderr.write('x' * 1_000_000); print('end')")
    assert (done.returncode, done.stdout, len(done.stderr)) == (0, "end\n", 1_000_000)
    with pytest.raises(pytest.fail.Exception, match="has not ended"):
        run_python("import time; time.sleep(60)", timeout=0.3)

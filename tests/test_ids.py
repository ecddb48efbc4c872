"""The ids of commits and executions: any text is read, and read as it was written."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from dspyer.ids import (
    Address,
    id_order,
    is_within,
    label_of,
    outermost_execution,
    part_id,
    path_of_id,
    whole_execution,
)

# What the name of a thread, or a key, holds at worst: what ids themselves are made of.
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(["/", ":", "[", "]", "+", ".", "%", "%2F", "trunk", "trunk:0", "0:0", "1.0:3[x]", "\n"]),
        st.text(),
    )
).map("".join)
NUMBERS = st.one_of(st.integers(0, 12), st.integers(0, 10**18 - 1))
PATHS = st.lists(NUMBERS, max_size=3).map(tuple)
PARTS = st.one_of(
    st.integers(1, 12).map("+{}".format),
    st.lists(st.one_of(st.integers(0, 12), HOSTILE), max_size=2).map(
        lambda keys: "".join(part_id("", key) for key in keys)
    ),
)
LABELS = st.builds(label_of, HOSTILE, st.one_of(st.integers(1, 12), st.integers(0, 2**32 - 1).map("{:08x}".format)))
OWN = st.builds(Address, path=PATHS, index=NUMBERS, part=PARTS)
ADDRESSES = st.builds(
    lambda run, around, last: Address(run, tuple(map(str, around)), last.path, last.index, last.part),
    st.one_of(st.just(""), LABELS),
    st.lists(OWN, max_size=3),
    st.one_of(OWN, st.builds(Address, part=st.sampled_from(["pruned", "inputs", ""]))),
)


@given(ADDRESSES)
@example(Address("trunk:0.1", (), (), 0))
@example(Address("trunk:0/trunk:0[0.1", ("trunk:0[trunk:0]",), (1, 0), 2, "[again]"))
def test_what_is_written_is_read(address: Address) -> None:
    text = str(address)
    assert Address.parse(text) == address
    for outer in [whole_execution(text), *([outermost_execution(text)] if address.index >= 0 else [])]:
        assert is_within(text, outer)
        assert Address.parse(outer).is_commit or address.index < 0
        assert Address.parse(outer).run == address.run


@given(HOSTILE)
def test_every_text_is_read(text: str) -> None:
    assert str(Address.parse(text)) == text


@given(OWN, st.lists(HOSTILE, min_size=1, max_size=3))
def test_keys_are_read_as_they_were_given(execution: Address, keys: list[str]) -> None:
    text = str(execution) if execution.is_commit and not execution.change else "trunk:0"
    for key in keys:
        assert is_within(part_id(text, key), text)
        text = part_id(text, key)
    assert Address.parse(text).keys == keys
    assert not Address.parse(text).is_commit


FORMS: list[tuple[str, Address, bool]] = [
    ("", Address(), False),
    ("t-42.1/", Address("t-42.1"), False),
    ("t-42.1/trunk:2[0]", Address("t-42.1", (), (), 2, "[0]"), False),
    ("trunk:2[0]/trunk:1", Address("", ("trunk:2[0]",), (), 1), True),
    ("a/b.1/1.0:2", Address("a/b.1", (), (1, 0), 2), True),
    ("trunk:3+1", Address("", (), (), 3, "+1"), True),
    ("t-42.1/pruned", Address("t-42.1", part="pruned"), False),
    ("trunk:007", Address(part="trunk:007"), False),
    ("trunk:1000000000000000000", Address(part="trunk:1000000000000000000"), False),
    ("trunk:٣", Address(part="trunk:٣"), False),
    ("/trunk:0", Address(part="/trunk:0"), False),
    ("trunk:0\n", Address(part="trunk:0\n"), False),
]


def test_forms() -> None:
    for text, address, commit in FORMS:
        assert Address.parse(text) == address
        assert str(address) == text
        assert address.is_commit is commit


def test_manual_commits_are_counted() -> None:
    first = Address.parse("t.1/trunk:3").changed()
    assert (str(first), str(first.changed())) == ("t.1/trunk:3+1", "t.1/trunk:3+2")
    assert path_of_id("1.0:3+2") == (1, 0)


def test_numbers_are_sorted_by_their_size() -> None:
    given = ["t1²3.1/trunk:10", "t1²3.1/trunk:2", "t1²3.1/1.0:2"]
    assert sorted(given, key=id_order) == [given[2], given[1], given[0]]

"""Persistent containers compared with dict and list, at sizes around those at which their storage changes."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dspyer.values.persistent import SMALL, PersistentMap, PersistentVector, Trie, as_sequence, extended

SIZES = [0, 1, 15, SMALL // 2, SMALL - 1, SMALL, SMALL + 1, 300]


class Clash:
    """A key whose hash has few values, so that many keys share one leaf of the trie."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        return self.name % 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clash) and other.name == self.name

    def __repr__(self) -> str:
        return f"Clash({self.name})"


KEYS = {
    "text": lambda n: f"key {n}",
    "small numbers": lambda n: n - 100,
    "numbers with one hash below 40 bits": lambda n: n << 40,
    "two hashes": Clash,
}

changes = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 350), st.integers()),
        st.tuples(st.just("discard"), st.integers(0, 350), st.just(0)),
        st.tuples(st.just("discard range"), st.integers(0, 350), st.integers(0, 350)),
    ),
    max_size=30,
)


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, id=name) for name, make in KEYS.items()],
)
@given(size=st.sampled_from(SIZES), ops=changes)
@example(size=300, ops=[("discard range", 0, 290), ("set", 5, 1)])
@example(size=300, ops=[("discard range", 0, 350), ("set", 5, 1)])
def test_map_behaves_like_a_dict(make: Any, size: int, ops: list[tuple[str, int, int]]) -> None:
    plain: dict[Any, int] = {make(n): n for n in range(size)}
    mapping: PersistentMap[Any, int] = PersistentMap(plain)
    versions = [(mapping, dict(plain))]
    for op, n, value in ops:
        if op == "set":
            plain[make(n)] = value
            mapping = mapping.set(make(n), value)
        else:
            for key in range(n, max(value, n + 1)):
                plain.pop(make(key), None)
                mapping = mapping.discard(make(key))
        versions.append((mapping, dict(plain)))
    for version, expected in versions:
        assert list(version.items()) == list(expected.items())
        assert list(version) == list(version.keys()) == list(expected)
        assert list(version.values()) == list(expected.values())
        assert len(version) == len(expected)
    assert all(mapping[key] == value and key in mapping for key, value in plain.items())
    assert mapping.get(make(999), "none") == "none"
    assert make(999) not in mapping


@pytest.mark.parametrize("make", KEYS.values(), ids=KEYS.keys())
def test_a_map_that_grows_and_shrinks_key_by_key(make: Any) -> None:
    size = 300 if make is Clash else 3000
    mapping: PersistentMap[Any, int] = PersistentMap()
    for n in range(size):
        mapping = mapping.set(make(n), n)
    assert list(mapping.items()) == [(make(n), n) for n in range(size)]
    assert all(mapping[make(n)] == n for n in range(size))
    for n in range(0, size, 2):
        mapping = mapping.discard(make(n))
    assert list(mapping.items()) == [(make(n), n) for n in range(1, size, 2)]


@given(
    size=st.sampled_from([*SIZES, 1023, 1024, 1100]),
    parts=st.lists(st.one_of(st.integers(), st.lists(st.integers(), max_size=80)), max_size=40),
)
def test_vector_behaves_like_a_list(size: int, parts: list[Any]) -> None:
    plain: list[int] = list(range(size))
    vector: PersistentVector[int] = PersistentVector(plain)
    versions = [(vector, list(plain))]
    for part in parts:
        if isinstance(part, list):
            plain.extend(part)
            vector = vector.extend(part)
        else:
            plain.append(part)
            vector = vector.append(part)
        versions.append((vector, list(plain)))
    for version, expected in versions:
        assert list(version) == expected
        assert len(version) == len(expected)
    assert [vector[i] for i in range(len(plain))] == plain
    assert list(vector[3:-2]) == plain[3:-2]
    assert not plain or vector[-1] == plain[-1]


def test_missing_key_and_index() -> None:
    for size in (3, 300):
        with pytest.raises(KeyError):
            PersistentMap({n: n for n in range(size)})["missing"]  # type: ignore[index]
        with pytest.raises(IndexError):
            PersistentVector(range(size))[size]


def test_a_replaced_key_keeps_its_position_and_a_removed_one_returns_at_the_end() -> None:
    for size in (3, 300):
        mapping = PersistentMap({n: n for n in range(size)})
        assert next(iter(mapping.set(0, -1))) == 0
        assert list(mapping.discard(0).set(0, 0))[-1] == 0


def test_discarding_an_absent_key_returns_the_same_map() -> None:
    for size in (3, 300):
        mapping = PersistentMap({n: n for n in range(size)})
        assert mapping.discard(-1) is mapping
        assert PersistentVector(range(size)).extend([]) == PersistentVector(range(size))


@pytest.mark.parametrize("size", [0, 3, SMALL - 1, SMALL, 300])
def test_update_sets_many_keys(size: int) -> None:
    mapping = PersistentMap({n: n for n in range(size)})
    after = mapping.update({0: 7, -1: 8})
    assert dict(after.items()) == {**{n: n for n in range(size)}, 0: 7, -1: 8}
    assert dict(mapping.items()) == {n: n for n in range(size)}
    assert mapping.update({}) == mapping


@pytest.mark.parametrize("size", [3, 300])
def test_pickle_and_copies(size: int) -> None:
    mapping = PersistentMap({f"k{n}": n for n in range(size)})
    vector = PersistentVector(range(size))
    assert list(pickle.loads(pickle.dumps(mapping)).items()) == list(mapping.items())
    assert pickle.loads(pickle.dumps(vector)) == vector
    assert copy.copy(mapping) is mapping
    assert copy.copy(vector) is vector
    assert "k1" in repr(mapping)
    assert "1" in repr(vector)


class Salted(str):
    """A key whose hash differs from process to process, as that of every text does."""

    salt = ""
    __slots__ = ()

    def __hash__(self) -> int:
        return hash((str(self), self.salt))


def test_a_pickled_map_finds_its_keys_under_another_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [Salted(f"k{n}") for n in range(500)]
    pickled = pickle.dumps(PersistentMap({key: n for n, key in enumerate(keys)}))
    monkeypatch.setattr(Salted, "salt", "another")
    read = pickle.loads(pickled)
    assert list(read) == keys
    assert [read[key] for key in keys] == list(range(500))


def test_versions_share_what_did_not_change() -> None:
    trie = Trie.of({n: n for n in range(10_000)})
    after = trie.set(77, -1)
    shared = [a is b for a, b in zip(trie._root, after._root, strict=True)]
    assert shared.count(False) == 1
    vector = as_sequence(range(10_000))
    assert extended(vector, (1,))._root is vector._root
    log = PersistentVector(range(10_000))
    assert log.append(1)._items is log._items


def test_long_sequences_use_the_python_vector_of_pyrsistent() -> None:
    """Its module is private: a new version of pyrsistent must pass this before `pyproject.toml` admits it."""
    assert type(as_sequence(range(SMALL))) is tuple
    assert type(as_sequence(range(SMALL + 1))).__name__ == "PythonPVector"
    vector = as_sequence(range(1000))
    assert list(vector.append(1)) == [*range(1000), 1]
    assert list(vector.extend([1, 2])) == [*range(1000), 1, 2]
    assert (len(vector), vector[0], vector[-1], list(vector)) == (1000, 0, 999, list(range(1000)))


def test_appending_to_an_older_version_does_not_change_newer_ones() -> None:
    first: PersistentVector[object] = PersistentVector(range(100))
    left = first.append("left")
    right = first.append("right").append("more")
    assert list(first) == list(range(100))
    assert list(left)[100:] == ["left"]
    assert list(right)[100:] == ["right", "more"]
    assert list(left.append("next"))[100:] == ["left", "next"]
    assert first[-1] == 99
    with pytest.raises(IndexError):
        first[100]


def test_appends_of_several_threads_to_one_version_are_independent() -> None:
    base: PersistentVector[object] = PersistentVector()
    for _ in range(50):
        base = base.append(object())
    with ThreadPoolExecutor(8) as pool:
        grown = list(pool.map(lambda n: base.append(("item", n)).append(n), range(200)))
    assert [list(vector)[50:] for vector in grown] == [[("item", n), n] for n in range(200)]


def test_maps_compare_by_items() -> None:
    assert PersistentMap({"a": 1, "b": 2}) == PersistentMap({"b": 2, "a": 1})
    assert PersistentMap({"a": 1}) != PersistentMap({"a": 2})
    assert PersistentVector([1]) != [1]

"""The runs of a key in the lifetimes of a thread: an id that was read once is never that of another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspyer.stores import Store
from tests.threads.test_keyed_runs import Flaky


def test_however_many_copies_keep_forgotten_runs_the_last_one_is_found(store: Store) -> None:
    flaky = Flaky()
    program = flaky.program(store)
    t = program.thread("t")
    ids = set()
    for copy in ("c1", "c2", "c3"):
        ids.add(t.run({"n": 1}, key="a").run_id)
        t.copy(to=copy)
        t.delete()
    last = t.run({"n": 1}, key="a")
    assert len({*ids, last.run_id}) == 4
    for copy in ("c1", "c2", "c3"):
        program.thread(copy).delete()
    store.delete()
    del flaky.calls[:]
    assert (t.run({"n": 1}, key="a").run_id, flaky.calls) == (last.run_id, [])


@pytest.mark.parametrize("deleted", [True, False])
def test_what_was_read_of_a_forgotten_run_is_not_taken_for_the_later_one(deleted: bool, store: Store) -> None:
    """Neither by this handle of the thread, nor by another one, which knows nothing of the deletion."""
    program = Flaky().program(store)
    t, other = program.thread("t"), program.thread("t")
    t.run({"n": 0}, key="0")
    t.run({"n": 1}, key="a")
    assert t.at(3)["n"] == other.at(3)["n"] == 1
    assert len(t.history()) == len(other.history()) == 6
    if deleted:
        t.delete()
        t.run({"n": 0}, key="0")
    else:
        t.rerun(1)  # leaves the run of the key "a", so that it is deleted now
        t.prune(before=0)
    t.run({"n": 5}, key="a")
    for thread in (t, other)[: 1 + deleted]:
        assert [c.patch.get("n") for c in thread.history()] == [0, 1, 10, 5, 6, 60]
        assert (thread.at(3)["n"], thread.diff(3, 5)) == (5, {"n": 60})


def test_a_copy_that_is_made_again_has_ids_of_its_own(store: Store) -> None:
    flaky = Flaky(failures=1)
    program = flaky.program(store)
    program.thread("t").run({"n": 1})
    ids = set()
    for _ in range(3):
        program.thread("t").copy(to="c")
        c = program.thread("c")
        c.resume()
        ids.add(c.run({"n": 3}, key="a").run_id)
        assert c.run({"n": 3}, key="a").state["n"] == 40
        c.delete()
    assert len(ids) == 3


def test_a_run_that_a_pruned_history_still_names_is_not_begun_again(store: Store, tmp_path: Path) -> None:
    flaky = Flaky()
    t = flaky.program(store).thread("t")
    t.run({"n": 1}, key="k")
    t.rerun(0)
    t.update({"n": 3})
    t.prune(before=3)
    assert t.run({"n": 1}, key="k").run_id == t.run({"n": 1}, key="k").run_id
    t.export(tmp_path / "t.jsonl")
    t.prune(before=str(t.history()[-1].id))
    del flaky.calls[:]
    t.run({"n": 1}, key="k")
    assert flaky.calls == []

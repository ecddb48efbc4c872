"""`bench.store_limits` measures what it says, on next to nothing. No test here looks at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import store_limits as bench
from dspyer.stores import open_store
from tests.stores import postgres_server


@pytest.mark.parametrize("kind", bench.KINDS)
def test_a_filled_store_has_threads_as_runs_make_them(kind: str, tmp_path: Path, postgres: str) -> None:
    address = str(tmp_path / "runs.db") if kind == "SQLite" else postgres
    bench.fill(address, 7)
    program = bench.program(address)
    names = program.threads()
    assert names == ["model", *(f"other {number:09}" for number in range(1, 7))]
    threads = [program.thread(name) for name in names]
    assert {thread.status for thread in threads} == {"completed"}
    assert [len(thread.history()) for thread in threads] == [bench.COMMITS] * 7
    assert len({str(thread.state.to_dict()) for thread in threads}) == 1
    with open_store(address) as store:
        assert len({run.id for name in names for run in store.runs(name)}) == 7
        assert sum(store.delete([name]).rows for name in names[:-1]) == 6 * bench.ROWS
        assert threads[-1].status == "completed", "the large values that all share are there"
        ids = {ref for row in store.rows(store.runs(names[-1])[0].id) if row.content for ref in row.content.refs}
        assert store.blobs(ids).keys() == ids != set()
    bench.program.cache_clear()


@pytest.mark.slow("the whole benchmark, on two stores of next to nothing")
def test_it_measures_all_and_writes_its_section(
    postgres_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: set[str] = set()

    def fresh(address: str, make: Callable[[str], str] = postgres_server.fresh) -> str:
        left.add(made := make(address))
        return made

    def drop(address: str, drop: Callable[[str], None] = postgres_server.drop) -> None:
        drop(address)
        left.remove(address)

    monkeypatch.setattr(postgres_server, "fresh", fresh)
    monkeypatch.setattr(postgres_server, "drop", drop)
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n## How much a store carries\n\nold\n\n## Libraries that were faster\n\nNone was.\n")
    arguments = ["--quick", "--postgres", postgres_address, "--folder", str(tmp_path), "--write", str(page)]
    assert bench.main(arguments) == 0
    printed, written = capsys.readouterr().out, page.read_text()
    assert written.startswith("Before.\n\n## How much a store carries\n\n")
    assert written.endswith("\n\n## Libraries that were faster\n\nNone was.\n")
    assert printed.strip() in written
    assert "old" not in written
    for kind in bench.KINDS:
        assert all(f"| {kind}, {count} writer" in written for count in bench.QUICK.writers)
        assert all(f"| {kind}: {title} |" in written for title in bench.OPERATIONS)
        assert f"| {kind}: `program.delete` of {bench.QUICK.page} threads (ms) |" in written
    assert "completed (fewest) | 32 |" in written
    assert left == set(), "no table stays on the server"

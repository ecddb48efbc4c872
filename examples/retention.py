"""Requests that are kept for 90 days, in a store for each day that is dropped whole; and threads that live on.

python examples/retention.py                              # an SQLite file for each day
python examples/retention.py postgresql://localhost/desk  # a schema for each day
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from dspyer import END, START, Archive, CompiledGraph, Context, Graph
from dspyer.errors import StoreError, ThreadError
from dspyer.stores import Sharded, SQLite, Store
from dspyer.testing import clock

KEPT = timedelta(days=90)
DAYS = ["2026-08-24", "2026-08-25", "2026-11-22", "2026-11-23"]
STATUSES = ("running", "crashed", "failed", "stopped", "interrupted")

calls: list[str] = []
passed: list[date] = []


def today() -> date:
    """In place of `date.today`: three months pass in a second."""
    return passed[-1]


def refund(text: str, ctx: Context) -> dict[str, str]:
    """Pays back; a large sum is asked for."""
    if "large" in text and not ctx.interrupt("pay", "Pay it back?"):
        return {"reply": "no"}
    calls.append(text)
    return {"reply": f"paid: {text}"}


graph = Graph(name="Desk").add_node(refund, writes=["reply"]).add_path(START, "refund", END)


class Files(Mapping[str, Store]):
    """A store for each day, as `Schemas` has them, in files of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores: dict[str, SQLite] = {}

    def __getitem__(self, day: str) -> SQLite:
        return self.stores.setdefault(day, SQLite(self.folder / f"{day}.db"))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([path.stem for path in self.folder.glob("*.db")]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def drop(self, day: str, *, unfinished: bool = False) -> bool:
        """Deletes the file. What the server does for a schema is not done here: nobody may write to it meanwhile."""
        archive, store = Archive(self[day]), self[day]
        if not unfinished and any(archive.threads(status=status, limit=1) for status in STATUSES):
            raise ThreadError("there are threads with a last run that has not completed")
        store.close()
        del self.stores[day]
        for path in self.folder.glob(f"{day}.db*"):
            path.unlink()
        return True


def first_day() -> str:
    return f"{today() - timedelta(days=90):%Y-%m-%d}"


def day_of(thread: str) -> str:
    day = thread[:10]
    if day < first_day():
        raise ValueError(f"requests of {day} are kept no longer")
    return day


# --8<-- [start:job]
def drop_old(days):
    for day in days:
        if day < first_day():
            try:
                days.drop(day)
            except ThreadError as error:  # some runs are open
                print(f"{day} is not dropped: {error}")


# --8<-- [end:job]


def ask(program: CompiledGraph, day: str, request: str, text: str) -> str:
    """A delivery of a request: the second one of it calls nothing."""
    return program.thread(f"{day}/{request}").run({"text": text}, key=request).status


def requests(days: Any) -> None:
    """Three months of a desk."""
    store = Sharded(days, shard=day_of)
    program = graph.compile(store=store)
    for day in DAYS:
        passed.append(date.fromisoformat(day))
        ask(program, day, "r1", "a kettle")
        ask(program, day, "r2", "a large kettle" if day == DAYS[0] else "a pan")
    print(f"days: {', '.join(days)}")
    print(f"threads: {len(program.threads())}, the newest runs: {[run.thread for run in Archive(store).runs(limit=3)]}")
    drop_old(days)
    days.drop(DAYS[0], unfinished=True)
    print(f"days: {', '.join(days)}; threads: {len(program.threads())}")
    before = len(calls)
    ask(program, DAYS[-1], "r1", "a kettle")
    print(f"delivered again: {len(calls) - before} calls")
    try:
        ask(program, DAYS[0], "r1", "a kettle")
    except StoreError as error:
        print(f"delivered late: {len(calls) - before} calls, {error.__cause__}")


# fmt: off
# --8<-- [start:completed]
def delete_completed(program, store, before):
    deleted, cursor = 0, None
    with Archive(store) as archive:
        while True:
            page = archive.threads(
                graph=program.graph.name, status="completed",
                until=before, after=cursor, limit=500)
            names = [one.thread for one in page]
            idle = datetime.now(UTC) - before
            deleted += len(program.delete(names, idle=idle).threads)
            if page.next is None:
                return deleted
            cursor = page.next


# --8<-- [end:completed]
# fmt: on


def conversations(store: Store | str) -> None:
    """Threads that live as long as somebody comes back to them: their days are over one by one."""
    program = graph.compile(store=store)
    with clock() as time:
        for name in ("ada", "bob", "eve"):
            program.thread(name).run({"text": "a kettle"})
        time.advance(timedelta(days=91).total_seconds())
        program.thread("eve").run({"text": "a pan"})
        while names := program.threads(idle=KEPT, limit=500):
            report = program.delete(names, idle=KEPT)
            print(f"deleted: {report.threads}, in use: {report.busy}")
    for name, text in {"fay": "a large pan", "gus": "a pan"}.items():
        program.thread(name).run({"text": text})
    print(f"completed: {delete_completed(program, store, datetime.now(UTC))}, left: {program.threads()}")


def main(address: str | None = None, prefix: str = "desk_") -> None:
    with tempfile.TemporaryDirectory() as folder:
        if address is None:
            requests(Files(Path(folder)))
        else:
            from dspyer.stores.postgres import Schemas

            days = Schemas(address, prefix=prefix)
            requests(days)
        conversations(f"{folder}/conversations.db")


if __name__ == "__main__":
    main(*sys.argv[1:])

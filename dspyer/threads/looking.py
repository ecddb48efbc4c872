"""What a thread says of itself without a look at its states."""

from __future__ import annotations

from typing import Any

from dspyer.bond.tracing import add_tokens
from dspyer.durable.reading import chapter, chapters
from dspyer.durable.rows import END
from dspyer.stores.base import Store
from dspyer.threads.owning import is_alive


def status_of(store: Store, thread: str) -> str:
    """What a thread does, or how its last run ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    while row is not None and row.head is not None:
        found = chapter(store, row.head).status or ("running" if is_alive(row) else None)
        if found is not None:
            return found
        now = store.thread(thread)
        if now is None or now.head == row.head:  # its owner has gone without a word
            return "crashed"
        row = now
    return "new"


def usage_of(store: Store, thread: str) -> dict[str, dict[str, Any]]:
    """The tokens of all runs of a thread, by language model, as far as they have said how they ended.

    Args:
        store: where it is kept.
        thread: its name.
    """
    row = store.thread(thread)
    total: dict[str, dict[str, Any]] = {}
    if row is not None and row.head is not None:
        for run in chapters(store, [row.head], row.root):
            for end in run.rows:
                if end.kind == END and len(end.head) > 2:
                    add_tokens(total, end.head[2])
    return total

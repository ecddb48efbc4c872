"""The parts of a `Thread` handle: what reads the thread, starts and merges its runs, and plays them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dspyer.display.redaction import Redactor
from dspyer.persistence.checked_store import CheckedStore
from dspyer.persistence.reader import HistoryReader
from dspyer.persistence.status import thread_redactor
from dspyer.persistence.time_travel import ThreadReader, check_thread_name
from dspyer.stores.base import Store
from dspyer.stores.memory import Memory
from dspyer.threads.graph_fingerprint import StorableCheck, decoder, fingerprint_of
from dspyer.threads.merge_on_finish import MergeOnFinish
from dspyer.threads.merging import ThreadMerger
from dspyer.threads.playing import RunPlayer
from dspyer.threads.start import RunStarter
from dspyer.threads.thread_program import ThreadProgram
from dspyer.threads.views_across_runs import recent_indexes


class ThreadParts(NamedTuple):
    """What a handle passes its calls on to."""

    rows: HistoryReader
    history: ThreadReader
    redactor: Callable[[], Redactor | None]
    starter: RunStarter
    merger: ThreadMerger
    player: RunPlayer


def thread_parts(program: ThreadProgram, store: Store, name: str) -> ThreadParts:
    """The parts of the handle of a program on a thread."""
    check_thread_name(name)
    graph, schema, fingerprint = program.graph, program.graph.topology.schema, fingerprint_of(program)
    # A store in memory keeps the values themselves, whatever their classes are; others must be able to read them.
    check = () if isinstance(store, Memory) else (StorableCheck(graph.name, schema),)
    reader = HistoryReader(CheckedStore(store, *check), schema, decoder(schema), fingerprint.id)
    history = ThreadReader(reader, name)
    starter = RunStarter(graph, reader, name, fingerprint, history.cache.up_to, recent_indexes(program))
    merger = ThreadMerger(starter, history)
    player = RunPlayer(program, starter, history, MergeOnFinish(starter, merger))
    redactor = partial(thread_redactor, reader, name, graph.redaction, lambda: starter.load_head().state)
    return ThreadParts(reader, history, redactor, starter, merger, player)

"""Graphs that LangGraph's own engine runs inside of one node: which ones, and what is kept of them between questions.

A graph is converted node by node where that gives what LangGraph gives. Others run whole, as graphs do that a function
calls: they get a `Checkpoints` in place of a checkpointer, whose contents the run records with each question.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command

from dspyer.errors import StateError
from dspyer.migrate.code_reading import NodeCode, is_a, read_code
from dspyer.migrate.internals import AllowedTypes

CHECKPOINTS: Final = "langgraph_checkpoints"
"""The field with the checkpoints of graphs that were compiled with `checkpointer=True`, by namespace."""


def names_parent(code: NodeCode) -> bool:
    """Return whether `Command.PARENT`, a text, is among what functions name or write."""
    parent = Command.PARENT
    used = [use.value.graph if is_a(use.value, Command) else use.value for use in code.uses]
    return parent in code.constants() or any(type(one) is str and one == parent for one in used)


def why_whole(graph: CompiledStateGraph[Any, Any, Any, Any]) -> str:
    """Return why a graph that is a node runs whole; empty if it can be converted node by node."""
    if graph.checkpointer is True:
        return "it was compiled with checkpointer=True"
    for name, spec in graph.builder.nodes.items():
        # A graph that leaves by such a Command leads to a node of this one, which can be converted.
        if not isinstance(spec.runnable, CompiledStateGraph) and names_parent(read_code(spec.runnable)):
            return f"its node {name!r} returns Command(graph=Command.PARENT)"
    return ""


def graphs_inside(graph: Any, seen: set[int] | None = None) -> Iterator[Pregel[Any, Any, Any, Any]]:
    """The graphs that are nodes of a graph or that its nodes call, at any depth, as far as code names them."""
    seen = set() if seen is None else seen
    for runnable in runnables_of(graph):
        found: list[Any] = [use.value for use in read_code(runnable).values(Pregel)]
        for inner in found:
            if id(inner) not in seen:
                seen.add(id(inner))
                yield inner
                yield from graphs_inside(inner, seen)


def runnables_of(graph: Any) -> list[Any]:
    """The code of the nodes of a `StateGraph`, of what its `compile()` returns, or of an `@entrypoint`."""
    nodes = getattr(graph, "builder", graph).nodes.values()
    return [getattr(node, "runnable", None) or node.bound for node in nodes]


def classes_named(graph: Any) -> list[type]:
    """The classes that the code of nodes names: no field of an agent names that of its structured response."""
    return [use.value for runnable in runnables_of(graph) for use in read_code(runnable).values(type)]


class Checkpoints(InMemorySaver):
    """The checkpoints of the graphs that one node runs. They name no thread: a copy of it has them, too."""

    def __init__(self, allowed: AllowedTypes) -> None:
        # Each call of a node has one, and that of the class above takes a tenth of a step.
        self.serde = _serializer(allowed)
        self.storage: Any = defaultdict(partial(defaultdict, dict))
        self.writes: Any = defaultdict(dict)
        self.blobs: Any = {}
        self._unread: dict[str, bytes] = {}  # most nodes ask for none

    def dump(self, *, lasting: bool = False) -> dict[str, bytes]:
        """The latest checkpoint of each namespace, or of the `lasting` ones in use: those without the id of a task.

        Raises:
            StateError: if one could not be read again.
        """
        found = [ns for ns, entries in self.storage[""].items() if entries and not (lasting and ":" in ns)]
        return {**({} if lasting else self._unread), **{ns: self._packed(ns) for ns in found}}

    def load(self, dumped: Mapping[str, bytes]) -> None:
        """Go on from what `dump` gave."""
        self._unread.update(dumped)

    def _read(self, ns: str) -> None:
        if ns not in self._unread:
            return
        chain, blobs, writes = self.serde.loads_typed(("msgpack", zlib.decompress(self._unread.pop(ns))))
        for entry, checkpoint, metadata, parent in chain:
            self.storage[""][ns][entry] = (*checkpoint,), (*metadata,), parent
        for channel, version, blob in blobs:
            self.blobs["", ns, channel, version] = (*blob,)
        for entry, task, index, channel, value, path in writes:
            self.writes["", ns, entry][task, index] = task, channel, (*value,), path

    def _packed(self, ns: str) -> bytes:
        entries = self.storage[""][ns]
        chain, versions = [max(entries)], {}
        while True:
            checkpoint, metadata, parent = entries[chain[-1]]
            versions.update(dict.fromkeys(self.serde.loads_typed(checkpoint)["channel_versions"].items()))
            counts = self.serde.loads_typed(metadata).get("counters_since_delta_snapshot") or {}
            # A DeltaChannel is made of the writes since its last snapshot.
            if parent not in entries or not any(map(any, counts.values())):
                break
            chain.append(parent)
        blobs = [(*key, self.blobs["", ns, *key]) for key in versions if ("", ns, *key) in self.blobs]
        writes = [
            (entry, *key, channel, value, path)
            for entry in chain
            for key, (_, channel, value, path) in self.writes.get(("", ns, entry), {}).items()
        ]
        for value in (*[blob for *_, blob in blobs], *[value for *_, value, _ in writes]):
            if value[0] != "empty":
                self.serde.loads_typed(value)
        packed: tuple[str, bytes] = self.serde.dumps_typed(
            [[(entry, *entries[entry]) for entry in chain], blobs, writes]
        )
        return zlib.compress(packed[1])  # rows and pages would show bytes as texts

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Get a checkpoint, as the class above. A graph does so before all else."""
        self._read(config["configurable"].get("checkpoint_ns", ""))
        return super().get_tuple(_without_thread(config))

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """List checkpoints, as the class above."""
        yield from super().list(config and _without_thread(config), **options)

    def put(self, config: RunnableConfig, *parts: Any) -> RunnableConfig:
        """Keep a checkpoint, as the class above."""
        return super().put(_without_thread(config), *parts)

    def put_writes(self, config: RunnableConfig, *parts: Any, **options: Any) -> None:
        """Keep what a task wrote, as the class above."""
        super().put_writes(_without_thread(config), *parts, **options)

    def get_delta_channel_history(self, *, config: RunnableConfig, **options: Any) -> Any:
        """Get the writes of channels, as the class above."""
        return super().get_delta_channel_history(config=_without_thread(config), **options)


class GivenAnswers(dict[str, object]):
    """The answers to questions of graphs, by id, which LangGraph leaves unread where no node asks any more."""

    def __init__(self) -> None:
        super().__init__()
        self.unread: set[str] = set()

    def __setitem__(self, which: str, answer: object) -> None:
        super().__setitem__(which, answer)
        self.unread.add(which)

    def __getitem__(self, which: str) -> object:
        self.unread.discard(which)
        return super().__getitem__(which)


def _without_thread(config: RunnableConfig) -> RunnableConfig:
    """A config of the place alone: LangGraph would keep the thread, and what else the caller has configured."""
    given = config.get("configurable", {})
    place = {key: given.get(key) for key in ("checkpoint_ns", "checkpoint_id") if key in given}
    return {"configurable": {**place, "thread_id": ""}}


_NO_DATA: Final = "no data"


class _Serializer(JsonPlusSerializer):
    """LangGraph's own bytes. What cannot be written or read is an error only where it would have to be."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        try:
            found: tuple[str, bytes] = super().dumps_typed(obj)
        except TypeError as error:  # a graph that never asks may hold anything
            return _NO_DATA, str(error).encode()
        return found

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0] == _NO_DATA:
            raise StateError(
                f"a graph that LangGraph runs inside of a node holds a value that cannot be kept: {data[1].decode()}; "
                "pass it as context, or make it plain data"
            )
        blocked: list[SerdeEvent] = []
        here = threading.get_ident()

        def note(event: SerdeEvent) -> None:
            if threading.get_ident() == here and "blocked" in event["kind"]:
                blocked.append(event)

        stop = register_serde_event_listener(note)
        try:
            found = super().loads_typed(data)
        finally:
            stop()
        for event in blocked:
            raise StateError(
                f"a graph that LangGraph runs inside of a node holds a {event['module']}.{event['name']}, which no "
                "field and no node that the conversion has found names: annotate a field of the graph around it with "
                "this class, so that its checkpoints may be read"
            )
        return found


@lru_cache(maxsize=64)
def _serializer(allowed: AllowedTypes) -> _Serializer:
    return _Serializer(allowed_msgpack_modules=list(allowed) or None)

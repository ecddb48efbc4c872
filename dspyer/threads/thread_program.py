"""The types with which a thread and the program that made it call each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from dspyer.event_queue import EventQueue
from dspyer.events import Event
from dspyer.graph.spec import GraphSpec
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run

Resources = Mapping[type, object] | Sequence[object] | None
AnswersByKey = Mapping[str, Any] | None
OnConflict = Literal["raise", "wait", "merge"]


class ThreadProgram(Protocol):
    """The compiled graph, as far as a thread needs it: a protocol, so that `threads` imports no program."""

    @property
    def graph(self) -> GraphSpec: ...

    def _run(self, inputs: Mapping[str, Any], request: Request, queue: EventQueue[Event] | None = ...) -> Run: ...

    async def _arun(
        self, inputs: Mapping[str, Any], request: Request, queue: EventQueue[Event] | None = ...
    ) -> Run: ...

    def _as_stored(self, request: Request, queue: EventQueue[Event] | None = ...) -> Run: ...

    def _check_resources(self, request: Request) -> Mapping[type, object]: ...

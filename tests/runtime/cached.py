"""A graph with one cached node, and counts of its calls, for the tests of the node cache."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Failure, Graph, reducers

CALLS: Counter[Any] = Counter()
"""Calls of the functions below: a global variable is no part of a key, so that two programs may share their results."""


class Doc(BaseModel):
    title: str
    tags: list[str] = []


class Library(BaseModel):
    query: str = ""
    docs: list[Doc] = []
    found: Any = None
    log: Annotated[list[str], reducers.append] = []
    count: Annotated[int, reducers.increment] = 0
    settings: dict[str, Any] = {}
    problem: Failure | None = None


def search(query: str) -> dict[str, Any]:
    CALLS[query] += 1
    return {"docs": [Doc(title=query)], "log": f"searched {query}", "count": 1}


def library(node: Any = search, writes: Any = ("docs", "log", "count"), **options: Any) -> Graph:
    fields = ["query", "docs", "settings"]
    graph = Graph(Library, inputs=fields).add_node("search", node, writes=writes, **{"cache": True, **options})
    return graph.add_path(START, "search", END)


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


class Later(BaseModel):
    """A model that no field of the schema names, so that no other process could read it."""

    text: str


class Gate:
    """A node that waits until the test lets it go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()


GATES: dict[str, Gate] = {}


def slow(query: str) -> dict[str, Any]:
    CALLS[query] += 1
    GATES[query].entered.release()
    assert GATES[query].open.wait(20)
    if query.startswith("bad"):
        raise ConnectionError("no line")
    return {"found": query}

"""A graph with one cached node, and counts of its calls, for the tests of the node cache."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Cache, Failure, Graph, reducers
from tests.runtime.calls import count_call, wait_at_gate


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
    count_call(query)
    return {"docs": [Doc(title=query)], "log": f"searched {query}", "count": 1}


def library(
    node: Any = search,
    writes: Any = ("docs", "log", "count"),
    cache: Cache | bool = True,
    folder: Path | None = None,
    **options: Any,
) -> Graph:
    policy = Cache.of(cache)
    kept = None if policy is None else replace(policy, folder=folder)
    graph = Graph(Library, inputs=["query", "docs", "settings"])
    return graph.add_node("search", node, writes=writes, cache=kept, **options).add_path(START, "search", END)


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


class Later(BaseModel):
    """A model that no field of the schema names, so that no other process could read it."""

    text: str


def slow(query: str) -> dict[str, Any]:
    count_call(query)
    wait_at_gate(query)
    if query.startswith("bad"):
        raise ConnectionError("no line")
    return {"found": query}

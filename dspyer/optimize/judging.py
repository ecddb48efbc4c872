"""`culprits`: which node is responsible for what is wrong in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FieldNote(NamedTuple):
    """What is known of one field that a commit wrote.

    Attributes:
        commit: id of the commit.
        node: its author: a node, a router that wrote the field under its own name, or `"join:NAME"`.
        visit: the visit of the node.
        field: the field; empty for a commit that failed and wrote none.
        verdict: `"right"`, `"wrong"` or `"unknown"`.
        cause: the node that caused a wrong value, if it is known: the author itself for a culprit.
        suspects: the nodes that share the responsibility for a wrong value.
        feedback: for the author of the field, as an optimizer shows it.
    """

    commit: str
    node: str
    visit: int
    field: str
    verdict: str
    cause: str | None = None
    suspects: tuple[str, ...] = ()
    feedback: str = ""


class Culprits(NamedTuple):
    """Which nodes are responsible for what is wrong in a run, as `culprits` returns it.

    Attributes:
        shares: the share of each responsible node; they add up to 1. Empty if nothing is known to be wrong.
        notes: what is known of each field that a commit wrote, in the order of the commits.
        not_tunable: the nodes among them that no optimizer can change: functions, tools, joins and frozen modules.
    """

    shares: Mapping[str, float]
    notes: tuple[FieldNote, ...]
    not_tunable: tuple[str, ...] = ()

"""The repairs of a thread, read from the rows of all its runs: no state is computed, and no run is replayed."""

from __future__ import annotations

from typing import Any

import dspy

from dspyer.ids import Address, full_id, whole_execution
from dspyer.log.reader import HistoryReader, RunRows, read_runs
from dspyer.log.rows import COMMITS, CommitRow, RowKind
from dspyer.nodes.check import CheckedCommit
from dspyer.nodes.node import Node
from dspyer.redaction import Redactor
from dspyer.runtime.lineage_order import LoggedChecks, repairs_in


def stored_repairs(program: Any, reader: HistoryReader, thread: str, redactor: Redactor | None) -> list[dspy.Example]:
    """The repairs in the runs of a thread, run by run."""
    row = reader.store.thread(thread)
    found: list[dspy.Example] = []
    if row is not None and row.head is not None:
        for run in read_runs(reader.store, [row.head], row.root):
            if row.root is None or run.points[-1] != row.root:
                found += repairs_in(_logged(program, reader, run), redactor)
    return found


def _logged(program: Any, reader: HistoryReader, run: RunRows) -> list[LoggedChecks]:
    """The commits of a run by the graph that made them: its own, and those of the graphs inside its nodes."""
    programs: dict[tuple[str, ...], Any] = {(): program}
    nodes: dict[tuple[str, ...], str] = {}  # by execution, after those around it
    commits: dict[tuple[str, ...], list[CheckedCommit]] = {}
    rows = [
        (row, point, CommitRow.of(row)) for row, point in zip(run.rows, run.points, strict=True) if row.kind in COMMITS
    ]
    for _, _, header in rows:
        nodes[*header.scope, header.id] = header.node
    for row, point, header in rows:
        here = _program_at(header.scope, programs, nodes)
        if here is None or not here.graph.rejecting:
            continue
        logged = commits.setdefault(header.scope, [])
        content = header.filled(row, reader.fetch, reader.decode)
        parent = len(logged) - 1 if header.parents is None else (header.parents or (-1,))[0]
        sent = content.sent[0] if len(content.sent) == 1 else None
        name = full_id(run.labels.get(point.run, point.run), header.execution)
        manual = row.kind != RowKind.COMMIT and row.kind != RowKind.JOIN
        logged.append(CheckedCommit(name, header.node, header.route, content.patch or {}, sent, parent, manual))
    return [
        LoggedChecks(scope, found, programs[scope].graph.nodes, programs[scope].graph.rejecting)
        for scope, found in commits.items()
    ]


def _program_at(scope: tuple[str, ...], programs: dict[tuple[str, ...], Any], nodes: dict[tuple[str, ...], str]) -> Any:
    """The program that ran inside some executions; None if the node around it is gone, or has not committed."""
    if scope not in programs:
        around = _program_at(scope[:-1], programs, nodes)
        name = nodes.get((*scope[:-1], whole_execution(scope[-1])))
        node = None if around is None else around.graph.nodes.get(name)
        programs[scope] = None if node is None else _program_of(getattr(around, str(name), None), node, scope[-1])
    return programs[scope]


def _program_of(held: Any, node: Node, execution: str) -> Any:
    """The program that ran inside a node, of which the program around it holds `held`; None if it is not known.

    A function that calls several programs under keys of its own does not say which of them it has called.
    """
    if node.runs_graph:
        return held
    key = next(reversed(Address.parse(execution).keys), "")
    if key in node.programs or len(node.programs) == 1:
        return getattr(held, key if key in node.programs else node.programs[0])
    return None

"""Corrections as training examples: what a checked node has read, and the output that its check accepted in the end.

Everything is read from commits: a check that refuses an output sends the fix what the node has read, the refused
output and the problems, and these values are a part of the check's commit. So a run and a stored thread give the same
examples, of graphs inside nodes too.

The check of an agent has no fix: the agent resumes. Its example is one of the whole task, from its inputs, which are
a part of the user message, to the outputs that were accepted. No single turn leads from the one to the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import dspy

from dspyer.graph.spec import GraphSpec
from dspyer.ids import Address, id_order, whole_execution
from dspyer.log.history import scoped_logs
from dspyer.log.reader import HistoryReader, RunRows, read_runs
from dspyer.nodes.check import PROBLEMS, FinderNode, Repair
from dspyer.nodes.node import Node
from dspyer.patch import DELETE, Replace
from dspyer.record.stored import RunReader
from dspyer.record.turns import takes_turn
from dspyer.redaction import Redactor
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.schedule import Transition
from dspyer.state import ImmutableState
from dspyer.values.frozen import thaw

logger = logging.getLogger("dspyer")


Scope: TypeAlias = tuple[str, ...]


class KeptLog(NamedTuple):
    """The commits of one graph within a run, without states; `prefix` is what their ids begin with."""

    scope: Scope
    log: Sequence[LogEntry]
    prefix: str
    graph: GraphSpec


def kept_logs(
    scope: Scope, log: Iterable[LogEntry], prefix: str, graph: GraphSpec, inner: Mapping[Scope, KeptLog]
) -> dict[Scope, KeptLog]:
    """The log of a graph and those inside of it, if there are any, a check has refused something, or an agent ran."""
    checks = graph.rejecting
    # Of most runs nothing is kept.
    if not inner and not any(
        takes_turn(one.commit) or (one.commit.node in checks and checks[one.commit.node].rejects(one.commit.route))
        for one in log
    ):
        return {}
    # Without states: a run is kept, and sent to other processes, with the commits of the graphs inside of it.
    bare = [LogEntry(one.commit, _NO_STATE, one.parents, None, sends=one.sends) for one in log]
    return {scope: KeptLog(scope, bare, prefix, graph), **inner}


def committed(logs: Mapping[Scope, KeptLog], outermost: Scope) -> list[KeptLog]:
    """The logs inside of nodes that have committed, along an error edge too: others may run again."""
    ids = {scope: {entry.commit.id for entry in one.log} for scope, one in logs.items()}
    return [
        one
        for scope, one in logs.items()
        if all(
            whole_execution(scope[depth]) in ids.get(scope[:depth], ()) for depth in range(len(outermost), len(scope))
        )
    ]


_NO_STATE = ImmutableState()


def log_rejection(check: FinderNode, transition: Transition, redact: Callable[[str], str]) -> None:
    """Logs what a check has found, if its branch goes to a correction."""
    if transition.failure is not None:
        return
    if check.rejects(tuple([target.node for target in transition.targets])):
        problems = redact("; ".join(transition.state[check.into]))
        logger.info("check %r refused %s, a correction follows: %s", check.name, check.what, problems)


def repairs_of_thread(program: Any, reader: HistoryReader, thread: str) -> list[dspy.Example]:
    """The repairs in the runs of a thread, run by run: no run is replayed."""
    row = reader.store.thread(thread)
    found: list[dspy.Example] = []
    if row is not None and row.head is not None:
        for run in read_runs(reader.store, [row.head], row.root):
            if row.root is None or run.points[-1] != row.root:
                hides = reader.hides(run.run)
                redactor = RunReader(reader, thread, run, row.root).redactor() if hides else None
                found += repairs_in(_stored_checks(program, reader, run), redactor)
    return found


def _stored_checks(program: Any, reader: HistoryReader, run: RunRows) -> list[KeptLog]:
    """The commits of a run by the graph that made them: its own, and those of the graphs inside its nodes."""
    programs: dict[tuple[str, ...], Any] = {(): program}
    logs = scoped_logs(reader, run)
    nodes = {
        (*scope, Address.parse(entry.commit.id).own): entry.commit.node for scope, log in logs.items() for entry in log
    }
    made_by = {scope: _program_at(scope, programs, nodes) for scope in logs}
    return [KeptLog(scope, log, "", one.graph) for scope, log in logs.items() if (one := made_by[scope]) is not None]


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


def repairs_in(logged: Sequence[KeptLog], redactor: Redactor | None) -> list[dspy.Example]:
    """The repairs in the graphs of a run: those of one graph in the order of its commits, outer graphs first."""
    found: list[dspy.Example] = []
    for one in sorted(logged, key=lambda one: [id_order(execution) for execution in one.scope]):
        places = {entry.commit.id: index for index, entry in enumerate(one.log if one.graph.rejecting else ())}
        # By id and not by arrival: two runs whose branches took turns differently give the same list.
        for name in sorted(places, key=id_order):
            commit = one.log[places[name]].commit
            check = one.graph.rejecting.get(commit.node)
            if check is None or check.rejects(commit.route) or not _is_empty(commit.patch.get(check.into)):
                continue
            repair = check.repair_in(one.log, places[name], one.graph.nodes)
            found += [] if repair is None else [_example(repair, one.prefix + name, check.into, redactor)]
    return found


def _is_empty(update: Any) -> bool:
    """Return whether a check has emptied its list of problems: it passed after it had found some."""
    value = update.value if isinstance(update, Replace) else update
    return value is not None and value is not DELETE and not len(value)


def _example(repair: Repair, commit: str, into: str, redactor: Redactor | None) -> dspy.Example:
    """A repair as plain values, without what `compile(redact=...)` hides: by path, and in texts that repeat it."""

    def plain(field: str, value: Any) -> Any:
        return thaw(value if redactor is None else redactor.field(field, value))

    def shown(fields: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: plain(fields[name], value) for name, value in values.items()}

    values = {
        PROBLEMS: [plain(into, found) for found in repair.problems],
        "rejected": [shown(repair.writes, one) for one in repair.rejected],
        "commit": commit,
        **shown(repair.reads, repair.inputs),
        **shown(repair.writes, repair.accepted),
    }
    return dspy.Example(**values).with_inputs(*repair.inputs)

"""`GEPAStats`: what an optimization by `optimize.GEPA` did, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any

from dspyer.display import count_of, table_html, table_lines


@dataclass(slots=True)
class NodeTuning:
    """Findings of an optimization about one node, and what it did to it.

    Attributes:
        node: its name; of a program that is no graph, the name of a predictor.
        tunable: whether GEPA may edit it: not a function, a tool or a frozen node.
        culprit: in how many of the judged runs the node was a culprit.
        suspect: in how many of them it was one of several nodes that may have been the cause.
        proposed: new instructions that the reflection LM wrote for it.
        kept: those of them that are in a candidate which GEPA accepted.
    """

    node: str
    tunable: bool = True
    culprit: int = 0
    suspect: int = 0
    proposed: int = 0
    kept: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


class GEPAStats:
    """Statistics of one call of `optimize.GEPA.compile`: a table of the nodes as text, in a notebook too.

    Attributes:
        nodes: the figures of each node, in the order of the graph.
        judged: runs of minibatches whose culprits were searched for.
        metric_calls: runs of an example that were made and scored; they count for the budget.
        unjudged: runs whose culprits are unknown, since the metric of a field raised.
        without_run: runs whose culprits are unknown, since their prediction is none that a graph gave.
        failed_runs: those runs of `metric_calls` that raised, in the program or in the metric.
        metric_errors: how often the metric raised in them.
        metric_error: what it raised last.
        reflection_errors: how often the reflection LM, or the metric that was asked for feedback, raised, or there was
            nothing to reflect on. Such a minibatch gives no proposal, unless a second try of gepa succeeds.
        reflection_error: what was raised last.
        repeated: proposals that had been made for the same parent and records before, and were asked for anew.
        untunable: minibatches that gave no proposal, since every culprit was a node that GEPA may not edit.
        candidates: candidates that GEPA accepted, the program that it was given included.

    Example:
        >>> stats = GEPAStats(["search", "write"], tunable=["write"])
        >>> stats.nodes["write"].culprit = 3
        >>> print(stats)
        node                  culprit  suspect  proposed  kept
        search (not tunable)        0        0
        write                       3        0         0     0
        metric calls: 0; 0 repeated proposals asked for anew
        0 candidates, the given program included
    """

    def __init__(self, nodes: Iterable[str], tunable: Iterable[str]) -> None:
        may_edit = frozenset(tunable)
        self.nodes: dict[str, NodeTuning] = {name: NodeTuning(name, name in may_edit) for name in nodes}
        self.judged = 0
        self.metric_calls = 0
        self.unjudged = 0
        self.without_run = 0
        self.failed_runs = 0
        self.metric_errors = 0
        self.metric_error = ""
        self.reflection_errors = 0
        self.reflection_error = ""
        self.repeated = 0
        self.untunable = 0
        self.candidates = 0

    def node(self, name: str) -> NodeTuning:
        """The figures of a node; one that the graph does not name (a tool) gets a row as not tunable."""
        found = self.nodes.get(name)
        if found is None:
            # Such as a tool in an agent: it may be a culprit, and has no text to edit.
            found = self.nodes[name] = NodeTuning(name, tunable=False)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a list of nodes, and the other figures by their names.

        Example:
            >>> GEPAStats(["write"], tunable=["write"]).to_dict()["metric_calls"]
            0
        """
        rest = {name: value for name, value in vars(self).items() if name != "nodes"}
        return {"nodes": [one.to_dict() for one in self.nodes.values()], **rest}

    def __str__(self) -> str:
        return "\n".join([*table_lines(self._table()), *self._lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        return table_html(head, rows, self._lines())

    def _table(self) -> list[list[str]]:
        # Functions and tools have no edits: an empty cell says that none is possible, a 0 that none was made.
        rows = [["node", "culprit", "suspect", "proposed", "kept"]]
        for one in self.nodes.values():
            found = [f"{one.culprit:,}", f"{one.suspect:,}"]
            if one.tunable:
                rows.append([one.node, *found, f"{one.proposed:,}", f"{one.kept:,}"])
            else:
                rows.append([f"{one.node} (not tunable)", *found, "", ""])
        return rows

    def _lines(self) -> list[str]:
        repeated = count_of(self.repeated, "repeated proposal")
        lines = [
            f"metric calls: {self.metric_calls:,}; {repeated} asked for anew",
            f"{count_of(self.candidates, 'candidate')}, the given program included",
        ]
        if self.failed_runs:
            why = (
                f", {self.metric_errors:,} in the metric: {self.metric_error}"
                if self.metric_errors
                else ": see the log"
            )
            lines.append(f"{self.failed_runs:,} of {count_of(self.metric_calls, 'run')} failed{why}")
        if self.reflection_errors:
            lines.append(f"reflection failed {count_of(self.reflection_errors, 'time')}: {self.reflection_error}")
        if self.untunable:
            lines.append(
                f"{count_of(self.untunable, 'minibatch', 'minibatches')} gave no proposal: every culprit is a node "
                "that GEPA may not edit"
            )
        if self.unjudged:
            lines.append(f"{count_of(self.unjudged, 'run')} without known culprits: the metric of a field raised")
        if self.without_run:
            lines.append(f"{count_of(self.without_run, 'run')} without known culprits: no graph gave the prediction")
        return lines


def noting_errors(metric: Callable[..., Any], stats: GEPAStats) -> Callable[..., Any]:
    """The metric; the figures say what it raises, which DSPy's evaluation only logs."""
    # DSPy calls the metric in many threads.
    lock = Lock()

    @wraps(metric, updated=())
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            return metric(*args, **kwargs)
        except Exception as error:
            with lock:
                stats.metric_errors += 1
                stats.metric_error = f"{type(error).__name__}: {error}"
            raise

    return noting


def edits_between(parents: Iterable[Mapping[str, str]], child: Mapping[str, str]) -> list[str]:
    """The components whose text in a candidate is that of none of its parents."""
    known = list(parents)
    return [name for name, text in child.items() if all(parent.get(name) != text for parent in known)]

"""`Run`: the result of a run, with its commits, conflicts, events and usage, and the methods that search them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

import dspy

from dspyer import display
from dspyer.errors import Interrupted, StoreError, shows_removed, suggestion
from dspyer.events import Answer, Asked, BranchPath, Commit, Committed, Event, LMCall, MergedConflict, Posted, Question
from dspyer.failure import Failure
from dspyer.ids import commit_name, full_id, outermost_execution, prefix_at
from dspyer.layers.redacted import redacted
from dspyer.lm.tap import Counted, LMRecorder, usage_of
from dspyer.log.history import scoped_logs
from dspyer.log.reader import read_run
from dspyer.log.rows import LMUsage, total_cost
from dspyer.patch import seal
from dspyer.record.making import Items, RunEnding, RunSteps, StepQuestion, items_of
from dspyer.record.record import Record
from dspyer.record.stored import record_at
from dspyer.record.turns import Turn, turns_in
from dspyer.record_codec import changed
from dspyer.redaction import Redactor
from dspyer.runtime.repairs import committed, kept_logs, repairs_in
from dspyer.runtime.request import Outcome
from dspyer.runtime.session import SessionEnd
from dspyer.runtime.session_views import Count, ReadSources, TokenReads
from dspyer.scheduler.lineage import LogEntry, canonical_order, touches
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze
from dspyer.values.scalars import Uncopied
from dspyer.views import estimate_tokens

# --- what the prediction of a program knows of its run, so that `Run.of(prediction)` finds it.
#
# A prediction refers to its link, and the link to its run; a run refers to its prediction weakly, so that both are
# freed by their reference counts.


ATTRIBUTE = "_dspyer_run"
"""The attribute of a prediction with its link. It is no field: DSPy keeps fields in a store of their own."""


@dataclass(slots=True, eq=False, repr=False)
class RunLink(Uncopied):
    """The run of a prediction, made when it is first asked for. Copies of the prediction share it."""

    _make: Callable[[dspy.Prediction], Any] | None = None
    _run: Any = None
    _lock: Any = field(default_factory=RLock)  # a run that is made sets itself

    def run(self, prediction: dspy.Prediction) -> Any:
        """The run. May be called from any thread."""
        with self._lock:
            if self._run is None:
                assert self._make is not None
                self.set(self._make(prediction))
            return self._run

    def set(self, run: Any) -> None:
        """Sets the run."""
        with self._lock:
            self._run, self._make = run, None

    def give(self, prediction: dspy.Prediction) -> None:
        """Gives the run to a prediction, which may come from another process: then it is a plain one of DSPy."""
        prediction.__class__ = Prediction
        prediction.__dict__[ATTRIBUTE] = self


class Prediction(dspy.Prediction):
    """The prediction of a program: its outputs, and as attributes what the run tells besides, which no field shows.

    Attributes:
        trajectory: the turns of all agents of the run, as `Run.trajectory`.
        history: of a program that is one agent, its conversation, as `dspy.ReActV2` gives it.
        termination_reason: of a program that is one agent, `"submit"` or `"forced_submit"`, as `dspy.ReActV2` gives it.
    """

    def __getattr__(self, name: str) -> Any:
        # An output of one of these names comes first.
        if name in TOLD and name not in vars(self).get("_store", {}):
            told = vars(self).get(ATTRIBUTE)
            told = told.run(self).told if isinstance(told, RunLink) else told or {}
            if name in told:
                return told[name]
        return super().__getattr__(name)

    def copy(self, **fields: Any) -> dspy.Prediction:
        """A copy with other values of some fields, which has the same run."""
        found: dspy.Prediction = super().copy(**fields)
        vars(found)[ATTRIBUTE] = vars(self).get(ATTRIBUTE)
        return found

    def __copy__(self) -> dspy.Prediction:
        return _prediction_of(vars(self), Prediction)

    def __deepcopy__(self, memo: dict[int, Any]) -> dspy.Prediction:
        twin = memo[id(self)] = _prediction_of({}, Prediction)
        vars(twin).update(deepcopy(vars(self), memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        parts = vars(self).copy()
        told = parts.pop(ATTRIBUTE, None)
        told = told.run(self).told if isinstance(told, RunLink) else told
        if not told or not told["trajectory"]:
            # It has no run any more, and needs no dspyer where it is loaded.
            return object.__new__, (dspy.Prediction,), {ATTRIBUTE: None, **parts}
        return object.__new__, (Prediction,), {ATTRIBUTE: told, **parts}


TOLD = ("trajectory", "history", "termination_reason")
"""The attributes of a prediction that its run tells."""


class KeptPrediction:
    """The prediction of a run, as the run keeps it: weakly, and its parts, to make another one if it is gone."""

    __slots__ = ("_made", "_parts")

    def __init__(self, prediction: dspy.Prediction) -> None:
        self._parts: dict[str, Any] = vars(prediction).copy()  # at once: another thread may set attributes
        self._parts.pop(ATTRIBUTE, None)
        self._made = weakref.ref(prediction)

    def of(self, run: Any) -> dspy.Prediction:
        """The prediction of `run`."""
        prediction = self._made()
        if prediction is None:  # it is gone: another one, with the same parts, is as good
            prediction = _prediction_of(self._parts)
            RunLink(None, run).give(prediction)
            self._made = weakref.ref(prediction)
        return prediction

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptPrediction, (_prediction_of(self._parts),)


def _prediction_of(parts: Mapping[str, Any], kind: type[dspy.Prediction] = dspy.Prediction) -> dspy.Prediction:
    """A prediction with the attributes of another one: what is set in one of them is set in both."""
    prediction: dspy.Prediction = object.__new__(kind)
    vars(prediction).update(parts)
    return prediction


def link_of(prediction: dspy.Prediction) -> RunLink | None:
    """The link of a prediction; None if a program has not given it."""
    found = getattr(prediction, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, RunLink) else None


@shows_removed
class Run:
    """A run that has ended: completed, failed, stopped, or waiting for answers.

    Attributes:
        run_id: its id.
        status: `"completed"`, `"failed"`, `"interrupted"` if it waits for answers, or `"stopped"`: by a budget or
            `thread.stop()`, because its stream was closed or dropped, its task was cancelled, or Ctrl-C was pressed.
        state: the final state; of a run that is not completed, the last state that all branches shared.
        error: what the failing node raised; a `RunStoppedError` of a stopped run; else None.
        questions: the questions that an interrupted run waits for, in branch order.
        answers: the answers to its questions, in the order in which they were given, of earlier processes too.
        events: the events, in the order in which they happened, without tokens and emitted values: only a stream has
            these.
        trace: the DSPy trace, (predictor, inputs, prediction) in lineage order: the steps that led to the result, and
            those whose output a check refused, the latter with copies of their predictors.
        trace_steps: all steps as `dspyer.events.TraceStep`, with node, attempt and status.
        lm_calls: the LM calls that this process has made, as `dspyer.events.LMCall`, in the order in which they ended.
            Messages and responses are there on a thread, as `compile(record_lm_calls=)` says.
        duration: seconds.
        branches: the state of each unfinished branch by path; of a completed run that of the trunk, `()`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda state: {"n": state["n"]
        ...     + 1}).add_path(START, "add", END)
        >>> run = graph.compile().run({"n": 1})
        >>> run.state.to_dict(), run.blame("n").node, run.diff(0, 1)
        ({'n': 2}, 'add', {'n': 2})
    """

    def __init__(
        self,
        ended: SessionEnd,
        prediction: dspy.Prediction | None,
        recorder: LMRecorder | None,
    ) -> None:
        session, run = ended.session, ended.run
        self.run_id = session.ids.run_id
        self.status = ended.status
        self.state: ImmutableState = run.trunk_state
        self.error = ended.error
        self.questions: tuple[Question, ...] = ended.questions
        self._interrupted = (  # now, since the run keeps no session, which knows whether it is stored
            Interrupted.of(self.questions, session.graph.name, session.log is not None) if self.questions else None
        )
        self.events: tuple[Event, ...] = tuple(ended.events)
        self.trace = tuple(session.trace(run))
        self.trace_steps = tuple(session.trace_steps(run))
        # What usage is computed from, and not the recorder, which code that was left running still adds to.
        self._counted: Counted = ((), {}) if recorder is None else recorder.counted()
        self.lm_calls: tuple[LMCall, ...] = () if recorder is None else tuple([shown for _, shown, _ in recorder.made])
        self.duration = ended.duration
        self._ended = session.began[0] + ended.duration
        self._recorded = recorder is not None
        self._prediction = None if prediction is None else KeptPrediction(prediction)
        if prediction is not None and (link := link_of(prediction)) is not None:
            link.set(self)  # before anyone has the run: `Run.of(prediction)` gives this one, and makes none
        self._view_reads = tuple(session.notes.view_reads)  # a copy: a node that was left running may read on
        # With the index that views have made: it keeps no session, and is extended under a lock of its own.
        self._fields = session.fields
        # Of `run` its log alone, and what failed: branches and groups that wait would keep states that nothing shows.
        self._log = run.log
        self._replayed = len(session.run_start.run.log)  # commits of an earlier process, from which the run was resumed
        self._first = run.first
        self._graph = session.graph
        self._redactor = None if session.graph.redaction is None else redacted(session).own
        self._begin = session.run_start.state
        self._inner = session.notes.logs
        self._failures = run.failures
        self._scope = session.ids.scope
        self._depth = len(self._scope)
        records = session.records
        graph = session.graph
        self._source = None if session.log is None else session.log.source(graph.topology.schema, graph.redaction)
        self._prefixes = session.run_start.id_prefixes, session.ids.prefix
        self.answers: tuple[Answer, ...] = () if self._depth or not records.answers else records.given_answers()
        items = records.items or records.finished
        self._kept = (items, records.questions) if items or records.questions else None
        self.branches: Mapping[BranchPath, ImmutableState] = ended.branches()

    @staticmethod
    def of(prediction: dspy.Prediction) -> Run:
        """The run that gave a prediction: in a metric, in a reward, wherever the prediction of a program goes.

        The prediction may come from a call in any form: of the program, in a thread of `dspy.Evaluate`, within a module
        that returns it unchanged. Copies have the same run; a pickled prediction has none.
        The run is kept as long as the prediction is. LM calls, usage, cost and events are recorded by `program.run`
        alone: the run of another call has none, and its `cost` is None.

        Args:
            prediction: what `program(...)` or `await program.acall(...)` returned, or the `prediction` of a run.

        Returns:
            The run; the same object each time.

        Raises:
            LookupError: if the prediction has no run.
            TypeError: if it is no prediction.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> prediction = graph.compile()(n=1)
            >>> Run.of(prediction).blame("n").node
            'add'
        """
        link = link_of(prediction)
        if link is None and not isinstance(prediction, dspy.Prediction):
            raise TypeError(f"Run.of takes the prediction that a program gave, not {type(prediction).__name__}")
        if link is None:
            raise LookupError(
                "this prediction has no run: a compiled graph did not give it, or it was pickled, or made anew from "
                "the fields of another one. Pass on the prediction that program(...) returned"
            )
        run: Run = link.run(prediction)
        return run

    @cached_property
    def commits(self) -> tuple[Commit, ...]:
        """The commits in canonical order: by step, then by branch.

        Inside a fork that never joined they have no version, and come last.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> [commit.node for commit in graph.compile().run({"n": 1}).commits]
            ['START', 'add']
        """
        return tuple([entry.commit for entry in self._entries])

    @cached_property
    def conflicts(self) -> tuple[MergedConflict, ...]:
        """Every conflict of a join, resolved or not.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph(merge={"x": "last_write_wins"}).add_edge(START,
            ...     ["a", "b"]).add_edge(["a", "b"], END)
            >>> for name in ("a", "b"):
            ...     graph = graph.add_node(name, lambda ctx: {"x": ctx.node},
            ...         writes=["x"])
            >>> run = graph.compile().run({})
            >>> [conflict.path for conflict in run.conflicts]
            [('x',)]
        """
        return (
            *[conflict for entry in self._entries for conflict in entry.conflicts],
            *(failed for failure in self._failures for failed in failure.conflicts),
        )

    @cached_property
    def usage(self) -> dict[str, LMUsage]:
        """By language model, tokens as DSPy counts them, `requests`, and `cost` in US dollars (None if unknown).

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).usage
            {}
        """
        return usage_of(*self._counted)

    @property
    def cost(self) -> float | None:
        """The cost of its LM calls in this process, US dollars; None if the price of a model is not known.

        The prices are those of the budget (`Budget(prices=)`), else those that DSPy knows. A response from a cache
        costs nothing, and a request that failed counts as 0.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).cost
            0.0
        """
        return total_cost(self.usage) if self._recorded else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures that ended the run, one for each branch that failed; `()` for a completed run.

        A failure that an error edge has taken ends nothing: it is the `failure` of its commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("half", lambda n: {"h": 1 / n},
            ...     writes=["h"]).add_path(START, "half", END)
            >>> print(*graph.compile().run({"n": 0}).failures)
            half (execution trunk:1, attempt 1): ZeroDivisionError: division by zero
        """
        return tuple([failed.failure for failed in self._failures])

    @property
    def prediction(self) -> dspy.Prediction:
        """The outputs as a `dspy.Prediction`.

        Raises:
            Interrupted: if the run waits for answers.
            RunStoppedError: if the run was stopped.
            Exception: what the failing node raised.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).prediction.n
            2
        """
        self.raise_error()
        assert self._prediction is not None
        return self._prediction.of(self)

    def raise_error(self) -> None:
        """Raises the reason why the run has no result; does nothing for a completed run.

        Raises:
            Interrupted: if it waits for answers.
            RunStoppedError: if it was stopped.
            Exception: what the failing node raised.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("half", lambda n: {"h": 1 / n},
            ...     writes=["h"]).add_path(START, "half", END)
            >>> graph.compile().run({"n": 0}).raise_error()
            Traceback (most recent call last):
            ZeroDivisionError: division by zero
            ...
        """
        error = self.error or self._interrupted
        if error is not None:
            raise error

    @property
    def routing_reason(self) -> str | None:
        """The reason of the last route that has one, from an LM router; None for none. Each commit has its `reason`.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("pay", lambda text: {"reply": "paid"},
            ...     writes=["reply"]).add_edge("pay", END)
            >>> triage = dspy.ChainOfThought("text -> desk: Literal['pay', 'end']")
            >>> program = graph.add_conditional_edges(START, triage,
            ...     {"pay": "pay", "end": END}).compile()
            >>> with ScriptedLM([{"reasoning": "It asks for money.", "desk": "pay"}]):
            ...     program.run({"text": "please pay"}).routing_reason
            'It asks for money.'
        """
        return next((commit.reason for commit in reversed(self.commits) if commit.reason), None)

    def at(self, version: int | str) -> ImmutableState:
        """The state after a commit; inside a fork, the state of that commit's branch.

        Args:
            version: the version of the commit, or its id.

        Returns:
            The state, which nothing can change.

        Raises:
            LookupError: if there is no such commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> run = graph.compile().run({"n": 1})
            >>> run.at(0)["n"], run.at("trunk:1")["n"]
            (1, 2)
        """
        return self._entry(version).state

    def diff(self, first: int | str, second: int | str) -> dict[str, Any]:
        """The smallest patch that turns the state after one commit into the state after another.

        Args:
            first: version or id of a commit.
            second: version or id of another.

        Returns:
            The patch, with plain values.

        Raises:
            LookupError: if there is no such commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).diff(0, 1)
            {'n': 2}
        """
        return self.at(first).diff(self.at(second))

    def blame(self, path: str | tuple[Any, ...]) -> Commit:
        """The commit that last wrote a path of the state: at, in or above it.

        A value that a merge policy chose belongs to the commit that wrote it, a value that a policy made to the join.
        In a field with a reducer that adds items, an item belongs to the commit that brought it or last changed it.

        Args:
            path: segments with dots between them, or a tuple of keys. An item is named by its position, as in
                `("lines", -1)`, a message by its id too, a member of a set by itself.

        Returns:
            The commit; its `node` is the author.

        Raises:
            LookupError: if no commit of this run has written there. `thread.blame(path)` searches all runs.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("rate", lambda: {"score": {"fit": 3}},
            ...     writes=["score"])
            >>> run = graph.add_path(START, "rate", END).compile().run({})
            >>> run.blame("score.fit").node
            'rate'
        """
        keys: tuple[Any, ...] = tuple(path.split(".")) if isinstance(path, str) else tuple(path)
        log = self._log
        head = next(at for at in reversed(range(len(log))) if log[at].commit.version is not None)
        writer = self._reads.writers.of(head, keys)
        if writer is not None:
            return self.commits[self._index_of[log[writer].commit.id]]
        known = ", ".join(self.state)
        is_older = self._reads.writers.item(head, keys) is not None  # an item that an earlier run has brought
        apart = [entry.commit for entry in self._entries if touches(entry.commit.patch, keys)]
        if apart and not is_older:
            raise LookupError(
                f"{'.'.join(map(str, keys))!r} was written by {apart[-1].node!r} (commit {apart[-1].id!r}), but its "
                "branch never joined: see run.branches and run.at(id)"
            )
        name = ".".join(map(str, keys))
        if not keys or keys[0] in self.state:
            raise LookupError(f"no commit of this run has written {name!r}: ask its thread, thread.blame({name!r})")
        raise LookupError(f"no commit has written {name!r}; fields of the state: {known}")

    def sources(self, version: int | str) -> dict[str, tuple[str, ...]]:
        """Sources of the values that the node of a commit has read, and the routers after it.

        Behind a value are the commit that last wrote it; of a folded value (a reducer, a dict that is written key by
        key), all commits that contributed to what it holds; of a view, those whose parts it showed; of a live field,
        also the siblings whose posts were read. What a `Send` brought comes from the commit that sent it. A node reads
        what it declares, one without `reads` the whole state. A router reads the state after its node, so the commit
        itself may be among the ids. A join reads the values that it decided about.

        Args:
            version: the version of the commit, or its id.

        Returns:
            By field that was read and is set, the ids of the commits in canonical order; no ids for a value that an
            earlier run of the thread wrote. `{}` if nothing was read, as by `START`.

        Raises:
            LookupError: if there is no such commit.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"])
            >>> graph = graph.add_node("show", lambda n, unit: {"text": f"{n} {unit}"},
            ...     writes=["text"])
            >>> run = graph.add_path(START, "add", "show", END).compile().run(
            ...     {"n": 1, "unit": "m"})
            >>> run.sources("trunk:2"), run.sources("trunk:1")
            ({'n': ('trunk:1',), 'unit': ('trunk:0',)}, {'n': ('trunk:0',)})
        """
        node, routers = self._reads.of(self._entry(version).commit.id)
        return {
            field: tuple(sorted({*node.get(field, ()), *routers.get(field, ())}, key=self._index_of.__getitem__))
            for field in {**node, **routers}
        }

    def repairs(self) -> list[dspy.Example]:
        """The corrections of the run as training examples: one for each check that passed after it had refused.

        An example has the inputs of the checked node, as it read them, and the outputs that the check accepted, with
        `with_inputs`; so it trains the node. It also has `problems` and `rejected`, a list of texts and the outputs for
        each refusal, and `commit`, the id of the commit of the check. Outputs that `accept=True` let through, and
        those that no check accepted, give no example. Values are redacted as in events. Of a resumed run, corrections
        inside a node that an earlier process has finished are in `thread.repairs()` alone.

        The example of an agent's check has the inputs of the task and the outputs that were accepted: an example for
        the whole agent, as one of a trainset. No turn has these inputs and outputs, so it is no demo of a predictor.

        Returns:
            The examples; those of graphs inside of nodes come last.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("draft", dspy.Predict("question -> answer"))
            >>> graph = graph.add_check("short", lambda answer: ["too long"]
            ...     if len(answer) > 3 else [], of="draft")
            >>> program = graph.add_path(START, "draft", END).compile()
            >>> with ScriptedLM([{"answer": "four"}, {"answer": "4"}]):
            ...     (repair,) = program.run({"question": "2 + 2?"}).repairs()
            >>> repair.question, repair.answer, repair.problems, repair.rejected
            ('2 + 2?', '4', [['too long']], [{'answer': 'four'}])
        """
        logs = kept_logs(self._scope, self._log, self._prefixes[1], self._graph, self._inner)
        return repairs_in(committed(logs, self._scope), self._redactor)

    def record(self) -> Record:
        """The run as one value for readers: its steps, with those inside of nodes, and what each has written.

        Of a run on a thread it is read from the store, as `thread.record()` and `Archive` read it, with what earlier
        processes have done.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> [(step.node, step.status, step.to) for step in graph.compile().run(
            ...     {"n": 1}).record().steps]
            [('START', 'done', ('add',)), ('add', 'done', ('END',))]
        """
        if self._source is not None:
            # A thread that was deleted, or a store that was closed, takes nothing from what this process knows.
            with suppress(StoreError):
                return record_at(*self._source)
        thread, graph = "" if self._source is None else self._source[1], self._graph
        began = self._ended - self.duration
        return Record.of(*self._facts(self._redactor), self.run_id, thread, began, graph.hidden, graph.recorded)

    def items(self, node: str) -> Items:
        """The items of a map at its last visit: how many are done, failed or waiting, their results and failures.

        A run that was stopped, has failed or waits has the results that it got. `thread.items(node)` is the same while
        the run goes on, in this process or another one, and after a crash.

        Args:
            node: the map; it is a node of the run's own graph.

        Returns:
            The items, as `dspyer.record.Items`, with `results` and `failures` by index.

        Raises:
            KeyError: if there is no such map; it lists those that there are.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_map("read", lambda doc: doc.upper(), over="docs",
            ...     item="doc", into="texts")
            >>> items = graph.add_path(START, "read", END).compile().run(
            ...     {"docs": ["a", "b"]}).items("read")
            >>> items.done, items.results, str(items)
            (2, {0: 'A', 1: 'B'}, 'read: 2 of 2 items')
        """
        return items_of(*self._facts(None), node)  # also those of earlier processes

    @cached_property
    def trajectory(self) -> tuple[Turn, ...]:
        """The turns of all agents of the run, those of a sub-agent after the turn that called it.

        They are read from the commits, so a context that shows a model less, or shorter results, changes nothing here.
        `prediction.trajectory` is the same, in metrics too.

        Returns:
            The turns, as `dspyer.record.Turn`: `agent`, `mode`, `thought`, `calls` and `reason`. A call has `name`,
            `args`, `value`, `error`, `problems`, and the `answer` of a person who was asked.

        Raises:
            StoreError: for a resumed run with sub-agents, if the store cannot be read.

        Example:
            >>> from dspyer import agents
            >>> from dspyer.testing import ScriptedLM
            >>> def add(a: int, b: int) -> int:
            ...     "Adds two numbers."
            ...     return a + b
            >>> program = agents.tool_loop("question -> answer: int", [add]).compile()
            >>> calls = [{"name": "add", "args": {"a": 1, "b": 2}}], [
            ...     {"name": "submit", "args": {"answer": 3}}]
            >>> with ScriptedLM([{"next_thought": "",
            ...     "tool_calls": {"tool_calls": call}} for call in calls]):
            ...     run = program.run({"question": "1 + 2?"})
            >>> [(call.name, call.value) for turn in run.trajectory
            ...     for call in turn.calls]
            [('add', 3), ('submit', {'answer': 3})]
        """
        logs = {self._scope: self._log} | {scope: one.log for scope, one in self._inner.items()}
        if self._replayed and self._source is not None:
            reader, thread, at = self._source
            row = reader.store.thread(thread)
            # What an earlier process has finished inside of nodes is in the store alone.
            rows = read_run(reader.store, at, None if row is None else row.root)
            logs |= scoped_logs(reader, rows, bool)
        return turns_in(logs, self._graph.name, self.answers, self._scope)

    @cached_property
    def told(self) -> Mapping[str, Any]:
        """Attributes of its prediction besides the outputs."""
        mode = next((turn.mode for turn in reversed(self.trajectory) if turn.agent == self._graph.name), None)
        node = None if mode is None else self._graph.nodes.get(mode)
        return {"trajectory": self.trajectory, **({} if node is None else node.told(self.state))}

    def report(self) -> str:
        """The run as text for a terminal: its steps as a tree, with what they wrote, conflicts, questions, errors.

        Returns:
            A text of at most 100 columns.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> print(graph.compile().run({"n": 1}).report())
            Run completed in ...: graph 'Graph', 2 commits, 1 node call
            ...
        """
        return display.describe_run(self.record(), self.error)

    def view_tokens(self, count: Count | None = None) -> display.Tokens:
        """The tokens of what nodes have read: each view compared with the whole field; other inputs are sent whole.

        Counted from the commits on each call; functions of `.then` are called again. It covers the nodes that ran in
        this process, without those of graphs inside nodes. Input tokens that the provider had cached are listed apart:
        most of a long history is cached, and costs less than its size suggests.

        Args:
            count: a function from a text to its number of tokens, for example of a model's tokenizer; None for an
                estimate of `view(...).fit`, which is the same on every machine.

        Returns:
            The counts, a table as text.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("size", lambda text: {"size": len(text)},
            ...     writes=["size"])
            >>> tokens = graph.add_path(START, "size", END).compile().run(
            ...     {"text": "last order at six"}).view_tokens()
            >>> tokens.rows[0].node, tokens.rows[0].sent
            ('size', 4)
        """
        nodes = self._graph.nodes
        reads = TokenReads(self._fields, self._log, count or estimate_tokens)
        found = (*reads.of_views(self._view_reads), *reads.of_plain_inputs(nodes, self._replayed))
        return display.count_tokens(nodes, found, self.usage, "by estimate" if count is None else "by tokenizer")

    def stats(self) -> display.Stats:
        """The reliability and cost of each node: attempts, corrections, failures, seconds, tokens, US dollars.

        Counted from `record()` on each call. The nodes of a graph that is a node count as that node.

        Returns:
            The figures, a table as text and in a notebook.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> stats = graph.compile().run({"n": 1}).stats()
            >>> stats.nodes["add"].visits, stats.nodes["add"].first_try
            (1, 1)
        """
        unknown = () if self._recorded else ["LM calls were not recorded: program.run(...) records them"]
        return display.count_stats([self.record()], unknown, self._recorded)

    def to_svg(self) -> str:
        """The graph of the run as a picture, with the path taken: how often each node ran, and where the run ended.

        Returns:
            An SVG document without references to other files.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).to_svg()[:4]
            '<svg'
        """
        return display.draw_svg(self._graph.drawn, display.RunPath.of(self.record()))

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Writes the run as one HTML file: the inspector's page of it, with its data inside. It opens without a server.

        The page shows what `dspyer inspect` shows of a run: its steps over time and as a tree, with conversations,
        prompts, states and what changed, and the graph with the path taken. It has the whole of `record()`, with
        values redacted, and loads nothing from elsewhere.

        Args:
            path: the file; one that is there is replaced.

        Returns:
            The path.

        Raises:
            OSError: if the file cannot be written.

        Example:
            >>> import tempfile
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = graph.compile().run({"n": 1}).to_html(f"{folder}/run.html")
            ...     path.name, path.read_text()[:15]
            ('run.html', '<!doctype html>')
        """
        return display.write_page(self.record(), path)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.report())}</pre>"

    @cached_property
    def _entries(self) -> list[LogEntry]:
        return canonical_order(list(self._log), self._first)

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {commit.id: i for i, commit in enumerate(self.commits)}

    def _facts(self, redactor: Redactor | None) -> tuple[RunSteps, RunEnding]:
        """The facts of the run as this process knows them."""
        prefixes, graph = self._prefixes, self._graph
        steps = RunSteps(prefixes[1][:-1], graph.drawn, redactor=redactor, keeps_texts=graph.recorded == "function")
        settled = 0
        for index, entry in enumerate(self._log):
            steps.commit(entry, prefix_at(index, *prefixes)[:-1])
            settled = settled if entry.commit.version is None else index + 1
        steps.settle(settled, self._first)
        for event in self.events:
            scope = event.scope[self._depth :]
            if isinstance(event, Committed) and scope:
                # No row has the inputs of a graph inside of a node: they follow from the state around it.
                commit = changed(event.commit, patch=seal({})) if event.commit.node == START else event.commit
                local = full_id(*scope, commit.id)
                steps.of(local).inside[local] = commit
            elif isinstance(event, Posted) and event.live:  # others are in the patch
                local = full_id(*scope, event.execution)
                steps.of(local).posts.append(replace(event, execution=local))
        for call in self.lm_calls:
            steps.of(call.execution).calls.append(call)
        items, questions = ({}, {}) if self._kept is None or self._depth else self._kept
        for execution, value in items.items():
            place = steps.places.get(outermost_execution(execution))
            if place is None or steps.log[place].commit.failure is not None:  # else the commit has it
                steps.of(execution).items[execution] = freeze(value)
        asked_at = {event.question.id: event.at for event in self.events if isinstance(event, Asked)}
        answers = {one.question.id: replace(one, value=freeze(one.value)) for one in self.answers if questions}
        for one in questions.values():
            steps.ask(StepQuestion(one, asked_at.get(one.id), answers.get(one.id)))
        failed = [attempt for failed in self._failures for attempt in failed.all_attempts]
        return steps, RunEnding(self.status, self._ended, self.usage, self.failures, failed)

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process has no store: it knows what this process knew of the run.
        read = {"trajectory": self.trajectory} if self._replayed and self._source is not None else {}
        return {**vars(self), **read, "_source": None}

    @cached_property
    def _reads(self) -> ReadSources:
        return ReadSources(self._graph, self._fields, self._log, self._view_reads)

    def _entry(self, version: int | str) -> LogEntry:
        version = commit_name(version)
        if isinstance(version, str):
            index = self._index_of.get(version)
            if index is not None:
                return self._entries[index]
            raise LookupError(f"no commit has the id {version!r}; ids look like {self.commits[-1].id!r}")
        for entry in self._entries[max(version - self._first, 0) : max(version - self._first + 1, 0)]:
            if entry.commit.version == version:
                return entry
        last = max((commit.version for commit in self.commits if commit.version is not None), default=-1)
        raise LookupError(
            f"no commit has version {version}: they range from {self._first} to {last}; a commit in a fork "
            "that never joined has none, and is found by its id"
        )

    if not TYPE_CHECKING:  # with it, a type checker would accept every attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name == "tokens":
                hint = ": what views save is run.view_tokens(), and run.usage is per model"
            elif not name.startswith("_"):
                near = suggestion(name, (known for known in dir(self) if not known.startswith("_")), 0.8)
                hint = f": a field of the state is read as run.state[{name!r}]{near and '.'}{near}"
            raise AttributeError(f"'Run' object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        conflicts = f", {len(self.conflicts)} conflicts" if self.conflicts else ""
        return f"<run {self.status}: {len(self.commits)} commits{conflicts}, {self.duration:.3g} s>"


def take_run(outcome: Outcome, recorder: LMRecorder | None) -> Run:
    """The last run of a request, which had ended: made here, or returned by a worker."""
    returned, outcome.returned = outcome.returned, None
    return returned or Run(*outcome.take(), recorder)

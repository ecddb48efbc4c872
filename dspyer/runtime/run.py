"""What a run leaves behind: result, commits, conflicts, events, and the questions one can ask of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import dspy

from dspyer.display.report import describe_run
from dspyer.display.run_rows import DisplayRow, display_rows
from dspyer.display.timeline import Lanes, draw_run
from dspyer.display.tokens import Count, Tokens, count_tokens
from dspyer.errors import Interrupted
from dspyer.events import BranchPath, Commit, Event, MergedConflict, Question
from dspyer.runtime.session import SessionEnd
from dspyer.runtime.session_views import Sent
from dspyer.scheduler.lineage import LogEntry, ancestry, last_writer, touches, value_at
from dspyer.state import ImmutableState
from dspyer.views import estimate_tokens


class Counts(NamedTuple):
    """How often a node has run.

    Attributes:
        visits: how often it has committed.
        calls: how often it has called predictors in these visits.
        tool_calls: how often it has called tools.
    """

    visits: int = 0
    calls: int = 0
    tool_calls: int = 0


def counts_in(commits: Iterable[Commit], nodes: Container[str]) -> dict[str, Counts]:
    """How often nodes have run, by name, in the order of their first commits.

    Args:
        commits: the commits.
        nodes: the names of the nodes: joins, inputs and manual changes are none.
    """
    found: dict[str, Counts] = {}
    for commit in commits:
        if commit.node in nodes:
            visits, calls, tools = found.get(commit.node, Counts())
            found[commit.node] = Counts(visits + 1, calls + commit.calls[0], tools + commit.calls[1])
    return found


class Run:
    """A run that has come to its end.

    Attributes:
        run_id: its id.
        status: `"completed"`, `"failed"`, `"interrupted"` if it waits for answers, or `"stopped"`: its stream was
            closed or dropped, its task was cancelled, or Ctrl-C was pressed.
        state: the final state; of another run, the last state that all branches shared.
        error: what the failing node raised; a `RunStoppedError` of a stopped run; else None.
        questions: what an interrupted run waits to be told, in branch order.
        commits: in canonical order: by step, then by branch. Inside a fork that never joined they have no version,
            and come last.
        conflicts: every conflict of a join, resolved or not.
        events: what happened, in the order in which it happened.
        trace: the DSPy trace, (predictor, inputs, prediction) in lineage order.
        usage: tokens by language model, as DSPy counts them.
        duration: seconds.
        branches: the state of each live branch by path; of a completed run the trunk alone.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda state: {"n": state["n"] + 1}).add_path(START, "add", END)
        >>> run = graph.compile().run({"n": 1})
        >>> run.state.to_dict(), run.blame("n").node, run.diff(0, 1)
        ({'n': 2}, 'add', {'n': 2})
    """

    def __init__(
        self, ended: SessionEnd, prediction: dspy.Prediction | None, usage: Mapping[str, Mapping[str, Any]]
    ) -> None:
        session, run = ended.session, ended.run
        self.run_id = session.run_id
        self.status = ended.status
        self.state: ImmutableState = run.trunk_state
        self.error = ended.error
        self.questions: tuple[Question, ...] = ended.questions
        self._interrupted = (
            Interrupted.of(self.questions, session.graph.name, session.journal is not None) if self.questions else None
        )
        self.events: tuple[Event, ...] = tuple(ended.events)
        self.trace = tuple(session.trace())
        self.usage = {name: dict(tokens) for name, tokens in usage.items()}
        self.duration = session.duration
        self._prediction = prediction
        self._looks = tuple(session.view_reads)
        self._fields = session.fields.fresh()
        self._made_here = (session.graph.nodes, run.log, len(session.run_start.run.log))
        self._entries = numbered(list(run.log), run.first)
        self._first = run.first
        self.commits: tuple[Commit, ...] = tuple([entry.commit for entry in self._entries])
        self._head = len([commit for commit in self.commits if commit.version is not None]) - 1
        self._redaction = session.graph.redaction
        self._failures = run.failures
        asked = () if ended.status == "completed" else tuple(session.records.open_questions())
        self._asked = asked if session.redactor is None else session.redactor.shown(asked)
        self._depth = len(session.scope)
        self.conflicts: tuple[MergedConflict, ...] = (
            *[conflict for entry in self._entries for conflict in entry.conflicts],
            *(failed for failure in run.failures for failed in failure.conflicts),
        )
        self._places = {commit.id: i for i, commit in enumerate(self.commits)}
        self.branches: Mapping[BranchPath, ImmutableState] = ended.branches()

    @property
    def shown(self) -> tuple[Commit, ...]:
        """The commits as reports and pictures show them: without what `compile(redact=...)` hides."""
        return self.commits if self._redaction is None else tuple(map(self._redaction.commit, self.commits))

    @property
    def counts(self) -> dict[str, Counts]:
        """How often each node has run and called predictors and tools, by name: what was committed in this run.

        It has what a resumed run did in other processes too. Nodes of graphs inside of a node count as that node's
        calls; attempts that failed do not count.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_edge(START, "add")
            >>> graph = graph.add_conditional_edges("add", lambda n: END if n > 2 else "add", [END, "add"])
            >>> graph.compile().run({"n": 0}).counts["add"].visits
            3
        """
        return counts_in(self.commits, self._made_here[0])

    @property
    def prediction(self) -> dspy.Prediction:
        """The outputs as a `dspy.Prediction`.

        Raises:
            Interrupted: if the run waits for answers.
            Exception: what the failing node raised.
        """
        self.raise_error()
        assert self._prediction is not None
        return self._prediction

    def raise_error(self) -> None:
        """Raises what keeps the run from having a result.

        Raises:
            Interrupted: if it waits for answers.
            Exception: what the failing node raised.
        """
        error = self.error or self._interrupted
        if error is not None:
            raise error

    @property
    def routing_reason(self) -> str | None:
        """Why an LM router went where it went, in its own words: of the last one that gave a reason.

        Each commit has the reason of its own route: `commit.reason`.
        """
        return next((commit.reason for commit in reversed(self.commits) if commit.reason), None)

    def at(self, version: int | str) -> ImmutableState:
        """The state after a commit; inside a fork, the state of that commit's branch.

        Args:
            version: the version of the commit, or its id.

        Raises:
            LookupError: if there is no such commit.
        """
        return self._entry(version).state

    def diff(self, first: int | str, second: int | str) -> dict[str, Any]:
        """The smallest patch that turns the state after one commit into the state after another.

        Args:
            first: version or id of a commit.
            second: version or id of another.
        """
        return self.at(first).diff(self.at(second))

    def blame(self, path: str | tuple[Any, ...]) -> Commit:
        """The commit that last wrote a path of the state: at, in or above it.

        A value that a merge policy chose belongs to the commit that wrote it, a value that a policy made to the join.

        Args:
            path: segments with dots between them, or a tuple of keys.

        Raises:
            LookupError: if nothing in this run has written there: what an earlier run of the thread wrote,
                `t.blame(path)` knows.
        """
        keys: tuple[Any, ...] = tuple(path.split(".")) if isinstance(path, str) else tuple(path)
        head = [self._head]
        writer = last_writer(self._entries, ancestry(self._entries, head), head, keys, value_at(self.state, keys))
        if writer is not None:
            return self._entries[writer].commit
        known = ", ".join(self.state)
        apart = [entry.commit for entry in self._entries if touches(entry.commit.patch, keys)]
        if apart:
            raise LookupError(
                f"{'.'.join(map(str, keys))!r} was written by {apart[-1].node!r} (commit {apart[-1].id!r}), but its "
                "branch never joined: see run.branches and run.at(id)"
            )
        name = ".".join(map(str, keys))
        if not keys or keys[0] in self.state:
            raise LookupError(f"no commit of this run has written {name!r}: ask its thread, t.blame({name!r})")
        raise LookupError(f"no commit has written {name!r}; fields of the state: {known}")

    def report(self) -> str:
        """The run in words, for a terminal: commits in canonical order, branches beside each other, conflicts, errors.

        Returns:
            A text of at most 100 columns.
        """
        return describe_run(
            self._rows(),
            self.events,
            status=self.status,
            duration=self.duration,
            usage=self.usage,
            error=self.error,
        )

    def tokens(self, count: Count | None = None) -> Tokens:
        """What its nodes got, in tokens: each view against the whole field; what is no view is sent whole.

        It is counted from the commits when it is asked for, and functions of `.then` are called again for it. It covers
        the nodes that ran in this process, and not those of graphs inside of it. Input tokens that a provider had
        cached are listed apart: a whole history is mostly cached, so that it costs less than it seems.

        Args:
            count: counts the tokens of a text, for example by a model's tokenizer. By default a fixed estimate does
                that is the same on every machine: 4 bytes of UTF-8 are a token.

        Returns:
            The counts, a table as text.
        """
        nodes, log, first = self._made_here
        sent = Sent(self._fields, log, count or estimate_tokens)
        reads = (*sent.looked(self._looks), *sent.read(nodes, first))
        return count_tokens(nodes, reads, self.usage, "by estimate" if count is None else "by tokenizer")

    def lanes(self) -> Lanes:
        """Its fields over time: who wrote what to which of them when, and how much. A picture in a notebook."""
        return Lanes(self.shown)

    def to_svg(self) -> str:
        """The run as a picture: a lane for each branch, a dot for each commit, conflicts marked.

        Returns:
            An SVG document that needs nothing from outside.
        """
        return draw_run(self._rows(), f"run {self.status}")

    def _rows(self) -> list[DisplayRow]:
        """The commits and where the run ended, as reports and pictures show them: with what `redact` hides hidden."""
        shown = self._redaction.conflict if self._redaction is not None else _as_it_is
        conflicts = {entry.commit.id: tuple(map(shown, entry.conflicts)) for entry in self._entries if entry.conflicts}
        failures = [failure._replace(conflicts=tuple(map(shown, failure.conflicts))) for failure in self._failures]
        live = () if self.status == "completed" else self.branches
        return display_rows(self.shown, conflicts, failures, self._asked, live, self._depth)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _entry(self, version: int | str) -> LogEntry:
        if isinstance(version, str):
            place = self._places.get(version)
            if place is not None:
                return self._entries[place]
            raise LookupError(f"no commit has the id {version!r}; ids look like {self.commits[-1].id!r}")
        for entry in self._entries[max(version - self._first, 0) : max(version - self._first + 1, 0)]:
            if entry.commit.version == version:
                return entry
        last = max((commit.version for commit in self.commits if commit.version is not None), default=-1)
        raise LookupError(f"no commit has version {version}: they go from 0 to {last}; others are known by their id")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": a field of the state is read as run.state[{name!r}]" if not name.startswith("_") else ""
            raise AttributeError(f"'Run' object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        conflicts = f", {len(self.conflicts)} conflicts" if self.conflicts else ""
        return f"<run {self.status}: {len(self.commits)} commits{conflicts}, {self.duration:.3g} s>"


def _as_it_is(conflict: MergedConflict) -> MergedConflict:
    return conflict


def numbered(log: list[LogEntry], first: int = 0) -> list[LogEntry]:
    """The log in canonical order, with a version for each commit up to the last at which only one branch was live.

    Args:
        log: the commits in the order in which they were made.
        first: the version of the first one.
    """
    if [entry.commit.version for entry in log] == list(range(first, first + len(log))):
        return log  # it never forked
    settled = max((i for i, entry in enumerate(log) if entry.commit.version is not None), default=-1) + 1

    def order(i: int) -> tuple[bool, int, BranchPath]:
        return i >= settled, log[i].commit.step, log[i].commit.branch

    places = sorted(range(len(log)), key=order)
    moved = {old: new for new, old in enumerate(places)}
    numbered = []
    for new, old in enumerate(places):
        entry = log[old]
        numbered.append(
            entry._replace(
                commit=entry.commit._replace(version=first + new if old < settled else None),
                parents=tuple(moved[parent] for parent in entry.parents),
                winners={path: moved[winner] for path, winner in entry.winners.items()},
            )
        )
    return numbered

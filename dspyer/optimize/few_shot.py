"""`FewShot`: demonstrations from every step that was right, also in runs whose result was wrong."""

from __future__ import annotations

import copy
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import dspy
from tqdm import tqdm  # type: ignore[import-untyped]

from dspyer import CompiledGraph, ImmutableState, Run
from dspyer.errors import InputError, StoreError, always_raised, brief, unwrap_stop_iteration, with_article
from dspyer.events import Commit
from dspyer.extend import Call, Inner, Layer, LogEntry, Output, Place, Script, outermost_execution, thaw, using, wrapped
from dspyer.graph.spec import check_inputs
from dspyer.layers.attempts import apart_from_earlier
from dspyer.lm.not_public import INPUT_KEYS, Hasher
from dspyer.lm.tracing import Steps, append_to_trace, execute_attempt, recording, step_count, take_steps
from dspyer.nodes.attempt import Attempt
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.run_judge import Culprits, FieldNote, RunJudge, author_of
from dspyer.optimize.written_values import FieldJudge, WrittenValues
from dspyer.runtime.request import REQUEST, Request
from dspyer.runtime.run import take_run
from dspyer.runtime.session import Session, SessionEnd

# `accepted_only`: a program whose trace has no steps that a check has refused.


def accepted_only(program: CompiledGraph) -> CompiledGraph:
    """The same program for optimizers that train weights and for `dspy.Refine`, which use every step of a trace.

    A step whose output a check refused is in the trace with a copy of its predictor. Optimizers that find predictors by
    identity skip it, and GEPA reflects on it. `BootstrapFinetune`, also in `BetterTogether`, and `GRPO` find predictors
    by position or by signature: they would train a model to give what was refused. `dspy.Refine` fails at the copy, and
    so never advises.

    Args:
        program: a compiled graph: the student, and a teacher too.

    Returns:
        A program that shares the modules of this one, to be given to the optimizer. `run.trace` of its runs has the
        refused steps as before.

    Raises:
        TypeError: for anything but a compiled graph.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.testing import ScriptedLM
        >>> graph = Graph().add_node("draft", dspy.Predict("question -> answer"))
        >>> graph = graph.add_check("short", lambda answer: ["too long"] if len(answer) > 3 else [], of="draft")
        >>> program = graph.add_path(START, "draft", END).compile()
        >>> for each in (program, accepted_only(program)):
        ...     with ScriptedLM([{"answer": "four"}, {"answer": "4"}]), dspy.context(trace=[]):
        ...         _ = each(question="2 + 2?")
        ...         print([dict(outputs) for _, _, outputs in dspy.settings.trace])
        [{'answer': 'four'}, {'answer': '4'}]
        [{'answer': '4'}]
    """
    given: Any = program
    if not isinstance(given, CompiledGraph):
        raise TypeError(f"accepted_only takes a compiled graph, and got {with_article(type(given).__name__)}")
    return program._with(_accepted_only=True)


# What is wrong with the examples of an optimization, found before the first run.


def validate_examples(program: dspy.Module, examples: Sequence[Any], name: str) -> None:
    """Refuse examples with which a program cannot be called. DSPy scores each such run 0, and goes on.

    Args:
        program: the program; only the inputs of a compiled graph are known before it runs.
        examples: the examples.
        name: what the user calls them, `"trainset"` or `"valset"`.

    Raises:
        TypeError: if one is no `dspy.Example`.
        ValueError: if one has no inputs, or not those of the graph.
    """
    for index, example in enumerate(examples):
        where = f"{name}[{index}]"
        if not isinstance(example, dspy.Example):
            kind = with_article(type(example).__name__)
            raise TypeError(f"{where} is {kind}: give dspy.Example(**values).with_inputs(...), not {brief(example)}")
        if getattr(example, INPUT_KEYS) is None:
            inputs = program.graph.inputs if isinstance(program, CompiledGraph) else ()
            names = ", ".join(repr(field) for field in inputs if field in example) or "..."
            raise ValueError(f"{where} does not say which of its columns are inputs: call example.with_inputs({names})")
        if isinstance(program, CompiledGraph):
            try:
                check_inputs(program.graph, example.inputs().keys())
            except InputError as error:
                raise InputError(f"{where}: {error}") from None


# Rollouts: a node whose output is wrong is asked again at once, by itself, for the optimizer that asks for this layer.
#
# The layer is outside of all others. A rollout is not a retry: nothing has failed, so it has no part in attempts,
# events and commits. Its LM calls have rollout ids of their own.
#
# Asked again are nodes that have called a predictor: another call of a function gives the same. A graph that is a node
# would continue its run, a search is made of calls of its own, and posts to live fields have been read by siblings:
# they are left as they are.


ROLLOUT_STRIDE = 10**6
"""Times that of later attempts (`lm_requests.STRIDE`): so that rollouts have other rollout ids than attempts."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedAgain(Layer):
    """Asks nodes again whose output is wrong.

    Attributes:
        rollouts: decides which outputs are asked for again (`few_shot.StepJudge`), maybe from several threads.
    """

    place: ClassVar[Place] = "outside"

    rollouts: Any

    @property
    def asked_again(self) -> list[str]:
        """The executions that it has asked again; an executor adds those that a worker has asked."""
        asked: list[str] = self.rollouts.asked
        return asked

    def of(self, run: Any) -> AskedAgain | None:
        """Its part in an outermost run that is not stored: a stored map has recorded its items."""
        outermost, live = not run.scope and not run.ids.called_in, run.together.visible and run.graph.around
        return self if outermost and run.log is None and not live else None

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The first right output of a node: that of its call, or of a rollout; if none is right, that of its call."""
        first: Output = yield from inner(call)
        session, rollouts, delegate = call.runner.session, self.rollouts, call.context.delegate
        node, execution = session.graph.nodes[call.node], delegate.execution
        if first.targets is not None or node.runs_graph or call.node in session.graph.searches or not step_count():
            return first
        so_far = partial(_run_so_far, session, delegate, first)
        shared = rollouts.shared(execution, so_far) if delegate.branch else frozenset()
        if not rollouts.wants_another(execution, {*first.patch, *node.always_writes} - shared, first.after, so_far):
            return first
        last, kept = first.call.context.delegate, take_steps(0)
        known = list(session.notes.failed_attempts.get(execution, ()))

        def lose(steps: Steps) -> None:
            session.lose_steps(last, last.number, steps)

        def forget() -> None:
            """Leaves no mark of a rollout that is not taken."""
            lose(take_steps(0))
            if known:
                session.notes.failed_attempts[execution] = list(known)
            else:
                session.notes.failed_attempts.pop(execution, None)

        for number in range(1, rollouts.most + 1):
            again = first.call.of_attempt(last.next(last.number))._replace(made=call.made)
            execute_attempt(last.number)
            step = apart_from_earlier(ROLLOUT_STRIDE * number, lose)
            try:
                output: Output = yield from wrapped(inner(again), step)
            except Exception as error:
                if always_raised(unwrap_stop_iteration(error)):
                    raise
                forget()
                continue
            if rollouts.is_right({*output.patch, *node.always_writes} - shared, output.after):
                lose(kept)
                return output
            forget()
        append_to_trace(kept)
        return first


def _run_so_far(session: Session, attempt: Attempt, output: Output) -> Run:
    """The run, as if it had been stopped after the commit of an output."""
    assert attempt.position is not None
    head = attempt.position.head
    before = session.run.log[head].commit
    commit = Commit(
        attempt.execution,
        None,
        attempt.node,
        attempt.branch,
        output.call.context.visit,
        before.step + 1,
        output.patch,
        (before.id,),
    )
    log = session.run.log.append(LogEntry(commit, output.after, (head,), None))
    part = copy.copy(session)
    part._fields = None  # else its index would have a commit that the log of the session has not
    part.notes = copy.copy(session.notes)
    part.notes.traces, part.notes.lost = (
        dict(session.notes.traces),
        dict(session.notes.lost),
    )  # other threads add to these
    return Run(SessionEnd(part, session.run._replace(log=log), "stopped", None, (), []), None, None)


logger = logging.getLogger("dspyer")


class FewShot(dspy.BootstrapFewShot):
    """A `dspy.BootstrapFewShot` that gives partial credit: each step is judged by itself.

    A node gets a demonstration from every run in which what it wrote is right, whatever the run's result: by the
    metrics of its fields. A node whose fields have no metric gets those of fully successful runs, as in
    `dspy.BootstrapFewShot`. Outputs that a check has refused, and trials that lost, are no demonstrations. An example
    gives each predictor at most one; those of fully successful runs come first, and among equals those of the runs
    whose culprits are rarest. With `rollouts`, what a node gave when it was asked again comes before all others: it
    shows what the node does not do by itself.

    It stops when `max_demos` runs were fully successful and every predictor has `max_demos` demonstrations, or after
    the last example.

    Args:
        metric: the metric of each field, as `by_field` makes it.
        max_demos: how many demonstrations each predictor gets at most.
        rollouts: how often a node whose output is wrong, though nothing that it had read was wrong, is asked again at
            once. The run goes on with the first right output. Each time costs the LM calls of this node alone: for a
            map, those of all its items. Not asked again are graphs and searches that are nodes, routers, what adds to
            a value that several branches make, and nodes of a run with live fields, or on a thread with a store.
        max_labeled_demos: as in `dspy.BootstrapFewShot`: up to this number, predictors also get examples as they are.
        teacher_settings: DSPy settings for the runs, such as another `lm`.
        max_errors: after how many runs that raise the optimization raises too; None for DSPy's setting.

    Raises:
        TypeError: if the metric is none of `by_field`, or a number is no integer.
        ValueError: if a number is too small.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph, optimize
        >>> from dspyer.testing import ScriptedLM
        >>> graph = Graph().add_node("find", dspy.Predict("question -> place"))
        >>> graph = graph.add_node("say", dspy.Predict("place -> answer")).add_path(START, "find", "say", END)
        >>> equals = optimize.equals
        >>> metric = optimize.by_field({"place": equals("place"), "answer": equals("answer")}, goal="answer")
        >>> train = [dspy.Example(question="Where?", place="north", answer="It is north.").with_inputs("question")]
        >>> few_shot = optimize.FewShot(metric, max_labeled_demos=0)
        >>> with ScriptedLM([{"place": "north"}, {"answer": "No idea."}]):
        ...     tuned = few_shot.compile(graph.compile(), trainset=train)
        >>> [demo.place for demo in tuned.find.demos], tuned.say.demos
        (['north'], [])
    """

    def __init__(
        self,
        metric: FieldMetric,
        *,
        max_demos: int = 4,
        rollouts: int = 0,
        max_labeled_demos: int = 16,
        teacher_settings: Mapping[str, Any] | None = None,
        max_errors: int | None = None,
    ) -> None:
        given: object = metric
        if not isinstance(given, FieldMetric):
            raise TypeError(
                f"FewShot takes a metric by field, not {brief(given)}: make one with optimize.by_field({{...}}, "
                "goal=...). For a metric of the result alone there is dspy.BootstrapFewShot"
            )
        numbers: list[tuple[str, Any, int]] = [("max_demos", max_demos, 1), ("rollouts", rollouts, 0)]
        for name, number, least in numbers:
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"FewShot: {name}={number!r}: give an integer")
            if number < least:
                raise ValueError(f"FewShot: {name}={number}: give at least {least}")
        super().__init__(
            metric=metric,
            teacher_settings=None if teacher_settings is None else dict(teacher_settings),
            max_bootstrapped_demos=max_demos,
            max_labeled_demos=max_labeled_demos,
            max_errors=max_errors,
        )
        self.rollouts = rollouts
        self._field_metric = metric

    def compile(
        self, student: dspy.Module, *, teacher: dspy.Module | None = None, trainset: Sequence[dspy.Example]
    ) -> dspy.Module:
        """Tune a program.

        Args:
            student: the program.
            teacher: a program with the same graph and other parameters, whose steps become the demonstrations; by
                default the student itself.
            trainset: the examples, with the columns that the metrics need.

        Returns:
            A copy of the student with demonstrations.

        Raises:
            TypeError: if an example is no `dspy.Example`.
            ValueError: if the metric does not fit the program or the examples, or these not the inputs of the program.
            Exception: what a run has raised, after `max_errors` of them.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph, optimize
            >>> from dspyer.testing import ScriptedLM
            >>> program = Graph().add_node("find", dspy.Predict("text -> place")).add_path(START, "find", END).compile()
            >>> metric = optimize.by_field({"place": optimize.equals("place")}, goal="place")
            >>> train = [dspy.Example(text="Where?", place="north").with_inputs("text")]
            >>> with ScriptedLM([{"place": "south"}, {"place": "north"}]) as lm:
            ...     tuned = optimize.FewShot(metric, rollouts=3).compile(program, trainset=train)
            >>> tuned.find.demos[0].place, len(lm.calls)
            ('north', 2)
        """
        trainset = list(trainset)
        validate_examples(student, trainset, "trainset")
        self._field_metric.validate(student, trainset)
        self.error_count = 0
        tuned: dspy.Module = super().compile(student, teacher=teacher, trainset=trainset)
        return tuned

    # --- what `dspy.BootstrapFewShot.compile` calls

    def _bootstrap(self, *, max_bootstraps: int | None = None) -> None:
        """Run the teacher on the examples, until every predictor has its demonstrations."""
        wanted = max_bootstraps or self.max_bootstrapped_demos
        pools: dict[str, list[_Demo]] = {name: [] for name in self.name2predictor}
        situations: Counter[frozenset[str]] = Counter()
        full = 0
        used: set[int] = set()
        for index, example in enumerate(tqdm(self.trainset)):
            if full >= wanted and all(len(pool) >= wanted for pool in pools.values()):
                break
            found = self._run_of_example(example)
            full += found.full
            situations[found.situation] += 1
            for name, demo in found.demos.items():
                pools[name].append(_Demo(demo, found.full, name in found.corrected, found.situation))
            if found.demos:
                used.add(index)
        self.name2traces = {
            name: [one.demo for one in sorted(pool, key=lambda one: one.order(situations))]
            for name, pool in pools.items()
        }
        self.validation = [example for index, example in enumerate(self.trainset) if index not in used]
        # As DSPy does it, with the same seed.
        random.Random(0).shuffle(self.validation)
        counts = ", ".join(f"{name}: {min(len(pool), wanted)}" for name, pool in pools.items())
        logger.info("FewShot: demonstrations by predictor: %s", counts)

    def _run_of_example(self, example: dspy.Example) -> _Found:
        """Run the teacher on one example, and judge the steps; a run that raises is counted by `BootstrapFewShot`."""
        request, judge = Request(), StepJudge(self._field_metric, example, self.rollouts)
        layers = [AskedAgain(judge)] if self.rollouts else []
        metric, judged = self._field_metric, list[_Found]()

        def note(example: dspy.Example, prediction: dspy.Prediction, trace: list[Any]) -> bool:
            steps, full = tuple(trace), bool(metric(example, prediction, trace))
            try:
                run = Run.of(prediction)
            except LookupError:  # of a module written by hand
                judged.append(_Found(self._demos(steps if full else ()), full, frozenset()))
            else:
                judged.append(self._judged(run, steps, full, judge))
            return False  # no demonstrations of its own

        # `BootstrapFewShot` asks its metric in the middle of a run; only there the trace is whole.
        self.metric: Any = _Noting(metric, note)
        try:
            with using(*layers), dspy.context(**{REQUEST: request}):
                self._bootstrap_one_example(example)
        finally:
            self.metric = metric
        error = request.outcome.error
        if isinstance(error, StoreError):  # it would fail for every example
            raise error
        if not judged and error is not None:
            run = take_run(request.outcome, None)
            judged.append(self._judged(run, run.trace, False, judge))
        return judged[0] if judged else _Found({}, False, frozenset())

    def _judged(self, run: Run, trace: Sequence[Any], full: bool, judge: StepJudge) -> _Found:
        """The demonstrations of a run: its steps that are right, or of which nothing is known in a successful run."""
        # The score has judged a run that ended well; results of field metrics, which may ask an LM, are shared with it.
        metric = self._field_metric
        found = metric._judgement(run, judge.example).culprits if run.status == "completed" else judge.of(run)[0]
        verdicts, graph = _verdicts(found.notes), run.internals.graph
        routers = {router.module_name for router in graph.routers}
        known = {id(step.outputs): step for step in run.trace_steps}
        steps, corrected = [], set()
        for predictor, inputs, outputs in trace:
            step, verdict = known.get(id(outputs)), None
            if step is not None:
                author = author_of(step, graph)
                author = author if author in routers else step.node
                verdict = verdicts.get((outermost_execution(step.execution), author))
            if verdict == "right" or (verdict is None and full):
                steps.append((predictor, inputs, outputs))
                if step is not None and outermost_execution(step.execution) in judge.asked:
                    corrected.add(self.predictor2name.get(id(predictor), ""))
        nodes = {commit.id: commit.node for commit in run.commits}
        asked = {nodes[execution] for execution in judge.asked if execution in nodes}
        return _Found(self._demos(steps), full, frozenset((*asked, *found.shares)), frozenset(corrected))

    def _demos(self, steps: Iterable[tuple[Any, Mapping[str, Any], dspy.Prediction]]) -> dict[str, dspy.Example]:
        """A demonstration for each predictor, chosen among several of its steps as `BootstrapFewShot` does."""
        found: dict[str, list[dspy.Example]] = {}
        for predictor, inputs, outputs in steps:
            name = self.predictor2name.get(id(predictor))  # none for a copy, whose output was rejected
            if name is not None:
                found.setdefault(name, []).append(dspy.Example(augmented=True, **inputs, **outputs))
        return {name: _one_of(demos) for name, demos in found.items()}


def _one_of(demos: Sequence[dspy.Example]) -> dspy.Example:
    if len(demos) == 1:
        return demos[0]
    chance = random.Random(Hasher.hash(tuple(demos)))
    return chance.choice(demos[:-1]) if chance.random() < 0.5 else demos[-1]


class _Noting:
    """A function in the place of a metric, which messages of DSPy show as the metric."""

    def __init__(self, metric: FieldMetric, note: Callable[..., bool]) -> None:
        self._metric = metric
        self._note = note

    def __call__(self, *args: Any) -> bool:
        return self._note(*args)

    def __repr__(self) -> str:
        return repr(self._metric)


class _Demo(NamedTuple):
    """A demonstration of a predictor.

    Attributes:
        demo: the inputs and outputs of one step.
        full: whether its run was fully successful.
        corrected: whether its node was asked again: it shows what the node does not do by itself.
        situation: the culprits of its run.
    """

    demo: dspy.Example
    full: bool
    corrected: bool
    situation: frozenset[str]

    def order(self, situations: Mapping[frozenset[str], int]) -> tuple[bool, bool, int]:
        """The demonstrations with the smallest of these come first; `situations` counts the runs."""
        return not self.corrected, not self.full, situations[self.situation]


class _Found(NamedTuple):
    """The examples that a run has given.

    Attributes:
        demos: the demonstrations by predictor.
        full: whether it was fully successful.
        situation: its culprits, those that were corrected by rollouts too.
        corrected: the predictors whose node gave its output in a rollout.
    """

    demos: Mapping[str, dspy.Example]
    full: bool
    situation: frozenset[str]
    corrected: frozenset[str] = frozenset()


class StepJudge:
    """Judges the steps of a run against an example, also while it runs (`rollouts.AskedAgain`).

    Attributes:
        most: how many rollouts an output has at most.
        example: the example of the run.
        asked: the executions that were asked again.
    """

    def __init__(self, metric: FieldMetric, example: dspy.Example, most: int) -> None:
        self.most = most
        self.example = example
        self.asked: list[str] = []
        self._metric = metric
        self._fields = FieldJudge(metric.metrics)

    def of(self, run: Run) -> tuple[Culprits, frozenset[str]]:
        """Verdicts of a run, which may have failed, and the ids of the commits in which a fault was made."""
        judge = RunJudge(run, self.example, self._fields, self._metric.goal, {})
        return judge.judgement().culprits, judge.faults

    def shared(self, execution: str, run: Callable[[], Run]) -> AbstractSet[str]:
        """The fields of which an output on a branch is a part: a metric of the whole cannot judge it."""
        written = WrittenValues(run()).written
        return {field for (commit, field), value in written.items() if commit == execution and value.unjudged}

    def wants_another(
        self, execution: str, fields: Iterable[str], after: ImmutableState, run: Callable[[], Run]
    ) -> bool:
        """Tell if an output is wrong, and nothing from which it follows is known to be. `run` is the run up to it."""
        if "wrong" not in self._verdicts(fields, after):
            return False
        with recording():  # a metric may ask an LM, which is no step of the run
            wanted = execution in self.of(run())[1]
        if wanted:
            self.asked.append(execution)
        return wanted

    def is_right(self, fields: Iterable[str], after: ImmutableState) -> bool:
        """Return whether the output of a rollout is right."""
        found = self._verdicts(fields, after)
        return "right" in found and "wrong" not in found

    def _verdicts(self, fields: Iterable[str], after: ImmutableState) -> set[str]:
        """Verdicts of the metrics on the fields of an output, as they stand after it."""
        with recording():
            return {
                self._fields.judge(field, self.example, thaw(after.raw(field)), after).verdict
                for field in fields
                if field in self._metric.metrics and field in after
            }


def _verdicts(notes: Sequence[FieldNote]) -> dict[tuple[str, str], str]:
    """Verdicts of what a node or router wrote in a commit: wrong if one field is, right if one is right.

    What branches have added to a value is wrong if this is wrong because of them.
    """
    joined = {
        (note.field, node)
        for note in notes
        if note.node.startswith("join:") and note.verdict == "wrong"
        for node in note.suspects
    }
    found: dict[tuple[str, str], str] = {}
    for note in notes:
        place = note.commit, note.node
        verdict = "wrong" if note.verdict == "unknown" and (note.field, note.node) in joined else note.verdict
        if verdict == "wrong" or (verdict == "right" and found.get(place) != "wrong"):
            found[place] = verdict
    return found

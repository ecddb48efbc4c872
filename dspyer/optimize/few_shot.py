"""`FewShot`: demonstrations from every step that was right, also in runs whose result was wrong."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import dspy
from tqdm import tqdm  # type: ignore[import-untyped]

from dspyer.errors import StoreError, brief
from dspyer.ids import outermost_execution
from dspyer.layers.layer import using
from dspyer.lm.not_public import Hasher
from dspyer.lm.tracing import recording
from dspyer.optimize.examples import validate_examples
from dspyer.optimize.field_functions import FieldJudge
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.rollouts import AskedAgain
from dspyer.optimize.run_judge import Culprits, FieldNote, RunJudge, author_of
from dspyer.optimize.written_values import WrittenValues
from dspyer.runtime.request import REQUEST, Request
from dspyer.runtime.run import Run, internals_of, take_run
from dspyer.state import ImmutableState
from dspyer.values.frozen import thaw

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
        verdicts, graph = _verdicts(found.notes), internals_of(run).graph
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
    """What a run has given.

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
        """What is known of a run, which may have failed, and the ids of the commits in which a fault was made."""
        judge = RunJudge(run, self.example, self._fields, self._metric.goal, {})
        return judge.judgement().culprits, judge.faults

    def shared(self, execution: str, run: Callable[[], Run]) -> AbstractSet[str]:
        """The fields of which an output on a branch is a part: a metric of the whole cannot judge it."""
        written = WrittenValues(run()).written
        return {field for (commit, field), value in written.items() if commit == execution and value.unjudged}

    def wants_another(
        self, execution: str, fields: Iterable[str], after: ImmutableState, run: Callable[[], Run]
    ) -> bool:
        """Whether an output is wrong, and nothing from which it follows is known to be. `run` is the run up to it."""
        if "wrong" not in self._verdicts(fields, after):
            return False
        with recording():  # a metric may ask an LM, which is no step of the run
            wanted = execution in self.of(run())[1]
        if wanted:
            self.asked.append(execution)
        return wanted

    def is_right(self, fields: Iterable[str], after: ImmutableState) -> bool:
        """Whether the output of a rollout is right."""
        found = self._verdicts(fields, after)
        return "right" in found and "wrong" not in found

    def _verdicts(self, fields: Iterable[str], after: ImmutableState) -> set[str]:
        """What the metrics say of the fields of an output, as they stand after it."""
        with recording():
            return {
                self._fields.judge(field, self.example, thaw(after.raw(field)), after).verdict
                for field in fields
                if field in self._metric.metrics and field in after
            }


def _verdicts(notes: Sequence[FieldNote]) -> dict[tuple[str, str], str]:
    """What is known of what a node or router wrote in a commit: wrong if one field is, right if one is right.

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

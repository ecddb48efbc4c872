"""`FewShot`: demonstrations from every step that was right, also in runs whose result was wrong."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from tqdm import tqdm  # type: ignore[import-untyped]

from dspyer.errors import StoreError, brief
from dspyer.lm.not_public import Hasher
from dspyer.optimize.examples import told, validate
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.gold_run import Carried, PredictorCall, Sheet, faults

logger = logging.getLogger("dspyer")


class FewShot(dspy.BootstrapFewShot):
    """A `dspy.BootstrapFewShot` that judges each step by itself, on right inputs.

    It makes one gold run per example (`optimize.culprits`): gold is put in the place of each wrong value. A predictor
    gets a demonstration wherever what it gave is right; those whose inputs no gold could mend come last. A predictor
    whose fields have no metric gets those of fully right runs, as in `dspy.BootstrapFewShot`. Outputs that a check has
    refused, and trials that lost, are no demonstrations: their corrections are. An example gives each predictor at most
    one; those of runs in which nothing was replaced come first, then those of the runs whose culprits are rarest.

    It stops when `max_demos` runs were fully right and every predictor has `max_demos` demonstrations, or after
    the last example.

    Args:
        metric: the metric of each field, as `by_field` makes it.
        max_demos: how many demonstrations each predictor gets at most.
        rollouts: how often a node whose output is wrong is asked again before gold is put in. The run goes on with the
            first right output. Each time costs the LM calls of this node alone: for a map, those of all its items. Not
            asked again are graphs and searches that are nodes, routers, and nodes of a graph with live fields.
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
        >>> graph = graph.add_node("say", dspy.Predict("place -> answer")).add_path(
        ...     START, "find", "say", END)
        >>> equals = optimize.equals
        >>> metric = optimize.by_field({"place": equals("place"),
        ...     "answer": equals("answer")}, goal="answer")
        >>> train = [dspy.Example(question="Where?", place="north",
        ...     answer="It is north.").with_inputs("question")]
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
            >>> program = Graph().add_node("find", dspy.Predict(
            ...     "text -> place")).add_path(START, "find", END).compile()
            >>> metric = optimize.by_field({"place": optimize.equals("place")},
            ...     goal="place")
            >>> train = [dspy.Example(text="Where?", place="north").with_inputs("text")]
            >>> with ScriptedLM([{"place": "south"}, {"place": "north"}]) as lm:
            ...     tuned = optimize.FewShot(metric, rollouts=3).compile(program,
            ...         trainset=train)
            >>> tuned.find.demos[0].place, len(lm.calls)
            ('north', 2)
        """
        trainset = list(trainset)
        validate(student, self.metric, trainset=trainset)
        self.error_count = 0
        tuned: dspy.Module = super().compile(student, teacher=teacher, trainset=trainset)
        return tuned

    # --- what `dspy.BootstrapFewShot.compile` calls

    def _bootstrap(self, *, max_bootstraps: int | None = None) -> None:
        """Run the teacher on the examples, until every predictor has its demonstrations."""
        wanted = max_bootstraps or self.max_bootstrapped_demos
        pools: dict[str, list[tuple[bool, bool, frozenset[str], dspy.Example]]] = {n: [] for n in self.name2predictor}
        situations: Counter[frozenset[str]] = Counter()
        full = 0
        used: set[int] = set()
        for index, example in enumerate(tqdm(self.trainset)):
            if full >= wanted and all(len(pool) >= wanted for pool in pools.values()):
                break
            sheet = self._gold_run(example)
            replaced = any(value.replaced for value in sheet.values)
            is_full = not replaced and sheet.right
            if sheet.error is not None:  # of the program, or of the metric of its result
                self.error_count += 1
                most = self.max_errors if self.max_errors is not None else dspy.settings.max_errors
                if self.error_count >= most or isinstance(sheet.error, StoreError):  # it would fail for every example
                    raise sheet.error
                logger.error("FewShot: a run failed on %s: %s", brief(example), told(sheet.error))
            situation = frozenset(name for fault in faults(sheet, None) for name in fault.suspects)
            full += is_full
            situations[situation] += 1
            demos = _demos(sheet, is_full)
            for name in demos.keys() & pools.keys():
                pools[name].append((demos[name][1], replaced, situation, demos[name][0]))
                used.add(index)
        self.name2traces = {
            name: [demo for *_, demo in sorted(pool, key=lambda one: (*one[:2], situations[one[2]]))]
            for name, pool in pools.items()
        }
        self.validation = [example for index, example in enumerate(self.trainset) if index not in used]
        # As DSPy does it, with the same seed.
        random.Random(0).shuffle(self.validation)
        counts = ", ".join(f"{name}: {min(len(pool), wanted)}" for name, pool in pools.items())
        logger.info("FewShot: demonstrations by predictor: %s", counts)

    def _gold_run(self, example: dspy.Example) -> Sheet:
        """The gold run of the teacher on an example, which is no demonstration for itself."""
        kept = [(predictor, predictor.demos) for _, predictor in self.teacher.named_predictors()]
        try:
            for predictor, demos in kept:
                predictor.demos = [one for one in demos if one != example]
            with dspy.context(**self.teacher_settings):
                metric, again = self.metric, self.rollouts
                return Sheet(self.teacher, example, metric, metric.gold_keys, (), again, after_checks=True).observe()
        finally:
            for predictor, demos in kept:
                predictor.demos = demos


def _demos(sheet: Sheet, is_full: bool) -> dict[str, tuple[dspy.Example, bool]]:
    """A demonstration for each predictor, and whether something is known to be wrong in what was read for it.

    They are of the steps whose values are right, or of all others of a full run.
    """
    steps: dict[int, PredictorCall] = {}  # by id of the outputs, which the sheet keeps
    facts: dict[int, set[str]] = {}  # the verdicts on its values, and "misled"
    carried = Carried(sheet)
    for value in sheet.values:
        verdict = "wrong" if (value.scope, value.commit) in sheet.problems else value.verdict
        # What a reducer has made of the values of several nodes is judged as a whole.
        for one in [*(part for part in value.reads if part.folds), value] if value.kind == "graph" else [value]:
            for step in one.steps:
                steps[id(step.outputs)] = step
                # What a correction corrects is wrong, and is told to be so.
                read = [known for known in one.reads if one.kind != "fix" or known.field != one.field]
                misled = {"misled"} if any(carried.by(known) is None for known in read) else set()
                facts.setdefault(id(step.outputs), set()).update({verdict} | misled)
    found: dict[str, list[tuple[dspy.Example, bool]]] = {}
    for key, step in steps.items():
        if "wrong" not in facts[key] and ("right" in facts[key] or is_full):
            demo = dspy.Example(augmented=True, **step.inputs, **step.outputs)
            found.setdefault(step.predictor, []).append((demo, "misled" in facts[key]))
    return {name: _one_of([one for one in demos if not one[1]] or demos) for name, demos in found.items()}


def _one_of(demos: Sequence[tuple[dspy.Example, bool]]) -> tuple[dspy.Example, bool]:
    """One of several, as `dspy.BootstrapFewShot` chooses it."""
    if len(demos) == 1:
        return demos[0]
    chance = random.Random(Hasher.hash(tuple(demo for demo, _ in demos)))
    return chance.choice(demos[:-1]) if chance.random() < 0.5 else demos[-1]

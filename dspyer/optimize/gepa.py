"""`GEPA`: `dspy.GEPA` with a component selector that makes gold runs.

The package `gepa` gives a component selector the list of trajectories of a minibatch, and makes the records for the
reflection LM of that very list afterwards. So the selector puts those of the gold runs in it.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Final

import dspy
from gepa.strategies.component_selector import RoundRobinReflectionComponentSelector

from dspyer.display import ShownTable, count_of
from dspyer.errors import always_raised, names_options, shows_removed
from dspyer.extend import Layer, using
from dspyer.lm.not_public import CALLERS, COUNT_CALLS, METRIC, TRACE, FailedPrediction
from dspyer.optimize.examples import in_threads, told, validate
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.gold_layer import GoldLayer, ItemLayer
from dspyer.optimize.gold_run import Carried, Fault, Sheet, Value, faults, is_read, right_places

logger = logging.getLogger("dspyer")

RECORDS: Final = 12  # the most of a predictor in one proposal
PATIENCE: Final = 5  # after so many proposals for a culprit without an accepted one, others may be the ones to mend
MISREAD: Final = ", which was wrong: mend this step only if it should have noticed."
SELECTORS: Final = ("culprits", "round_robin", "all")


@dataclass(slots=True)
class PredictorTuning:
    """Findings of an optimization about one predictor, and what it did to it.

    Attributes:
        predictor: its full name; of what no optimizer can change, the path of the node.
        judged: how many of its values were judged while all that it had read was right.
        right: how many of them were right.
        selected: in how many proposals its text was to be edited.
        kept: new texts of it that are in a candidate which GEPA accepted.
        tunable: whether GEPA may edit it.
    """

    predictor: str
    judged: int = 0
    right: int = 0
    selected: int = 0
    kept: int = 0
    tunable: bool = True


@shows_removed
@dataclass(repr=False)
class GEPAStats(ShownTable):
    """Statistics of one call of `optimize.GEPA.compile`: a table of the predictors as text, in a notebook too.

    Attributes:
        predictors: the figures of each predictor.
        gold_runs: how many gold runs were made; each counts as one metric call of the budget.
        failed: runs of minibatches and gold runs that raised, in the program or in the metric.
        error: what a metric or a gold run raised last.
        warnings: what is wrong with the metric, as far as it shows.

    Example:
        >>> print(GEPAStats({"search.predict": PredictorTuning("search.predict",
        ...     judged=4, right=3, selected=1)}))
        predictor       right given right inputs  selected  kept
        search.predict                 0.75 of 4         1     0
        0 gold runs
    """

    predictors: dict[str, PredictorTuning]
    gold_runs: int = 0
    failed: int = 0
    error: str = ""
    warnings: list[str] = field(default_factory=list)

    def of(self, name: str) -> PredictorTuning:
        """The figures of a predictor; what the program does not let an optimizer edit gets a row of its own."""
        return self.predictors.setdefault(name, PredictorTuning(name, tunable=False))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a list of predictors, and the other figures by their names."""
        return {**asdict(self), "predictors": [asdict(one) for one in self.predictors.values()]}

    def shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """The parts of the table."""
        rows = [["predictor", "right given right inputs", "selected", "kept"]]
        for one in self.predictors.values():
            right = f"{one.right / one.judged:.2f} of {one.judged:,}" if one.judged else "-"
            edits = [f"{one.selected:,}", f"{one.kept:,}"] if one.tunable else ["", ""]
            rows.append([one.predictor if one.tunable else f"{one.predictor} (not tunable)", right, *edits])
        failed = f"{count_of(self.failed, 'run')} failed: {self.error or 'see the log'}"
        below = [count_of(self.gold_runs, "gold run"), *([failed] if self.failed else [])]
        return [], rows, [*below, *(f"warning: {text}" for text in self.warnings)]


def in_turn(state: Any, index: int, candidate: Mapping[str, str], allowed: Collection[str]) -> list[str]:
    """The next component that is allowed in gepa's round robin, whose state is saved in `log_dir`."""
    turn = RoundRobinReflectionComponentSelector()
    while True:
        found: list[str] = turn(state, [], [], index, dict(candidate))
        if found[0] in allowed:
            return found


@dataclass(slots=True)
class Case:
    """An example of a minibatch: what DSPy knows of its run, its sheets, and what is wrong by itself."""

    trajectory: Mapping[str, Any]
    run: Sheet
    gold: Sheet | None = None
    faults: Sequence[Fault] = ()


class GoldSelector:
    """Selects the predictors of all culprits of a minibatch, and one suspect in turn; a callback of gepa, too.

    It puts the steps of the gold runs in the place of the trajectories, each with its feedback.
    """

    def __init__(self, metric: FieldMetric, stats: GEPAStats, lm: Any, threads: int | None) -> None:
        self._metric, self._stats, self._lm, self._threads = metric, stats, lm, threads
        self._outer = dspy.settings.get(TRACE)  # around the optimization: other calls than those of minibatches get it
        self._around = dspy.settings.get(CALLERS) or ()  # the modules whose code optimizes
        self._open: dict[int, Sheet] = {}  # by id of the trace, which the sheet keeps
        self._lock = Lock()
        self._told: dict[int, tuple[Any, str]] = {}  # the feedback on a step by id of its outputs, which are kept
        self._tries = Counter[str]()  # of each predictor, since a candidate with another text was accepted
        self._help, self._harm = Counter[str](), Counter[str]()
        self._unused: set[str] = set()
        self._state: Any = None

    def sheet(self) -> Sheet | None:
        """The sheet of the call that is made here; None if DSPy keeps no trace of it: it is of no minibatch."""
        trace = dspy.settings.get(TRACE)
        if trace is None or trace is self._outer:
            return None
        with self._lock:
            found = self._open.get(id(trace))
            if found is None:
                program = next(one for one in dspy.settings[CALLERS] if one not in self._around)
                found = self._open[id(trace)] = Sheet(program, None, self._metric, trace=trace)
            return found

    def judge(
        self, example: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """The metric, with the feedback for the steps that were put in."""
        known = self._told.get(id(pred_trace[0][2])) if pred_trace else None
        try:
            if known is None:
                return self._metric(example, pred, trace, pred_name, pred_trace)
            return dspy.Prediction(score=float(self._metric(example, pred)), feedback=known[1])
        except Exception as error:  # DSPy scores it 0, and says so in a log alone
            self._note(error)
            raise

    def on_evaluation_end(self, event: Mapping[str, Any]) -> None:
        """Counts the runs of a minibatch that have failed."""
        self._stats.failed += sum(not isinstance(one, dspy.Prediction) or not one.keys() for one in event["outputs"])

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        """Gives the reflection LM another rollout: an equal prompt gets a new answer, in a second start the same."""
        self._state = event["state"]
        if self._lm is not None:
            self._lm.kwargs["rollout_id"] = event["iteration"]

    def on_candidate_accepted(self, event: Mapping[str, Any]) -> None:
        """Notes the predictors with a new text: in a merge none, each of its texts is that of a parent."""
        candidates = self._state.program_candidates
        parents = [candidates[parent] for parent in event["parent_ids"]]
        for name, text in candidates[event["new_candidate_idx"]].items():
            if all(one.get(name) != text for one in parents):
                self._tries[name] = 0
                self._stats.of(name).kept += 1

    def __call__(
        self, state: Any, trajectories: list[Any], _scores: list[float], candidate_idx: int, candidate: Any
    ) -> list[str]:
        """The names of the components to edit."""
        self._told.clear()
        cases = self._cases(state, trajectories)
        every = [fault for case in cases for fault in case.faults]
        selected = dict.fromkeys(name for fault in every if fault.known for name in fault.suspects if name in candidate)
        for fault in every:
            suspects = [name for name in fault.suspects if name in candidate]
            if not fault.known and suspects and selected.keys().isdisjoint(suspects):
                selected.update(dict.fromkeys(in_turn(state, candidate_idx, candidate, suspects)))
        misread = self._misread(cases, selected)
        noticing = [name for _, value, _ in misread for name in value.predictors if name in candidate]
        if not selected:  # what is wrong by itself has no text to edit
            ran = {name for case in cases for value in case.run.values for name in value.predictors}
            noticing = in_turn(state, candidate_idx, candidate, noticing or ran & {*candidate} or candidate)
        chosen = [name for name in candidate if name in selected or name in noticing]
        if every or misread:
            parsed = [case for case in cases if not isinstance(case.trajectory["prediction"], FailedPrediction)]
            self._put_records(trajectories, parsed, chosen, misread)
        for name in chosen:
            self._tries[name] += 1
            self._stats.of(name).selected += 1
        return chosen

    def _cases(self, state: Any, trajectories: Sequence[Mapping[str, Any]]) -> list[Case]:
        """The trajectories with a sheet that can be judged, with gold runs where something wrong was read."""
        with self._lock:
            sheets, self._open = self._open, {}
        by_step = {id(step[2]): sheet for sheet in sheets.values() for step in sheet.trace}
        found = list[Case]()
        for one in trajectories:
            sheet = next((by_step[id(step[2])] for step in one["trace"] if id(step[2]) in by_step), None)
            try:
                found += [] if sheet is None else [Case(one, sheet.judge(one["example"]).link())]
            except Exception as error:
                if always_raised(error):
                    raise
                self._note(error, failed=1)
        keys = [key for key in self._metric.gold_keys if key not in self._unused or key == self._metric.goal]
        wanted = [case for case in found if is_read(case.run, keys)]

        def make(case: Case) -> Sheet:
            return Sheet(case.run.program, case.trajectory["example"], self._metric, keys, self._unused).observe()

        for case, gold in zip(wanted, in_threads(make, wanted, self._threads), strict=True):
            case.gold = gold
            if gold.error is not None:
                self._note(gold.error, failed=1)
        getattr(state, COUNT_CALLS)(len(wanted))
        self._stats.gold_runs += len(wanted)
        for case in found:
            case.faults = faults(case.run, case.gold)
            self._count(case)
        return found

    def _note(self, error: Exception, failed: int = 0) -> None:
        self._stats.failed += failed
        self._stats.error = told(error)
        if failed:
            logger.warning("optimize.GEPA: a run has no known culprits", exc_info=error)

    def _count(self, case: Case) -> None:
        """Counts what is right given right inputs, and whether gold has helped those that read it (rule 8)."""
        right = right_places(case.run, case.gold)
        carried = Carried(case.gold or case.run, right)
        for fault in case.faults:
            if fault.known and not fault.suspects:
                self._stats.of(fault.value.name)
        for value in (case.gold or case.run).values:
            known = value.verdict == "right" or (value.verdict == "wrong" and value.place not in right)
            if known and carried.is_right(value):
                for name in value.predictors or ([] if value.kind == "graph" else [value.name]):
                    figures = self._stats.of(name)
                    figures.judged += 1
                    figures.right += value.verdict == "right"
        before = {one.place: one.verdict for one in case.run.values}
        for value in () if case.gold is None else case.gold.values:
            was, now = before.get(value.place, "unknown"), value.verdict
            changed = {one.key for one in value.reads if one.replaced and one.key and one.verdict == "wrong"}
            for key in changed if "unknown" not in (was, now) and was != now else ():
                (self._help if now == "right" else self._harm)[key] += 1
        for key, harm in self._harm.items():
            if harm >= 2 and harm > 2 * self._help[key] and key not in self._unused and key != self._metric.goal:
                self._unused.add(key)
                text = (
                    f"the gold of {key!r} is not used any more: {harm} readers of it were right in the run and wrong "
                    f"after gold, {self._help[key]} became right by it: is its metric too strict, or its gold wrong?"
                )
                self._stats.warnings.append(text)
                logger.warning("optimize.GEPA: %s", text)

    def _misread(self, cases: Iterable[Case], selected: Collection[str]) -> list[tuple[Case, Value, str]]:
        """The values of runs that were made from wrong ones: their authors should maybe have noticed (rule 7).

        None while culprits are edited with success.
        """
        tries = [self._tries[name] - PATIENCE for name in selected]
        if tries and not any(times >= 0 and times % 2 == 0 for times in tries):
            return []
        found = []
        for case in cases:
            for value in [one for one in case.run.values if one.verdict == "wrong"]:
                wrong = " and ".join(f"`{one.field}`" for one in value.reads if one.verdict == "wrong")
                found += [(case, value, f"{value.text} It had read {wrong}{MISREAD}")] if wrong else []
        return found

    def _put_records(
        self,
        trajectories: list[Any],
        cases: Collection[Case],
        names: Collection[str],
        misread: Iterable[tuple[Case, Value, str]],
    ) -> None:
        """Puts a trajectory for each record in the place of those of the minibatch, the wrong ones first."""
        watched = {id(case.trajectory) for case in cases}
        kept = [one for one in trajectories if id(one) not in watched]
        told: list[tuple[Case, Value, str]] = []
        for case in cases:
            for fault in case.faults:
                text = case.run.text_of(fault.value) + ("" if fault.known else " This step may be the cause.")
                told += [(case, value, text) for value in fault.causes]
        told += misread
        for case in cases:
            right = [one for one in (case.gold or case.run).values if one.verdict == "right" and one.item is None]
            told += [(case, value, value.text) for value in right]
        most: Counter[str] = Counter()
        programs = {id(case): dict(case.run.program.named_predictors()) for case in cases}
        for case, value, text in told:
            for name, inputs, outputs in value.steps:
                if id(outputs) in self._told:  # another value of the same step
                    self._told[id(outputs)] = outputs, f"{self._told[id(outputs)][1]}\n{text}"
                elif name in names and most[name] < RECORDS:
                    most[name] += 1
                    self._told[id(outputs)] = outputs, text
                    kept.append({**case.trajectory, "trace": [(programs[id(case)][name], inputs, outputs)]})
        trajectories[:] = kept


class GEPA(dspy.GEPA):
    """`dspy.GEPA`, which edits the predictors that made the mistakes.

    It takes the arguments of `dspy.GEPA` and works as it does, with another component selector. For each example of a
    minibatch it makes a *gold run* (`optimize.culprits`) if a wrong value was read later: gold is put in the place of
    each wrong value, so all predictors that are wrong by themselves show at once. It edits all of them together, and
    one suspect in turn; the reflection LM is shown their steps in the gold run, up to 12 per predictor. A gold run
    counts as one metric call. With DSPy's cache it calls only what follows a wrong value.

    With another metric than `optimize.by_field`, or another selector, it does what `dspy.GEPA` does.

    Args:
        metric: `optimize.by_field(...)`, or any metric of `dspy.GEPA`.
        component_selector: `"culprits"`, one of DSPy's (`"round_robin"`, `"all"`), or a function as in DSPy.
        options: the other arguments of `dspy.GEPA`.

    Attributes:
        stats: what the last `compile` did, a table of the predictors.

    Raises:
        ValueError: for an unknown component selector.
        TypeError: for an option that was removed (`errors.REMOVED`).

    Example:
        >>> import dspy
        >>> from dspyer import optimize
        >>> def exact(example, prediction, trace=None, pred_name=None,
        ...     pred_trace=None):
        ...     return prediction.answer == example.answer
        >>> gepa = optimize.GEPA(exact, reflection_lm=dspy.LM("openai/gpt-5"),
        ...     max_metric_calls=400)
        >>> gepa.component_selector
        'culprits'
    """

    @names_options("GEPA")
    def __init__(self, metric: Any, *, component_selector: Any = "culprits", **options: Any) -> None:
        if isinstance(component_selector, str) and component_selector not in SELECTORS:
            raise ValueError(
                f"component_selector: {component_selector!r} is unknown; it is one of "
                f"{', '.join(map(repr, SELECTORS))}, or a function as dspy.GEPA takes it"
            )
        super().__init__(metric, component_selector=component_selector, **options)
        self._stats: GEPAStats | None = None

    @property
    def stats(self) -> GEPAStats:
        """Statistics of the last `compile`: per predictor, how often it was right given right inputs, and edits.

        While `compile` runs it shows what was done so far, also after an error.

        Raises:
            LookupError: before the first `compile`.
        """
        if self._stats is None:
            raise LookupError("gepa.stats: nothing was optimized yet; call gepa.compile(program, trainset=...) first")
        return self._stats

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
    ) -> dspy.Module:
        """Optimizes a program; arguments and result are those of `dspy.GEPA.compile`.

        Args:
            student: the program.
            trainset: the examples that give feedback.
            teacher: none; GEPA has no teacher.
            valset: the examples that choose candidates; by default the trainset.

        Returns:
            The program with the instructions of the best candidate; with `track_stats=True` it has `detailed_results`.

        Raises:
            TypeError: if an example is no `dspy.Example`.
            ValueError: if the program has no predictor to edit, if the examples do not fit its inputs, or if a metric
                by field does not fit them or the program.

        Example:
            >>> import io
            >>> from contextlib import redirect_stdout
            >>> import dspy
            >>> from dspyer import END, START, Graph, optimize
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("add", dspy.Predict(
            ...     "question -> answer")).add_path(START, "add", END)
            >>> examples = [dspy.Example(question="1 + 2?", answer="3"),
            ...     dspy.Example(question="2 + 2?", answer="4")]
            >>> examples = [example.with_inputs("question") for example in examples]
            >>> metric = optimize.by_field({"answer": optimize.equals("answer")},
            ...     goal="answer")
            >>> gepa = optimize.GEPA(metric, reflection_lm=ScriptedLM([]),
            ...     max_metric_calls=2, num_threads=1)
            >>> # progress bars
            ... with ScriptedLM([{"answer": "3"}, {"answer": "4"}]), redirect_stdout(
            ...     io.StringIO()):
            ...     tuned = gepa.compile(graph.compile(), trainset=examples)
            >>> gepa.stats.gold_runs
            0
        """
        names = [name for name, _ in student.named_predictors()]
        if not names:
            raise ValueError(
                "optimize.GEPA: there is nothing to edit: the program has no predictor, or all of its modules are "
                "frozen, as an optimizer leaves what it compiled; with add_node(..., frozen=False) it is edited again"
            )
        metric, lm = getattr(self, METRIC), self.reflection_lm
        validate(student, metric, trainset=trainset, valset=valset or [])
        self._stats = GEPAStats({name: PredictorTuning(name) for name in names})
        layers: tuple[Layer, ...] = ()
        own = copy.copy(self)  # DSPy's `compile` is given other parts; this object may compile in several threads
        if self.component_selector == "culprits" and not isinstance(metric, FieldMetric):
            own.component_selector = "round_robin"
        elif self.component_selector == "culprits":
            if isinstance(lm, dspy.BaseLM):  # the number of each proposal is set on a copy
                lm = own.reflection_lm = lm.copy(temperature=lm.kwargs.get("temperature") or 1.0)
            selector = own.component_selector = GoldSelector(metric, self._stats, lm, self.num_threads)
            setattr(own, METRIC, selector.judge)
            own.gepa_kwargs = {**self.gepa_kwargs, "callbacks": [*(self.gepa_kwargs.get("callbacks") or ()), selector]}
            layers = GoldLayer(selector.sheet), ItemLayer()
        with using(*layers):
            return dspy.GEPA.compile(own, student, trainset=trainset, teacher=teacher, valset=valset)

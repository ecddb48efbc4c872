"""`GEPA`: `dspy.GEPA` with a component selector that makes gold runs.

The package `gepa` gives a component selector the list of trajectories of a minibatch, and makes the records for the
reflection LM of that very list afterwards. So the selector puts those of the gold runs in it.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import dspy

from dspyer.display import count_of, table_html, table_lines
from dspyer.errors import always_raised, error_text, refuses_removed
from dspyer.extend import using
from dspyer.lm.not_public import CALLERS, TRACE, FailedPrediction
from dspyer.optimize.examples import validate_examples
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.gold_layer import GoldLayer, ItemLayer
from dspyer.optimize.gold_run import Carried, Fault, Sheet, Value, faults, is_read, observe

logger = logging.getLogger("dspyer")

RECORDS: Final = 12
"""The most records of a predictor in one proposal."""

MISREAD: Final = ", which was wrong: mend this step only if it should have noticed."

PATIENCE: Final = 5
"""After so many proposals for a culprit without an accepted one, others may be the ones to mend."""

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


class GEPAStats:
    """Statistics of one call of `optimize.GEPA.compile`: a table of the predictors as text, in a notebook too.

    Attributes:
        predictors: the figures of each predictor.
        gold_runs: how many gold runs were made; each counts as one metric call of the budget.
        failed: runs of minibatches and gold runs that raised, in the program or in the metric.
        error: what a metric or a gold run raised last.
        warnings: what is wrong with the metric, as far as it shows.

    Example:
        >>> stats = GEPAStats(["search.predict", "write"])
        >>> stats.predictors["write"].selected = 3
        >>> print(stats)
        predictor       right given right inputs  selected  kept
        search.predict                         -         0     0
        write                                  -         3     0
        0 gold runs
    """

    def __init__(self, predictors: Iterable[str] = ()) -> None:
        self.predictors: dict[str, PredictorTuning] = {name: PredictorTuning(name) for name in predictors}
        self.gold_runs = 0
        self.failed = 0
        self.error = ""
        self.warnings: list[str] = []

    def note(self, error: Exception) -> None:
        """Counts what was raised."""
        self.failed += 1
        self.error = f"{type(error).__name__}: {error_text(error)}"
        logger.warning("optimize.GEPA: a run has no known culprits", exc_info=error)

    def of(self, name: str) -> PredictorTuning:
        """The figures of a predictor; what the program does not let an optimizer edit gets a row of its own."""
        return self.predictors.setdefault(name, PredictorTuning(name, tunable=False))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a list of predictors, and the other figures by their names.

        Example:
            >>> GEPAStats(["write"]).to_dict()["gold_runs"]
            0
        """
        rows = [{name: getattr(one, name) for name in one.__slots__} for one in self.predictors.values()]
        return {**vars(self), "predictors": rows}

    def __str__(self) -> str:
        return "\n".join([*table_lines(self._table()), *self._lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        return table_html(head, rows, self._lines())

    def _table(self) -> list[list[str]]:
        rows = [["predictor", "right given right inputs", "selected", "kept"]]
        for one in self.predictors.values():
            right = f"{one.right / one.judged:.2f} of {one.judged:,}" if one.judged else "-"
            edits = [f"{one.selected:,}", f"{one.kept:,}"] if one.tunable else ["", ""]
            rows.append([one.predictor if one.tunable else f"{one.predictor} (not tunable)", right, *edits])
        return rows

    def _lines(self) -> list[str]:
        lines = [count_of(self.gold_runs, "gold run")]
        if self.failed:
            lines.append(f"{count_of(self.failed, 'run')} failed: {self.error or 'see the log'}")
        return [*lines, *(f"warning: {text}" for text in self.warnings)]


class Sheets:
    """The sheets of the calls of which DSPy keeps a trace: those of minibatches. Others are not watched.

    Args:
        metric: the metric.
        outer: the trace around the optimization, to which all other calls append.
    """

    def __init__(self, metric: FieldMetric, outer: Any) -> None:
        self._metric, self._outer = metric, outer
        self._open: dict[int, Sheet] = {}
        self._lock = Lock()

    def sheet(self) -> Sheet | None:
        """The sheet of the call that is made here; None if it is not watched."""
        trace = dspy.settings.get(TRACE)
        if trace is None or trace is self._outer:
            return None
        with self._lock:
            found = self._open.get(id(trace))
            if found is None:
                found = self._open[id(trace)] = Sheet(self._metric)
                found.trace, found.program = trace, (dspy.settings.get(CALLERS) or [None])[0]
            return found

    def take(self, trajectories: Sequence[Mapping[str, Any]], stats: GEPAStats) -> list[Sheet | None]:
        """The sheet of each trajectory, judged; None without one, or if a metric raised. All others are forgotten."""
        with self._lock:
            sheets, self._open = self._open, {}
        by_step = {id(step[2]): sheet for sheet in sheets.values() for step in sheet.trace}
        found: list[Sheet | None] = []
        for one in trajectories:
            sheet = next((by_step[id(step[2])] for step in one["trace"] if id(step[2]) in by_step), None)
            try:
                found.append(None if sheet is None else sheet.judge(one["example"]).link())
            except Exception as error:
                if always_raised(error):
                    raise
                stats.note(error)
                found.append(None)
        return found


class GoldSelector:
    """Selects the predictors of all culprits of a minibatch, and one suspect in turn.

    It puts the steps of the gold runs in the place of the trajectories, each with the words of the metric (`told`).
    """

    def __init__(self, metric: FieldMetric, stats: GEPAStats, sheets: Sheets, lm: Any, threads: int | None) -> None:
        self._metric, self.stats, self._sheets, self._lm = metric, stats, sheets, lm
        self._threads = threads
        self.told: dict[int, tuple[Any, str]] = {}  # by id of the outputs, which are kept
        self._tries: Counter[str] = Counter()  # of each predictor, since a candidate with another text was accepted
        self._help: Counter[str] = Counter()
        self._harm: Counter[str] = Counter()
        self._unused: set[str] = set()

    def __call__(
        self, state: Any, trajectories: list[Any], subsample_scores: list[float], candidate_idx: int, candidate: Any
    ) -> list[str]:
        """The names of the components to edit."""
        del subsample_scores
        if self._lm is not None:  # an equal prompt gets a new answer; a second start gets the same one
            self._lm.kwargs["rollout_id"] = state.i + 1
        self.told.clear()
        runs = self._sheets.take(trajectories, self.stats)
        gold = self._gold_runs(state, trajectories, runs)
        for run, made in zip(runs, gold, strict=True):
            self._count(run, made)
        found = [[] if run is None else faults(run, one) for run, one in zip(runs, gold, strict=True)]
        every = [fault for one in found for fault in one]
        selected = dict.fromkeys(name for fault in every if fault.known for name in fault.suspects if name in candidate)
        for fault in every:
            suspects = [name for name in fault.suspects if name in candidate]
            if not fault.known and suspects and selected.keys().isdisjoint(suspects):
                selected.update(dict.fromkeys(self._next(state, candidate_idx, suspects)))
        for fault in every:
            if fault.known and not fault.suspects:
                self.stats.of(fault.value.name)
        misread = self._misread(runs, selected, candidate)
        if not selected and misread:  # what is wrong by itself has no text to edit
            selected.update(dict.fromkeys(self._next(state, candidate_idx, misread)))
            misread = {name: values for name, values in misread.items() if name in selected}
        if not selected:
            ran = {name for run in runs if run is not None for value in run.values for name in value.predictors}
            allowed = [name for name in candidate if name in ran] or candidate
            return self._note(self._next(state, candidate_idx, allowed))
        self._put_records(trajectories, runs, gold, found, {*selected, *misread}, misread)
        return self._note([name for name in candidate if name in selected or name in misread])

    # --- gold runs

    def _gold_runs(self, state: Any, trajectories: Sequence[Any], runs: Sequence[Sheet | None]) -> list[Sheet | None]:
        """The gold run of each run in which something wrong was read; results are in the order of the minibatch."""
        keys = [key for key in self._metric.gold_keys if key not in self._unused or key == self._metric.goal]
        wanted = [at for at, run in enumerate(runs) if run is not None and is_read(run, keys)]
        found: list[Sheet | None] = [None] * len(runs)

        def make(at: int) -> Sheet:
            run: Any = runs[at]
            return observe(run.program, trajectories[at]["example"], self._metric, keys, self._unused)

        with ThreadPoolExecutor(self._threads or dspy.settings.num_threads or 1) as pool:
            made = [pool.submit(copy_context().run, make, at) for at in wanted]
            for at, future in zip(wanted, made, strict=True):
                found[at] = future.result()
        state.increment_evals(len(wanted))
        self.stats.gold_runs += len(wanted)
        for one in found:
            if one is not None and one.error is not None:
                self.stats.note(one.error)
        return found

    def _count(self, run: Sheet | None, gold: Sheet | None) -> None:
        """Counts what is right given right inputs, and whether gold has helped those that read it (rule 8)."""
        if run is None:
            return
        carried = Carried(())
        for value in (gold or run).values:
            if value.verdict != "unknown" and carried.is_right(value):
                for name in value.predictors or (() if value.kind == "graph" else (value.name,)):
                    figures = self.stats.of(name)
                    figures.judged += 1
                    figures.right += value.verdict == "right"
        if gold is None:
            return
        before = {one.place: one.verdict for one in run.values}
        for value in gold.values:
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
                self.stats.warnings.append(text)
                logger.warning("optimize.GEPA: %s", text)

    # --- what is selected

    def _next(self, state: Any, candidate_idx: int, allowed: Iterable[str]) -> list[str]:
        """The next component of a candidate in turn, as DSPy's round robin, of those that are allowed."""
        names, may = state.list_of_named_predictors, set(allowed)
        turns: list[int] = state.named_predictor_id_to_update_next_for_program_candidate
        order = [(turns[candidate_idx] + step) % len(names) for step in range(len(names))]
        place = next(place for place in order if names[place] in may)
        # In the state of gepa: it is saved in `log_dir`, and goes on from there.
        turns[candidate_idx] = (place + 1) % len(names)
        return [names[place]]

    def _misread(
        self, runs: Sequence[Sheet | None], selected: Collection[str], candidate: Any
    ) -> dict[str, list[Value]]:
        """The values of a run that were made from wrong ones, by predictor: it should maybe have noticed (rule 7).

        None while culprits are edited with success.
        """
        tries = [self._tries[name] - PATIENCE for name in selected]
        if tries and not any(times >= 0 and times % 2 == 0 for times in tries):
            return {}
        found: dict[str, list[Value]] = {}
        for run in runs:
            for value in [] if run is None else run.values:
                wrong = [one for one in value.reads if one.verdict == "wrong"]
                for name in value.predictors if wrong and value.verdict == "wrong" else ():
                    if name in candidate:
                        found.setdefault(name, []).append(value)
        return found

    def _note(self, names: list[str]) -> list[str]:
        for name in names:
            self._tries[name] += 1
            self.stats.of(name).selected += 1
        return names

    def accepted(self, names: Iterable[str]) -> None:
        """Notes the components whose text is new in a candidate that was accepted."""
        for name in names:
            self._tries[name] = 0
            self.stats.of(name).kept += 1

    # --- records

    def _put_records(
        self,
        trajectories: list[Any],
        runs: Sequence[Sheet | None],
        gold: Sequence[Sheet | None],
        found: Sequence[Sequence[Fault]],
        names: set[str],
        misread: Mapping[str, Sequence[Value]],
    ) -> None:
        """Puts a trajectory for each record in the place of those of the minibatch, the wrong ones first."""
        records: list[tuple[bool, str, Any]] = []
        for at, trajectory in enumerate(trajectories):
            run = runs[at]
            if run is None or isinstance(trajectory["prediction"], FailedPrediction):
                records.append((False, "", trajectory))
                continue
            told: dict[Value, list[str]] = {}
            for fault in found[at]:
                for cause in fault.causes:
                    told.setdefault(cause, []).append(self._text(fault, run))
            for many in misread.values():
                for value in many:
                    if value in run.values:
                        wrong = " and ".join(f"`{one.field}`" for one in value.reads if one.verdict == "wrong")
                        told[value] = [f"{value.text} It had read {wrong}{MISREAD}"]
            right = [one for one in (gold[at] or run).values if one.verdict == "right" and one.item is None]
            for value, texts in {**{one: [one.text] for one in right}, **told}.items():
                records += self._records(trajectory, run, value, "\n".join(texts), names, value not in told)
        most: Counter[str] = Counter()
        kept = []
        for _, name, record in sorted(records, key=lambda one: one[0]):
            most[name] += 1
            if not name or most[name] <= RECORDS:
                kept.append(record)
        trajectories[:] = kept

    def _records(
        self, trajectory: Any, run: Sheet, value: Value, text: str, names: Collection[str], is_right: bool
    ) -> list[tuple[bool, str, Any]]:
        """A trajectory for each step of a value whose predictor is selected."""
        found, program = [], dict(run.program.named_predictors())
        for step in value.steps if value.kind != "graph" else ():
            if step.predictor in names:
                known = self.told.get(id(step.outputs))
                self.told[id(step.outputs)] = step.outputs, text if known is None else f"{known[1]}\n{text}"
                if known is None:
                    trace = [(program[step.predictor], step.inputs, step.outputs)]
                    found.append((is_right, step.predictor, {**trajectory, "trace": trace}))
        return found

    def _text(self, fault: Fault, run: Sheet) -> str:
        """The words for a fault: for a suspect too, whose own value may be right."""
        problems = run.problems.get((fault.value.scope, fault.value.commit))
        text = f"{fault.value.text} A check found: {'; '.join(problems)}" if problems else fault.value.text
        return text if fault.known else f"{text} This step may be the cause."


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
        >>> def exact(example, prediction, trace=None, pred_name=None, pred_trace=None):
        ...     return prediction.answer == example.answer
        >>> gepa = optimize.GEPA(exact, reflection_lm=dspy.LM("openai/gpt-5"), max_metric_calls=400)
        >>> gepa.component_selector
        'culprits'
    """

    @refuses_removed("GEPA")
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
            >>> graph = Graph().add_node("add", dspy.Predict("question -> answer")).add_path(START, "add", END)
            >>> examples = [dspy.Example(question="1 + 2?", answer="3"), dspy.Example(question="2 + 2?", answer="4")]
            >>> examples = [example.with_inputs("question") for example in examples]
            >>> metric = optimize.by_field({"answer": optimize.equals("answer")}, goal="answer")
            >>> gepa = optimize.GEPA(metric, reflection_lm=ScriptedLM([]), max_metric_calls=2, num_threads=1)
            >>> with ScriptedLM([{"answer": "3"}, {"answer": "4"}]), redirect_stdout(io.StringIO()):  # progress bars
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
        validate_examples(student, trainset, "trainset")
        validate_examples(student, valset or [], "valset")
        self._stats = stats = GEPAStats(names)
        metric: Any = self.metric_fn
        own = copy.copy(self)  # DSPy's `compile` is given other parts; this object may compile in several threads
        if isinstance(metric, FieldMetric):  # DSPy scores 0 what a metric raises, and goes on
            metric.validate(student, [*trainset, *(valset or [])])
        if not isinstance(metric, FieldMetric) or self.component_selector != "culprits":
            own.component_selector = "round_robin" if self.component_selector == "culprits" else self.component_selector
            return dspy.GEPA.compile(own, student, trainset=trainset, teacher=teacher, valset=valset)
        lm = own.reflection_lm = _numbered(self.reflection_lm)
        sheets = Sheets(metric, dspy.settings.get(TRACE))
        own.component_selector = selector = GoldSelector(metric, stats, sheets, lm, self.num_threads)

        def told(
            example: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
        ) -> Any:
            known = selector.told.get(id(pred_trace[0][2])) if pred_trace else None
            try:
                if known is None:
                    return metric(example, pred, trace, pred_name, pred_trace)
                return dspy.Prediction(score=float(metric(example, pred)), feedback=known[1])
            except Exception as error:  # DSPy scores it 0, and says so in a log alone
                stats.error = f"{type(error).__name__}: {error_text(error)}"
                raise

        own.metric_fn = told
        callbacks = [*(self.gepa_kwargs.get("callbacks") or ()), _Observer(selector)]
        own.gepa_kwargs = {**self.gepa_kwargs, "callbacks": callbacks}
        with using(GoldLayer(sheets.sheet), ItemLayer()):
            return dspy.GEPA.compile(own, student, trainset=trainset, teacher=teacher, valset=valset)


def _numbered(lm: Any) -> Any:
    """A copy of the reflection LM, whose `rollout_id` is set to the number of each proposal."""
    return lm.copy(temperature=lm.kwargs.get("temperature") or 1.0) if isinstance(lm, dspy.BaseLM) else None


class _Observer:
    """A callback of `gepa`: tells the selector which texts are new in a candidate that was accepted."""

    def __init__(self, selector: GoldSelector) -> None:
        self._selector = selector
        self._state: Any = None

    def on_evaluation_end(self, event: Mapping[str, Any]) -> None:
        for output in event["outputs"]:
            self._selector.stats.failed += not isinstance(output, dspy.Prediction) or not output.keys()

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        self._state = event["state"]

    def on_candidate_accepted(self, event: Mapping[str, Any]) -> None:
        candidates, index = self._state.program_candidates, event["new_candidate_idx"]
        parents = [candidates[parent] for parent in event["parent_ids"]]
        # Of a merge there are none: each of its texts is that of a parent, where it was counted.
        found = [name for name, text in candidates[index].items() if all(one.get(name) != text for one in parents)]
        self._selector.accepted(found)

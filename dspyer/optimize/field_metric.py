"""`by_field`: a metric that compares single fields of a program with gold values; `equals`, the usual comparison.

`culprits` is here too, since the metric keeps what `run_judge` has found out about each run: an optimizer asks for the
feedback of every predictor, and the run is judged once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

import dspy

from dspyer import DELETE, CompiledGraph, ImmutableState, Run
from dspyer.errors import UnsupportedValueError, brief, list_names, suggestion, with_article
from dspyer.events import TraceStep
from dspyer.extend import freeze, outermost_execution, same, thaw
from dspyer.graph.spec import GraphSpec
from dspyer.optimize.run_judge import Culprits, Judgement, RunJudge, author_of
from dspyer.optimize.written_values import (
    NO_FIELD,
    Equals,
    FieldJudge,
    FieldResult,
    WrittenValues,
    metric_name,
    metric_problems,
)

logger = logging.getLogger("dspyer")


class PassOrScore(float):
    """A score that is true only if it is 1: `BootstrapFewShot` takes a run as an example if its score is true."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self >= 1


def equals(column: str) -> Callable[[Any, Any], bool]:
    """A field metric: the value of the field equals a column of the example.

    Args:
        column: the name of the column, as in `example.column`.

    Returns:
        The metric, a function of the example and the value. It raises a `ValueError` for an example without the column.
        A warning in the log says so once if two values differ in their types alone: a dict is equal to no model.

    Raises:
        TypeError: if the name is no text.

    Example:
        >>> import dspy
        >>> equals("gold_label")(dspy.Example(gold_label="north"), "north")
        True
    """
    return Equals(column)


def by_field(
    metrics: Mapping[str, Callable[..., Any]], *, goal: str, weights: Mapping[str, float] | None = None
) -> FieldMetric:
    """A metric that compares each field of a program for which there is a gold value.

    It is a metric for `dspy.Evaluate` and for every optimizer. Those of `dspyer.optimize` also learn from it which node
    was the culprit of a wrong result (`culprits`), and so does `dspy.GEPA`, as feedback for each predictor.

    A field metric is a function of `example`, of the field by its name, and optionally of `state`, the state after the
    commit that wrote the field. It returns a bool, a number from 0 to 1, None if it cannot tell, or
    `dspy.Prediction(score=..., feedback=...)`. A value is right if its score is 1: for less than that, return
    `score >= 0.8`.

    Args:
        metrics: the metric of each field that can be compared.
        goal: the field whose score is that of the run.
        weights: for another score, the mean of several fields with these weights, the goal among them. A field whose
            metric cannot tell is left out of the mean; one that the run has not written scores 0.

    Returns:
        The metric.

    Raises:
        ValueError: if a metric is no function of the example, its field and the state, if the goal has no metric, or
            if a weight has none or is not positive; all problems at once.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("count", lambda text: {"words": len(text.split())}, writes=["words"])
        >>> program = graph.add_path(START, "count", END).compile()
        >>> metric = by_field({"words": equals("words")}, goal="words")
        >>> metric(dspy.Example(text="high tide", words=2), program(text="high tide"))
        1.0
    """
    return FieldMetric(metrics, goal, weights)


class FieldMetric:
    """A metric by field, as `by_field` makes it: a function of (example, pred, trace, pred_name, pred_trace).

    Attributes:
        metrics: the metric of each field.
        goal: the field whose score is that of the run.
        weights: the weights of the fields in the score; None if the score is that of the goal.

    Example:
        >>> metric = by_field({"answer": equals("answer")}, goal="answer")
        >>> metric
        by_field({'answer': equals('answer')}, goal='answer')
    """

    def __init__(
        self, metrics: Mapping[str, Callable[..., Any]], goal: str, weights: Mapping[str, float] | None = None
    ) -> None:
        problems = _argument_problems(metrics, goal, weights)
        if problems:
            raise ValueError("by_field: " + "; ".join(problems))
        self.metrics: Mapping[str, Callable[..., Any]] = dict(metrics)
        self.goal = goal
        self.weights: Mapping[str, float] | None = (
            None if weights is None else {field: float(weight) for field, weight in weights.items()}
        )
        self._judge = FieldJudge(self.metrics)
        self._runs: WeakKeyDictionary[Run, list[_JudgedRun]] = WeakKeyDictionary()
        self._unchanged: WeakKeyDictionary[Run, ref[dspy.Prediction]] = WeakKeyDictionary()
        self._fits: GraphSpec | None = None  # the graph that was validated last
        self._missed: set[str] = set()  # fields that a prediction without a run did not have
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldMetric, (self.metrics, self.goal, self.weights)

    def __call__(
        self, example: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """The score of a run; with `pred_name`, also feedback for the predictor of that name, as `dspy.GEPA` asks.

        In a bootstrap, with a `trace` alone, a score below 1 counts as false: it is no example to follow. Of a
        prediction that a module around the graph has changed, the score is that of the changed values.
        """
        run = _run_of(pred)
        by_run = run is not None and not self._is_changed(pred, run)
        score = self._score(run, example) if run is not None and by_run else self._score_without_run(example, pred)
        if pred_name is None:
            return score if trace is None else PassOrScore(score)
        if run is None:
            return dspy.Prediction(score=score, feedback=self._goal_text(example, pred))
        return dspy.Prediction(score=score, feedback=self._feedback(run, example, trace, pred_trace))

    def validate(self, program: dspy.Module, examples: Iterable[Any] = ()) -> None:
        """Check that the metric fits a program, before an optimizer runs it.

        `optimize.GEPA` and `optimize.FewShot` do so. `dspy.Evaluate` and the optimizers of DSPy go on after an error
        of a metric: they count it and score the example 0.

        Args:
            program: the program; only the fields of a compiled graph are known before it runs.
            examples: examples that must have the columns that `equals` names.

        Raises:
            ValueError: if the graph has no such field, or no node writes it; if an example lacks a column.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("count", lambda text: {"words": len(text.split())}, writes=["words"])
            >>> program = graph.add_path(START, "count", END).compile()
            >>> by_field({"word": equals("words")}, goal="word").validate(program)
            Traceback (most recent call last):
            ValueError: by_field: graph 'Graph' has no field 'word'. Did you mean 'words'? Its nodes write 'words'
        """
        if isinstance(program, CompiledGraph):
            self._validate_graph(program.graph, self.metrics)
        given = list(examples)
        for metric in self.metrics.values():
            lacking = [one for one in given if metric.column not in one] if isinstance(metric, Equals) else []
            if isinstance(metric, Equals) and lacking:
                raise ValueError(f"{metric.lacks(lacking[0])} ({len(lacking)} of {len(given)} examples lack it)")

    def _validate_graph(self, graph: GraphSpec, fields: Iterable[str]) -> None:
        """Refuse metrics of fields that a graph does not have, or that none of its nodes writes."""
        schema, writes = graph.topology.schema, graph.writes
        if schema.accepts_any_key and writes is None:
            return
        known = [*graph.inputs, *(writes or ())] if schema.accepts_any_key else list(schema.fields)
        written = known if writes is None else writes
        problems = []
        for field in fields:
            if field not in known:
                hint = suggestion(field, written)
                problems.append(f"graph {graph.name!r} has no field {field!r}.{hint}")
            elif field not in written:
                problems.append(f"no node of graph {graph.name!r} writes the field {field!r}.")
        if problems:
            raise ValueError(f"by_field: {' '.join(problems)} Its nodes write {list_names(written)}")

    # --- scores

    def _score(self, run: Run, example: Any) -> float:
        known = self._judged(run, example)
        return self._mean({field: known.results.get((NO_FIELD, field)) for field in self._scored})

    def _is_changed(self, pred: dspy.Prediction, run: Run) -> bool:
        """Return whether a module around the graph has changed a value that counts for the score.

        It is asked once for each prediction: GEPA wants feedback for each predictor.
        """
        with self._lock:
            known = self._unchanged.get(run)
        if known is not None and known() is pred:
            return False
        for field in self._scored:
            if field in pred and field in run.state:
                try:
                    value = freeze(pred[field])
                except UnsupportedValueError:  # it cannot come from a state
                    return True
                if not same(value, run.state.raw(field)):
                    return True
        with self._lock:
            self._unchanged[run] = ref(pred)
        return False

    def _judged(self, run: Run, example: Any) -> _JudgedRun:
        """The judgement of a run: at first, the results of the fields that count for its score."""
        with self._lock:
            found = next((one for one in self._runs.get(run, ()) if one.example is example), None)
        if found is not None:
            return found
        graph = run.internals.graph
        # Checked once per graph: an optimizer scores thousands of runs of one.
        if graph is not self._fits:
            self._validate_graph(graph, self._scored)  # other fields may be those of another graph of the program
            self._fits = graph
        found = _JudgedRun(example)
        for field in self._scored:
            if field in run.state:
                found.results[NO_FIELD, field] = self._final_result(run, example, field)
        with self._lock:
            self._runs.setdefault(run, []).append(found)
        return found

    def _final_result(self, run: Run, example: Any, field: str) -> FieldResult:
        """The result of a metric for the value of a field in the end, with the state right after it was written."""
        state = _state_after(run, field) if self._judge.takes_state(field) else run.state
        return self._judge.judge(field, example, thaw(run.state.raw(field)), state)

    def _judgement(self, run: Run, example: Any) -> Judgement:
        """The nodes that are responsible for what is wrong in a run; judged once for each run and example."""
        if run.internals.resumed:
            raise ValueError(
                "this run was resumed, so this process knows only a part of what its nodes have read and called: judge "
                "a run that was made at once, program.run({...})"
            )
        if run.status != "completed":
            raise ValueError(
                f"this run is {run.status}: culprits judges completed runs; run.failures names what failed"
            )
        known = self._judged(run, example)
        # One thread judges, the others wait: a metric of a field may ask an LM.
        with known.lock:
            if known.judgement is None:
                judge = RunJudge(run, example, self._judge, self.goal, known.results)
                known.judgement = judge.judgement()
            return known.judgement

    def _score_without_run(self, example: Any, pred: Any) -> float:
        if not isinstance(pred, dspy.Prediction):  # what some optimizers pass for a run that failed
            return 0.0
        if pred.keys():
            self._warn_of_missing([field for field in self._scored if field not in pred], pred)
        return self._mean(
            {
                field: self._judge.judge(field, example, pred[field], pred) if field in pred else None
                for field in self._scored
            }
        )

    def _warn_of_missing(self, fields: Iterable[str], pred: dspy.Prediction) -> None:
        """Says once for each field that a module without a graph did not give it: the name may be misspelt."""
        for field in fields:
            with self._lock:
                known = field in self._missed
                self._missed.add(field)
            if not known:
                logger.warning(
                    "by_field: a prediction has no field %r, which scores 0; it has %s.%s",
                    field,
                    list_names(pred.keys()),
                    suggestion(field, pred.keys()),
                )

    @property
    def _scored(self) -> Iterable[str]:
        return (self.goal,) if self.weights is None else self.weights

    def _mean(self, results: Mapping[str, FieldResult | None]) -> float:
        """The score of a run, given the result of each field that counts; None for one that the run has not written."""
        known: dict[str, float] = {}
        for field, result in results.items():
            if result is None:
                known[field] = 0.0
            elif result.score is not None:
                known[field] = result.score
        if self.goal not in known:
            raise ValueError(
                f"by_field: the metric of the goal {self.goal!r} returned None (cannot tell): a run needs a "
                "score, so the metric of the goal must be able to tell"
            )
        if self.weights is None:
            return known[self.goal]
        weight = math.fsum(self.weights[field] for field in known)
        return math.fsum(self.weights[field] * score for field, score in known.items()) / weight

    # --- feedback

    def _feedback(self, run: Run, example: Any, trace: Any, pred_trace: Any) -> str:
        """The feedback for one step of a run. Its execution says what it wrote: by value, or by predictor, two visits
        of a loop could be taken for each other.
        """
        judgement = self._judgement(run, example)
        step = step_of(run, trace, pred_trace)
        if step is None:  # of another part of the program
            return self._goal_text(example, run.prediction)
        commit = outermost_execution(step.execution)
        author = author_of(step, run.internals.graph)
        texts = judgement.feedback.get((commit, author), ())
        return "\n".join(texts) or judgement.goal

    def _goal_text(self, example: Any, pred: Any) -> str:
        if not isinstance(pred, dspy.Prediction) or self.goal not in pred:
            return f"The program gave no `{self.goal}`."
        value = pred[self.goal]
        return self._judge.text(self.goal, example, value, self._judge.judge(self.goal, example, value, pred))

    def __repr__(self) -> str:
        metrics = ", ".join(f"{field!r}: {metric_name(metric)}" for field, metric in self.metrics.items())
        weights = "" if self.weights is None else f", weights={self.weights!r}"
        return f"by_field({{{metrics}}}, goal={self.goal!r}{weights})"


class _JudgedRun:
    """The judgement of a run by one example."""

    def __init__(self, example: Any) -> None:
        self.example = example
        self.results: dict[tuple[str, str], FieldResult] = {}
        self.judgement: Judgement | None = None
        self.lock = Lock()


def _run_of(pred: object) -> Run | None:
    """The run of a prediction; None for one that no graph has given."""
    try:
        return Run.of(pred) if isinstance(pred, dspy.Prediction) else None
    except LookupError:
        return None


def _state_after(run: Run, field: str) -> ImmutableState:
    """The state right after the last commit that wrote a field, also with the value that it had."""
    try:  # of a resumed run, this process does not know what its nodes have read
        wrote = run.blame((field,)).id if run.internals.resumed else WrittenValues(run).final[field].commit.id
    except LookupError:  # it was given, or an earlier run of the thread has written it
        return run.state
    state = run.at(wrote)
    return state if same(state.raw(field, DELETE), run.state.raw(field)) else run.state


def step_of(run: Run, trace: Any, pred_trace: Any) -> TraceStep | None:
    """The step of a run that an optimizer shows: by identity, or in a copy of the trace by its position there."""
    if not pred_trace:
        return None
    _, inputs, outputs = pred_trace[0]
    steps = [step for step in run.trace_steps if step.status != "lost"]
    for step in steps:
        if step.inputs is inputs and step.outputs is outputs:
            return step
    at = next((at for at, one in enumerate(trace or ()) if one[1] is inputs and one[2] is outputs), None)
    if at is None or len(trace) > len(steps):
        return None
    steps = steps[len(steps) - len(trace) :]  # `max_trace_size` drops the oldest
    same_steps = all(step.inputs.keys() == one[1].keys() for step, one in zip(steps, trace, strict=True))
    return steps[at] if same_steps else None


def culprits(run: Run, example: Any, metric: FieldMetric) -> Culprits:
    """The nodes that are responsible for what is wrong in a run.

    A field that a commit wrote is right if its metric says so. It is wrong if its metric says so, if a check refused
    it, if its node failed, or if something that the node has read was wrong, or a router that had read something wrong
    led there. Otherwise it is unknown. The **culprit** is the node that wrote a wrong value although nothing from which
    it follows was wrong. If values from which it follows are unknown, it shares the responsibility with all nodes with
    a language model upstream, up to fields that are right. This is not `run.blame`, which names the last writer.

    The graph inside of a node is not looked into: the node is responsible for it. The more nodes declare `reads`, the
    more exact is the result: a node without `reads` has read the whole state.

    Args:
        run: a completed run, as `program.run(...)` returns it, or `Run.of(prediction)`.
        example: the example with the gold values.
        metric: the metric by field.

    Returns:
        The culprits, with notes on every field that was written.

    Raises:
        TypeError: if it is no run, or the metric is not one of `by_field`.
        ValueError: if the metric does not fit the graph, if the run was resumed, or if it is not completed.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("count", lambda text: {"words": len(text)}, writes=["words"])
        >>> graph = graph.add_node("grade", lambda words: {"long": words > 4}, writes=["long"])
        >>> run = graph.add_path(START, "count", "grade", END).compile().run({"text": "high tide"})
        >>> metric = by_field({"words": equals("words"), "long": equals("long")}, goal="long")
        >>> print(culprits(run, dspy.Example(text="high tide", words=2, long=False), metric))
        culprits: count: 100 %, which no optimizer can change
          trunk:1 count (visit 1) words: wrong: `words` is 9, expected 2.
          trunk:2 grade (visit 1) long: wrong: `long` follows from `words`, which was already wrong: ...
    """
    given: object = run
    if not isinstance(given, Run):
        kind = with_article(type(given).__name__)
        raise TypeError(f"culprits takes a run, and got {kind}: give program.run({{...}}), or Run.of(prediction)")
    if not isinstance(metric, FieldMetric):
        raise TypeError(f"culprits takes a metric by field, as optimize.by_field makes it, and got {brief(metric)}")
    metric._validate_graph(run.internals.graph, metric.metrics)
    return metric._judgement(run, example).culprits


# --- what is wrong with the arguments


def _argument_problems(metrics: Any, goal: Any, weights: Any) -> list[str]:
    """Problems with the arguments of `by_field`."""
    if not isinstance(metrics, Mapping) or not all(isinstance(field, str) for field in metrics):
        return [f"metrics is {brief(metrics)}: give a dict from fields to functions"]
    problems = [problem for field, metric in metrics.items() for problem in metric_problems(field, metric)]
    if not isinstance(goal, str) or goal not in metrics:
        hint = suggestion(goal, metrics) if isinstance(goal, str) else ""
        problems.append(f"the goal {goal!r} has no metric.{hint} There are metrics of {list_names(metrics) or 'none'}")
    if weights is None:
        return problems
    if not isinstance(weights, Mapping):
        return [*problems, f"weights is {brief(weights)}: give a dict from fields to positive numbers"]
    for field, weight in weights.items():
        if field not in metrics:
            problems.append(f"the field {field!r} has a weight and no metric.{suggestion(field, metrics)}")
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < math.inf:
            problems.append(f"the weight of {field!r} is {brief(weight)}: give a positive number, or leave it out")
    if isinstance(goal, str) and goal in metrics and goal not in weights:
        problems.append(f"the goal {goal!r} has no weight: the score would not depend on it")
    return problems

"""`by_field`: a metric that compares single fields of a program with gold values; `equals`, the usual comparison."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any, Final, NamedTuple

import dspy
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from dspyer import CompiledGraph, Run
from dspyer.errors import brief, list_names, noting, suggestion, with_article
from dspyer.extend import is_async, modules_in, read_signature
from dspyer.lm.not_public import TRACE

logger = logging.getLogger("dspyer")

LONGEST = 2000  # characters of a value in feedback
ROUNDING = 1e-6  # beyond 0 or 1, or below 1: weights that add up to 1 on paper add up to 0.9999999999999999
NO_GOLD: Final[Any] = object()  # of a value whose metric only judges, or of an example without gold
NONE_FOR = "For examples without gold, give a function that returns None: equals(lambda example: example.get({!r}))"
# The setting with the sheet of the call of a program, the key of the outermost run in it, and the layer that has put
# them there. DSPy carries it to the threads of nodes.
SHEET: Final = "dspyer_sheet"


class FieldResult(NamedTuple):
    """The verdict of a field metric on one value."""

    score: float | None  # from 0 to 1; None if the metric cannot tell
    feedback: str | None = None  # its own words

    @property
    def verdict(self) -> str:
        """`"right"` for a score of 1, `"wrong"` for a lower one, `"unknown"` for none."""
        return "unknown" if self.score is None else "right" if self.score >= 1 else "wrong"


class FieldFunction:
    """The metric of a key: a function of `example` and of the value by the name of its field, and maybe of `state`."""

    column: str | None = None  # the one with gold, of `equals` of a column

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.takes_state = any(one.name == "state" for one in read_signature(function, "").parameters)

    def expected(self, example: Any, state: Any = None) -> Any:
        """The gold for a value that was written with a state; `NO_GOLD` if there is none."""
        del example, state
        return NO_GOLD

    def judge(self, key: str, example: Any, value: Any, state: Any) -> FieldResult:
        """The verdict on one value."""
        with noting(f"in the metric of {key!r}"):
            found = self._judged(key.rpartition(".")[2], example, value, state)
        return _result(found, key)

    def _judged(self, field: str, example: Any, value: Any, state: Any) -> Any:
        return self._called({"example": example, field: value}, state)

    def _called(self, given: Mapping[str, Any], state: Any) -> Any:
        layer = (dspy.settings.get(SHEET) or [None])[-1]
        with dspy.context(**{SHEET: (None, "", layer), TRACE: None}):  # it may call an LM, or a graph: none is watched
            # A field of the name `state` is itself.
            return self._function(**{**({"state": state} if self.takes_state else {}), **given})

    def __repr__(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)


class Equals(FieldFunction):
    """A metric with gold, which a value equals: what `equals` makes."""

    def __init__(self, gold: str | Callable[..., Any]) -> None:
        self._warned = False
        if isinstance(gold, str):
            self.column, self.takes_state = gold, False
            return
        given: object = gold
        problems = [f"equals takes the name of a column of the examples, or a function of `example`, not {brief(gold)}"]
        if callable(given) and not isinstance(given, type | dspy.Module):
            problems = argument_problems(gold, "the function in equals", ("example",))
        if problems:
            raise TypeError("; ".join(problems))
        super().__init__(gold)

    def __call__(self, example: Any, value: Any, state: Any = None) -> bool | None:
        gold = self.expected(example, state)
        return None if gold is NO_GOLD else self.is_equal(value, gold)

    def is_equal(self, value: Any, expected: Any) -> bool:
        """Tell if a value equals gold; warns once if two differ in their types alone."""
        equal = bool(value == expected)
        if not equal and not self._warned and _differ_in_type_alone(value, expected):
            self._warned = True
            text = (
                f"the value {value!r:.200} and the expected {expected!r:.200} differ in their types alone, and are not "
                "equal: give examples with values of the type of the field, or a function that compares them"
            )
            logger.warning("%r: %s", self, text)
        return equal

    def expected(self, example: Any, state: Any = None) -> Any:
        """The gold of an example, for a value that was written with a state."""
        if self.column is None:
            found = self._called({"example": example}, state)
            return NO_GOLD if found is None else found
        if self.column not in example:
            raise ValueError(self.lacks(example))
        return example[self.column]

    def lacks(self, example: Any) -> str:
        """The problem with an example without the column."""
        return (
            f"equals({self.column!r}): the example has no {self.column!r}; it has {list_names(example.keys())}."
            f"{suggestion(str(self.column), example.keys())} {NONE_FOR.format(self.column)}"
        )

    def _judged(self, field: str, example: Any, value: Any, state: Any) -> bool | None:
        del field
        return self(example, value, state)

    def __repr__(self) -> str:
        return f"equals({super().__repr__() if self.column is None else repr(self.column)})"


def _differ_in_type_alone(value: Any, expected: Any) -> bool:
    """Tell if two values that are not equal are the same as JSON, or as texts: a model and a dict, 17 and "17"."""
    if type(value) is type(expected) and isinstance(value, str | int | float | bool | None):
        return False
    try:
        return bool(to_jsonable_python(value) == to_jsonable_python(expected)) or (
            isinstance(value, str) is not isinstance(expected, str) and str(value) == str(expected)
        )
    except Exception:  # noqa: BLE001 - a value without a JSON form
        return False


def wrong_text(output: str, value: Any, result: FieldResult, gold: Any) -> str:
    """The feedback on a value, by its author's name for it: the metric's own, else what was expected; "" if unknown."""
    if result.feedback is not None:
        return result.feedback
    if result.verdict != "wrong":
        return f"`{output}` is right." if result.verdict == "right" else ""
    if gold is not NO_GOLD:
        return f"`{output}` is {shown(value)}, expected {shown(gold)}."
    degree = f" (score {result.score:g} of 1)" if result.score else ""
    return f"`{output}` is {shown(value)}, which is wrong{degree}."


def shown(value: object) -> str:
    """A value as feedback shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def _result(found: Any, key: str) -> FieldResult:
    """The result of a field metric, validated."""
    feedback, given = None, found
    if isinstance(found, dspy.Prediction):
        feedback, given = found.get("feedback"), found.get("score")
        if feedback is not None and not isinstance(feedback, str):
            raise ValueError(f"the metric of {key!r} gave the feedback {brief(feedback)}: give a text")
    feedback = feedback if feedback and feedback.strip() else None
    if given is None:
        return FieldResult(None, feedback)
    try:
        score = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError):  # no number, or an array of several
        score = math.nan
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ValueError(
            f"the metric of {key!r} returned {brief(given)}: give a bool, a number from 0 to 1, None if it cannot "
            "tell, or dspy.Prediction(score=..., feedback=...)"
        )
    return FieldResult(1.0 if score > 1 - ROUNDING else max(0.0, score), feedback)


class PassOrScore(float):
    """A score that is true only if it is 1: `BootstrapFewShot` takes a run as an example if its score is true."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self >= 1


def equals(gold: str | Callable[..., Any]) -> Callable[..., bool | None]:
    """A metric that has gold: the value equals it.

    Args:
        gold: the name of a column, as in `example.column`; or a function of `example`, and optionally of `state`, the
            state where the value was written (inside of an item of a map it holds the item). A function returns None
            for an example without gold.

    Returns:
        The metric. It raises a `ValueError` for an example without the column. A warning in the log says so once if two
        values differ in their types alone: a dict is equal to no model.

    Raises:
        TypeError: if it is neither.

    Example:
        >>> import dspy
        >>> example = dspy.Example(gold_label="north", plan=["ask", "look"])
        >>> equals("gold_label")(example, "north")
        True
        >>> equals(lambda example, state: example.plan[state["round"]])(example,
        ...     "look", {"round": 1})
        True
    """
    return Equals(gold)


def by_field(
    metrics: Mapping[str, Callable[..., Any]], *, goal: str, weights: Mapping[str, float] | None = None
) -> FieldMetric:
    """A metric that compares each field of a program for which there is a gold value.

    It is a metric for `dspy.Evaluate` and for every optimizer: the score of a run is that of the goal, judged at its
    end. Those of `dspyer.optimize` judge each node by it on right inputs (`culprits`); `dspy.GEPA` gets feedback for
    each predictor.

    A key is a field, or a path of nodes and a field. A field holds wherever the program writes it, `"edit.draft"` for
    what is written in `draft` by the node `edit` or inside of it. In a module around graphs a path begins with the
    attribute, as in `program.named_predictors()`. The longest path that fits wins.

    A metric is a function of `example`, of the field by its name, and optionally of `state`, the state where the value
    was written. It returns a bool, a number from 0 to 1, None if it cannot tell, or
    `dspy.Prediction(score=..., feedback=...)`. A value is right if its score is 1: for less than that, return
    `score >= 0.8`. Only `equals` has gold, which a gold run puts in the place of a wrong value; any other function
    judges.

    Args:
        metrics: the metric of each key.
        goal: the key whose score is that of the run.
        weights: for another score, the mean of several keys with these weights, the goal among them. A field whose
            metric cannot tell is left out of the mean; one that the run has not written scores 0.

    Returns:
        The metric.

    Raises:
        ValueError: if a metric is no function of the example, its field and the state, if the goal has no metric, or
            if a weight has none or is not positive; all problems at once.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("count", lambda text: {
        ...     "words": len(text.split())}, writes=["words"])
        >>> program = graph.add_path(START, "count", END).compile()
        >>> metric = by_field({"words": equals("words")}, goal="words")
        >>> metric(dspy.Example(text="last order", words=2),
        ...     program(text="last order"))
        1.0
    """
    return FieldMetric(metrics, goal, weights)


class FieldMetric:
    """A metric by field, as `by_field` makes it: a function of (example, pred, trace, pred_name, pred_trace).

    Attributes:
        metrics: the metric of each key.
        goal: the key whose score is that of the run.
        weights: the weights of the keys in the score; None if the score is that of the goal.

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
        self.functions = {key: one if isinstance(one, Equals) else FieldFunction(one) for key, one in metrics.items()}
        self.goal = goal
        self.weights = None if weights is None else {key: float(weight) for key, weight in weights.items()}
        self._keys: dict[str, list[tuple[tuple[str, ...], str]]] = {}  # by field, with their paths, longest first
        for key in sorted(self.metrics, key=lambda key: -key.count(".")):
            *path, field = key.split(".")
            self._keys.setdefault(field, []).append((tuple(path), key))
        self._missed: set[str] = set()  # fields that a prediction did not have

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldMetric, (self.metrics, self.goal, self.weights)

    def __call__(
        self, example: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """The score of a run; with `pred_name`, also feedback for the predictor of that name, as `dspy.GEPA` asks.

        In a bootstrap, with a `trace` alone, a score below 1 counts as false: it is no example to follow. The feedback
        compares what a predictor gave with gold if nothing that it has read is known to be wrong; else it names that.
        """
        score = self._score(example, pred)
        if pred_name is None:
            return score if trace is None else PassOrScore(score)
        return dspy.Prediction(score=score, feedback=self._feedback(example, pred, pred_name, pred_trace))

    # --- keys

    @property
    def gold_keys(self) -> tuple[str, ...]:
        """The keys whose metric has gold."""
        return tuple(key for key, function in self.functions.items() if isinstance(function, Equals))

    def _key_for(self, path: Sequence[str], field: str) -> str | None:
        """The key that holds for a field which the node at a path has written; None if none does."""
        for around, key in self._keys.get(field, ()):
            if tuple(path[: len(around)]) == around:
                return key
        return None

    def validate(self, program: dspy.Module, examples: Iterable[Any] = ()) -> None:
        """Check that the metric fits a program, before an optimizer runs it.

        The optimizers of `dspyer.optimize` do so. `dspy.Evaluate` and the optimizers of DSPy go on after an error of a
        metric: they count it and score the example 0.

        Args:
            program: the program; only what its compiled graphs write is known before it runs.
            examples: examples that must have the columns that `equals` names.

        Raises:
            ValueError: if nothing writes the field of a key, or its path leads nowhere; if an example lacks a column,
                or has gold that the field of the graph refuses.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("count", lambda text: {
            ...     "words": len(text.split())}, writes=["words"])
            >>> program = graph.add_path(START, "count", END).compile()
            >>> by_field({"word": equals("words")}, goal="word").validate(program)
            Traceback (most recent call last):
            ValueError: by_field: nothing writes 'word'. Did you mean 'words'? The
            program writes 'words'
        """
        written = _written(program)
        # The code of a module around graphs may give the goal itself.
        keys = [key for key in self.metrics if key != self.goal or isinstance(program, CompiledGraph) or "." in key]
        problems = [problem for key in keys if written and (problem := _key_problem(key, written))]
        if problems:
            raise ValueError(f"by_field: {' '.join(problems)}")
        given = list(examples)
        for metric in [one for one in self.functions.values() if isinstance(one, Equals)]:
            lacking = [one for one in given if metric.column is not None and metric.column not in one]
            if lacking:
                raise ValueError(f"{metric.lacks(lacking[0])} ({len(lacking)} of {len(given)} examples lack it)")
        for path, fields in written.items():
            for name, field in (fields or {}).items():
                key = self._key_for(path, name)
                if key is not None and field is not None and not self.functions[key].takes_state:
                    self._check_gold(key, field, given)

    def _check_gold(self, key: str, field: Any, examples: Iterable[Any]) -> None:
        """Refuses gold that a field of a graph cannot hold: a gold run would fail where it puts it in."""
        for at, example in enumerate(examples):
            gold = self.functions[key].expected(example, None)
            try:
                if gold is not NO_GOLD and not field.reads_other_fields:
                    field.validate(gold, {})
            except ValidationError as error:
                why = error.errors()[0]
                place = "".join(f"[{part!r}]" for part in why["loc"] if part != field.name)
                raise ValueError(
                    f"by_field: the gold of {key!r} is {brief(gold)} in example {at}, which the field {field.name!r} "
                    f"refuses: {place and f'{place}: '}{why['msg']}.{f' {NONE_FOR}'.format(key) * (gold is None)}"
                ) from None

    # --- scores

    def _score(self, example: Any, pred: Any) -> float:
        if not isinstance(pred, dspy.Prediction):  # what some optimizers pass for a run that failed
            return 0.0
        weights = {self.goal: 1.0} if self.weights is None else self.weights
        found = {key: self._final(key, example, pred)[1] for key in weights}
        scores = {key: result.score for key, result in found.items() if result.score is not None}
        if self.goal not in scores:
            raise ValueError(
                f"by_field: the metric of the goal {self.goal!r} returned None (cannot tell): a run needs a "
                "score, so the metric of the goal must be able to tell"
            )
        total = math.fsum(weights[key] * score for key, score in scores.items())
        return total / math.fsum(weights[key] for key in scores)

    def _final(self, key: str, example: Any, pred: dspy.Prediction) -> tuple[Any, FieldResult]:
        """The value in the end, of the prediction, else of the state of its run; and what the metric says of it."""
        field, run = key.rpartition(".")[2], None
        with suppress(LookupError):  # no graph has given it
            run = Run.of(pred)
        if field not in pred and (run is None or field not in run.state):
            if pred.keys() and key not in self._missed:  # the name may be misspelt
                self._missed.add(key)
                hint, names = suggestion(key, pred.keys()), list_names(pred.keys())
                logger.warning("by_field: a prediction has no field %r, which scores 0; it has %s.%s", key, names, hint)
            return None, FieldResult(0.0, f"The program gave no `{field}`; this step may be the cause.")
        value = pred[field] if field in pred or run is None else run.state[field]
        return value, self.functions[key].judge(key, example, value, self._state(key, pred))

    def _state(self, key: str, pred: dspy.Prediction) -> Any:
        """The state where the value in the end was written; the prediction itself if the metric takes none."""
        state: Any = pred
        with suppress(LookupError):  # no graph has given it; or it was given, or an earlier run has written it
            if self.functions[key].takes_state:
                run = Run.of(pred)
                state = run.state
                state = run.at(run.blame((key.rpartition(".")[2],)).id)
        return state

    # --- feedback

    def _feedback(self, example: Any, pred: Any, pred_name: str, pred_trace: Any) -> str:
        """The feedback for one step: of what it gave if all that it read may be right, else of what was wrong."""
        _, inputs, outputs = (*(pred_trace or ()), (None, {}, {}))[0]
        path, state = pred_name.split("."), {**inputs, **outputs}
        wrong = [name for name, value in inputs.items() if self._found(path, name, example, value, state)[0] == "wrong"]
        if wrong:
            names, were = " and ".join(f"`{name}`" for name in wrong), "was" if len(wrong) == 1 else "were"
            return f"It had read {names}, which {were} already wrong: nothing to fix here."
        texts = [self._found(path, name, example, value, state)[1] for name, value in dict(outputs).items()]
        if any(texts) or not isinstance(pred, dspy.Prediction):
            return "\n".join(filter(None, texts))
        value, result = self._final(self.goal, example, pred)
        gold = NO_GOLD if result.feedback else self.functions[self.goal].expected(example, self._state(self.goal, pred))
        return wrong_text(self.goal.rpartition(".")[2], value, result, gold)

    def _found(self, path: Sequence[str], name: str, example: Any, value: Any, state: Any) -> tuple[str, str]:
        """The verdict on an input or output of a step, and its text; none if no metric can tell."""
        key = self._key_for(path, name)
        if key is None or self.functions[key].takes_state:
            return "unknown", ""
        result = self.functions[key].judge(key, example, value, state)
        return result.verdict, wrong_text(name, value, result, self.functions[key].expected(example, state))

    def __repr__(self) -> str:
        metrics = ", ".join(f"{key!r}: {function!r}" for key, function in self.functions.items())
        weights = "" if self.weights is None else f", weights={self.weights!r}"
        return f"by_field({{{metrics}}}, goal={self.goal!r}{weights})"


# --- what a program writes


Written = Mapping[tuple[str, ...], Mapping[str, Any] | None]  # fields, as schemas have them, by the path of their node


def graphs_in(program: dspy.Module) -> Iterator[tuple[tuple[str, ...], CompiledGraph]]:
    """The graphs of a program, with their paths: with the key of a dict as `named_predictors` writes it."""
    for path, module in modules_in(program):
        if isinstance(module, CompiledGraph):
            yield tuple(path.split(".")) if path else (), module


def _written(program: dspy.Module) -> Written:
    found: dict[tuple[str, ...], Mapping[str, Any] | None] = {}  # None if they are unknown
    graphs: list[tuple[str, ...]] = []
    for around, graph in graphs_in(program):
        schema = graph.graph.topology.schema
        writers = [(node.name, node.writes) for node in graph.graph.nodes.values()]
        writers += [(one.module_name, one.writes) for one in graph.graph.routers if one.module_name is not None]
        for name, writes in writers:
            every = None if schema.accepts_any_key else schema.fields
            found[*around, name] = every if writes is None else {one: schema.fields.get(one) for one in writes.values()}
        graphs.append(around)
    for name, predictor in program.named_predictors() if found else ():  # what a module calls beside its graphs
        at = tuple(name.split("."))
        if not any(at[: len(around)] == around for around in graphs):
            found[at] = dict.fromkeys(predictor.signature.output_fields)
    return found


def _key_problem(key: str, written: Written) -> str:
    """The problem with a key that nothing writes; "" for none."""
    *path, field = key.split(".")
    inside = {at: fields for at, fields in written.items() if at[: len(path)] == tuple(path)}
    if not inside:
        known = sorted({".".join(at[:length]) for at in written for length in range(1, len(at) + 1)})
        name = ".".join(path)
        return f"{key!r}: there is no node {name!r}.{suggestion(name, known)} The nodes are {list_names(known)}."
    if any(fields is None or field in fields for fields in inside.values()):
        return ""
    names = sorted({name for fields in inside.values() for name in fields or ()})
    where = f"The node {'.'.join(path)!r}" if path else "The program"
    return f"nothing writes {key!r}.{suggestion(field, names)} {where} writes {list_names(names)}"


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


def metric_problems(key: str, metric: Any) -> list[str]:
    """Problems with the metric of a key."""
    who, field = f"the metric of {key!r}", key.rpartition(".")[2]
    if isinstance(metric, Equals):
        return []
    if not callable(metric) or isinstance(metric, type | dspy.Module):
        kind = with_article(type(metric).__name__)
        return [f"{who} is {brief(metric)}, {kind}: give a function of `example` and `{field}`, or equals('column')"]
    if field == "example":
        return [f"{who} cannot take both the example and a field of this name: compare it with equals('column')"]
    return argument_problems(metric, who, ("example", field))


def argument_problems(function: Any, who: str, needed: tuple[str, ...]) -> list[str]:
    """Problems with the parameters of a function that is called with some arguments by name, and maybe `state`."""
    if is_async(function):
        return [f"{who} is async: give a plain function"]
    signature, may = read_signature(function, who), list(dict.fromkeys((*needed, "state")))
    problems = list(signature.problems)
    unknown = [one.name for one in signature.parameters if not one.default and one.name not in may]
    if unknown:
        hint = "" if len(unknown) > 1 else suggestion(unknown[0], may)
        taken = f"{', '.join(f'`{name}`' for name in may[:-1])} and `{may[-1]}`"
        problems.append(f"{who} takes {list_names(sorted(unknown))}: it may take {taken}.{hint}")
    missing = [name for name in needed if name not in {one.name for one in signature.parameters}]
    missing = [] if signature.takes_all else missing
    if missing and not unknown:
        wanted = " and ".join(f"`{name}`" for name in needed)
        problems.append(f"{who} takes no {list_names(missing)}: make it a function of {wanted}")
    return problems

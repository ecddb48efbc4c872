"""`headroom`: where a program loses, and which metric is off, before anything is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dspy

from dspyer.display import ShownTable, count_of
from dspyer.lm.not_public import TRACKER, UsageTracker
from dspyer.optimize.examples import in_threads, told, validate
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.gold_run import Sheet, is_read


@dataclass(slots=True)
class FieldRoom:
    """Findings about one key of a metric.

    Attributes:
        right: the share of its values that are right; None if none was judged.
        given_right: the same in gold runs, where everything that was read is right; None for a key without gold.
        goal_if_gold: the share of runs whose goal is right if only this key is replaced by gold; None if it has none,
            or none that can be put in its place.
        lost: runs whose goal is right, and wrong with this gold; None likewise.
    """

    right: float | None = None
    given_right: float | None = None
    goal_if_gold: float | None = None
    lost: int | None = None


@dataclass(slots=True, repr=False)
class Headroom(ShownTable):
    """The places where a program loses, as `headroom` returns them. It prints as a table.

    Attributes:
        goal: the share of runs whose goal is right.
        fields: the findings by key of the metric.
        warnings: what is wrong with a metric, as far as it shows.
        runs: how many examples were run.
        lm_calls: LM calls, of gold runs too, without those that a cache has served.
        failed: the index and the error of each example of which a run, or one with gold, raised; that counts as wrong.
        name: the key of the goal.
    """

    goal: float
    fields: dict[str, FieldRoom]
    runs: int
    lm_calls: int
    name: str
    warnings: list[str] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def to_html(self, path: str | Path) -> Path:
        """Writes the table as a page of HTML; returns its path."""
        target = Path(path)
        begin = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        begin += "<title>Headroom</title><style>body{font-family:sans-serif;margin:2em}</style>"
        target.write_text(f"{begin}\n{self._repr_html_()}\n", "utf-8")
        return target

    def shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """The parts of the table."""
        right, calls = round(self.goal * self.runs), count_of(self.lm_calls, "LM call")
        rows = [["field", "right", "given right inputs", "goal if it were gold", "runs it breaks"]]
        for key, one in self.fields.items():
            shares = [one.right, one.given_right, one.goal_if_gold]
            cells = ["-" if share is None else f"{share:.2f}" for share in shares]
            rows.append([key, *cells, "-" if one.lost is None else f"{one.lost}"])
        alike = {error: [at for at, one in self.failed.items() if one == error] for error in self.failed.values()}
        others = {error: f" and {count_of(len(at) - 1, 'other')}" * (len(at) > 1) for error, at in alike.items()}
        failed = [f"example {at[0]}{others[error]} failed: {error}" for error, at in alike.items()]
        warnings = [f"warning: {text}" for text in self.warnings]
        return [f"goal `{self.name}`: {right} of {self.runs} right; {calls}"], rows, [*warnings, *failed]


def headroom(program: dspy.Module, devset: Sequence[dspy.Example], metric: FieldMetric) -> Headroom:
    """Finds where a program loses, and which metric is off, before anything is tuned.

    Each example runs once as it is, once with gold for every key (`optimize.culprits`), and once with gold for each
    key alone. Runs in which nothing would be replaced, or nothing that was replaced is read, are not made. With DSPy's
    cache, what is made calls only what follows a wrong value.

    Args:
        program: the program.
        devset: the examples, with inputs and gold. They run in `dspy.settings.num_threads` threads.
        metric: the metric, as `by_field` makes it.

    Returns:
        The findings by key, with warnings about metrics that seem too strict.

    Raises:
        TypeError: for an argument of another type.
        ValueError: if there is no example, or the metric does not fit the program or the examples.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.optimize import by_field, equals, headroom
        >>> graph = Graph().add_node("count", lambda text: {"words": len(text)},
        ...     writes=["words"])
        >>> graph = graph.add_node("grade", lambda words: {"long": words > 2},
        ...     writes=["long"])
        >>> program = graph.add_path(START, "count", "grade", END).compile()
        >>> metric = by_field({"words": equals("words"), "long": equals("long")},
        ...     goal="long")
        >>> print(headroom(program, [dspy.Example(text="last order", words=2,
        ...     long=False).with_inputs("text")], metric))
        goal `long`: 0 of 1 right; 0 LM calls
        field  right  given right inputs  goal if it were gold  runs it breaks
        words   0.00                0.00                  1.00               0
        long    0.00                1.00                  1.00               0
    """
    validate(program, metric, "headroom", devset=devset)
    metric = FieldMetric(metric.metrics, metric.goal)  # with weights, the score would be that of several keys
    keys = metric.gold_keys

    def experiment(example: dspy.Example) -> Made:
        def observed(*replaces: str) -> Sheet:
            return Sheet(program, example, metric, replaces).observe()

        run = observed()
        every = observed(*keys) if is_read(run, keys) else run
        alone = {key: observed(key) if _matters(key, run, metric) else run for key in keys}
        return run, {"": every, **alone}

    calls = _Calls()
    with dspy.context(**{TRACKER: calls}):
        room = _findings(metric, in_threads(experiment, devset))
    room.lm_calls = len(calls.made)
    return room


class _Calls(UsageTracker):
    """Counts the responses that no cache has served, also those of LMs that tell no usage."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []  # from any thread

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        self.made.append((lm, usage_entry))


Made = tuple[Sheet, Mapping[str, Sheet]]  # a run, and its gold runs: of all keys under "", of each key alone


def _matters(key: str, run: Sheet, metric: FieldMetric) -> bool:
    """Tell if gold for a key alone may change a run: it would be read, or be what the goal is judged by."""
    is_last = key != metric.goal and key.rpartition(".")[2] == metric.goal.rpartition(".")[2]
    wrong = any(one.key == key and one.verdict == "wrong" for one in run.values)
    return is_read(run, [key]) or (is_last and wrong)


def _findings(metric: FieldMetric, found: Sequence[Made]) -> Headroom:
    def takes_gold(key: str, sheet: Sheet) -> bool:
        ends = metric.goal.rpartition(".")[2] if key == metric.goal else ""  # the goal is judged at the end of the run
        return any(one.may_replace and (one.key == key or one.field == ends) for one in sheet.values)

    right = [run.right for run, _ in found]
    room = Headroom(sum(right) / len(found), {}, len(found), 0, metric.goal)
    for key in metric.metrics:
        one = room.fields[key] = FieldRoom(_share(key, [run for run, _ in found]))
        if key in metric.gold_keys:
            one.given_right = _share(key, [gold[""] for _, gold in found])
            # No gold can be put in what code around the graphs gives, a reducer folds, or no run has reached.
            if any(takes_gold(key, sheet) for run, gold in found for sheet in (run, gold[""])):
                ends = [key == metric.goal and not gold[key].error and takes_gold(key, gold[key]) for _, gold in found]
                now = [end or gold[key].right for end, (_, gold) in zip(ends, found, strict=True)]
                one.goal_if_gold = sum(now) / len(found)
                one.lost = sum(was and not kept for was, kept in zip(right, now, strict=True))
        _warn(room, key, one, [run for (run, _), good in zip(found, right, strict=True) if good])
    for at, (run, gold) in enumerate(found):
        for error in [one.error for one in (run, *gold.values()) if one.error is not None][:1]:
            room.failed[at] = told(error)
    return room


def _share(key: str, sheets: Sequence[Sheet]) -> float | None:
    known: list[bool] = []
    for sheet in sheets:
        values = [one for one in sheet.values if one.key == key]
        # A node that is a graph passes on what was judged inside of it, unless it has another name for it.
        own = [one for one in values if one.kind != "graph"] or values
        known += [one.verdict == "right" for one in own if one.verdict != "unknown"]
    return sum(known) / len(known) if known else None


def _warn(room: Headroom, key: str, one: FieldRoom, good: Sequence[Sheet]) -> None:
    """Adds a warning about a key whose gold breaks runs, or that is wrong where the goal is right."""
    wrong = sum(_keeps_wrong(key, run) for run in good)
    if one.lost:
        text = f"the gold of `{key}` breaks {one.lost} of {len(good)} runs whose `{room.name}` is right"
    elif len(good) >= 5 and wrong > len(good) / 5:
        text = f"`{key}` is wrong in {wrong} of {len(good)} runs whose `{room.name}` is right"
    else:
        return
    room.warnings.append(f"{text}: is its metric too strict?")


def _keeps_wrong(key: str, run: Sheet) -> bool:
    """Tell if a wrong value of a key has lasted: no correction and no later round has replaced it."""
    last = {(one.scope, one.field, one.item): one for one in run.values if one.key == key and not one.harmless}
    return any(one.verdict == "wrong" for one in last.values())

"""`Comparison`: two runs side by side, their steps in pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from dspyer import display
from dspyer.events import LMCall
from dspyer.messages import HANDOFFS, MESSAGES
from dspyer.patch import DELETE
from dspyer.record.making import RecordStep
from dspyer.record.turns import said, tool_calls
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList

if TYPE_CHECKING:
    from dspyer.record.record import Record

FIGURES = ("seconds", "waited", "cost", "requests", "tokens")
"""The attributes of a record that are compared."""

LONGEST = 4_096
"""Steps of a level that are paired at once: of longer levels without a common beginning and end, part by part."""

NAMED = 6
"""Names of equal steps on a line of the text."""

KEPT_BY_AGENTS = frozenset([MESSAGES, HANDOFFS, "sessions"])
"""Fields of an agent that say again what its turns have said, and what its tools have given."""

INSTRUCTIONS = "instructions"

_SECTION = re.compile(r"^\[\[ ## (\w+) ## \]\][ \t]*\n?", re.MULTILINE)


class Pair(NamedTuple):
    """A step of one run and the step of the other one that is its counterpart.

    Attributes:
        a: the step of the first run; None for a step that only the second one has.
        b: that of the second run; None likewise.
        node: the node.
        depth: how many steps are around it.
        changed: what differs: names of fields that it wrote, `"result"` and `"args"` of a call, `"question"` and
            `"answer"`, `"says"`, `"prompt: FIELD"` or `"prompt"`, `"status"` and `"failure"`. Of a step that one run
            has alone, what it has of these; of a manual edit, the fields that it changed.
    """

    a: RecordStep | None
    b: RecordStep | None
    node: str
    depth: int
    changed: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two runs side by side: `record.compare(other)` gives it, and `print` shows it.

    At each level steps are paired by the longest common sequence of node names, items of maps so by their index.

    Attributes:
        a: the first run.
        b: the second run.
        figures: by name, the values of both: `seconds` of work, `waited` for answers, `cost`, `requests`, and `tokens`
            of prompts and responses.
        pairs: the steps of both runs, each once, in their order; those inside of a pair come after it.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"])
        >>> graph = graph.add_node("double", lambda n: {"n": min(2 * n, 6)},
        ...     writes=["n"]).add_path(START, "add", "double", END)
        >>> a, b = [graph.compile().run({"n": n}).record() for n in (2, 3)]
        >>> [(pair.node, pair.changed) for pair in a.compare(b).pairs]
        [('START', ('n',)), ('add', ('n',)), ('double', ())]
    """

    a: Record
    b: Record
    figures: Mapping[str, tuple[Any, Any]]
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, a: Record, b: Record) -> Comparison:
        """The comparison of two records."""
        figures = {name: (getattr(a, name), getattr(b, name)) for name in FIGURES}
        first, second = _Side(a), _Side(b)
        return cls(a, b, figures, tuple(_pairs(first, second, first.inside[None], second.inside[None])))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: steps by their ids."""
        pairs = [
            {**pair._asdict(), "a": pair.a and pair.a.id, "b": pair.b and pair.b.id, "changed": [*pair.changed]}
            for pair in self.pairs
        ]
        return {"figures": {name: list(both) for name, both in self.figures.items()}, "pairs": pairs}

    def __str__(self) -> str:
        """The text for a terminal: figures side by side, then the steps, in which equal ones are one line."""
        return "\n".join([*_heads(self), "", *_figure_lines(self.figures), "", *_step_lines(self.pairs)])


# --- pairs


class _Side:
    """One of the runs: its steps by the step around them, and what is known of their calls."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.calls = tool_calls(record.steps)
        self.agents = {step.id for step in record.steps if step.kind == "agent"}
        if record.graph.is_agent:
            self.agents.add("")
        self.inside: dict[str | None, list[RecordStep]] = {None: []}
        for step in record.steps:
            self.inside.setdefault(step.parent, []).append(step)

    def facts(self, step: RecordStep | None) -> dict[str, Any]:
        """The deeds of a step, by the names of `Pair.changed`, but for its prompts."""
        if step is None:
            return {}
        own = KEPT_BY_AGENTS if (step.parent or "") in self.agents else ()
        found: dict[str, Any] = {name: one.value for name, one in step.wrote.items() if name not in own}
        if (call := self.calls.get(step.id)) is not None:
            found |= {"args": call.args, "result": freeze([call.value, call.error])}
        if step.asked is not None:
            found["question"] = step.asked.question.text
            if (answer := step.asked.answer) is not None:
                found["answer"] = freeze([answer.value, answer.by, answer.comment])
        if says := () if step.commit is None else said(step.commit):
            found["says"] = says
        elif responses := [call.response for call in _answered(step) if call.response is not None]:
            found["responses"] = responses
        if step.failure is not None:
            found["failure"] = step.failure.type, step.failure.message
        return {**found, "status": step.status}

    def before(self, step: RecordStep | None) -> dict[str, Any]:
        """The facts with which a step is compared that the other run lacks: of a manual edit, the values before it."""
        if step is None or step.kind != "edit" or not step.after or not self.record.has(step.after[0]):
            return {"status": "done"}
        return {"status": "done", **{name: one.value for name, one in self.record.fields(step.after[0]).items()}}


def _pairs(
    first: _Side, second: _Side, a: Sequence[RecordStep], b: Sequence[RecordStep], depth: int = 0
) -> Iterator[Pair]:
    """The pairs of one level, each followed by those inside of it."""
    for left, right in _aligned(a, b):
        old, new = first.facts(left), second.facts(right)
        if left is None:
            old = {name: one for name, one in second.before(right).items() if name in new}
        elif right is None:
            new = {name: one for name, one in first.before(left).items() if name in old}
        names = [name for name in {**old, **new} if not _equal(old.get(name, DELETE), new.get(name, DELETE))]
        if "responses" in names:
            names.remove("responses")
            # What fields say is not told twice, and of a run that has not recorded them nothing is known.
            known = left is None or right is None or ("responses" in old and "responses" in new)
            told = {name for step in (left, right) if step is not None for name in step.wrote}
            names += ["says"] if known and told.isdisjoint(names) else []
        names += _prompts_changed(_answered(left), _answered(right))
        node = next(step.node for step in (left, right) if step is not None)
        yield Pair(left, right, node, depth, tuple(names))
        inside_a = first.inside.get(left.id, []) if left else []
        inside_b = second.inside.get(right.id, []) if right else []
        yield from _pairs(first, second, inside_a, inside_b, depth + 1)


def _aligned(a: Sequence[RecordStep], b: Sequence[RecordStep]) -> Iterator[tuple[RecordStep | None, RecordStep | None]]:
    """The steps of a level by the longest common sequence of their names; what only one side has comes in its place."""
    one, two = [[(step.node, step.kind == "edit") for step in steps] for steps in (a, b)]
    shorter = min(len(one), len(two))
    begin = next((i for i in range(shorter) if one[i] != two[i]), shorter)
    end = next((i for i in range(shorter - begin) if one[-1 - i] != two[-1 - i]), shorter - begin)
    middle = [(begin + i, begin + j) for i, j in _common(one[begin : len(one) - end], two[begin : len(two) - end])]
    tail = [(len(one) - i, len(two) - i) for i in range(end, -1, -1)]  # the last one stands for the end of both
    i = j = begin
    yield from zip(a[:begin], b[:begin], strict=True)
    for x, y in [*middle, *tail]:
        yield from ((step, None) for step in a[i:x])
        yield from ((None, step) for step in b[j:y])
        if x < len(a) and y < len(b):
            yield a[x], b[y]
        i, j = x + 1, y + 1


def _common(a: list[Any], b: list[Any]) -> list[tuple[int, int]]:
    """The indexes of a longest common sequence; of long sequences, those of their parts in turn."""
    if b < a:  # so that the pairs do not depend on which run is the first
        return [(i, j) for j, i in _common(b, a)]
    found = list[tuple[int, int]]()
    for start in range(0, min(len(a), len(b)), LONGEST):
        found += [(start + i, start + j) for i, j in _matches(a[start : start + LONGEST], b[start : start + LONGEST])]
    return found


def _matches(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """The indexes of a longest common sequence, by the bits of numbers: a row for each item of `b`, a bit for `a`."""
    places: dict[Any, int] = {}
    for i, item in enumerate(a):
        places[item] = places.get(item, 0) | 1 << i
    full = (1 << len(a)) - 1
    row, rows = full, [full]
    for item in b:
        hits = row & places.get(item, 0)
        row = ((row + hits) | (row - hits)) & full
        rows.append(row)  # a bit is 0 where the sequence becomes longer by the item of `a`
    found, i, j = list[tuple[int, int]](), len(a), len(b)
    while i and j:
        if rows[j] >> (i - 1) & 1:
            i -= 1
        elif not rows[j - 1] >> (i - 1) & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    return found[::-1]


def _equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal but for the ids of messages, which name the run."""
    if a is b or same(a, b):
        return True
    if isinstance(a, FrozenList | list | tuple) and isinstance(b, FrozenList | list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))  # up to the first that differs: it may be long at each step
    if isinstance(a, FrozenDict) and isinstance(b, FrozenDict) and "role" in a and "role" in b:
        old, new = [{key: item for key, item in one.raw_items() if key != "id"} for one in (a, b)]
        return same(old, new)
    return False


def _answered(step: RecordStep | None) -> list[LMCall]:
    """The LM calls of a step that have not failed."""
    return [] if step is None else [call for call in step.lm if call.failed is None]


def _prompts_changed(a: Sequence[LMCall], b: Sequence[LMCall]) -> list[str]:
    """The fields of prompts that differ, where these are recorded."""
    found: dict[str | None, None] = {}
    for one, two in zip_longest(a, b):
        old, new = [_messages(call) for call in (one, two)]
        if old != new and (one is None or two is None or (old and new)):  # else one run has not recorded them
            before, after = _sections(old), _sections(new)
            if not (old and new):  # these say nothing new of a node that only one of them has run
                for name in (INSTRUCTIONS, None):
                    before.pop(name, after.pop(name, None))
            found |= {name: None for name in {**before, **after} if before.get(name) != after.get(name)}
    return list(dict.fromkeys([f"prompt: {name}" if name else "prompt" for name in found]))


def _messages(call: LMCall | None) -> Sequence[Any]:
    found = () if call is None else call.messages
    return found if isinstance(found, list | tuple | FrozenList) else ()


def _sections(messages: Sequence[Any]) -> dict[str | None, Any]:
    """The instructions, the fields of the last message of the user, under "" a text without any; under None, demos."""
    last = {one.get("role"): one.get("content") for one in messages}
    found: dict[str | None, Any] = {INSTRUCTIONS: last["system"]} if "system" in last else {}
    places = [place for place, one in enumerate(messages) if one.get("role") == "user"]
    if demos := [one.get("content") for one in messages[: places[-1] if places else 0] if one.get("role") != "system"]:
        found[None] = demos
    if "user" in last:
        text = last["user"]
        first, *parts = _SECTION.split(text) if isinstance(text, str) else [text]
        found |= dict(zip(parts[::2], parts[1::2], strict=True)) if parts else {"": first}
    return found


# --- the text


def _heads(both: Comparison) -> Iterator[str]:
    for name, one, other in (("a", both.a, both.b), ("b", both.b, both.a)):
        origin, text = one.origin, f"{name}  {one.id}  {one.status}"
        if origin is not None:
            text += f", a copy of {origin.run} after {other.node(origin.at) or origin.at}"
            text += f", with {', '.join(origin.wrote)} edited" if origin.wrote else ""
        yield text


def _figure_lines(figures: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    for name, (a, b) in figures.items():
        rows = [("tokens in", a[0], b[0]), ("tokens out", a[1], b[1])] if name == "tokens" else [(name, a, b)]
        for label, old, new in rows:
            if name in ("seconds", "waited"):
                texts = [display.duration_text(one) for one in (old, new)]
            elif name == "cost":
                texts = [display.cost_text(one) or "?" for one in (old, new)]
            else:
                texts = [f"{one:,}" for one in (old, new)]
            share = f"{(new - old) / old:+.0%}" if old and new is not None and old != new else ""
            yield f"{label:<12}{texts[0]:>12}{texts[1]:>12}{share:>8}".rstrip()


def _step_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """A line for each pair that differs, or has one inside of it that does; one for the equal ones between them."""
    shown, path = set[int](), list[int]()
    for place, pair in enumerate(pairs):
        path[pair.depth :] = [place]
        if pair.changed or pair.a is None or pair.b is None:
            shown.update(path)
    equal, level = list[str](), 0
    for place, pair in enumerate(pairs):
        if place not in shown and equal and pair.depth > level:
            continue  # inside of one that is equal
        if equal and (place in shown or pair.depth < level):
            yield _equal_line(equal, level)
            equal = []
        if place in shown:
            yield _pair_line(pair)
        else:
            equal.append(pair.node)
            level = pair.depth
    if equal:
        yield _equal_line(equal, level)


def _equal_line(nodes: Sequence[str], depth: int) -> str:
    names = ", ".join(nodes[:NAMED]) + (", ..." if len(nodes) > NAMED else "")
    return f"= {'  ' * depth}{display.count_of(len(nodes), 'equal step')}: {names}"


def _pair_line(pair: Pair) -> str:
    steps = [step for step in (pair.a, pair.b) if step is not None]
    mark = ("~" if pair.changed else " ") if len(steps) == 2 else "-" if pair.a else "+"
    text = f"{mark} {'  ' * pair.depth}{pair.node}"
    text += (
        f": {', '.join([name if name.isprintable() else repr(name) for name in pair.changed])}" if pair.changed else ""
    )
    return f"{text}  ({' -> '.join([display.duration_text(step.seconds) for step in steps])})"

"""Two runs side by side: which steps are pairs, and what differs between them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import dspy
import pytest

from dspyer import END, START, Context, Graph, agents
from dspyer.record import Comparison, Record
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.kit import turn


def told(both: Comparison) -> list[str]:
    """The pairs that differ, each as in the text: what only one of the runs has is marked."""
    marks = {(True, True): "~", (True, False): "-", (False, True): "+"}
    return [
        f"{marks[pair.a is not None, pair.b is not None]}{'.' * pair.depth}{pair.node} {' '.join(pair.changed)}".strip()
        for pair in both.pairs
        if pair.changed or pair.a is None or pair.b is None
    ]


def loop(turns: int) -> Record:
    graph = Graph().add_node("a", lambda n: {"n": n + 1}, writes=["n"]).add_node("z", lambda n: {"z": 1}, writes=["z"])
    graph.add_edge(START, "a").add_edge("z", END)
    graph.add_conditional_edges("a", lambda n: "a" if n < turns else "z", ["a", "z"])
    return graph.compile(max_steps=9_000).run({"n": 0}).record()


def mapped(*rows: int) -> Record:
    def item(row: int) -> int:
        if row < 0:
            raise ValueError(row)
        return row * row

    graph = Graph().add_map("each", item, over="rows", item="row", into="out", failures="lost")
    return graph.add_path(START, "each", END).compile().run({"rows": [*rows]}).record()


def asked(word: str, answer: bool, by: str = "") -> Record:
    graph = Graph().add_interrupt("ok", question=f"Send {word}?", answer=bool, into="sent")
    thread = graph.add_path(START, "ok", END).compile(store=":memory:").thread("t")
    thread.run({})
    thread.resume({"ok": answer}, by=by or None)
    return thread.record()


def prompted(topic: str, says: str, level: Any = "full", instructions: str = "", demo: str = "") -> Record:
    predictor = dspy.Predict(dspy.Signature("topic, tone -> text", instructions or "Say it."))
    predictor.demos = [dspy.Example(topic="sea", tone="wet", text=demo)] if demo else []
    graph = Graph().add_node("say", predictor)
    thread = graph.add_path(START, "say", END).compile(store=":memory:", record_lm_calls=level).thread("t")
    with ScriptedLM(lambda prompt: {"text": says}):
        thread.run({"topic": topic, "tone": "dry"})
    return thread.record()


def agent(what: str, answer: str) -> Record:
    def look(what: str) -> str:
        """Looks it up."""
        return f"{what} is there"

    def say(prompt: Prompt) -> Any:
        return (
            turn(("submit", {"answer": answer})) if "is there" in str(prompt.turns) else turn(("look", {"what": what}))
        )

    graph = Graph().add_node("lead", agents.tool_loop("question -> answer", [look]))
    with ScriptedLM(say):
        return graph.add_path(START, "lead", END).compile().run({"question": "Why?"}).record()


def waiting(what: str) -> Record:
    def pay(what: str) -> str:
        """Pays for it."""
        return what

    loop = agents.tool_loop("question -> answer", [agents.tool(pay, approve=True)])
    thread = Graph().add_node("lead", loop).add_path(START, "lead", END).compile(store=":memory:").thread("t")
    with ScriptedLM([turn(("pay", {"what": what}))]):
        thread.run({"question": "Why?"})
    return thread.record()


def failing(n: int) -> Record:
    def work(n: int) -> dict[str, Any]:
        if n:
            raise ValueError(f"no {n}")
        return {"m": n}

    return Graph().add_node("work", work, writes=["m"]).add_path(START, "work", END).compile().run({"n": n}).record()


def copied() -> tuple[Record, Record]:
    graph = Graph(inputs=["n", "k"]).add_node("a", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_node("b", lambda n: {"m": n}, writes=["m"])
    thread = graph.add_path(START, "a", "b", END).compile(store=":memory:").thread("t")
    thread.run({"n": 1, "k": 1})
    copy = thread.copy("c", at=1, patch={"n": 9, "k": 1})
    copy.resume()
    return thread.record(), copy.record()


CASES: dict[str, tuple[Callable[[], tuple[Record, Record]], list[str]]] = {
    "the same": (lambda: (loop(2), loop(2)), []),
    "a loop with one more turn": (lambda: (loop(3), loop(4)), ["+a n"]),
    "one with fewer": (lambda: (loop(4), loop(3)), ["-a n"]),
    "a copy with an edit": (copied, ["+update n", "~b m"]),
    "items by index": (
        lambda: (mapped(1, 2), mapped(1, 3, 4)),
        ["~START rows", "~each out", "~.each[1] result", "+.each[2] result"],
    ),
    "an item that fails": (
        lambda: (mapped(1, 2), mapped(1, -2)),
        ["~START rows", "~each out lost", "~.each[1] result status failure"],
    ),
    "a failure": (lambda: (failing(0), failing(3)), ["~START n", "~work m status failure"]),
    "other failures": (lambda: (failing(2), failing(3)), ["~START n", "~work failure"]),
    "an answer": (lambda: (asked("it", True), asked("it", False)), ["~ok sent answer"]),
    "its author": (lambda: (asked("it", True), asked("it", True, "ada")), ["~ok answer"]),
    "a question": (lambda: (asked("it", True), asked("all", True)), ["~ok question"]),
    "a prompt": (lambda: (prompted("a", "x"), prompted("b", "x")), ["~START topic", "~say prompt: topic"]),
    "instructions": (
        lambda: (prompted("a", "x"), prompted("a", "x", instructions="Sing.")),
        ["~say prompt: instructions"],
    ),
    "a demo": (lambda: (prompted("a", "x", demo="1"), prompted("a", "x", demo="2")), ["~say prompt"]),
    "no demo": (lambda: (prompted("a", "x", demo="1"), prompted("a", "x")), ["~say prompt"]),
    "what it says": (lambda: (prompted("a", "x"), prompted("a", "y")), ["~say text"]),
    "no prompts": (lambda: (prompted("a", "x", "usage"), prompted("b", "x")), ["~START topic"]),
    "calls that wait": (lambda: (waiting("tea"), waiting("rum")), ["~.react says", "~.pay args question"]),
    "an agent": (
        lambda: (agent("ants", "x"), agent("bees", "y")),
        ["~lead answer", "~.react says", "~.look args result", "~.react says", "~.settle answer"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_told(case: str) -> None:
    make, expected = CASES[case]
    a, b = make()
    assert told(a.compare(b)) == expected


def test_the_text_shows_figures_and_folds_equal_steps() -> None:
    a, b = copied()
    text = str(a.compare(b)).splitlines()
    assert text[:2] == ["a  t.1  completed", "b  c.1  completed, a copy of t.1 after a, with n edited"]
    assert text[3].split()[0] == "seconds"
    assert text[-3:-1] == ["= 2 equal steps: START, a", "+ update: n  (0 µs)"]
    assert text[-1].startswith("~ b: m  (")


def test_what_is_no_record_is_refused() -> None:
    thread: Any = failing(0)
    with pytest.raises(TypeError, match=r"no record to compare with: .*run\.record\(\)"):
        thread.compare(failing)


def test_what_items_wait_for_at_the_same_time_counts_once() -> None:
    def item(row: int, ctx: Context) -> Any:
        return ctx.interrupt("fine", f"Is {row} fine?")

    graph = Graph().add_map("each", item, over="rows", item="row", into="out").add_path(START, "each", END)
    thread = graph.compile(store=":memory:").thread("t")
    run = thread.run({"rows": [1, 2, 3]})
    time.sleep(0.05)
    thread.resume({question.id: True for question in run.questions})
    record = thread.record()
    (mapped,) = [step.waited for step in record.steps if step.kind == "map"]
    items = [step.waited for step in record.steps if step.kind == "item"]
    assert 0.04 < max(items) <= mapped + 0.001 < 0.9 * sum(items)
    assert 0.04 < record.waited <= mapped + 0.001
    assert record.ended is not None
    assert record.seconds + record.waited <= record.ended - record.started + 0.01


def test_what_a_step_of_its_own_waits_for_is_no_work() -> None:
    graph = Graph().add_interrupt("ok", question="Fine?", answer=bool, into="ok").add_path(START, "ok", END)
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    time.sleep(0.02)
    thread.resume({"ok": True})
    record = thread.record()
    assert record.waited > 0.018
    assert 0 <= record.seconds < record.waited


def path(names: list[str]) -> Record:
    graph = Graph()
    routes: dict[str, dict[int, str]] = {}
    for at, (name, goal) in enumerate(pairwise([START, *names, END])):
        routes.setdefault(name, {})[at] = goal
    for name, ways in routes.items():
        if name != START:
            graph.add_node(name, lambda n: {"n": n + 1}, writes=["n"])
        graph.add_conditional_edges(name, lambda n, ways=ways: ways[n], sorted({*ways.values()}))
    return graph.compile(max_steps=9_000).run({"n": 0}).record()


def test_pairs_are_the_longest_common_sequence() -> None:
    """Counted beside a table of all beginnings."""
    rng = random.Random(1)
    for _ in range(20):
        one, two = [[rng.choice("abc") for _ in range(rng.randrange(1, 8))] for _ in range(2)]
        lengths = [[0] * (len(two) + 1) for _ in range(len(one) + 1)]
        for i, x in enumerate(one):
            for j, y in enumerate(two):
                lengths[i + 1][j + 1] = lengths[i][j] + 1 if x == y else max(lengths[i][j + 1], lengths[i + 1][j])
        assert sum(bool(pair.a and pair.b) for pair in path(one).compare(path(two)).pairs) == lengths[-1][-1] + 1


def test_long_levels_are_paired_part_by_part() -> None:
    a, b = [path([*first, *"ab" * 2_100, *last]) for first, last in ("cx", "dy")]
    both = a.compare(b)
    assert [pair.node for pair in both.pairs if not (pair.a and pair.b)] == ["c", "d", "x", "y"]
    assert {step.id for pair in both.pairs for step in (pair.a,) if step} == {step.id for step in a.steps}

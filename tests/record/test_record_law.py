"""A run has one record, whoever asks for it and wherever it is stored; its states and sums are those of the thread.

The runs are made at random of all that leaves rows: forks, joins, loops, maps, nested graphs, agents, checks,
questions, failures, attempts, posts, LM calls; then they are resumed, rerun, copied and edited.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import (
    END,
    START,
    Archive,
    Breakpoints,
    CompiledGraph,
    Context,
    Graph,
    Kept,
    Retry,
    Run,
    Send,
    Thread,
    agents,
    live,
    reducers,
)
from dspyer.extend import thaw
from dspyer.record import Record
from dspyer.search import best_of
from dspyer.stores import Memory, SQLite, open_store
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.kit import turn
from tests.budget import deep

SEEDS = range(30 if deep else 10)
REDACTS = (None, ["log"], ["value.k", "text", "lost.*.message"], ["said", "value", "**.content"])


class Board(BaseModel):
    q: str = "q"
    log: Annotated[list[str], reducers.extend] = []
    count: Annotated[int, reducers.increment] = 0
    note: Annotated[str, live()] = ""
    said: Annotated[list[str], reducers.append, live] = []
    value: Kept[Any] = None
    rows: list[int] = []
    out: list[int] = []
    lost: list[Any] = []
    text: str = ""
    problems: list[str] = []
    fine: bool | None = None
    answer: str = ""


class Parts:
    """A graph of parts in a row, drawn at random; each part leads from its first node to its last one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.graph = Graph(Board, inputs=["q"], merge=self.rng.choice(["last_write_wins", "first_write_wins"]))
        self.number = 0
        makers = [self.plain, self.fork, self.loop, self.mapped, self.nested, self.agent, self.checked, self.asked]
        makers += [self.flaky, self.handled, self.module, self.sends, self.search]
        last = START
        for make in self.rng.sample(makers, 5):
            first, end = make()
            self.graph.add_edge(last, first)
            last = end
        if self.rng.random() < 0.2:
            self.graph.add_node("fails", self.failing, writes=["value"])
            self.graph.add_edge(last, "fails")
            last = "fails"
        self.graph.add_edge(last, END)

    def failing(self, q: str) -> dict[str, Any]:
        raise ValueError(f"no {q} " + "x" * 300)

    def name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def plain(self) -> tuple[str, str]:
        name = self.name("plain")
        value = self.rng.choice([1, "text " * 900, [1, {"a": 2}], {"k": (1, 2)}, None])

        def work(ctx: Context) -> dict[str, Any]:
            return {"log": [name], "count": 1, "value": value}

        self.graph.add_node(name, work, writes=["log", "count", "value"])
        return name, name

    def fork(self) -> tuple[str, str]:
        first, _ = self.plain()
        left, right, joined = self.plain()[0], self.plain()[0], self.plain()[0]
        self.graph.add_edge(first, [left, right])
        if self.rng.random() < 0.5:
            more, _ = self.plain()
            self.graph.add_edge(right, more)
            right = more
        self.graph.add_edge([left, right], joined)
        return first, joined

    def loop(self) -> tuple[str, str]:
        name, out = self.name("loop"), self.plain()[0]
        self.graph.add_node(name, lambda ctx: {"log": [f"{name} {ctx.visit}"]}, writes=["log"])
        self.graph.add_conditional_edges(
            name, lambda ctx: "more" if ctx.visit < 3 else "out", {"more": name, "out": out}
        )
        return name, out

    def mapped(self) -> tuple[str, str]:
        split, each = self.name("split"), self.name("each")

        def item(row: int) -> int:
            if row == 2:
                raise ValueError("two")
            return row * 2

        self.graph.add_node(split, lambda q: {"rows": [1, 2, 3]}, writes=["rows"])
        failures: Any = {"failures": "lost"} if self.rng.random() < 0.9 else {}
        self.graph.add_map(each, item, over="rows", item="row", into="out", **failures)
        self.graph.add_edge(split, each)
        return split, each

    def nested(self) -> tuple[str, str]:
        name = self.name("nested")
        inner = Graph(Board, inputs=["q"], name="Inner").add_node("a", lambda q: {"log": ["a"]}, writes=["log"])
        inner.add_node("b", lambda q: {"log": ["b"], "text": "b" * 1_200}, writes=["log", "text"])
        inner.add_node("c", lambda q: {"log": ["c"]}, writes=["log"])
        inner.add_interrupt("inside", question="Go on inside?", answer=bool, into="fine")
        inner.add_edge(START, "a").add_edge("a", ["b", "c"]).add_edge(["b", "c"], "inside").add_edge("inside", END)
        self.graph.add_node(name, inner)
        return name, name

    def agent(self) -> tuple[str, str]:
        name = self.name("agent")
        self.graph.add_node(name, agents.tool_loop("q -> answer", [dspy.Tool(look)]))
        return name, name

    def module(self) -> tuple[str, str]:
        name = self.name("module")
        self.graph.add_node(name, dspy.Predict("q -> text"), writes=["text"])
        return name, name

    def search(self) -> tuple[str, str]:
        name = self.name("search")
        self.graph.add_node(name, searching(), reads=["q"], writes=["text"])
        return name, name

    def checked(self) -> tuple[str, str]:
        name = self.name("draft")
        calls: list[int] = []

        def problems(text: str) -> list[str]:
            calls.append(1)
            return ["it is bad"] if len(calls) % 2 else []

        self.graph.add_node(name, dspy.Predict("q -> text"), writes=["text"])
        self.graph.add_check(self.name("check"), problems, of=name)
        return name, name

    def asked(self) -> tuple[str, str]:
        name = self.name("ask")
        self.graph.add_interrupt(name, question="Is {q} fine? " + "y" * 1_100, answer=bool, into="fine")
        return name, name

    def flaky(self) -> tuple[str, str]:
        name = self.name("flaky")
        calls: list[int] = []

        def work(q: str) -> dict[str, Any]:
            calls.append(1)
            if len(calls) % 2:
                raise ConnectionError("once")
            return {"log": [name]}

        self.graph.add_node(name, work, writes=["log"], retry=Retry(2, wait=wait_none()))
        return name, name

    def handled(self) -> tuple[str, str]:
        name, (other, _) = self.name("handled"), self.plain()
        self.graph.add_node(name, self.failing, writes=["value"])
        self.graph.add_error_edge(name, other, on=ValueError).add_edge(name, other)
        return name, other

    def sends(self) -> tuple[str, str]:
        first, to, out = self.plain()[0], self.name("sent"), self.plain()[0]

        def work(ctx: Context, q: str) -> dict[str, Any]:
            ctx.post("note", q)
            ctx.post("said", q)
            return {"log": [q]}

        self.graph.add_node(to, work, reads=["q"], writes=["log", "note", "said"])
        self.graph.add_conditional_edges(first, lambda q: [Send(to, {"q": f"{q}{i}"}) for i in range(2)], [to])
        self.graph.add_edge(to, out)
        return first, out


class Trial(dspy.Module):
    """Asks an LM; the second of three trials fails."""

    def __init__(self) -> None:
        super().__init__()
        self.say = dspy.Predict("q -> text")
        self.calls: list[int] = []

    def forward(self, q: str) -> Any:
        found = self.say(q=q)
        self.calls.append(1)
        if len(self.calls) % 3 == 2:
            raise ValueError("the second")
        return found


def searching() -> Graph:
    return best_of(Trial(), 3, lambda text: float(len(text)), writes=["text"])


def look(what: str) -> str:
    """Looks something up."""
    if what == "odd":
        raise ValueError("odd")
    return what


def say(prompt: Prompt) -> Any:
    """A text for a predictor; of an agent a turn that calls a tool twice, then its answer."""
    if not any(field.name == "tool_calls" for field in prompt.output_fields):
        return {"text": "said"}
    if "looked" in str((prompt.turns, prompt.inputs)):
        return turn(("submit", {"answer": "done"}))
    return turn(("look", {"what": "looked"}), ("look", {"what": "odd"}))


def program_of(seed: int, store: Any) -> CompiledGraph:
    parts = Parts(seed)
    level: Any = parts.rng.choice(["full", "usage"])
    after = parts.rng.sample(list(parts.graph._nodes), 1) if parts.rng.random() < 0.2 else []
    return parts.graph.compile(
        store=store, record_lm_calls=level, redact=REDACTS[seed % 4], layers=[Breakpoints(after=after)]
    )


def answered(target: Any, run: Run) -> Run:
    while run.status == "interrupted":
        run = target.resume({question.id: None if question.answer is None else True for question in run.questions})
    return run


def played(thread: Thread, seed: int) -> Iterator[Run]:
    """The runs of a thread: each as it ended, and as it went on."""
    rng = random.Random(seed)
    run = thread.run({"q": "one"})
    yield run
    yield answered(thread, run)
    if thread.status == "completed" and rng.random() < 0.6:
        yield thread.run({"q": "two"})
    version = rng.choice([commit.version for commit in thread.history() if commit.version is not None])
    if rng.random() < 0.5:
        with suppress(Exception):
            yield thread.rerun(from_version=version)
    if rng.random() < 0.5:
        with suppress(Exception):
            thread.update({"value": "edited"})


def check(record: Record, thread: Thread) -> None:
    """The states of a record are those of the thread; its tree is one; each LM call is at one step; sums are right."""
    steps = {step.id: step for step in record.steps}
    versions = {commit.id: commit.version for commit in thread.history()}
    archived = Archive(thread._store).thread(thread.name)
    assert len(steps) == len(record.steps)
    for step in record.steps:
        assert step.parent is None or step.parent in steps
        assert all(before in steps for before in step.after), step
        if step.parent is None and step.commit is not None:
            assert record.state(step.id) == thread.at(step.id)
            assert step.version == versions.get(step.id, step.version)
            if step.kind != "join":
                authors = {name: archived.blame(name, at=step.id).id for name in record.state(step.id)}
                assert {name: one.by for name, one in record.fields(step.id).items()} == authors
    if record.hidden is None:
        walked(record)
        exemplary(record)
    tokens = sum(call.tokens for step in record.steps for call in step.lm)
    assert tokens == sum(used.get("total_tokens", 0) for used in record.usage.values())
    for value in record.to_dict()["values"].values():
        assert "$type" not in str(value)


def exemplary(record: Record) -> None:
    """Each visit of a predictor is an example, from the state that it has read."""
    for node, outputs in record.graph.gives.items():
        steps = [one for one in record.steps if (one.node, one.status) == (node, "done") and one.kind != "edit"]
        if any(step.status == "unreadable" for step in record.steps):
            steps = []
        found = record.examples(node)
        assert len(found) == len(steps)
        for step, example in zip(steps, found, strict=True):
            sent = {name: thaw(value) for name, value in step.sent.items()}
            before = {**record.state(step.after[0]), **sent}
            assert dict(example.inputs()) == {name: before[field] for name, field in record.graph.reads[node].items()}
            assert dict(example.labels()) == {name: record.state(step.id)[field] for name, field in outputs.items()}


def compared(a: Record, b: Record) -> None:
    """Each step is in one pair, from either side; two that are the same step differ in nothing."""
    both, back = a.compare(b), b.compare(a)
    assert sorted(pair.a.id for pair in both.pairs if pair.a) == sorted(step.id for step in a.steps)
    assert sorted(pair.b.id for pair in both.pairs if pair.b) == sorted(step.id for step in b.steps)
    mirrored = [(pair.b and pair.b.id, pair.a and pair.a.id, *pair[2:4], sorted(pair.changed)) for pair in back.pairs]
    told = [(pair.a and pair.a.id, pair.b and pair.b.id, *pair[2:4], sorted(pair.changed)) for pair in both.pairs]
    assert sorted(told, key=str) == sorted(mirrored, key=str)
    for pair in both.pairs:
        if pair.a and pair.b:
            assert pair.a.node == pair.b.node
            assert not pair.changed or pair.a.id != pair.b.id, pair
    assert json.loads(json.dumps(both.to_dict()))["figures"]["cost"] == [a.cost, b.cost]
    assert str(both).startswith(f"a  {a.id}  {a.status}")


def walked(record: Record) -> None:
    """The state after a step is what the steps up to it wrote, along first parents."""
    for step in record.steps:
        if step.parent is not None or step.commit is None:
            continue
        found: dict[str, Any] = {}
        at = step
        while True:
            for name, wrote in at.wrote.items():
                found.setdefault(name, wrote.value)
            if not at.after:
                break
            at = record.step(at.after[0])
        assert found == dict(record.state(step.id).raw_items())


def same_record(thread: Thread, store: Any, run: str | None = None) -> Record:
    record = thread.record(run)
    archived = Archive(store).thread(thread.name).record(run)
    assert archived == record
    return record


def law(seed: int, store: Any) -> None:
    program = program_of(seed, store)
    thread = program.thread("t")
    with dspy.context(lm=ScriptedLM(say)):
        for run in played(thread, seed):
            record = same_record(thread, store)
            if run.status == thread.status:
                assert run.record() == record
            check(record, thread)
        runs = {commit.id.partition("/")[0] for commit in thread.history()}
        records = [same_record(thread, store, label) for label in runs]
        for record in records:
            check(record, thread)
            compared(record, record)
            compared(records[0], record)
        head = thread.history()[-1]
        if head.version is None:  # several branches are active there
            return
        copy = thread.copy(to="copy", at=head.id, patch={"value": "copied"})
        with suppress(Exception):
            copy.resume()
        record = same_record(copy, store)
        check(record, copy)
        assert record.origin is None or record.origin.run in runs
        compared(thread.record(), record)


@pytest.mark.parametrize("seed", SEEDS if deep else SEEDS[::2])
def test_all_readers_give_one_record_in_memory(seed: int) -> None:
    law(seed, Memory())


@pytest.mark.parametrize("seed", SEEDS if deep else SEEDS[1::2])
def test_all_readers_give_one_record_of_a_file(seed: int, tmp_path: Path) -> None:
    with closing(SQLite(tmp_path / "runs.db")) as store:
        law(seed, store)


class Watched(Memory):
    """A store that calls back after each write."""

    def __init__(self, after: Callable[[Watched], None]) -> None:
        super().__init__()
        self._after = after

    def write(self, change: Any) -> int:
        epoch = super().write(change)
        self._after(self)
        return epoch


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_follows_a_run_has_the_record_of_a_new_reader(seed: int) -> None:
    """After each write: what was made before is not made again, and says the same."""
    readers: list[Any] = []
    seen: list[bool] = []

    def compare(store: Watched) -> None:
        readers.append(readers[0] if readers else Archive(store).thread("t"))
        position = readers[0].position()
        now, alone = readers[0].record(), Archive(store).thread("t").record()
        if readers[0].position() == position:  # no other thread has written meanwhile
            own = [step.id for step in alone.steps if step.parent is None and step.status != "unreadable"]
            seen.append(now == alone and [now.state(one) for one in own] == [alone.state(one) for one in own])

    thread = program_of(seed, Watched(compare)).thread("t")
    with dspy.context(lm=ScriptedLM(say)):
        for _ in played(thread, seed):
            pass
    assert len(seen) > 3
    assert all(seen)


LEFT_OUT = ("started", "ended", "seconds", "waited", "at", "messages", "response", "traceback", "values", "thread")


def without_times(record: Record) -> Any:
    """A record in JSON without what depends on the time, the name of the run, and the store: there are the prompts."""
    found = record.to_dict()
    values = {name: json.dumps(value).replace("t.1/", "") for name, value in found["values"].items()}
    del found["run"]["id"], found["run"]["lm_calls"]
    for step in found["steps"]:
        if step["kind"] == "join" and step["parent"]:
            del step["wrote"]  # a graph inside of a node keeps no states: only rows say what its joins have made

    def shown(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: shown(value) for key, value in one.items() if key not in LEFT_OUT}
        if isinstance(one, list):
            return [shown(part) for part in one]
        return values.get(one, one.replace("t.1/", "")) if isinstance(one, str) else one

    return shown(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_without_a_store_has_the_record_that_it_would_have_with_one(seed: int) -> None:
    with dspy.context(lm=ScriptedLM(say)):
        alone = program_of(seed, None).run({"q": "one"})
        stored = program_of(seed, Memory()).thread("t").run({"q": "one"})
    assert without_times(alone.record()) == without_times(stored.record())
    for step in alone.record().steps:
        if step.parent is None and step.commit is not None:
            assert alone.record().state(step.id) == alone.at(step.id)


@pytest.mark.parametrize("seed", [3, 7] if deep else [7])
def test_all_readers_give_one_record_of_a_database(seed: int, postgres: str) -> None:
    with closing(open_store(postgres)) as store:
        law(seed, store)


@pytest.mark.slow("a store of each kind of run, with rows of every kind damaged in turn")
def test_a_damaged_row_is_a_step_and_the_rest_is_shown(tmp_path: Path) -> None:
    """Whichever row it is: the readers agree, and no other step of the run is missing."""
    path = tmp_path / "whole.db"
    with closing(SQLite(path)) as store, dspy.context(lm=ScriptedLM(say)):
        program_of(2, store).thread("t").run({"q": "one"})
        (run,) = store.runs("t")
        whole, kinds = Archive(store).thread("t").record(), [row.kind for row in store.rows(run.id)]
    for seq, kind in enumerate(kinds):
        if not deep and kind in kinds[:seq] and kind in kinds[seq + 1 :]:
            continue  # the first and the last one of each kind: all of them take seconds
        damaged = Path(shutil.copy(path, tmp_path / f"{seq}.db"))
        with closing(sqlite3.connect(damaged)) as file, file:
            where, row = "WHERE run = ? AND seq = ? AND body IS NOT NULL", (run.id, seq)
            had_body = file.execute(f"UPDATE entry SET body = x'1234' {where}", row).rowcount
        with closing(SQLite(damaged)) as store:
            record = same_record(program_of(2, store).thread("t"), store)
        compared(record, record)
        exemplary(record)
        lost = [step for step in record.steps if step.status == "unreadable"]
        assert bool(lost) == bool(had_body), kind
        assert len(record.steps) >= len(whole.steps) - 1, kind


def test_the_texts_of_many_rows_are_read_at_once(tmp_path: Path) -> None:
    """In a database each query is a round trip; prompts of an agent have most of their messages in common."""
    asked: list[int] = []

    class Counting(SQLite):
        def blobs(self, ids: Any) -> Any:
            asked.append(len(ids))
            return super().blobs(ids)

    graph = Graph(inputs=["q"]).add_node("say", dspy.Predict("q -> text"))
    graph.add_conditional_edges("say", lambda ctx: "say" if ctx.visit < 30 else END, ["say", END])
    with closing(Counting(tmp_path / "runs.db")) as store, dspy.context(lm=ScriptedLM(say)):
        thread = graph.add_edge(START, "say").compile(store=store, record_lm_calls="full").thread("t")
        thread.run({"q": "long " * 1_000})
        asked.clear()
        record = Archive(store).thread("t").record()
    assert len(record.calls(record.steps[-1].id)) == 1
    assert all("long long" in str(call.messages) for step in record.steps for call in step.lm)
    assert len(asked) < 10

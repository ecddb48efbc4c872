"""Tools with effects, and tools with checks: what is called how often, also by killed processes (rules 14 and 22)."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dspy
from pydantic import BaseModel, computed_field, field_validator, model_validator
from tenacity import wait_none

from dspyer import END, START, Command, CompiledGraph, Context, Graph, Retry, agents, to_chat
from dspyer.agents import Approval
from dspyer.errors import NodeOutputError
from dspyer.testing import ScriptedLM, no_pauses
from tests.agents.kit import SUBMIT, agent, modes, results, run_one, run_turn, start, turn
from tests.agents.recording import RecordingLM
from tests.log.processes import end_of, fork
from tests.rows import each, in_turn


class Notes:
    """Calls, in a file that survives the process."""

    def __init__(self, path: Path) -> None:
        self.path = path / "notes"
        self.path.touch()

    def note(self, what: str) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(handle, f"{what}\n".encode())
        os.close(handle)

    def read(self) -> Counter[str]:
        return Counter(self.path.read_text().split("\n")[:-1])

    def wait_for(self, *texts: str) -> None:
        """Waits until other threads or processes have noted all of these."""
        until = time.monotonic() + 20
        while not {*texts} <= {line.partition(" ")[0] for line in self.read()}:
            assert time.monotonic() < until, self.read()
            time.sleep(0.002)


def mailer(path: Path, notes: Notes, mode: str, hook: Callable[[], None]) -> CompiledGraph:
    """Three parallel calls: two that end, and one whose effect has happened when `hook` is called."""

    def quick(word: str) -> str:
        """Looks up a word."""
        notes.note(f"quick-{word}")
        return word

    def mail(to: str, key: str) -> str:
        """Sends a mail, as a server that recognizes keys does: the second of one key is not sent."""
        notes.note(f"mail {key}")
        hook()
        return f"sent to {to}"

    async def amail(to: str, key: str) -> str:
        """Sends a mail."""
        return await asyncio.to_thread(mail, to, key)

    tool = agents.tool(mail if mode == "sync" else amail, name="mail", effect=True)
    return agent(quick, tool, store=path / "runs.db")


CALLS = (("quick", {"word": "a"}), ("mail", {"to": "Ada"}), ("quick", {"word": "b"}))


@modes
def test_kill_9_after_an_effect_repeats_that_call_alone(mode: str, tmp_path: Path) -> None:
    """The finished calls of the turn are not made again, nor is the LM called; the other side sees one key."""
    notes = Notes(tmp_path)

    def die() -> None:
        # Until the results of the others are in the store.
        until = time.monotonic() + 20
        while len(mailer(tmp_path, notes, mode, lambda: None).thread("t").history(newest=True, count=9)) < 5:
            assert time.monotonic() < until
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    def child() -> None:
        with dspy.context(lm=ScriptedLM([turn(*CALLS)])):
            start(mailer(tmp_path, notes, mode, die).thread("t"), mode)

    assert end_of(fork(child)) == -signal.SIGKILL
    before = notes.read()
    assert before.total() == 3
    thread = mailer(tmp_path, notes, mode, lambda: None).thread("t")
    with dspy.context(lm=ScriptedLM([SUBMIT])) as _:
        run = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert run.status == "completed", run.error
    after = notes.read()
    (mail,) = [line for line in after if line.startswith("mail")]
    assert after == {**before, mail: 2}
    assert results(run) == [("quick", "a", False), ("mail", "sent to Ada", False), ("quick", "b", False)]


@modes
def test_a_recorded_effect_is_not_repeated(mode: str, tmp_path: Path) -> None:
    """Nor by a retry, nor after a kill between its record and its commit."""
    notes = Notes(tmp_path)

    class Board(BaseModel):
        sent: int = 0

    def made(hook: Callable[[], None]) -> CompiledGraph:
        def mail(to: str, ctx: Context) -> Any:
            """Sends a mail."""
            notes.note("mail")
            return Command(update={"sent": 1}, result=f"sent to {to}")

        def checked(result: str) -> list[str]:
            notes.note("check")
            hook()
            return []

        tool = agents.tool(mail, effect=True, check=checked, retry=3)
        return agent(tool, schema=Board, store=tmp_path / "runs.db")

    def child() -> None:
        with dspy.context(lm=ScriptedLM([turn(("mail", {"to": "Ada"}))])):
            start(made(lambda: os.kill(os.getpid(), signal.SIGKILL)).thread("t"), mode)

    assert end_of(fork(child)) == -signal.SIGKILL
    tries: list[int] = []

    def fail_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("no line")

    thread = made(fail_once).thread("t")
    with dspy.context(lm=ScriptedLM([SUBMIT])), no_pauses():
        run = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert results(run) == [("mail", "sent to Ada", False)]
    assert run.state["sent"] == 1
    assert notes.read() == {"mail": 1, "check": 3}


@modes
def test_the_key_is_given_if_the_function_takes_it_and_hidden_from_the_model(mode: str) -> None:
    keys: list[str] = []

    def mail(to: str, key: str) -> str:
        """Sends a mail."""
        keys.append(key)
        return to

    def look(key: str) -> str:
        """Without an effect, a key is an argument."""
        return key

    tool = agents.tool(mail, effect=True)
    assert list(tool.tool.args or {}) == ["to"]
    calls = (("mail", {"to": "a"}), ("mail", {"to": "a"}), ("look", {"key": "k"}))
    run = run_turn(agent(tool, look), *calls, mode=mode)
    assert len({*keys}) == 2
    assert results(run)[2] == ("look", "k", False)


# --- checks


class Flaky:
    """A tool that gives another result at each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def find(self, word: str, key: str) -> str:
        """Finds a word."""
        self.calls.append((word, key))
        return f"{word} {len(self.calls)}"


def refuse_first(args: dict[str, Any], result: str, tool: str) -> list[str]:
    assert tool == "find"
    return ["of the first call"] if result.endswith("1") else []


def never_good(result: str) -> list[str]:
    return ["bad"]


def with_args(args: dict[str, Any]) -> dict[str, Any]:
    return {"problems": ["too short"], "args": {"word": args["word"] * 2}}


class Good(BaseModel):
    result: str

    @field_validator("result")
    @classmethod
    def of_the_second(cls, value: str) -> str:
        if value.endswith("1"):
            raise ValueError("of the first call")
        return value


def with_args_once(args: dict[str, Any], result: str) -> dict[str, Any]:
    return {"problems": refuse_first(args, result, "find"), "args": {"word": "b"}}


class Mood(BaseModel):
    mood: str = "strict"
    known: list[str] = ["a 2"]


class Known(BaseModel):
    """A model that reads a field, which a result must be among."""

    result: str
    known: list[str]

    @model_validator(mode="after")
    def is_known(self) -> Known:
        if self.result not in self.known:
            raise ValueError("not known")
        return self


def strict(result: str, mood: str) -> list[str]:
    return refuse_first({}, result, "find") if mood == "strict" else []


class Judged(BaseModel):
    result: str
    mood: str
    problems: list[str] = []


def by_graph() -> Graph:
    graph = Graph(Judged, inputs=["result", "mood"], outputs=["problems"])
    judge = graph.add_node("judge", lambda result, mood: {"problems": strict(result, mood)}, writes=["problems"])
    return judge.add_path(START, "judge", END)


class Judging(dspy.Module):
    """A module that reads a field; it has an input that is none."""

    def forward(self, result: str, mood: str, hint: str = "") -> dspy.Prediction:
        return dspy.Prediction(problems=strict(result, mood) if not hint else ["a hint"])


BAD = ["of the first call"]
# Checks, and what is found in the last result: without an effect a call is repeated in any case, with one only if the
# check gives arguments.
CHECKS: dict[str, tuple[Any, list[str], list[str], bool]] = {
    "finds nothing": (lambda result: [], [], [], False),
    "refuses the first": (refuse_first, [], BAD, False),
    "refuses each": (never_good, ["bad"], ["bad"], False),
    "gives other arguments": (with_args_once, [], [], True),
    "gives other arguments each time": (with_args, ["too short"], ["too short"], True),
    "a model": (Good, [], ["result: of the first call"], False),
    "a model with a field": (Known, [], ["not known"], False),
    "a function with a field": (strict, [], BAD, False),
    "a module with a field": (Judging, [], BAD, False),
    "a graph with a field": (by_graph, [], BAD, False),
}
MAKES = (Judging, by_graph)


@modes
@each(("case", "effect"), itertools.product(CHECKS, [False, True]))
def test_what_a_check_finds_is_shown_and_repeats_a_call_once(case: str, effect: bool, mode: str) -> None:
    """Only this call, an effect under another key and with other arguments; the last result is checked as well."""
    check, without, with_effect, gives_args = CHECKS[case]
    flaky, found = Flaky(), with_effect if effect else without
    find = flaky.find if effect else partial(flaky.find, key="")
    tool = agents.tool(find, effect=effect, check=check() if check in MAKES else check)
    repeated = case != "finds nothing" and (gives_args or not effect)
    with RecordingLM([turn(("find", {"word": "a"})), SUBMIT]) as lm:
        run = start(agent(tool, schema=Mood, store=":memory:"), mode)
    assert run.status == "completed", run.error
    words = ["a", *[{"gives other arguments": "b", "gives other arguments each time": "aa"}.get(case, "a")] * repeated]
    assert [word for word, _ in flaky.calls] == words
    assert len({key for _, key in flaky.calls}) == (len(words) if effect else 1)
    (message,) = [one for one in run.state["messages"] if one.get("name") == "find"]
    assert message["value"] == f"{words[-1]} {len(words)}"
    assert list(message.get("problems", ())) == found
    told = f"(A check of this result has found problems: {found[0]})" if found else "A check"
    assert (told in lm.requests[1], told in message["content"]) == (bool(found),) * 2


@modes
def test_problems_of_a_result_that_waits_for_the_end_of_the_turn_are_shown(mode: str) -> None:
    """Those of a call that writes fields; a map of runs and a crash change nothing in that."""

    def note(text: str) -> Command[Any]:
        """Notes a text."""
        return Command(update={"mood": text}, result=[text])

    tool = agents.tool(note, check=lambda result: ["sad"] if result == ["grey"] else [])
    run = run_turn(agent(tool, schema=Mood), ("note", {"text": "grey"}), ("note", {"text": "grey"}), mode=mode)
    found = [message for message in run.state["messages"] if message.get("name") == "note"]
    assert [(one["content"], one["value"], one["problems"]) for one in found] == [
        ('["grey"]\n(A check of this result has found problems: sad)', ["grey"], ["sad"])
    ] * 2
    assert to_chat(run.state["messages"])[2]["content"].endswith("problems: sad)")


@modes
def test_a_check_that_is_a_module_is_tuned_as_a_part_of_the_tool(mode: str) -> None:
    judge = dspy.Predict("result -> problems: list[str]")
    flaky = Flaky()
    program = agent(agents.tool(flaky.find, effect=True, check=judge))
    assert [name for name, _ in program.named_predictors()] == ["react", "find.check"]
    script = [turn(("find", {"word": "a"})), {"problems": ["odd"]}, SUBMIT]
    with dspy.context(lm=ScriptedLM(script)):
        run = start(program, mode)
    assert results(run) == [("find", "a 1", False)]
    assert [predictor for predictor, _, _ in run.trace][1] is program.find.check


@modes
def test_kill_9_while_the_last_result_is_checked_repeats_that_check_alone(mode: str, tmp_path: Path) -> None:
    """Neither call is made again, and what led to the second one is not found anew."""
    notes = Notes(tmp_path)

    def made(hook: Callable[[], None]) -> CompiledGraph:
        def find(word: str) -> str:
            """Finds a word."""
            notes.note(f"find {word}")
            return word

        def checked(result: str) -> dict[str, Any]:
            notes.note(f"check {result}")
            if result == "b":
                hook()
            return {"problems": [f"of {result}"], "args": {"word": "b"}}

        tool = agents.tool(find, effect=True, check=checked)
        return agent(tool, store=tmp_path / "runs.db")

    def child() -> None:
        with dspy.context(lm=ScriptedLM([turn(("find", {"word": "a"}))])):
            start(made(lambda: os.kill(os.getpid(), signal.SIGKILL)).thread("t"), mode)

    assert end_of(fork(child)) == -signal.SIGKILL
    thread = made(lambda: None).thread("t")
    with dspy.context(lm=ScriptedLM([SUBMIT])):
        run = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert results(run) == [("find", "b", False)]
    assert list(run.state["messages"][2]["problems"]) == ["of b"]
    assert notes.read() == {"find a": 1, "find b": 1, "check a": 1, "check b": 2}


def of_first(result: str) -> list[str]:
    return ["bad"] if result == "x" else []


WRITERS: dict[str, tuple[Callable[[], Any], Callable[[str], Any]]] = {
    "a module": (lambda: dspy.Predict("word -> text"), lambda text: {"text": text}),
    "an agent": (
        lambda: agents.tool_loop("word -> text", [], name="Writer"),
        lambda text: turn(("submit", {"text": text})),
    ),
}


@modes
@each(("case", "check"), itertools.product(WRITERS, ["a function", "a module"]))
def test_the_steps_of_a_refused_call_are_rejected(case: str, check: str, mode: str) -> None:
    """Those of the check that refused it are not."""
    make, said = WRITERS[case]
    asked = check == "a module"
    checks: Any = dspy.Predict("result -> problems: list[str]") if asked else of_first
    program = agent(agents.tool(make(), name="write", desc="Writes.", check=checks))
    found = [[{"problems": problems}] * asked for problems in (["bad"], [])]
    script = [turn(("write", {"word": "a"})), said("x"), *found[0], said("y"), *found[1], SUBMIT]
    with dspy.context(lm=ScriptedLM(script)):
        run = start(program, mode)
    assert results(run) == [("write", "y", False)]
    statuses = [step.status for step in run.trace_steps if step.node == "write"]
    assert statuses == ["rejected", *["used"] * asked, "used", *["used"] * asked]
    own = [predictor for _, predictor in program.named_predictors()]
    rejected = run.trace[1][0]
    assert all(rejected is not each for each in own)
    assert any(rejected.signature.equals(each.signature) for each in own)
    assert all(any(step[0] is each for each in own) for step in (*run.trace[:1], *run.trace[2:]))


def test_no_demo_is_made_of_a_refused_call() -> None:
    program = agent(agents.tool(dspy.Predict("word -> text"), name="write", desc="Writes.", check=of_first))
    script = [turn(("write", {"word": "a"})), {"text": "x"}, {"text": "y"}, SUBMIT]
    tuner = dspy.BootstrapFewShot(lambda example, found, trace=None: True, max_labeled_demos=0)
    with dspy.context(lm=ScriptedLM(script)):
        tuned = tuner.compile(program, trainset=[dspy.Example(question="Why?").with_inputs("question")])
    assert [demo["text"] for demo in tuned.write.demos] == ["y"]


class Judge(dspy.Signature):
    """Judge the result of a call."""

    tool: str = dspy.InputField()
    result: str = dspy.InputField()
    problems: list[str] = dspy.OutputField()
    args: dict[str, Any] = dspy.OutputField()


ARGUMENTS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "other ones": ({"word": "b"}, ["a", "b"], "b 2"),
    "the same": ({}, ["a"], "a 1"),
}


@modes
@each("case", ARGUMENTS)
def test_a_module_may_give_other_arguments(case: str, mode: str) -> None:
    args, words, value = ARGUMENTS[case]
    flaky = Flaky()
    program = agent(agents.tool(flaky.find, effect=True, check=dspy.Predict(Judge)))
    found = [{"problems": ["odd"], "args": args}, {"problems": [], "args": {"no": 1}}][: len(words)]
    script = [turn(("find", {"word": "a"})), *found, SUBMIT]
    with dspy.context(lm=ScriptedLM(script)):
        run = start(program, mode)
    assert results(run) == [("find", value, False)]
    assert [word for word, _ in flaky.calls] == words


@modes
def test_a_module_that_gives_wrong_arguments_is_asked_again(mode: str) -> None:
    """Under the retry policy of the tool; the call that was made is not made again."""
    flaky = Flaky()
    program = agent(agents.tool(flaky.find, effect=True, check=dspy.Predict(Judge), retry=2))
    wrong, right = {"problems": ["odd"], "args": {"wrd": "b"}}, {"problems": ["odd"], "args": {"word": "b"}}
    # What is wrong with the last result leads to no call, so its arguments are not looked at.
    with dspy.context(lm=ScriptedLM([turn(("find", {"word": "a"})), wrong, right, wrong, SUBMIT])), no_pauses():
        run = start(program, mode)
    assert results(run) == [("find", "b 2", False)]
    assert [word for word, _ in flaky.calls] == ["a", "b"]
    with dspy.context(lm=ScriptedLM([turn(("find", {"word": "a"})), wrong, wrong])), no_pauses():
        run = start(program, mode)
    assert isinstance(run.error, NodeOutputError)
    assert "gave arguments that the tool does not take: the argument 'word' is missing" in str(run.error)


@modes
def test_an_error_in_a_check_fails_the_node(mode: str) -> None:
    """It is no result: the call was made, and a model that reads of an error would make it again."""
    flaky = Flaky()

    def broken(result: str) -> list[str]:
        raise KeyError("score")

    run = run_one(agent(agents.tool(flaky.find, effect=True, check=broken)), ("find", {"word": "a"}), mode=mode)
    assert isinstance(run.error, KeyError)
    assert "in the check of tool 'find'" in run.error.__notes__
    assert len(flaky.calls) == 1


class Checked(BaseModel):
    result: str
    problems: list[str] = []


@modes
def test_a_check_may_be_a_program(mode: str) -> None:
    inner = Graph(Checked, inputs=["result"], outputs=["problems"])
    inner.add_node("judge", lambda result: {"problems": refuse_first({}, result, "find")}, writes=["problems"])
    flaky = Flaky()
    tool = agents.tool(partial(flaky.find, key=""), check=inner.add_path(START, "judge", END).compile())
    run = run_turn(agent(tool), ("find", {"word": "a"}), ("find", {"word": "b"}), mode=mode)
    assert [value.partition(" ")[0] for _, value, _ in results(run)] == ["a", "b"]
    assert len(flaky.calls) == 3


WRONG_CHECKS: dict[str, tuple[Any, str]] = {
    "a text": (lambda result: "bad", "gave 'bad', a str: write a list around it"),
    "an unknown key": (lambda result: {"problem": ["bad"]}, "gave 'problem'"),
    "wrong arguments": (lambda result: {"problems": ["bad"], "args": ["a"]}, "give a dict by name"),
    "arguments that the tool does not take": (lambda result: {"problems": ["x"], "args": {"w": 1}}, "does not take"),
}


@each("case", WRONG_CHECKS)
def test_what_a_function_gives_wrongly_fails_the_node(case: str) -> None:
    check, text = WRONG_CHECKS[case]
    run = run_one(agent(agents.tool(Flaky().find, effect=True, check=check)), ("find", {"word": "a"}))
    assert isinstance(run.error, NodeOutputError)
    assert text in str(run.error)


@modes
def test_a_repeated_call_is_approved_again(mode: str, tmp_path: Path) -> None:
    """What was approved was another call. A refusal keeps the first result; nothing is called twice."""
    for answer, value, words in [(True, "aa 2", ["a", "aa"]), (Approval(False, "no"), "a 1", ["a"])]:
        flaky = Flaky()
        tool = agents.tool(flaky.find, approve=True, effect=True, check=with_args)
        thread = agent(tool, store=":memory:").thread("t")
        with dspy.context(lm=ScriptedLM([turn(("find", {"word": "a"})), SUBMIT])):
            assert [one.text for one in start(thread, mode).questions] == ["find(word='a')?"]
            run = thread.resume({"find": True})
            assert [one.text for one in run.questions] == ["find(word='aa')?"]
            run = thread.resume({"find": answer})
        assert results(run) == [("find", value, False)]
        assert [word for word, _ in flaky.calls] == words


def test_a_tool_may_use_effects_of_its_own_when_it_is_repeated() -> None:
    made: list[str] = []

    def charge(key: str) -> None:
        made.append(key)

    def pay(amount: int, ctx: Context) -> str:
        """Pays."""
        ctx.once("charge", charge)
        return "paid"

    run = run_turn(agent(agents.tool(pay, check=never_good)), ("pay", {"amount": 3}))
    assert results(run) == [("pay", "paid", False)]
    assert len({*made}) == 2


class Closed:
    def __str__(self) -> str:
        raise ConnectionError("the session is closed")


class Lazy(BaseModel):
    id: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        raise TimeoutError("lazy load")


class Work(BaseModel):
    plan: list[str] = []
    note: Any = None


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


UNUSABLE: dict[str, Callable[[], Any]] = {
    "a text that raises": Closed,
    "a field that raises": lambda: Lazy(id=1),
    "a part that raises": lambda: {"parts": [Lazy(id=1)]},
    "nested too deep": lambda: nested(500),
    "beside an update": lambda: Command(update={"plan": ["a"]}, result=Closed()),
    "an update that no store holds": lambda: Command(update={"note": object()}, result="r"),
    "an update that is no patch": lambda: Command(update=["a"], result="r"),
    "a handoff to no name": lambda: Command(goto=3, result="r"),  # type: ignore[arg-type]
}


@each(("case", "mode"), in_turn(UNUSABLE))
def test_a_call_with_an_effect_is_not_repeated_for_a_result_that_cannot_be_kept(case: str, mode: str) -> None:
    """Whatever the retries say: it is recorded, and the model is told, that the call was made."""
    keys: list[str] = []

    def charge(key: str) -> Any:
        """Charges."""
        keys.append(key)
        return UNUSABLE[case]()

    async def acharge(key: str) -> Any:
        """Charges."""
        return charge(key)

    again = Retry(3, on=Exception, wait=wait_none())
    tool = agents.tool(charge if mode == "sync" else acharge, name="charge", effect=True, retry=again, timeout=60)
    run = run_turn(agent(tool, store=":memory:", schema=Work), ("charge", {}), mode=mode)
    assert (run.status, len(keys)) == ("completed", 1)
    ((_, told, error),) = results(run)
    assert error
    assert "the call was made" in told
    assert run.state["plan"] == (["a"] if case == "beside an update" else [])


def test_a_module_and_a_call_without_an_effect_are_not_repeated_for_their_results() -> None:
    calls: list[str] = []

    class Charge(dspy.Module):
        def forward(self, to: str) -> Any:
            calls.append(to)
            return to

    def look(to: str) -> Any:
        """Looks."""
        calls.append(to)
        return Closed()

    again = Retry(3, on=Exception, wait=wait_none())
    charge = agents.tool(Charge(), name="charge", desc="Charges.", effect=True, retry=again)
    run = run_turn(agent(charge, agents.tool(look, retry=again)), ("charge", {"to": "A"}), ("look", {"to": "B"}))
    assert sorted(calls) == ["A", "B"]  # they run at once
    assert [("the call was made" in told, error) for _, told, error in results(run)] == [(True, True), (True, True)]

    def rows(to: str) -> Any:
        """Gives rows; DSPy takes a generator for a coroutine."""
        calls.append(to)
        return (row for row in to)

    for mode in ("sync", "async"):
        calls.clear()
        run = run_turn(agent(agents.tool(rows, retry=again)), ("rows", {"to": "A"}), mode=mode)
        ((_, told, error),) = results(run)
        assert (calls, error, "<generator" in told) == (["A"], False, True)

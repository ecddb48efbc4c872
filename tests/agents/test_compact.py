"""Summaries of long conversations: `tool_loop(compact=)` and `modes(compact=)`."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import CompiledGraph, Run, Thread, agents, remove, to_chat, view
from dspyer.errors import GraphError, NodeOutputError
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.kit import turn
from tests.agents.parity import ADAPTERS
from tests.budget import deep
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.messages.providers import problems_of

both = pytest.mark.parametrize("mode", ["sync", "async"])


def look(tag: str) -> str:
    """Looks."""
    return f"seen {tag} " + tag * 100


def start(target: Any, mode: str = "sync", question: str = "Why?") -> Run:
    run: Run = (
        target.run({"question": question}) if mode == "sync" else asyncio.run(target.arun({"question": question}))
    )
    return run


def summarizes(prompt: Prompt) -> bool:
    return "messages" in prompt.inputs


class Model:
    """An agent that looks at each letter of `tags` and submits; summaries are numbered. What is asked is kept."""

    def __init__(self, tags: str = "abcdef", note: Any = None) -> None:
        self.tags, self.note = tags, note or (lambda what: None)
        self.taken = 0
        self.summaries: list[str] = []
        self.lm = ScriptedLM(self.answer)

    def answer(self, prompt: Prompt) -> dict[str, Any]:
        if summarizes(prompt):
            self.note("compact")
            self.summaries.append(prompt.inputs["messages"])
            return {"summary": f"summary {len(self.summaries)}"}
        self.note("react")
        self.taken += 1
        done = self.taken % (len(self.tags) + 1)
        return turn(("look", {"tag": self.tags[done - 1]})) if done else turn(("submit", {"answer": "done"}))


def agent(store: Any = ":memory:", after: int = 300, turns: int = 2, **options: Any) -> CompiledGraph:
    compact = agents.Compact(after=after, turns=turns)
    return agents.tool_loop("question -> answer", [look], compact=compact, **options).compile(store=store)


def summaries_in(thread: Thread) -> list[Any]:
    return [message for message in thread.state["messages"] if "covers" in message]


@both
def test_the_turns_before_the_last_ones_are_shown_as_a_summary(mode: str, tmp_path: Path) -> None:
    model, thread = Model(), agent(tmp_path / "t.db").thread("t")
    with model.lm:
        run = start(thread, mode)
    assert run.status == "completed"
    asked = [str(call.prompt.turns) for call in model.lm.calls if not summarizes(call.prompt)]
    assert len(model.summaries) == 4  # with 3 turns of 108 characters the limit is passed, and then after each turn
    assert [message["content"] for message in summaries_in(thread)] == [f"summary {number}" for number in (1, 2, 3, 4)]
    for number, (made_of, next_turn) in enumerate(zip(model.summaries, asked[3:], strict=True), 1):
        new, *later = list("abcdef"[number - 1 : number + 2])
        assert f"seen {new}" in made_of
        assert (f"summary {number - 1}" in made_of) == (number > 1)  # the one before is a part of it
        assert not [tag for tag in later if f"seen {tag}" in made_of]
        assert all(f"seen {tag}" in next_turn for tag in later)  # the last turns are whole
        assert f"seen {new}" not in next_turn
        assert f"summary {number}" in next_turn
        assert "summary 0" not in next_turn
        assert "Why?" in next_turn  # the inputs of the task stay
    kept = [message["content"] for message in thread.state["messages"] if message["role"] == "tool"]
    assert [text[:6] for text in kept] == [*(f"seen {tag}" for tag in "abcdef"), '{"answ']
    assert "summary" not in str(to_chat(thread.state["messages"]))  # the conversation has what it stands for
    assert not problems_of(to_chat(thread.state["messages"]))
    assert [commit.node for commit in run.commits].count("compact") == 4
    assert thread.replay() == thread.state


@both
def test_the_next_task_begins_with_a_summary(mode: str) -> None:
    """Also if each run is one turn: then no turn of it ends in another."""
    model, thread = Model(tags=""), agent(after=150).thread("t")
    with model.lm:
        for number in range(6):
            start(thread, mode, question=f"{number}" * 50)
    assert len(model.summaries) >= 2
    last = str(model.lm.calls[-1].prompt.turns)
    assert "555" in last
    assert "444" in last
    assert "000" not in last
    assert f"summary {len(model.summaries)}" in last


def test_a_short_conversation_is_asked_as_without_the_option() -> None:
    asked = []
    for compact in (None, agents.Compact(after=10_000)):
        model = Model()
        with model.lm, dspy.context(adapter=ADAPTERS["chat, native"]()):
            start(agents.tool_loop("question -> answer", [look], compact=compact).compile())
        asked.append([call.messages for call in model.lm.calls])
    assert asked[0] == asked[1]


def test_context_render_and_cut_results_count_as_they_are_shown() -> None:
    """A tool that hides its results hides them from the summary, too."""
    model = Model()
    hidden = agents.tool(look, render=lambda call: call.args["tag"])
    with model.lm:
        start(agents.tool_loop("question -> answer", [hidden], compact=agents.Compact(after=300, turns=2)).compile())
    assert not model.summaries
    model = Model()
    with model.lm:
        start(agents.tool_loop("question -> answer", [hidden], compact=agents.Compact(after=20, turns=2)).compile())
    assert model.summaries
    assert "seen" not in str(model.summaries)
    model = Model()
    with model.lm:
        start(agent(max_result=50))  # a tenth of each result is shown
    assert "aaa" not in str(model.summaries)
    model = Model()
    with model.lm:
        start(agent(context=view("messages").turns(1)))
    assert "seen e" not in str(model.lm.calls[-1].prompt.turns)
    assert "summary 4" in str(model.lm.calls[-1].prompt.turns)


@both
def test_modes_go_on_where_they_were(mode: str) -> None:
    modes = {"plan": agents.Mode("Plan.", to=["work"]), "work": agents.Mode("Work.", tools=[look])}
    compact = agents.Compact(after=100, turns=1)
    program = agents.modes("question -> answer", modes, compact=compact).compile(store=":memory:")
    answers = [turn(("to_work", {})), turn(("look", {"tag": "a"})), {"summary": "S"}]
    answers += [turn(("look", {"tag": "b"})), {"summary": "S2"}, turn(("submit", {"answer": "done"}))]
    with ScriptedLM([*answers]):
        run = start(program.thread("t"), mode)
    assert run.status == "completed"
    assert [commit.node for commit in run.commits if commit.node in ("plan", "work", "compact")] == [
        *("plan", "work", "compact", "work", "compact", "work")
    ]


def test_an_edit_of_a_covered_message_removes_the_summary() -> None:
    model, thread = Model(), agent().thread("t")
    with model.lm:
        start(thread)
        said = thread.state["messages"]
        turns = [message for message in said if message["role"] == "assistant" and "covers" not in message]
        results = [message for message in said if message["role"] == "tool"]
        hide = {**{name: results[2][name] for name in ("id", "role", "tool_call_id")}, "content": "hidden"}
        copies = {name: thread.copy(name) for name in ("a later turn", "a late one", "the first")}
        copies["a later turn"].update({"messages": remove(turns[5]["id"])})
        assert [message["content"][-1] for message in summaries_in(copies["a later turn"])] == ["1", "2", "3", "4"]
        copies["a late one"].update({"messages": hide})
        assert [message["content"][-1] for message in summaries_in(copies["a late one"])] == ["1", "2"]
        copies["the first"].update({"messages": remove(said[0]["id"])})
        assert summaries_in(copies["the first"]) == []
        before = len(model.lm.calls)
        start(copies["a late one"])
    shown = str(model.lm.calls[before + 1].prompt.turns)
    assert "seen c" not in model.summaries[4]
    assert "hidden" in model.summaries[4]
    assert "summary 2" in model.summaries[4]
    assert "summary 5" in shown


def test_an_optimizer_tunes_the_predictor_of_summaries() -> None:
    program = agents.tool_loop("question -> answer", [look], compact=agents.Compact(after=300, turns=2)).compile()
    assert [name for name, _ in program.named_predictors()] == ["react", "compact"]
    model = Model()
    tuner = dspy.BootstrapFewShot(metric=lambda example, prediction, trace=None: True, max_labeled_demos=0)
    with model.lm, dspy.context(lm=model.lm):
        tuned = tuner.compile(program, trainset=[dspy.Example(question="q").with_inputs("question")])
        assert [demo["summary"] for demo in tuned.compact.demos]
        tuned.compact.signature = tuned.compact.signature.with_instructions("Be short.")
        start(tuned)
    asked = [call for call in model.lm.calls if summarizes(call.prompt)]
    assert "Be short." in str(asked[-1].messages)
    other = agents.tool_loop("question -> answer", [look], compact=agents.Compact(after=300, turns=2)).compile()
    other.load_state(tuned.dump_state())
    assert other.compact.signature.instructions == "Be short."


REFUSED: dict[str, Any] = {
    "agents.Compact\\(after=60_000\\)": 60_000,
    r"Compact\(after=0\)": {"after": 0},
    r"Compact\(after='many'\)": {"after": "many"},
    r"Compact\(turns=0\)": {"after": 1, "turns": 0},
    r"Compact\(turns=True\)": {"after": 1, "turns": True},
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_options_are_refused(message: str) -> None:
    given = REFUSED[message]
    with pytest.raises(GraphError, match=message):
        agents.tool_loop(
            "question -> answer", [], compact=agents.Compact(**given) if isinstance(given, dict) else given
        )


def compact() -> None:
    """A tool with the name of the node."""


def test_a_tool_may_have_the_name_if_there_is_no_such_node() -> None:
    agents.tool_loop("question -> answer", [compact])
    with pytest.raises(GraphError, match="'compact' cannot name a tool, since the agent has a node 'compact'"):
        agents.tool_loop("question -> answer", [compact], compact=agents.Compact(after=1))


@both
def test_an_empty_summary_is_refused(mode: str) -> None:
    thread = agent().thread("t")
    with ScriptedLM([*(turn(("look", {"tag": tag})) for tag in "abc"), {"summary": " "}]):
        run = start(thread, mode)
    assert isinstance(run.error, NodeOutputError)
    assert "gave the summary" in str(run.error)


@pytest.mark.slow("a process is killed after every second write of a run, and the run resumed from the file")
def test_kill_9_after_its_writes_repeats_at_most_the_call_of_a_summary(tmp_path: Path) -> None:
    """No turn is taken again, and the conversation is that of a run that nothing has killed."""

    def answer(prompt: Prompt) -> dict[str, Any]:
        if summarizes(prompt) and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(notes[-1], b"compact\n" if summarizes(prompt) else b"react\n")
        if summarizes(prompt):
            return {"summary": f"S {prompt.inputs['messages'].count('seen')}"}
        seen = max((tag for tag in "abcde" if f"seen {tag}" in str(prompt.turns)), default="")
        return (
            turn(("submit", {"answer": "end"})) if seen == "e" else turn(("look", {"tag": chr(ord(seen or "`") + 1)}))
        )

    def noting(name: str) -> Path:
        notes.append(os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND))
        return tmp_path / name

    def go_on(thread: Thread) -> Run:
        with dspy.context(lm=ScriptedLM(answer)):
            return thread.run({"question": "q"}) if thread.status == "new" else thread.resume()

    notes: list[int] = []
    killed: list[bool] = []
    store = FailingSQLite(tmp_path / "t.db")
    program = agent(store)
    noted = noting("whole")
    whole = go_on(program.thread("whole"))
    undisturbed = noted.read_text().splitlines()
    assert undisturbed.count("compact") == 3

    def in_the_call() -> None:
        killed.append(True)
        go_on(program.thread("in the call"))

    noted = noting("in the call")
    assert end_of(fork(in_the_call)) == -signal.SIGKILL
    assert go_on(program.thread("in the call")).status == "completed"
    assert noted.read_text().splitlines() == undisturbed, "of the call that was killed, nothing else is repeated"
    for at in count(1, 1 if deep else 2):
        thread, first = program.thread(f"t {at}"), noting(f"first {at}")

        def child(thread: Thread = thread, at: int = at) -> None:
            store.arm(kill, at, after=True)
            go_on(thread)

        ended = end_of(fork(child))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        second = noting(f"second {at}")
        if thread.status != "completed":
            go_on(thread)
        before, after = first.read_text().splitlines(), second.read_text().splitlines()
        assert [message["content"] for message in thread.state["messages"]] == [
            message["content"] for message in whole.state["messages"]
        ]
        repeated = [*before, *after]
        assert repeated == undisturbed, "after a write nothing runs that is not written yet"
    assert at > 12

"""Random turns of an agent: good calls, errors, retries, timeouts, refusals, handoffs, approvals; calls are counted."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import anyio
import anyio.lowlevel
import dspy
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import Command, CompiledGraph, Run, Thread, agents, reducers
from dspyer.testing import ScriptedLM, no_pauses
from tests.agents.parity import ADAPTERS
from tests.agents.scripts import submit, turn


class Work(BaseModel):
    plan: Annotated[list[str], reducers.append] = []
    closed: bool = False


class Office:
    """Tools that count their calls by tag: each call of a test has a tag of its own."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def look(self, tag: str) -> dict[str, str]:
        """Looks."""
        self.calls[tag] += 1
        return {"seen": tag}

    async def wait(self, tag: str) -> str:
        """Waits for ever. Its calls are not counted: on a busy machine the time may be over before it starts."""
        await anyio.sleep_forever()
        return tag

    def flaky(self, tag: str) -> str:
        """Fails once."""
        self.calls[tag] += 1
        if self.calls[tag] == 1:
            raise ConnectionError("no line")
        return tag

    def boom(self, tag: str) -> None:
        """Fails."""
        self.calls[tag] += 1
        raise ValueError(f"no {tag}")

    def mail(self, tag: str) -> str:
        """Sends a mail."""
        self.calls[tag] += 1
        return f"sent {tag}"

    def go(self, tag: str, mode: str) -> Command[Any]:
        """Hands off."""
        self.calls[tag] += 1
        return Command(update={"plan": tag}, goto=mode, result="gone")

    @functools.cached_property
    def program(self) -> CompiledGraph:
        """An agent of two modes, and a third one whose guard lets no one in."""
        mail = agents.tool(self.mail, approve=True)
        tools = [self.look, self.boom, mail, self.go]
        tools += [agents.tool(self.wait, timeout=0.01), agents.tool(self.flaky, retry=2)]
        modes = {
            "a": agents.Mode("A.", tools=tools, to=["b", "closed"]),
            "b": agents.Mode("B.", tools=tools, to=["a", "closed"]),
            "closed": agents.Mode("C.", tools=tools, to=["a"], guard=is_closed),
        }
        return agents.modes("question -> answer", modes, schema=Work, max_turns=50).compile(store=":memory:")


OFFICE = Office()
NUMBERS = itertools.count()


def is_closed(closed: bool) -> bool:
    """It is closed."""
    return closed


class Drawn(NamedTuple):
    """One call that the model makes.

    Attributes:
        kind: a key of `KINDS`.
        answer: to the question that it asks, if any.
    """

    kind: str
    answer: int = 0


KINDS: dict[str, tuple[str, dict[str, Any], int]] = {  # the tool, its arguments but for the tag, calls of the function
    "good": ("look", {}, 1),
    "retried": ("flaky", {}, 2),
    "raises": ("boom", {}, 1),
    "times out": ("wait", {}, 0),
    "unknown tool": ("nothing", {}, 0),
    "bad argument": ("look", {"nr": 1}, 0),
    "mail": ("mail", {}, 1),
    "hands off": ("to_b", {}, 0),
    "hands back": ("to_a", {}, 0),
    "guarded": ("to_closed", {}, 0),
    "command": ("go", {"mode": "b"}, 1),
    "command to nowhere": ("go", {"mode": "x"}, 1),
    "bad submit": ("submit", {}, 0),
}
ANSWERS: tuple[Callable[[str], Any], ...] = (  # to the question whether to mail; the last one changes the arguments
    lambda tag: True,
    lambda tag: False,
    lambda tag: agents.Approval(ok=False, reason="too late"),
    lambda tag: agents.Approval(ok=True, args={"tag": f"other {tag}"}),
)
DENIED, CHANGED = (1, 2), 3
calls = st.builds(Drawn, st.sampled_from(list(KINDS)), st.integers(0, len(ANSWERS) - 1))
turns = st.lists(st.lists(calls, min_size=1, max_size=4), min_size=1, max_size=4)


class Played(NamedTuple):
    """What came of the turns: the conversation, how often each tagged call was made, and the calls of the LM."""

    run: Run
    messages: list[dict[str, Any]]
    calls: Counter[str]
    lm_calls: int


def play(drawn: Sequence[Sequence[Drawn]], mode: str, adapter: str, picks: Sequence[int] = (0,)) -> Played:
    """Runs the turns, then a good submit; answers questions in parts, as `picks` chooses them."""
    OFFICE.calls.clear()
    lm = ScriptedLM([turn(*listed) for listed in named(drawn)] + [submit(answer="end")])
    thread = OFFICE.program.thread(f"t {next(NUMBERS)}")
    with no_pauses(), dspy.context(lm=lm), dspy.context(adapter=ADAPTERS[adapter]()):
        run = thread.run({"question": "q"}) if mode == "sync" else asyncio.run(thread.arun({"question": "q"}))
        for _ in range(100):
            if run.status != "interrupted":
                break
            run = answer_some(thread, run, drawn, mode, picks)
    run.raise_error()
    messages = [{**message, "id": None} for message in run.state.to_dict()["messages"]]
    return Played(run, messages, OFFICE.calls.copy(), len(lm.calls))


def answer_some(thread: Thread, run: Run, drawn: Sequence[Sequence[Drawn]], mode: str, picks: Sequence[int]) -> Run:
    """Answers one open question or several of them."""
    asked = {question.id: answer_of(question.text, drawn) for question in run.questions}
    names = list(asked)
    chosen = {names[pick % len(names)]: asked[names[pick % len(names)]] for pick in picks}
    return thread.resume(chosen) if mode == "sync" else asyncio.run(thread.aresume(chosen))


def answer_of(text: str, drawn: Sequence[Sequence[Drawn]]) -> Any:
    """The answer that was drawn for the call in a question's text: it names the tag."""
    return next(ANSWERS[call.answer](tag) for tag, call in tagged(drawn).items() if f"'{tag}'" in text)


def tagged(drawn: Sequence[Sequence[Drawn]]) -> dict[str, Drawn]:
    """The calls by tag."""
    return {f"tag {number}-{place}": call for number, each in enumerate(drawn) for place, call in enumerate(each)}


def named(drawn: Sequence[Sequence[Drawn]]) -> list[list[tuple[str, dict[str, Any]]]]:
    """The calls as the model writes them, turn by turn."""
    listed = []
    for number, each in enumerate(drawn):
        row = []
        for place, call in enumerate(each):
            name, args, _ = KINDS[call.kind]
            untagged = name.startswith("to_") or name in ("submit", "nothing")
            row.append((name, args if untagged else {"tag": f"tag {number}-{place}", **args}))
        listed.append(row)
    return listed


def expected_calls(drawn: Sequence[Sequence[Drawn]]) -> Counter[str]:
    """How often each function must be called."""
    counts: Counter[str] = Counter()
    for tag, call in tagged(drawn).items():
        if call.kind != "mail":
            counts[tag] = KINDS[call.kind][2]
        elif call.answer not in DENIED:
            counts[f"other {tag}" if call.answer == CHANGED else tag] = 1
    return +counts


TARGETS = {"hands off": "b", "hands back": "a", "command": "b"}
REFUSED = {"raises", "times out", "unknown tool", "bad argument", "guarded", "command to nowhere", "bad submit"}


def expected_turns(drawn: Sequence[Sequence[Drawn]]) -> list[tuple[str, list[bool]]]:
    """The mode of each turn, and of each of its calls whether the model is told of an error.

    The first handoff of a turn to another mode is made; a mode cannot hand off to itself.
    """
    mode, expected = "a", []
    for each in drawn:
        taken, errors = None, []
        for call in each:
            target = TARGETS.get(call.kind)
            made = target is not None and target != mode and taken is None
            taken = target if made else taken
            refused = call.kind in REFUSED or (call.kind == "mail" and call.answer in DENIED)
            errors.append(not made if target is not None else refused)
        expected.append((mode, errors))
        mode = taken or mode
    return expected

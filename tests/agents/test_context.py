"""Which messages a mode is shown (`context=`), as which inputs and turns, and how tools show calls (`render=`)."""

from __future__ import annotations

import asyncio
import functools
import gc
import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import CompiledGraph, Run, agents, view
from dspyer.errors import GraphError, NodeOutputError
from dspyer.testing import ScriptedLM
from tests.agents.recording import RecordingLM
from tests.messages.providers import problems_of
from tests.openai_server import OpenAIServer
from tests.rows import each


class Plan(BaseModel):
    plan: str = "look"
    count: int = 1


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"next_thought": "so", "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in made]}}


TURNS = [calls(("add", {"a": number, "b": 0}), ("add", {"a": number, "b": 5})) for number in range(10, 15)]
SUBMIT = calls(("submit", {"answer": 3}))


def last_request(context: Any, turns: int = 3) -> list[tuple[str, str]]:
    """What the last turn of a run is shown besides the system message, as (role, text without the reminder)."""
    program = agents.tool_loop("question -> answer: int", [add], context=context, schema=Plan).compile()
    with ScriptedLM([*TURNS[:turns], SUBMIT]) as lm:
        run = program.run({"question": "1 + 2?"})
    assert run.status == "completed", run.error
    assert len(run.state["messages"]) == 1 + 3 * turns + 2  # whatever is shown, the conversation is the same
    texts = [(turn["role"], turn["content"].split("\n\nRespond")[0]) for turn in lm.calls[-1].messages[1:]]
    without_tools = [(role, text.split("[[ ## tools ## ]]")[0].strip()) for role, text in texts]
    return [(role, text) for role, text in without_tools if text]


def shown_sums(context: Any, turns: int = 3) -> list[str]:
    """The results that the last turn is shown."""
    found = last_request(context, turns)
    assert found[0] == ("user", "[[ ## question ## ]]\n1 + 2?")  # the task is always there
    return [text.rpartition("[[ ## tool_call_results ## ]]\n")[2] for role, text in found[1:] if role == "user"]


def recent(messages: Any) -> Any:
    """The last five messages: two results of the turn before the last, without their call, and the last turn."""
    return messages[-5:]


def only_task(messages: Any, count: int) -> Any:
    return [message for message in messages if message["role"] == "user"][:count]


def summary(messages: Any, plan: str) -> Any:
    return [{"role": "user", "content": f"{len(messages)} messages before, to {plan}"}, *messages[-3:]]


@pytest.mark.parametrize(
    ("context", "sums"),
    [
        (None, [(10, 15), (11, 16), (12, 17)]),
        (view("messages"), [(10, 15), (11, 16), (12, 17)]),
        (view("messages").last(3), [(12, 17)]),
        (view("messages").last(5), [(12, 17)]),  # two results without their call are left out
        (view("messages").turns(2), [(11, 16), (12, 17)]),
        (view("messages").by("react"), [(10, 15), (11, 16), (12, 17)]),
        (view("messages").then(lambda entries: entries[-4:]), [(12, 17)]),
        (view("messages").fit(10_000), [(10, 15), (11, 16), (12, 17)]),
        (view("messages").fit(1), [(12, 17)]),  # the last turn is always shown
        (recent, [(12, 17)]),
        (only_task, [(12, 17)]),
        (lambda messages: [each for each in messages if each.get("tool_call_id") != "call_1_0"], "one result"),
        (lambda messages: [dict(each) for each in messages[-3:]], [(12, 17)]),
    ],
)
def test_a_context_selects_the_messages_and_keeps_calls_with_their_results(context: Any, sums: Any) -> None:
    found = shown_sums(context)
    if sums == "one result":
        assert len(found) == 3
        assert "call_1_0" not in found[1]
        assert '"value": 16' in found[1]
        return
    assert len(found) == len(sums)
    for text, values in zip(found, sums, strict=True):
        assert [f'"value": {value}' in text for value in values] == [True, True]


def test_a_context_may_add_texts_of_its_own() -> None:
    found = last_request(summary)
    assert found[0] == ("user", "[[ ## question ## ]]\n10 messages before, to look\n\n1 + 2?")
    assert len(found) == 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_mode_shows_what_another_one_left_out(asynchronous: bool) -> None:
    """The conversation itself is the same for all modes."""
    look = agents.Mode("Look.", [add], to=["work"])
    work = agents.Mode("Work.", [add], to=["look"], context=lambda messages: messages[:1])
    program = agents.modes("question -> answer: int", {"look": look, "work": work}).compile()
    inputs = {"question": "1 + 2?"}
    with ScriptedLM([TURNS[0], calls(("to_work", {})), TURNS[1], calls(("to_look", {})), SUBMIT]) as lm:
        run = asyncio.run(program.arun(inputs)) if asynchronous else program.run(inputs)
    assert run.state["answer"] == 3
    found = ["".join(turn["content"] for turn in call.messages) for call in lm.calls]
    assert ['"value": 10' in text for text in found] == [False, True, False, False, True]
    assert ['"value": 11' in text for text in found] == [False, False, False, True, True]  # the last turn in any case


@each(
    ("context", "problem"),
    [
        (3, "the context of node 'react' is 3: give view('messages')"),
        (view("plan"), "view('plan'), which is no view of the conversation"),
        (view("messages").by("reactt"), "'reactt' is no node"),
        (lambda messages, plans: messages[: len(plans)], "its parameter 'plans'"),
        (lambda plan: [plan], "does not read 'messages'"),
        (lambda messages, ctx: ctx and messages, "gets values only"),
    ],
)
def test_a_context_that_cannot_be_is_a_build_error(context: Any, problem: str) -> None:
    with pytest.raises(GraphError) as caught:
        agents.tool_loop("question -> answer: int", [add], context=context, schema=Plan).compile()
    assert problem in str(caught.value)


@each(
    ("context", "problem"),
    [
        (lambda messages: "all" if messages else None, "returned 'all', of type str: return a list of messages"),
        (lambda messages: [message["content"] for message in messages], "a message is a dict"),
        (lambda messages: [*messages, {"role": "system", "content": "x"}], "system messages are not kept"),
    ],
)
def test_a_context_that_gives_no_messages_fails_the_mode(context: Any, problem: str) -> None:
    program = agents.tool_loop("question -> answer: int", [add], context=context).compile()
    with ScriptedLM([]):
        run = program.run({"question": "1 + 2?"})
    assert isinstance(run.error, NodeOutputError)
    assert problem in str(run.error)
    assert "the context of node 'react'" in "".join([str(run.error), *run.error.__notes__])


# --- as inputs and turns


class Seeing(dspy.ChatAdapter):
    """Keeps what it is given to show, and the chats that it makes of it."""

    def __init__(self) -> None:
        super().__init__(use_native_function_calling=True)
        self.given: list[dict[str, Any]] = []
        self.chats: list[Any] = []

    def format(self, signature: Any, demos: Any, inputs: dict[str, Any]) -> Any:
        self.given.append(dict(inputs))
        self.chats.append(super().format(signature, demos, inputs))
        return self.chats[-1]


class Shown(NamedTuple):
    """What a request shows: the inputs that no turn has handled, and the turns."""

    inputs: dict[str, Any]
    events: list[dict[str, Any]]


def tide(place: str) -> str:
    """Returns the tide at a place."""
    return place


def see(a: list[int]) -> dict[str, Any]:
    """Sees."""
    return {"n": a}


INPUTS = {"year": 2026, "question": "When does the tide turn?"}


def exactly(count: int, *places: int) -> Callable[[list[Any]], list[Any]]:
    """A context of the first messages, or some of them, without those that the run adds.

    The task of the run is left out if another message, here a silent one, has its id.
    """

    def select(messages: list[Any]) -> list[Any]:
        silent = {"role": "tool", "id": messages[-1]["id"], "tool_call_id": "-", "content": ""}
        return [*[messages[place] for place in places or range(count)], silent]

    return select


CURRENT: dict[str, Callable[[Any], Any]] = {}


@functools.cache
def program_of(signature: str, selects: bool, rendered: tuple[str, ...]) -> CompiledGraph:
    """An agent that calls what is in `CURRENT` as its context and renders."""

    def render_of(name: str) -> Any:
        return (lambda call: CURRENT[name](call)) if name in rendered else None  # noqa: PLW0108 - looked up late

    tools = [agents.tool(fn, name=fn.__name__, render=render_of(fn.__name__)) for fn in (tide, see, add)]
    context = (lambda messages: CURRENT["context"](messages)) if selects else None  # noqa: PLW0108 - the same
    return agents.tool_loop(signature, tools, context=context).compile()


def run_with(
    messages: Any,
    adapter: Seeing,
    context: Any = None,
    signature: Any = "year: int, question -> answer",
    **renders: Any,
) -> Run:
    """A run of one turn, which follows these messages."""
    CURRENT.update(renders, context=context)
    program = program_of(signature, context is not None, tuple(sorted(renders)))
    inputs = {name: INPUTS.get(name) for name in dspy.ensure_signature(signature).input_fields}
    with dspy.context(lm=ScriptedLM([calls(("submit", {"answer": "x"}))]), adapter=adapter):
        return program.run({**inputs, "messages": messages})


def shown(messages: Any, context: Any = "exactly", **options: Any) -> Shown:
    """What a mode is shown of these messages."""
    adapter = Seeing()
    run_with(messages, adapter, exactly(len(messages)) if context == "exactly" else context, **options).raise_error()
    return shown_by(adapter.given[0])


def shown_by(given: dict[str, Any]) -> Shown:
    inputs = {name: value for name, value in given.items() if name not in ("history", "tools", "tool_calls")}
    return Shown({name: value for name, value in inputs.items() if value is not None}, given["history"].messages)


def call(number: int, name: str = "tide") -> dict[str, Any]:
    return {"id": f"call_{number}_0", "type": "function", "function": {"name": name, "arguments": '{"place": "Ely"}'}}


def turn(number: int, thought: str = "Look.") -> dict[str, Any]:
    return {"role": "assistant", "content": thought, "tool_calls": [call(number)], "turn": {"next_thought": thought}}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "name": "tide", "tool_call_id": f"call_{number}_0", "content": "9:40", "value": "9:40"}


TASK = {"role": "user", "content": "?", "turn": INPUTS}
HINT = {"role": "user", "content": "Ask the harbour."}
CRITIC = '<message from="critic">\nWhy?\nSay.\n</message>'


@each(
    ("messages", "inputs", "events"),
    [
        ([TASK], INPUTS, []),
        ([TASK, turn(0)], {}, [INPUTS]),  # the run gives the open call of the last turn a result
        ([TASK, turn(0), turn(1), result(1)], {}, [INPUTS]),  # the first call has no result
        ([TASK, turn(0), result(0)], {}, [INPUTS]),
        ([TASK, turn(0), result(0), HINT], {"question": HINT["content"]}, [INPUTS]),
        ([TASK, HINT], {**INPUTS, "question": f"{INPUTS['question']}\n\nAsk the harbour."}, []),
        ([HINT, TASK], {**INPUTS, "question": f"Ask the harbour.\n\n{INPUTS['question']}"}, []),
        ([TASK, {**TASK, "turn": {"question": "And now?"}}], {"question": "?\n\nAnd now?"}, []),  # its run had no turn
        ([TASK, HINT, turn(0), result(0)], {}, [{**INPUTS, "question": f"{INPUTS['question']}\n\nAsk the harbour."}]),
        ([{"role": "assistant", "name": "critic", "content": "Why?\nSay."}], {"question": CRITIC}, []),
        ([{"role": "assistant", "content": "Hi."}], {}, [{}]),
        ([HINT, {"role": "assistant", "content": "Hi."}], {}, [{"question": HINT["content"]}]),
        ([TASK, {"role": "assistant", "content": "Hm.", "turn": {"next_thought": "Hm."}}], INPUTS, []),
        ([TASK, result(0)], INPUTS, []),
        ([TASK, turn(0), turn(1), result(1), result(0)], {}, [INPUTS, {}]),
    ],
)
def test_which_inputs_are_shown_and_where(messages: Any, inputs: Any, events: Any) -> None:
    """Also without a context, where what is converted once is kept: then the task of the run follows."""
    found = shown(messages)
    assert found.inputs == inputs
    for part in (found.events, shown(messages, context=None).events[: len(events)]):
        own = [{name: value for name, value in event.items() if name in INPUTS} for event in part]
        assert own == events


@each(
    ("signature", "name"),
    [
        ("year: int, question -> answer", "question"),
        ("year: int, topic: Optional[str] -> answer", "topic"),
        ("year: int -> answer", "year"),
    ],
)
def test_texts_go_to_the_first_input_of_type_str(signature: str, name: str) -> None:
    assert shown([HINT], signature=signature).inputs == {name: "Ask the harbour."}


def test_the_calls_of_joined_branches_have_ids_of_their_own() -> None:
    """Two branches that ran in parallel had the same number of turns, so both have `call_1_0`."""
    first, second = [[turn(1, thought), {**result(1), "value": thought}] for thought in ("left", "right")]
    messages = [TASK, turn(0), result(0), *first, *second, turn(2), result(2)]
    for context in ("exactly", None):
        events = [event["tool_calls"] for event in shown(messages, context).events]
        ids = ["call_0_0", "call_1_0", "call_2", "call_2_0"]
        assert [[one.id for one in event.tool_calls] for event in events] == [[one] for one in ids]
        results = [one for event in events for one in event.tool_call_results.tool_call_results]
        assert [one.call_id for one in results] == ids
        assert [one.value for one in results] == ["9:40", "left", "right", "9:40"]


@st.composite
def walks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns, results in any order and at any later time, tasks and texts: what parallel branches leave after a join."""
    messages: list[dict[str, Any]] = [TASK]
    waiting: list[str] = []
    for number in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(["task", "text", "turn", "turn", "result", "result", "result"]))
        if what == "turn":
            thought = draw(st.sampled_from([None, "", "Look."]))
            ids = [f"call_{number}_{place}" for place in range(draw(st.integers(1, 3)))]
            made = [{**call(0), "id": one} for one in ids]
            waiting += ids
            messages.append(
                {**turn(0), "tool_calls": made, "turn": {"next_thought": thought}, "content": thought or ""}
            )
        elif what == "result" and waiting:
            chosen = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            messages.append({**result(0), "tool_call_id": chosen, "value": chosen})
        else:
            messages.append(TASK if what == "task" else HINT)
    return messages


def last_calls(messages: Any) -> set[str]:
    """The calls of the last turn."""
    turns = [one["tool_calls"] for one in messages if "tool_calls" in one]
    return {each["id"] for each in turns[-1]} if turns else set()


@given(walks(), st.data())
def test_what_is_shown_of_any_selection_is_a_chat_that_providers_accept(messages: Any, data: Any) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    leave_out = data.draw(st.sets(st.sampled_from(sorted({one.get("tool_call_id", "") for one in messages}))))
    chosen = [message for message, keep in zip(messages, kept, strict=True) if keep]
    adapter = Seeing()
    run = run_with(
        messages,
        adapter,
        lambda messages: [one for one, keep in zip(messages, kept, strict=False) if keep],
        tide=lambda call: None if call.value in leave_out else call.value,
    )
    run.raise_error()
    values = {one["tool_call_id"]: one["value"] for one in run.state["messages"] if one["role"] == "tool"}
    answered = {one["tool_call_id"] for one in chosen if one["role"] == "tool"}
    called = {each["id"] for one in chosen for each in one.get("tool_calls", ())}
    # The last turn is always shown, whole. The run has given its open calls a result before it began.
    expected = {one for one in (answered & called) | last_calls(messages) if values[one] not in leave_out}
    events = [event["tool_calls"] for event in shown_by(adapter.given[0]).events]
    ids = [one.id for event in events for one in event.tool_calls]
    assert ids == [one.call_id for event in events for one in event.tool_call_results.tool_call_results]
    assert set(ids) == expected
    chat = [{key: value for key, value in one.items() if key != "name"} for one in adapter.chats[0][1:]]  # of DSPy
    assert [text for text in problems_of(chat) if "first message" not in text and "is empty" not in text] == []


@given(walks())
def test_every_message_is_shown_once(messages: Any) -> None:
    found = shown(messages)
    answered = {one["tool_call_id"] for one in messages if one["role"] == "tool"}
    answered |= last_calls(messages)
    assert {one.id for event in found.events for one in event["tool_calls"].tool_calls} == answered
    texts = [str(each.get("question")) for each in [*found.events, found.inputs]]
    assert "".join(texts).count("Ask the harbour.") == messages.count(HINT)
    assert "".join(texts).count("When does the tide turn?") <= messages.count(TASK)


# --- render


def conversation(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{**TASK, "id": "task"}]
    for number in range(turns):
        listed = [
            {"id": f"{name}{number}", "type": "function", "function": {"name": name, "arguments": '{"a": [1]}'}}
            for name in ("add", "see")
        ]
        results = [
            {"role": "tool", "name": name, "tool_call_id": f"{name}{number}", "content": "", "value": {"n": [number]}}
            for name in ("see", "add")
        ]
        messages.append({"role": "assistant", "content": "", "tool_calls": listed, "turn": {"next_thought": None}})
        messages += [{**each, "error": number == 1} for each in results]
    return messages


def rendered(messages: Any, context: Any = "exactly", **renders: Any) -> list[list[tuple[str, Any, Any]]]:
    found = shown(messages, context, **renders).events
    results = [event["tool_calls"].tool_call_results.tool_call_results for event in found]
    return [
        [
            (call.name, call.args, result.value)
            for call, result in zip(event["tool_calls"].tool_calls, each, strict=True)
        ]
        for event, each in zip(found, results, strict=True)
    ]


def test_a_tool_decides_how_each_of_its_results_is_shown() -> None:
    messages = conversation(3)
    asked: list[Any] = []

    def short(call: Any) -> Any:
        asked.append(tuple(call))
        return call.value if call.age < 1 else f"({len(call.value)} keys)"

    for context in ("exactly", None):  # at each rendering
        asked.clear()
        found = rendered(messages, context, add=short)
        assert [values[0][2] for values in found] == ["(1 keys)", "(1 keys)", {"n": [2]}]
        assert [values[1][2] for values in found] == [{"n": [0]}, {"n": [1]}, {"n": [2]}]
        assert asked == [("add", {"a": [1]}, {"n": [number]}, number == 1, 2 - number, "react") for number in range(3)]


def test_none_leaves_out_the_call_and_a_turn_without_calls() -> None:
    messages = conversation(3)
    found = rendered(messages, add=lambda call: None)
    assert [[name for name, _, _ in values] for values in found] == [["see"], ["see"], ["see"]]
    found = rendered(messages, add=lambda call: call.age or None, see=lambda call: None if call.age != 1 else 1)
    assert [[name for name, _, _ in values] for values in found] == [["add"], ["add", "see"]]
    all_out = shown(messages, add=lambda _: None, see=lambda _: None)
    assert all_out == (INPUTS, [])  # the task is pending again: it is shown in any case


def test_a_render_may_shorten_the_arguments_too_and_changes_nothing_that_is_kept() -> None:
    messages = conversation(2)
    adapter, spoiled = Seeing(), []

    def spoil(call: Any) -> Any:
        call.args["a"].append(2)
        call.value["n"].append(3)
        spoiled.append(call)
        return call._replace(args={"a": "..."}, value=call.value)

    run = run_with(messages, adapter, add=spoil)
    first = shown_by(adapter.given[0]).events[0]["tool_calls"]
    assert first.tool_calls[0].args == {"a": "..."}
    assert first.tool_call_results.tool_call_results[0].value == {"n": [0, 3]}
    assert spoiled
    assert [each.get("value") for each in run.state.to_dict()["messages"][1:7]] == [
        each.get("value") for each in messages[1:]
    ]
    assert [each.get("tool_calls") for each in run.state.to_dict()["messages"][1:7]] == [
        each.get("tool_calls") for each in messages[1:]
    ]


class Limits(BaseModel):
    limit: int = 2


def test_a_render_reads_fields_when_a_call_is_shown() -> None:
    """By whatever kind of function."""

    def short(call: Any, limit: int) -> Any:
        return f"<{call.value[:limit]}>"

    def upper(call: Any, /) -> Any:
        return call.value.upper()

    renders: dict[str, Any] = {"add": short, "see": functools.partial(lambda call, by: call.value * by, by=2)}
    renders |= {"up": upper, "value": operator.attrgetter("value")}
    tools = [agents.tool(lambda a: a, name=name, desc="Gives it.", render=one) for name, one in renders.items()]
    program = agents.tool_loop("question -> answer: int", tools, schema=Limits).compile()
    script = [calls(*((name, {"a": "word"}) for name in ("add", "see", "up", "value"))), SUBMIT]
    with RecordingLM(script) as lm:
        run = program.run({"question": "?"})
    assert run.status == "completed", run.error
    assert [text in lm.requests[1] for text in ("<wo>", "wordword", "WORD")] == [True] * 3, lm.requests[1]
    assert "limit" in (program.graph.nodes["react"].reads or {})


def test_an_error_of_a_render_names_the_tool() -> None:
    error = run_with(conversation(1), Seeing(), add=lambda call: 1 / call.age).error
    assert isinstance(error, ZeroDivisionError)
    assert "in the render of the tool 'add'" in error.__notes__


def test_the_age_of_a_call_counts_the_turns_that_are_not_shown() -> None:
    ages: list[int] = []
    shown(conversation(3), exactly(4), add=lambda call: ages.append(call.age))
    assert ages == [2, 0]  # the last turn is always shown


def test_a_call_that_a_context_made_up_has_no_age() -> None:
    ages: list[Any] = []

    def own(messages: list[Any]) -> list[Any]:
        listed = [{**messages[1]["tool_calls"][0], "id": "own"}]
        return [messages[0], {**messages[1], "tool_calls": listed}, {**messages[3], "tool_call_id": "own"}]

    shown(conversation(3), own, add=lambda call: ages.append((call.value["n"], call.age)))
    assert ages == [([0], 0), ([2], 0)]


def test_a_picture_in_a_message_of_a_chat_is_a_part_of_the_request() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    chat = [{"role": "user", "content": [{"type": "text", "text": "Look at this:"}, picture]}]
    turn = """[[ ## next_thought ## ]]
so

[[ ## tool_calls ## ]]
{"tool_calls": [{"name": "submit", "args": {"answer": "x"}}]}

[[ ## completed ## ]]"""
    program = agents.tool_loop("question -> answer", []).compile()
    with OpenAIServer(lambda messages: turn) as server, dspy.context(lm=server.lm(cache=False)):
        run = program.run({"question": "What is it?", "messages": chat})
    assert run.status == "completed", run.error
    content = server.requests[0]["messages"][-1]["content"]
    assert picture in content
    assert "Look at this:" in content[0]["text"]
    assert "What is it?" in content[2]["text"]
    assert "base64" not in content[0]["text"] + content[2]["text"]


# --- what is kept


def test_messages_are_converted_once_and_forgotten_with_their_conversation() -> None:
    """Of long lists some are kept for a while, by `dspyer.message_list`: this one is short."""
    adapter = Seeing()
    program = agents.tool_loop("question -> answer", [add]).compile()
    script = [calls(("add", {"a": 1, "b": 1})), calls(("submit", {"answer": "x"}))]
    with dspy.context(lm=ScriptedLM(script), adapter=adapter, trace=[]):  # it would keep them, too
        run = program.run({"question": "?", "messages": conversation(5)})
    run.raise_error()
    first, second = ([event["tool_calls"] for event in shown_by(given).events] for given in adapter.given)
    assert (len(first), len(second)) == (5, 6)
    assert all(one is other for one, other in zip(first, second, strict=False))
    kept = [weakref.ref(one) for one in first]
    del run, first, second, adapter
    gc.collect()
    assert [one() for one in kept] == [None] * 5


def test_what_is_kept_of_a_turn_follows_the_results_that_are_shown() -> None:
    """One message of a turn, of which each request is shown other results. The last turn is always shown."""
    messages, chosen = conversation(2), [(0, 1, 2), (0, 1, 2, 3), (0, 1, 3), (0, 1), (0, 1, 2, 3)]
    adapter = Seeing()
    context = view("messages").then(lambda entries: [entries[place] for place in chosen[len(adapter.given)]])
    program = agents.tool_loop("question -> answer", [add], context=context).compile()
    script = [*[calls(("add", {"a": 1, "b": 1}))] * 4, calls(("submit", {"answer": "x"}))]
    with dspy.context(lm=ScriptedLM(script), adapter=adapter):
        program.run({"question": "?", "messages": messages}).raise_error()
    found = [[event["tool_calls"] for event in shown_by(given).events] for given in adapter.given]
    names = [[one.name for event in events[:-1] for one in event.tool_calls] for events in found]
    assert names == [["see"], ["add", "see"], ["add"], [], ["add", "see"]]


def test_a_history_is_a_copy() -> None:
    class Spoiling(Seeing):
        def format(self, signature: Any, demos: Any, inputs: dict[str, Any]) -> Any:
            found = super().format(signature, demos, inputs)
            inputs["history"].messages[0].clear()
            inputs["history"].messages.append({"question": "spoiled"})
            return found

    adapter = Spoiling()
    program = agents.tool_loop("question -> answer", [add]).compile()
    script = [calls(("add", {"a": 1, "b": 1})), calls(("submit", {"answer": "x"}))]
    with dspy.context(lm=ScriptedLM(script), adapter=adapter):
        program.run({"question": "?", "messages": conversation(2)}).raise_error()
    assert "spoiled" not in str(adapter.chats[1])

"""`Turn` and `ToolCall`: what the agents of a run did, read from its commits.

A turn is the commit of a mode: it adds a message with calls, in the mode's name. The results are messages that later
commits of the same graph add, each under the id of its call. So the commits alone say it all, whatever a context has
shown to a model, and whatever was edited in the conversation later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dspyer.events import Answer, Commit
from dspyer.ids import Address, full_id, id_order, whole_execution
from dspyer.messages import ARGS, FORCED, HANDOFFS, MESSAGES, PROBLEMS, SENT, messages_in
from dspyer.record.making import Branches, RecordStep
from dspyer.scheduler.lineage import LogEntry
from dspyer.values.frozen import FrozenDict, thaw


class ToolCall(NamedTuple):
    """A call of a tool by an agent.

    Attributes:
        id: its id in the conversation.
        name: the tool.
        args: the arguments with which it was called: those of a person who has edited them.
        value: the result; None as long as there is none.
        error: whether the result says why there is no other; None as long as there is none.
        problems: what the check of the tool has found in the result.
        answer: the answer to the question about the call; None for no question, or no answer yet. Of a call that a
            check has repeated, the one that agreed to the call whose result is there.
    """

    id: str
    name: str
    args: Mapping[str, Any]
    value: Any = None
    error: bool | None = None
    problems: tuple[str, ...] = ()
    answer: Answer | None = None


class Turn(NamedTuple):
    """A turn of an agent.

    Attributes:
        agent: the name of the run's graph; of an agent inside of it the nodes that lead to it, as `"clerk/search"`; of
            one in an item of a map `"read[2]"`.
        mode: the mode that took it; `"react"` of a `tool_loop`.
        thought: what the model wrote about it; "" for nothing.
        calls: its calls, in the order of the model.
        reason: why it had to submit: `"max_turns"`, `"parse_error"`, `"empty_tool_calls"` or
            `"context_window_exceeded"`; "" for an ordinary turn.
    """

    agent: str
    mode: str
    thought: str
    calls: tuple[ToolCall, ...]
    reason: str = ""


Scope = tuple[str, ...]
"""The executions around a graph, outermost first; `()` for the run's own."""

Logs = Mapping[Scope, Iterable[LogEntry]]
"""The commits of the graphs of a run, in any order. Those of an agent are there with those of the graphs around it."""


def turns_in(logs: Logs, name: str, answers: Iterable[Answer], scope: Scope = ()) -> tuple[Turn, ...]:
    """The turns of a graph and of those inside of it: those of a sub-agent after the turn that called it.

    `name` and `scope` are those of the outermost graph; `answers` are those of the run.
    """
    inside: dict[Scope, list[Scope]] = {}
    for one in sorted(logs, key=_place):
        inside.setdefault(one[:-1], []).append(one)
    given: dict[str, Answer] = {}
    for answer in answers:
        execution = answer.question.execution
        if _agrees(answer):
            # A check repeats a call as a part of it, which is asked about again: the result is of the last one made.
            given[whole_execution(execution)] = answer
        else:
            given.setdefault(execution, answer)
    return tuple(_turns(_Agents(logs, inside, given), scope, name, ""))


def _agrees(answer: Answer) -> bool:
    value = thaw(answer.value)
    ok = value.get("ok") if isinstance(value, dict) else getattr(value, "ok", value)
    return answer.question.call is not None and ok is True


def _place(scope: Scope) -> list[Any]:
    """The place of a graph: items by their numbers. Programs that a node has called keep the order of their calls."""
    found: list[Any] = []
    for execution in scope:
        numbers = [int(key) for key in Address.parse(execution).keys if key.isdecimal()]
        found.append((id_order(whole_execution(execution)), numbers))
    return found


class _Agents(NamedTuple):
    """The graphs of a run, those inside of each, and the answers by the ids of the executions that asked."""

    logs: Logs
    inside: Mapping[Scope, Sequence[Scope]]
    answers: Mapping[str, Answer]


def _turns(run: _Agents, scope: Scope, name: str, prefix: str) -> Iterator[Turn]:
    commits = sorted([entry.commit for entry in run.logs[scope]], key=lambda commit: (commit.step, commit.branch))
    results = _results(run, scope, commits)
    below: dict[str, list[Scope]] = {}
    for one in run.inside.get(scope, ()):
        if len(one) > len(scope):  # `()` is inside of itself
            below.setdefault(whole_execution(one[-1]), []).append(one)
    made = {Address.parse(commit.id).own if below else commit.id: commit for commit in commits}
    # One that is open has no commit: its node is that to which a branch has led.
    nodes = {stop.local: stop.node for stop in Branches(commits).stops("", "stopped")} if below else {}
    nodes |= {own: commit.node for own, commit in made.items()}
    for own in dict.fromkeys([*made, *below]):
        # A node that runs a graph has the turns of that graph in its patch, too.
        if own not in below:
            yield from (_turn(name, made[own], message, results) for message in _turn_messages(made[own]))
        for one in below.get(own, ()):
            inside = prefix + nodes.get(own, own) + "".join([f"[{key}]" for key in Address.parse(one[-1]).keys])
            yield from _turns(run, one, inside, f"{inside}/")


def takes_turn(commit: Commit) -> bool:
    """Return whether a commit is the turn of an agent."""
    return any(_turn_messages(commit))


def _turn_messages(commit: Commit) -> Iterator[FrozenDict[str, Any]]:
    for message in _messages(commit):
        if message.raw("tool_calls", None) and message.raw("name", None) == commit.node:
            yield message


def _messages(commit: Commit) -> Iterator[FrozenDict[str, Any]]:
    """The messages that a commit adds to the conversation."""
    return messages_in(commit.patch.get(MESSAGES))


def said(commit: Commit) -> list[Any]:
    """The words of the turns of a commit: of each the thought, and the functions that it calls."""
    return [
        (message.raw("content", ""), [thaw(call.raw("function")) for call in message.raw("tool_calls").raw_items()])
        for message in _turn_messages(commit)
    ]


def sent_messages(commit: Commit) -> list[dict[str, Any]]:
    """The messages of `thread.send` that a commit has taken into its conversation: number, text, author and time."""
    return [
        {"number": sent["number"], "text": message.raw("content"), "by": message.raw("name", ""), "at": sent["time"]}
        for message in _messages(commit)
        if (sent := message.raw(SENT, None)) is not None
    ]


Results = Mapping[tuple[str, str], tuple[FrozenDict[str, Any] | None, Any]]
"""By the commit of a turn and the id of a call, the message with the result, and the answer to the question."""


def _results(run: _Agents, scope: Scope, commits: Iterable[Commit]) -> Results:
    callers: dict[str, str] = {}
    found: dict[tuple[str, str], tuple[FrozenDict[str, Any] | None, Any]] = {}
    for commit in commits:
        asked = None
        if run.answers:
            asked = run.answers.get(full_id(*scope, Address.parse(commit.id).own))
        for message in _messages(commit):
            # Branches that ran at once may have taken the same ids: a result belongs to the last call before it.
            if message.raw("role", None) == "tool":
                call = message.raw("tool_call_id")
                place = callers.get(call, ""), call
                found[place] = message, found.get(place, (None, None))[1] or asked
            else:
                calls = message.raw("tool_calls", None) or ()
                callers.update([(call["id"], commit.id) for call in calls])
        # A result that other calls of the turn may still change is not in the conversation before the turn ends.
        for one in () if asked is None else commit.patch.get(HANDOFFS) or ():
            call = one["message"]["tool_call_id"]
            found[callers.get(call, ""), call] = None, asked
    return found


def tool_calls(steps: Sequence[RecordStep]) -> dict[str, ToolCall]:
    """The calls of the steps that are calls of tools, by the ids of the steps, as they may be shown."""
    asked: dict[tuple[str | None, str], Mapping[str, str]] = {}  # the functions that are called, by graph and call
    found: dict[str, ToolCall] = {}
    open_calls: dict[tuple[str | None, str], dict[str, None]] = {}
    for step in steps:
        # Most steps of most runs have none of both, and a page asks after each change.
        if step.commit is None or (MESSAGES not in step.commit.patch and HANDOFFS not in step.commit.patch):
            continue
        handed = [entry.raw("message") for entry in messages_in(step.commit.patch.get(HANDOFFS))]
        for message in (*_messages(step.commit), *handed):
            for call in message.raw("tool_calls", None) or ():
                asked[step.parent, call["id"]] = call["function"]
                open_calls.setdefault((step.parent, call["function"]["name"]), {})[call["id"]] = None
            if message.raw("role", None) == "tool" and message.raw("name", None) == step.node:
                name = message.raw("tool_call_id")
                function = asked.get((step.parent, name), {})
                found[step.id] = _tool_call(name, step.node, function.get("arguments"), message)
                open_calls.get((step.parent, step.node), {}).pop(name, None)
    for step in steps:  # one that waits, or has stopped: calls of one tool are made in the order of the model
        if step.commit is None and (ids := open_calls.get((step.parent, step.node))):
            question = None if step.asked is None else step.asked.question.call
            name = question.id if question is not None and question.id in ids else next(iter(ids))
            del ids[name]
            found[step.id] = _tool_call(name, step.node, asked[step.parent, name]["arguments"], None)
    return found


def _turn(agent: str, commit: Commit, message: FrozenDict[str, Any], results: Results) -> Turn:
    calls = []
    for one in message.raw("tool_calls").raw_items():
        function, found = one.raw("function"), results.get((commit.id, one.raw("id")), (None, None))
        calls.append(_tool_call(one.raw("id"), function.raw("name"), function.raw("arguments"), *found))
    return Turn(agent, message.raw("name"), message.raw("content", "") or "", tuple(calls), message.raw(FORCED, ""))


def _tool_call(
    id: str,  # noqa: A002 - the name of the attribute
    name: str,
    arguments: str | None,
    result: FrozenDict[str, Any] | None,
    answer: Answer | None = None,
) -> ToolCall:
    """A call with its arguments, which are JSON, and the message with its result."""
    args: dict[str, Any] = {}
    with suppress(ValueError):  # what is hidden in the text may leave no JSON
        args = json.loads(arguments or "{}")
    if result is None:
        return ToolCall(id, name, args, answer=answer)
    args = args if (edited := result.raw(ARGS, None)) is None else thaw(edited)
    # Of the calls that a `dspy.ReAct` has made, the text is all that is known.
    value, problems = thaw(result.raw("value", result.raw("content", None))), tuple(result.raw(PROBLEMS, ()))
    return ToolCall(id, name, args, value, bool(result.raw("error", False)), problems, answer)

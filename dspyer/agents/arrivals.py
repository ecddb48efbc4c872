"""Arrivals: the posts to live fields and the messages to the thread that an agent has not been shown.

A turn takes them before its LM call, shows them, and commits them with its own message. So an agent's conversation has
what it was shown, and a resume, a replay and a copy ask no one again. How far it has read posts is the field `seen`,
with the run that counts them, since another run counts anew; the inbox itself knows what was taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from dspyer import Context, ImmutableState
from dspyer.agents.conversation import MESSAGES, NEW
from dspyer.agents.tool_node import ToolSpec
from dspyer.agents.tools import tool
from dspyer.extend import Call, FrozenDict, FrozenList, freeze, text_of, thaw
from dspyer.layers.conversations import Inbox
from dspyer.layers.live import LivePosts
from dspyer.messages import SENT

SEEN = "seen"
"""The field that says how far an agent has read the posts to each field: the run that has the field, and the number."""

POSTED = "posted"
"""The key of a user's message that is the post of another node: the run that has the field, and the number."""


class Arrivals(NamedTuple):
    """The messages that are new to an agent when a turn begins.

    Attributes:
        messages: as its conversation gets them.
        seen: how far it has then read posts, as an update; empty if there is none.
    """

    messages: list[dict[str, Any]]
    seen: Mapping[str, Any] = {}

    def shown(self, call: Call) -> Call:
        """A call whose conversation has the messages, so that the context and a shorter prompt hold for them."""
        if not self.messages:
            return call
        overlay = FrozenDict() if call.overlay is None else call.overlay
        before: FrozenList[Any] = overlay.raw(MESSAGES, call.state.raw(MESSAGES, FrozenList()))
        # By their ids messages are told apart where some are selected; the commit gives them ids of its own.
        new = [freeze({**message, "id": f"{NEW}{place}"}) for place, message in enumerate(self.messages)]
        return call._replace(overlay=overlay.set(MESSAGES, before.plus(new)))


def arrivals(call: Call) -> Arrivals:
    """The messages that are new to the agent that takes a turn."""
    posts = call.layer(LivePosts)
    if posts is None:
        return Arrivals(unread_messages(call))
    seen = _seen(call.state, posts.listens)
    found = posts.unread(_numbers(seen))
    # A conversation may go on in a new state, as that of a session does: it is not shown again what it has.
    messages = call.state.raw(MESSAGES).raw_items() if found and not seen else ()
    known = [message.raw(POSTED) for message in messages if POSTED in message]
    new = []
    for field, entry in found:
        place = {"run": posts.listens[field], "number": entry.seq}
        seen[field] = place
        if place not in known:
            reducer = posts.fields[field].reducer
            name = f"{field}.{entry.key}" if reducer is not None and reducer.kind == "keys" else field
            text = f"{name}: {text_of(entry.value)}"
            new.append({"role": "user", "name": entry.author, "content": text, POSTED: place})
    return Arrivals([*new, *unread_messages(call)], {SEEN: seen} if found else {})


def unread_messages(call: Call) -> list[dict[str, Any]]:
    """The messages to the thread that the agent has not taken yet."""
    inbox = call.layer(Inbox)
    return [
        {
            "role": "user",
            **({"name": one.by} if one.by else {}),
            "content": one.text,
            SENT: {"number": one.number, "time": one.at},
        }
        for one in (() if inbox is None else inbox.waiting())
    ]


def _seen(state: ImmutableState, runs: Mapping[str, str]) -> dict[str, Any]:
    """The last post of each of these runs that an agent was shown, by field: each run numbers its posts."""
    found: dict[str, Any] = thaw(state.raw(SEEN, FrozenDict()))
    return {field: place for field, place in found.items() if place["run"] == runs.get(field)}


def _numbers(seen: Mapping[str, Any]) -> dict[str, int]:
    return {field: place["number"] for field, place in seen.items()}


# The tool by which an agent waits for them.


EVERY = 0.5
"""The seconds between two looks for messages, which other processes send: nothing wakes who waits for one."""


SOMETHING, NOTHING = "Something new has come: you are shown it.", "No one else works: nothing more will come."


def _wait_for_posts(ctx: Context) -> str:
    attempt = ctx.delegate
    host: Any = attempt.host
    if attempt.position is None:  # called without a run
        return NOTHING
    inbox = next((layer for layer in host.layers.of(attempt.node) if isinstance(layer, Inbox)), None)
    posts: LivePosts | None = host.together.posts
    seen = {} if posts is None else _numbers(_seen(attempt.position.state, posts.listens))
    while inbox is None or not inbox.waiting():
        if posts is None:
            return NOTHING
        with suppress(TimeoutError):
            new = next(posts.wait(attempt, seen, None if inbox is None else EVERY), None)
            return NOTHING if new is None else SOMETHING
    return SOMETHING


wait_for_posts: ToolSpec = tool(
    _wait_for_posts,
    name="wait_for_posts",
    desc="Waits until another agent has written something for you, or no one else works any more.",
)
"""A tool that waits, without an LM call and without a slot of `max_concurrency`, until another node posts to a live
field that the agent reads or someone sends it a message, or no one else in the run works.

Example:
    >>> wait_for_posts
    tool(wait_for_posts: )
"""

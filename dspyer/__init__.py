"""State graphs that DSPy optimizers can tune.

`Graph` builds, `graph.compile()` gives a `dspy.Module`, a run of it is a history of commits over immutable states.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspyer import agents, errors, events, inspector, lms, optimize, policies, record, reducers, search, stores
    from dspyer.archive.archive import Archive
    from dspyer.budget import Budget
    from dspyer.display.progress import progress
    from dspyer.errors import DspyerError, short_error
    from dspyer.events import Commit, MergedConflict, Question
    from dspyer.failure import Failure
    from dspyer.graph.builder import Graph
    from dspyer.layers.attempts import Retry
    from dspyer.layers.breakpoints import Breakpoints
    from dspyer.layers.conversations import Conversations
    from dspyer.message_list import remove
    from dspyer.messages import Messages, from_chat, to_chat
    from dspyer.nodes.attempt import Peer
    from dspyer.nodes.context import Context, LiveEntry
    from dspyer.nodes.node import Command, Send
    from dspyer.nodes.options import Cache
    from dspyer.patch import DELETE, Replace
    from dspyer.policies import Conflict, prefer
    from dspyer.reducers import Updates
    from dspyer.runtime.program import CompiledGraph
    from dspyer.runtime.run import Run
    from dspyer.scheduler.topology import END, START
    from dspyer.schema.fields import Kept, Live, live
    from dspyer.schema.limits import limit
    from dspyer.state import ImmutableState
    from dspyer.templates import Fill, fill
    from dspyer.threads.thread import Thread
    from dspyer.values.freezing import register_value_type
    from dspyer.views import Delta, Entry, View, view

__version__ = "0.5.0"

__all__ = [
    "DELETE",
    "END",
    "START",
    "Archive",
    "Breakpoints",
    "Budget",
    "Cache",
    "Command",
    "Commit",
    "CompiledGraph",
    "Conflict",
    "Context",
    "Conversations",
    "Delta",
    "DspyerError",
    "Entry",
    "Failure",
    "Fill",
    "Graph",
    "ImmutableState",
    "Kept",
    "Live",
    "LiveEntry",
    "MergedConflict",
    "Messages",
    "Peer",
    "Question",
    "Replace",
    "Retry",
    "Run",
    "Send",
    "Thread",
    "Updates",
    "View",
    "agents",
    "errors",
    "events",
    "fill",
    "from_chat",
    "inspector",
    "limit",
    "live",
    "lms",
    "optimize",
    "policies",
    "prefer",
    "progress",
    "record",
    "reducers",
    "register_value_type",
    "remove",
    "search",
    "short_error",
    "stores",
    "to_chat",
    "view",
]

_HOMES = {
    "dspyer.archive.archive": ("Archive",),
    "dspyer.budget": ("Budget",),
    "dspyer.nodes.options": ("Cache",),
    "dspyer.errors": ("DspyerError", "short_error"),
    "dspyer.failure": ("Failure",),
    "dspyer.events": ("Commit", "MergedConflict", "Question"),
    "dspyer.graph.builder": ("Graph",),
    "dspyer.message_list": ("remove",),
    "dspyer.messages": ("Messages", "from_chat", "to_chat"),
    "dspyer.nodes.context": ("Context", "LiveEntry"),
    "dspyer.nodes.attempt": ("Peer",),
    "dspyer.nodes.node": ("Command", "Send"),
    "dspyer.patch": ("DELETE", "Replace"),
    "dspyer.policies": ("Conflict", "prefer"),
    "dspyer.reducers": ("Updates",),
    "dspyer.layers.breakpoints": ("Breakpoints",),
    "dspyer.layers.conversations": ("Conversations",),
    "dspyer.layers.attempts": ("Retry",),
    "dspyer.runtime.program": ("CompiledGraph",),
    "dspyer.display.progress": ("progress",),
    "dspyer.runtime.run": ("Run",),
    "dspyer.scheduler.topology": ("END", "START"),
    "dspyer.schema.fields": ("Kept", "Live", "live"),
    "dspyer.schema.limits": ("limit",),
    "dspyer.state": ("ImmutableState",),
    "dspyer.templates": ("Fill", "fill"),
    "dspyer.threads.thread": ("Thread",),
    "dspyer.values.freezing": ("register_value_type",),
    "dspyer.views": ("Delta", "Entry", "View", "view"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


# PEP 562. Each name is imported when it is first asked for: a program that only reads a store imports no DSPy.
_ON_THEIR_OWN = ("migrate", "serve", "testing")  # they need more than dspyer does


def __getattr__(name: str) -> Any:
    if name not in __all__:
        hint = f" before this line: import dspyer.{name}" if name in _ON_THEIR_OWN else ""
        raise AttributeError(f"module 'dspyer' has no attribute {name!r}{hint}")
    home = _HOME_OF.get(name)
    value = import_module(f"dspyer.{name}") if home is None else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

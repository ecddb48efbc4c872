"""State graphs that DSPy optimizers can tune.

`Graph` builds, `graph.compile()` gives a `dspy.Module`, a run of it is a history of commits over immutable states.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspyer import agents as agents, errors as errors, events as events, inspector as inspector, lms as lms
    from dspyer import optimize as optimize, policies as policies, record as record, reducers as reducers
    from dspyer import search as search, stores as stores
    from dspyer.archive.archive import Archive as Archive
    from dspyer.budget import Budget as Budget
    from dspyer.display.progress import progress as progress
    from dspyer.errors import DspyerError as DspyerError, short_error as short_error
    from dspyer.events import Commit as Commit, MergedConflict as MergedConflict, Question as Question
    from dspyer.failure import Failure as Failure
    from dspyer.graph.builder import Graph as Graph
    from dspyer.layers.attempts import Retry as Retry
    from dspyer.layers.breakpoints import Breakpoints as Breakpoints
    from dspyer.layers.conversations import Conversations as Conversations
    from dspyer.message_list import remove as remove
    from dspyer.messages import Messages as Messages, from_chat as from_chat, to_chat as to_chat
    from dspyer.nodes.attempt import Peer as Peer
    from dspyer.nodes.context import Context as Context, LiveEntry as LiveEntry
    from dspyer.nodes.node import Command as Command, Send as Send
    from dspyer.nodes.options import Cache as Cache
    from dspyer.patch import DELETE as DELETE, Replace as Replace
    from dspyer.policies import Conflict as Conflict, prefer as prefer
    from dspyer.reducers import Updates as Updates
    from dspyer.runtime.program import CompiledGraph as CompiledGraph
    from dspyer.runtime.run import Run as Run
    from dspyer.scheduler.topology import END as END, START as START
    from dspyer.schema.fields import Kept as Kept, Live as Live, live as live
    from dspyer.schema.limits import limit as limit
    from dspyer.state import ImmutableState as ImmutableState
    from dspyer.templates import Fill as Fill, fill as fill
    from dspyer.threads.thread import Thread as Thread
    from dspyer.values.freezing import register_value_type as register_value_type
    from dspyer.views import Delta as Delta, Entry as Entry, View as View, view as view

__version__ = "0.5.0"

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
_NAMES = [*_HOME_OF, "agents", "errors", "events", "inspector", "lms", "optimize", "policies", "record", "reducers"]
_NAMES += ["search", "stores"]

# Type checkers take no list that is made: to them, what is imported `as` itself is public.
if not TYPE_CHECKING:
    # Constants, then classes, then functions and modules.
    __all__ = sorted(_NAMES, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


# PEP 562. Each name is imported when it is first asked for: a program that only reads a store imports no DSPy.
_ON_THEIR_OWN = ("migrate", "serve", "testing")  # they need more than dspyer does


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        hint = f" before this line: import dspyer.{name}" if name in _ON_THEIR_OWN else ""
        raise AttributeError(f"module 'dspyer' has no attribute {name!r}{hint}")
    home = _HOME_OF.get(name)
    value = import_module(f"dspyer.{name}") if home is None else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})

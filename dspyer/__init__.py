"""State graphs that DSPy optimizers can tune.

`Graph` builds, `graph.compile()` gives a `dspy.Module`, a run of it is a history of commits over immutable states.
"""

from __future__ import annotations

from dspyer import errors, events, policies, reducers, stores
from dspyer.errors import DspyerError, short_error
from dspyer.events import Commit, MergedConflict, Question
from dspyer.graph.builder import Graph
from dspyer.messages import Messages, from_chat, to_chat
from dspyer.nodes.live_access import LiveEntry, Peer
from dspyer.nodes.node import Command, Context, Send
from dspyer.patch import DELETE, Replace
from dspyer.policies import Conflict, prefer
from dspyer.reducers import Updates
from dspyer.runtime.program import CompiledGraph
from dspyer.runtime.run import Run
from dspyer.scheduler.topology import END, START
from dspyer.schema.fields import Live, live
from dspyer.schema.limits import limit
from dspyer.state import ImmutableState
from dspyer.templates import Fill, fill
from dspyer.threads.thread import Thread
from dspyer.values.types import register_value_type
from dspyer.views import Delta, Entry, View, view

__version__ = "0.5.0"

__all__ = [
    "DELETE",
    "END",
    "START",
    "Command",
    "Commit",
    "CompiledGraph",
    "Conflict",
    "Context",
    "Delta",
    "DspyerError",
    "Entry",
    "Fill",
    "Graph",
    "ImmutableState",
    "Live",
    "LiveEntry",
    "MergedConflict",
    "Messages",
    "Peer",
    "Question",
    "Replace",
    "Run",
    "Send",
    "Thread",
    "Updates",
    "View",
    "errors",
    "events",
    "fill",
    "from_chat",
    "limit",
    "live",
    "policies",
    "prefer",
    "reducers",
    "register_value_type",
    "short_error",
    "stores",
    "to_chat",
    "view",
]

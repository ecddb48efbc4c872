"""LMs that answer without a network, calls of single nodes and routes, a clock, the conformance tests of a store."""

from __future__ import annotations

from dspyer.testing.fake_clock import FakeClock, clock, no_pauses
from dspyer.testing.nearest import NearestLM
from dspyer.testing.prompt import Prompt
from dspyer.testing.scripted import Asks, ScriptedCall, ScriptedLM, UnexpectedCallError
from dspyer.testing.store_conformance import StoreConformance
from dspyer.testing.units import call_node, route, stub

__all__ = [
    "Asks",
    "FakeClock",
    "NearestLM",
    "Prompt",
    "ScriptedCall",
    "ScriptedLM",
    "StoreConformance",
    "UnexpectedCallError",
    "call_node",
    "clock",
    "no_pauses",
    "route",
    "stub",
]

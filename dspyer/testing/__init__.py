"""What tests and examples need offline: LMs that answer without a network, and nodes and routes on their own."""

from __future__ import annotations

from dspyer.testing.nearest import NearestLM
from dspyer.testing.script import Asks, LMCall, UnexpectedCallError
from dspyer.testing.scripted import ScriptedLM
from dspyer.testing.units import call_node, route, stub

__all__ = ["Asks", "LMCall", "NearestLM", "ScriptedLM", "UnexpectedCallError", "call_node", "route", "stub"]

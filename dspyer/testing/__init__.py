"""What tests and examples need offline: LMs that answer without a network."""

from __future__ import annotations

from dspyer.testing.nearest import NearestLM
from dspyer.testing.script import Asks, LMCall, UnexpectedCallError
from dspyer.testing.scripted import ScriptedLM

__all__ = ["Asks", "LMCall", "NearestLM", "ScriptedLM", "UnexpectedCallError"]

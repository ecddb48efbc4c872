"""What tests and examples need offline: LMs that answer without a network."""

from __future__ import annotations

from dspyer.testing.nearest import NearestLM
from dspyer.testing.scripted import Asks, LMCall, ScriptedLM, UnexpectedCallError

__all__ = ["Asks", "LMCall", "NearestLM", "ScriptedLM", "UnexpectedCallError"]

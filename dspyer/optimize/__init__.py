"""What DSPy's optimizers need of a graph beyond being a module: steps that checks refused are kept from them."""

from __future__ import annotations

from dspyer.optimize.accepted import accepted_only

__all__ = ["accepted_only"]

"""Layers that a block of code asks for, around each node of the programs that are called in it.

A node has the layers of its own policies (`execution`); these come from outside of the graph, for an optimization. They
travel in DSPy's settings, which `dspy.Evaluate` and optimizers carry to their threads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dspy

if TYPE_CHECKING:
    from dspyer.runtime.module_cache import ModuleResults

ASKED_LAYERS: Final = "dspyer_layers"


class AskedLayers(NamedTuple):
    """What is asked for; None for a layer that is not.

    Attributes:
        results: keeps what modules return, and counts the calls that it spares.
        rollouts: decides which nodes are asked again (around layers 1 to 5, see `rollouts`).
    """

    results: ModuleResults | None = None
    rollouts: Any = None


NO_LAYERS: Final = AskedLayers()


def asked_layers() -> AskedLayers:
    """The layers that the code around the caller asks for."""
    found: AskedLayers = dspy.settings.get(ASKED_LAYERS) or NO_LAYERS
    return found


def asking(**layers: Any) -> AbstractContextManager[Any]:
    """A block that asks for further layers, by the attributes of `AskedLayers`."""
    context: AbstractContextManager[Any] = dspy.context(**{ASKED_LAYERS: asked_layers()._replace(**layers)})
    return context

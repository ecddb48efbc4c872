"""Layers around each node that an optimizer asks for, in all programs that are called in its block.

A node has the layers of its own policies (`execution`); these come from outside of the graph. They travel in DSPy's
settings, which `dspy.Evaluate` and optimizers carry to their threads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import dspy

OPTIMIZER_LAYERS: Final = "dspyer_layers"


class OptimizerLayers(NamedTuple):
    """What is asked for; None for a layer that is not.

    Attributes:
        rollouts: what decides which nodes are asked again, a `rollouts.Rollouts`: around layers 1 to 5 of `execution`.
    """

    rollouts: Any = None


NO_LAYERS: Final = OptimizerLayers()


def optimizer_layers() -> OptimizerLayers:
    """The layers that the code around the caller asks for."""
    found: OptimizerLayers = dspy.settings.get(OPTIMIZER_LAYERS) or NO_LAYERS
    return found


def asking_for(**layers: Any) -> AbstractContextManager[Any]:
    """A block that asks for further layers, by the attributes of `OptimizerLayers`."""
    context: AbstractContextManager[Any] = dspy.context(**{OPTIMIZER_LAYERS: optimizer_layers()._replace(**layers)})
    return context

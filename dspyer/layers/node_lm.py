"""`NodeLM`: the layer of `add_node(lm=)`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import dspy

from dspyer.layers.layer import Inner, Layer, Place
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, Within, wrapped


class NodeLM(Layer):
    """Gives the predictors of a node that have no language model of their own one, those in graphs inside too.

    It comes as a setting of DSPy: a predictor stays what optimizers and saved states know, and the node that is nearest
    to it decides.

    Args:
        lm: the language model.
    """

    __slots__ = ("lm",)
    place: ClassVar[Place] = "outside"  # around condensers too

    def __init__(self, lm: dspy.BaseLM) -> None:
        self.lm = lm

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of the node, each step of it with the language model."""
        return wrapped(inner(call), partial(Within, context=self._chosen))

    def _chosen(self, _: Call) -> AbstractContextManager[Any]:
        chosen: AbstractContextManager[Any] = dspy.context(lm=self.lm)
        return chosen

"""What layers and other extensions of dspyer are made of: the package itself uses nothing else for its own."""

from __future__ import annotations

from dspyer.layers.layer import Layer, Place, replies, using
from dspyer.nodes.node import Call, Look, Node, Output, Reply
from dspyer.nodes.steps import wrapped

__all__ = ["Call", "Layer", "Look", "Node", "Output", "Place", "Reply", "replies", "using", "wrapped"]

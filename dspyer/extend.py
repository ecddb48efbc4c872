"""The names of which layers and other extensions are made: the package itself uses nothing else for its own."""

from __future__ import annotations

from dspyer.events import Event
from dspyer.layers.layer import Layer, NewRow, Place, Stop, replies, using
from dspyer.nodes.node import Call, Look, Node, Output, Reply
from dspyer.nodes.steps import wrapped

__all__ = ["Call", "Event", "Layer", "Look", "NewRow", "Node", "Output", "Place", "Reply", "Stop"]
__all__ += ["replies", "using", "wrapped"]

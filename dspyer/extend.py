"""The names of which layers and other extensions are made: the package itself uses nothing else for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names

if TYPE_CHECKING:
    from dspyer.events import Event
    from dspyer.layers.layer import Inner, Layer, NewRow, Place, Stop, replies, using
    from dspyer.nodes.node import Call, Look, Node, Output, Reply
    from dspyer.nodes.steps import Script, wrapped
    from dspyer.values.freezing import freeze
    from dspyer.values.frozen import thaw

__all__ = ["Call", "Event", "Inner", "Layer", "Look", "NewRow", "Node", "Output", "Place", "Reply", "Script", "Stop"]
__all__ += ["freeze", "replies", "thaw", "using", "wrapped"]

# What shows a stored run takes names from here, and imports no DSPy.
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Inner", "Layer", "NewRow", "Place", "Stop", "replies", "using"), ".layers.layer"),
        **dict.fromkeys(("Call", "Look", "Node", "Output", "Reply"), ".nodes.node"),
        **dict.fromkeys(("Script", "wrapped"), ".nodes.steps"),
        "Event": ".events",
        "freeze": ".values.freezing",
        "thaw": ".values.frozen",
    },
)

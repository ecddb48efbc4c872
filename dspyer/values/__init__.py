"""Values of a state in their immutable form: `freeze`, `thaw`, the frozen containers, and when values are the same."""

from __future__ import annotations

from dspyer.values._boxes import Box, thaw
from dspyer.values._depth import depth_of
from dspyer.values._freezing import freeze
from dspyer.values._frozen import FrozenDict, FrozenList, FrozenSet
from dspyer.values._kinds import register_value_type
from dspyer.values._refusals import MAX_DEPTH
from dspyer.values._same import same

__all__ = [
    "MAX_DEPTH",
    "Box",
    "FrozenDict",
    "FrozenList",
    "FrozenSet",
    "depth_of",
    "freeze",
    "register_value_type",
    "same",
    "thaw",
]

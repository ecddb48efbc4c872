"""Values of a state in their immutable form: `freeze`, `thaw`, the frozen containers, and when values are the same.

What the rest of dspyer uses of this package, it imports from here.
"""

from __future__ import annotations

from dspyer.values._boxes import Box, Path, measure, measured, thaw
from dspyer.values._depth import check_depth, depth_of
from dspyer.values._dicts import FrozenDict, entries_of
from dspyer.values._freezing import freeze, freeze_within
from dspyer.values._kinds import class_name, kind_of, known_class, register_value_type, registered
from dspyer.values._lists import FrozenList
from dspyer.values._opaque import Opaque, opaque_in
from dspyer.values._persistent import SMALL, PersistentMap, PersistentVector, as_map
from dspyer.values._refusals import MAX_DEPTH, TooDeepError, advise, refuse_depth, refuse_key
from dspyer.values._rows import Row
from dspyer.values._same import same
from dspyer.values._scalars import PLAIN, SCALARS
from dspyer.values._sets import FrozenSet

__all__ = [
    "MAX_DEPTH",
    "PLAIN",
    "SCALARS",
    "SMALL",
    "Box",
    "FrozenDict",
    "FrozenList",
    "FrozenSet",
    "Opaque",
    "Path",
    "PersistentMap",
    "PersistentVector",
    "Row",
    "TooDeepError",
    "advise",
    "as_map",
    "check_depth",
    "class_name",
    "depth_of",
    "entries_of",
    "freeze",
    "freeze_within",
    "kind_of",
    "known_class",
    "measure",
    "measured",
    "opaque_in",
    "refuse_depth",
    "refuse_key",
    "register_value_type",
    "registered",
    "same",
    "thaw",
]

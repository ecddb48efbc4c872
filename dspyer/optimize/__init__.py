"""Metrics by field, the culprits that they find, and optimizers that use them. DSPy's optimizers need none of it."""

from __future__ import annotations

from dspyer.errors import missing_in
from dspyer.optimize.accepted import accepted_only
from dspyer.optimize.dataset import dataset
from dspyer.optimize.few_shot import FewShot
from dspyer.optimize.field_metric import FieldMetric, by_field, equals
from dspyer.optimize.gepa import GEPA
from dspyer.optimize.gold_run import Culprits, culprits
from dspyer.optimize.headroom import Headroom, headroom

__all__ = ["GEPA", "Culprits", "FewShot", "FieldMetric", "Headroom", "accepted_only", "by_field", "culprits", "dataset"]
__all__ += ["equals", "headroom"]

__getattr__ = missing_in(__name__)

"""`Record`: a run as one immutable value, for whatever reads runs for people."""

from dspyer.record.making import RecordStep, StepAnswer, StepQuestion, Wrote
from dspyer.record.record import Record

__all__ = ["Record", "RecordStep", "StepAnswer", "StepQuestion", "Wrote"]

"""`Record`: a run as one immutable value, for whatever reads runs for people."""

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names

if TYPE_CHECKING:
    from dspyer.record.compare import Comparison, Pair
    from dspyer.record.drawn import Checked, DrawnGraph
    from dspyer.record.making import Items, RecordStep, StepQuestion, Wrote
    from dspyer.record.overview import Overview
    from dspyer.record.record import Record
    from dspyer.record.step_examples import StepExample, StepExamples, examples_of
    from dspyer.record.turns import ToolCall, Turn

__all__ = [
    "Checked",
    "Comparison",
    "DrawnGraph",
    "Items",
    "Overview",
    "Pair",
    "Record",
    "RecordStep",
    "StepExample",
    "StepExamples",
    "StepQuestion",
    "ToolCall",
    "Turn",
    "Wrote",
    "examples_of",
]

# A graph knows `record.drawn`; the rest is for readers of runs.
_HOMES = {"Record": "record", "Checked": "drawn", "DrawnGraph": "drawn"}
_HOMES |= {"Comparison": "compare", "Overview": "overview", "Pair": "compare", "ToolCall": "turns", "Turn": "turns"}
_HOMES |= dict.fromkeys(["StepExample", "StepExamples", "examples_of"], "step_examples")
__getattr__ = lazy_names(__name__, {name: _HOMES.get(name, "making") for name in __all__})

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

__all__ = ["Checked", "Comparison", "DrawnGraph", "Items", "Overview", "Pair", "Record", "RecordStep"]
__all__ += ["StepExample", "StepExamples", "StepQuestion", "ToolCall", "Turn", "Wrote", "examples_of"]

# By module. A graph knows `record.drawn`; the rest is for readers of runs.
_HOMES = {
    "compare": "Comparison Pair",
    "drawn": "Checked DrawnGraph",
    "making": "Items RecordStep StepQuestion Wrote",
    "overview": "Overview",
    "record": "Record",
    "step_examples": "StepExample StepExamples examples_of",
    "turns": "ToolCall Turn",
}
__getattr__ = lazy_names(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})

"""The names of which layers and other extensions are made: the package itself uses nothing else for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names

if TYPE_CHECKING:
    from dspyer.events import Event
    from dspyer.ids import Address, full_id, is_within, outermost_execution, part_id, path_text, whole_execution
    from dspyer.layers.layer import Inner, Layer, NewRow, Place, Stop, replies, using
    from dspyer.lm.parameters import modules_in
    from dspyer.nodes.binding import Binding, filled, plan_binding, plan_templates
    from dspyer.nodes.callables import FunctionSignature, Parameter, hidden_problems, read_signature
    from dspyer.nodes.field_access import check_names
    from dspyer.nodes.module import ModuleIO, module_io
    from dspyer.nodes.node import Built, Call, Flaws, Look, Node, Output, Reply
    from dspyer.nodes.options import KindOptions, NodeOptions
    from dspyer.nodes.steps import (
        FunctionStep,
        ModuleStep,
        Script,
        TwoWays,
        arun_script,
        is_async,
        is_program,
        run_script,
        wrapped,
    )
    from dspyer.patch import apply_value
    from dspyer.scheduler.lineage import LogEntry
    from dspyer.schema.schema import Schema
    from dspyer.templates import Templates
    from dspyer.values.freezing import freeze, same
    from dspyer.values.frozen import FrozenDict, FrozenList, thaw
    from dspyer.values.scalars import flag_problems, is_number, is_whole_number
    from dspyer.views import indented, label, text_of

__all__ = ["Address", "Binding", "Built", "Call", "Event", "Flaws", "FrozenDict", "FrozenList", "FunctionSignature"]
__all__ += ["FunctionStep", "Inner", "KindOptions", "Layer", "LogEntry", "Look", "ModuleIO", "ModuleStep", "NewRow"]
__all__ += ["Node", "NodeOptions", "Output", "Parameter", "Place", "Reply", "Schema", "Script", "Stop"]
__all__ += ["Templates", "TwoWays"]
__all__ += ["apply_value", "arun_script", "check_names", "filled", "flag_problems", "freeze", "full_id"]
__all__ += ["hidden_problems", "indented", "is_async", "is_number", "is_program", "is_whole_number", "is_within"]
__all__ += [
    "label",
    "module_io",
    "modules_in",
    "outermost_execution",
    "part_id",
    "path_text",
    "plan_binding",
    "plan_templates",
]
__all__ += ["read_signature", "replies", "run_script", "same", "text_of", "thaw", "using", "whole_execution", "wrapped"]

# By module. What shows a stored run takes names from here, and imports no DSPy.
_HOMES = {
    ".events": "Event",
    ".ids": "Address full_id is_within outermost_execution part_id path_text whole_execution",
    ".layers.layer": "Inner Layer NewRow Place Stop replies using",
    ".lm.parameters": "modules_in",
    ".nodes.binding": "Binding filled plan_binding plan_templates",
    ".nodes.callables": "FunctionSignature Parameter hidden_problems read_signature",
    ".nodes.field_access": "check_names",
    ".nodes.module": "ModuleIO module_io",
    ".nodes.node": "Built Call Flaws Look Node Output Reply",
    ".nodes.options": "KindOptions NodeOptions",
    ".nodes.steps": "FunctionStep ModuleStep Script TwoWays arun_script is_async is_program run_script wrapped",
    ".patch": "apply_value",
    ".scheduler.lineage": "LogEntry",
    ".schema.schema": "Schema",
    ".templates": "Templates",
    ".values.freezing": "freeze same",
    ".values.frozen": "FrozenDict FrozenList thaw",
    ".values.scalars": "flag_problems is_number is_whole_number",
    ".views": "indented label text_of",
}
__getattr__ = lazy_names(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})

"""The names of which layers and other extensions are made: the package itself uses nothing else for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspyer.hints import lazy_names

if TYPE_CHECKING:
    from dspyer.events import Event
    from dspyer.layers.layer import Inner, Layer, NewRow, Place, Stop, replies, using
    from dspyer.nodes.binding import Binding, filled, plan_binding, plan_templates
    from dspyer.nodes.callables import FunctionSignature, Parameter, read_signature
    from dspyer.nodes.field_access import check_names
    from dspyer.nodes.module import ModuleIO, module_io
    from dspyer.nodes.node import Built, Call, Flaws, Look, Node, Output, Reply
    from dspyer.nodes.options import KindOptions, NodeOptions
    from dspyer.nodes.steps import (
        FunctionStep,
        ModuleStep,
        Script,
        arun_script,
        is_async,
        is_program,
        run_script,
        wrapped,
    )
    from dspyer.scheduler.lineage import LogEntry
    from dspyer.schema.schema import Schema
    from dspyer.templates import Templates
    from dspyer.values.freezing import freeze, same
    from dspyer.values.frozen import FrozenDict, FrozenList, thaw

__all__ = ["Binding", "Built", "Call", "Event", "Flaws", "FrozenDict", "FrozenList", "FunctionSignature"]
__all__ += ["FunctionStep", "Inner", "KindOptions", "Layer", "LogEntry", "Look", "ModuleIO", "ModuleStep", "NewRow"]
__all__ += ["Node", "NodeOptions", "Output", "Parameter", "Place", "Reply", "Schema", "Script", "Stop", "Templates"]
__all__ += ["arun_script", "check_names", "filled", "freeze", "is_async", "is_program", "module_io", "plan_binding"]
__all__ += ["plan_templates", "read_signature", "replies", "run_script", "same", "thaw", "using", "wrapped"]

# By module. What shows a stored run takes names from here, and imports no DSPy.
_HOMES = {
    ".events": "Event",
    ".layers.layer": "Inner Layer NewRow Place Stop replies using",
    ".nodes.binding": "Binding filled plan_binding plan_templates",
    ".nodes.callables": "FunctionSignature Parameter read_signature",
    ".nodes.field_access": "check_names",
    ".nodes.module": "ModuleIO module_io",
    ".nodes.node": "Built Call Flaws Look Node Output Reply",
    ".nodes.options": "KindOptions NodeOptions",
    ".nodes.steps": "FunctionStep ModuleStep Script arun_script is_async is_program run_script wrapped",
    ".scheduler.lineage": "LogEntry",
    ".schema.schema": "Schema",
    ".templates": "Templates",
    ".values.freezing": "freeze same",
    ".values.frozen": "FrozenDict FrozenList thaw",
}
__getattr__ = lazy_names(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})

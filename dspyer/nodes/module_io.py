"""How each class of DSPy modules tells its inputs and outputs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dspy
from pydantic_core import PydanticUndefined

from dspyer.nodes.callables import Described, describe

BY_PRODUCTS = ("reasoning", "trajectory")


@dataclass(frozen=True, slots=True)
class ModuleIO:
    """What goes into a module and what comes out.

    Attributes:
        inputs: the inputs by name, in order, with their types.
        optional: inputs that may be left out.
        extras: further inputs that are given only if `reads` names them.
        outputs: the outputs by name, in order, with their types; None for unknown.
        by_products: what it gives besides, written only if `writes` names it.
        problems: why the module cannot be a node, each with its fix.
        own_code: whether code of a user's class gives the outputs, which may convert what the signature declares.
    """

    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    extras: tuple[str, ...] = ()
    outputs: Mapping[str, Any] | None = None
    by_products: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    own_code: bool = False

    def type_of(self, name: str) -> Any:
        """The type that an output certainly has; `Any` where none is certain."""
        return Any if self.own_code else (self.outputs or {}).get(name, Any)


ReadModule = Callable[[Any], ModuleIO]


class ModuleClass(NamedTuple):
    """One class of the table.

    Attributes:
        read: reads inputs and outputs of a module of the class.
        colours: how it can be called in DSPy 3.4, for the tests.
    """

    read: ReadModule
    colours: tuple[str, ...]


def of_signature(signature: type[dspy.Signature]) -> ModuleIO:
    """The inputs and outputs of a signature."""
    inputs = {name: info.annotation for name, info in signature.input_fields.items()}
    defaults = {name for name, info in signature.input_fields.items() if info.default is not PydanticUndefined}
    outputs = {name: info.annotation for name, info in signature.output_fields.items()}
    return ModuleIO(inputs=inputs, optional=frozenset(defaults), outputs=outputs)


def _own(*by_products: str, extras: tuple[str, ...] = ()) -> ReadModule:
    """A class that keeps the user's signature as `signature`."""

    def read(module: Any) -> ModuleIO:
        return replace(of_signature(module.signature), by_products=by_products, extras=extras)

    return read


def _chain_of_thought(module: Any) -> ModuleIO:
    found = of_signature(module.predict.signature)
    outputs = {name: kind for name, kind in (found.outputs or {}).items() if name != "reasoning"}
    return replace(found, outputs=outputs, by_products=("reasoning",))


def _comparison(module: Any) -> ModuleIO:
    """`MultiChainComparison`: the attempts come in as `completions`, one input of its signature for each of them."""
    found = of_signature(module.predict.signature)
    attempts = {f"reasoning_attempt_{number}" for number in range(1, module.M + 1)}
    inputs = {name: kind for name, kind in found.inputs.items() if name not in attempts}
    outputs = {name: kind for name, kind in (found.outputs or {}).items() if name != "rationale"}
    return replace(found, inputs={"completions": list[Any], **inputs}, outputs=outputs, by_products=("rationale",))


def _of_inner(module: Any) -> ModuleIO:
    """`BestOfN` and `Refine`: those of the module that they try several times."""
    return module_io(module.module)


TABLE: Mapping[type, ModuleClass] = {
    dspy.Predict: ModuleClass(_own(), ("async", "sync")),
    dspy.ChainOfThought: ModuleClass(_chain_of_thought, ("async", "sync")),
    dspy.ReAct: ModuleClass(_own("trajectory", "reasoning", extras=("max_iters",)), ("async", "sync")),
    dspy.ReActV2: ModuleClass(
        _own("history", "termination_reason", extras=("history", "max_iters")), ("async", "sync")
    ),
    dspy.RLM: ModuleClass(_own("trajectory", "final_reasoning"), ("async", "sync")),
    dspy.ProgramOfThought: ModuleClass(_own("reasoning"), ("sync",)),
    dspy.CodeAct: ModuleClass(_own("trajectory", "reasoning", extras=("max_iters",)), ("sync",)),
    dspy.MultiChainComparison: ModuleClass(_comparison, ("sync",)),
    dspy.BestOfN: ModuleClass(_of_inner, ("sync",)),
    dspy.Refine: ModuleClass(_of_inner, ("sync",)),
    dspy.Flex: ModuleClass(_own(), ("sync",)),
}
"""Every class of modules that DSPy 3.4 exports."""


def module_io(module: dspy.Module) -> ModuleIO:
    """The inputs and outputs of a module.

    Args:
        module: any module.

    Returns:
        Those of its signature for a class of the table and its subclasses; else the parameters of its `forward`, and
        unknown outputs. A subclass of a class of the table whose `forward` names its parameters takes those.
    """
    kind = type(module)
    known = next((base for base in kind.__mro__ if base in TABLE), None)
    if known is not None:
        found = TABLE[known].read(module)
        found = replace(found, own_code=found.own_code or _has_own_code(kind, known))
        return found if _forward_of(kind) is _forward_of(known) else _with_forward(found, kind)
    signature = getattr(module, "signature", None)
    if inspect.isclass(signature) and issubclass(signature, dspy.Signature):
        return _with_forward(replace(of_signature(signature), by_products=BY_PRODUCTS, own_code=True), kind)
    return _of_forward(kind)


def _forward_of(kind: type) -> Any:
    return getattr(kind, "forward", None) or getattr(kind, "aforward", None)


def _has_own_code(kind: type, known: type) -> bool:
    """Whether a subclass does more than a class of the table when it is called."""
    called = ("forward", "aforward", "__call__", "acall")
    return any(getattr(kind, name, None) is not getattr(known, name, None) for name in called)


def _describe_forward(kind: type) -> Described:
    forward = _forward_of(kind)
    if forward is None:
        problem = f"{kind.__name__} has neither `forward` nor `aforward`: write one, with its inputs as parameters"
        return Described(problems=(problem,))
    described = describe(forward, f"`forward` of {kind.__name__}")
    if isinstance(inspect.getattr_static(kind, forward.__name__), staticmethod):
        return described
    return replace(described, parameters=described.parameters[1:])


def _with_forward(found: ModuleIO, kind: type) -> ModuleIO:
    described = _describe_forward(kind)
    own = _inputs(described)
    if described.takes_all:
        own = replace(own, inputs={**own.inputs, **found.inputs}, optional=own.optional | found.optional)
    return replace(found, inputs=own.inputs, optional=own.optional, problems=own.problems)


def _inputs(described: Described) -> ModuleIO:
    return ModuleIO(
        inputs={parameter.name: parameter.annotation for parameter in described.parameters},
        optional=frozenset(parameter.name for parameter in described.parameters if parameter.default),
        by_products=BY_PRODUCTS,
        problems=described.problems,
    )


def _of_forward(kind: type) -> ModuleIO:
    described = _describe_forward(kind)
    found = _inputs(described)
    # what **kwargs takes only `reads` can say: None stands for any name
    return replace(found, extras=("**",)) if described.takes_all else found

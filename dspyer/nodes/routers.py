"""Routers: functions, names of fields and modules that say where a branch goes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import dspy

from dspyer.errors import RouteError, annotate, brief
from dspyer.nodes.base import Call, Command, Decision
from dspyer.nodes.binding import Binding, unset
from dspyer.nodes.color import acall_module, call_module
from dspyer.nodes.module import Input, gather_inputs, selected, taken, values_of_prediction
from dspyer.nodes.names import FieldNames, listed
from dspyer.nodes.routes import Routes
from dspyer.nodes.templating import filling
from dspyer.templates import NO_TEMPLATES, Templates

Route: TypeAlias = Callable[..., object] | str | dspy.Module
REASONS = ("reasoning", "rationale", "final_reasoning")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Router:
    """The declared facts of a router. The subclasses say how it decides; none of them holds a `dspy.Module`.

    Attributes:
        name: the node that it follows.
        routes: where it may go.
        reads: fields of the state by its own names; None for the whole state.
        optional: fields among `reads` that may be unset.
        writes: fields that it commits in the same transition, by its own names.
        sends: whether it may return `Send`s.
        resources: the types of the resources that it needs, by parameter.
        module_name: the attribute of the program that holds its module; None if it has none.
        templates: the templates in the instructions of its predictors.
        who: what problems and errors call it.
    """

    name: str
    routes: Routes
    reads: FieldNames | None = None
    optional: frozenset[str] = frozenset()
    writes: FieldNames = field(default_factory=dict)
    sends: bool = False
    resources: Mapping[str, type] = field(default_factory=dict)
    module_name: str | None = None
    templates: Templates = NO_TEMPLATES
    who: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", f"the router of {self.name!r}")

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of all targets."""
        return self.routes.targets

    @property
    def send_targets(self) -> tuple[str, ...]:
        """The nodes that it may start by a `Send`."""
        return self.targets if self.sends else ()

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to the node that it follows may bring for it; None for any."""
        return self.templates.takes

    @property
    def labels(self) -> Mapping[str, str]:
        """For pictures: what leads to each target."""
        found: dict[str, list[str]] = {}
        for label, targets in self.routes.labels.items():
            for target in targets:
                found.setdefault(target, []).append(str(label))
        return {target: ", ".join(labels) for target, labels in found.items() if labels != [target]}

    @property
    def inline(self) -> bool:
        """Whether `decide` is sync and cheap, so that async code calls it too."""
        return self.module_name is None

    def decide(self, call: Call) -> Decision:
        """Say where the branch goes, given the state after its node."""
        raise NotImplementedError

    async def adecide(self, call: Call) -> Decision:
        """The same from async code."""
        return self.decide(call)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionRouter(Router):
    """A router that is a function.

    Attributes:
        fn: the function.
        binding: which parameter gets what.
    """

    fn: Callable[..., object]
    binding: Binding

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to the node that it follows may bring for it; None for any."""
        return self.binding.takes

    def decide(self, call: Call) -> Decision:
        """Call the function."""
        arguments = self.binding.bind(call)
        try:
            result = self.fn(**arguments)
        except Exception as error:
            annotate(error, f"in {self.who}")
            raise
        if result is None or isinstance(result, Command):
            raise RouteError(
                f"{self.who} returned {brief(result)}: a router returns a label, a name, a Send or a list of them; "
                f"its targets are {listed(self.targets)}"
            )
        return Decision(self.routes.resolve(result, self.who))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldRouter(Router):
    """A router that goes where the value of a field says.

    Attributes:
        field: the field.
    """

    field: str

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to the node that it follows may bring for it."""
        return frozenset([self.field])

    def decide(self, call: Call) -> Decision:
        """Look the value of the field up."""
        source = call.overlay if call.overlay is not None and self.field in call.overlay else call.state
        if self.field not in source:
            raise unset(self.field, self.who)
        return Decision(self.routes.resolve(source[self.field], f"{self.who} by the field {self.field!r}"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleRouter(Router):
    """A router that is a DSPy module with one `Literal` output. The module itself is an attribute of the program.

    Attributes:
        inputs: what the module gets.
        label: its output that says where to go.
    """

    inputs: tuple[Input, ...]
    label: str

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to the node that it follows may bring for it."""
        return self.templates.takes | taken(self.inputs)

    def decide(self, call: Call) -> Decision:
        """Ask the program's module."""
        inputs = gather_inputs(self.inputs, call, self.who)
        with self._named(), filling(self.templates, call):
            result = call_module(self._module(call), inputs)
        return self._decision(result)

    async def adecide(self, call: Call) -> Decision:
        """The same from async code."""
        inputs = gather_inputs(self.inputs, call, self.who)
        with self._named(), filling(self.templates, call):
            result = await acall_module(self._module(call), inputs)
        return self._decision(result)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            annotate(error, f"in {self.who}")
            raise

    def _module(self, call: Call) -> dspy.Module:
        assert self.module_name is not None
        module: dspy.Module = getattr(call.program, self.module_name)
        return module

    def _decision(self, result: object) -> Decision:
        values = values_of_prediction(result, self.who, known=True)
        (label,) = selected(values, {self.label: self.label}, self.who).values()
        reason = next((str(values[name]) for name in REASONS if values.get(name)), None)
        return Decision(self.routes.resolve(label, self.who), selected(values, self.writes, self.who), reason)

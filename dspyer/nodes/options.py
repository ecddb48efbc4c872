"""What `add_node` was told, put in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import dspy

from dspyer.nodes.field_names import FieldNames, NamesSpec, ReadsSpec, as_map, made_inputs, without_views
from dspyer.nodes.node import NOTHING
from dspyer.nodes.view_access import view_problems
from dspyer.schema.schema import Schema
from dspyer.templates import ComputedInput
from dspyer.views import View


class NodeOptions(NamedTuple):
    """The options of a node.

    Attributes:
        name: the node's name.
        schema: the fields of the state.
        reads: what it may read, its own names on the left; None if that was not said.
        writes: what it may write, its own names on the left; None if that was not said.
        modules: the modules bound to a function.
        goto: declared targets of its `Command`s.
        overlay: names that an overlay is known to bring.
        views: the views through which it reads, by its own names.
        made: the templates and run values that it reads, by its own names.
    """

    name: str
    schema: Schema
    reads: FieldNames | None = None
    writes: FieldNames | None = None
    modules: Mapping[str, dspy.Module] = {}
    goto: tuple[str, ...] = ()
    overlay: frozenset[str] = frozenset()
    views: Mapping[str, View] = NOTHING
    made: Mapping[str, ComputedInput] = NOTHING

    @property
    def who(self) -> str:
        """What problems and errors call the node."""
        return f"node {self.name!r}"

    @property
    def known(self) -> frozenset[str]:
        """What is as good as a field on the right side of `reads`."""
        return self.overlay if not self.made else self.overlay | {repr(made) for made in self.made.values()}

    @property
    def output_schema(self) -> Schema:
        """What its writes are checked against: inside a map the outputs become items and are no fields."""
        return Schema.of(None) if self.overlay else self.schema


def node_options(
    name: str,
    schema: Schema,
    reads: ReadsSpec | None,
    writes: NamesSpec | None,
    modules: Mapping[str, dspy.Module] | None,
    goto: Iterable[str],
    overlay: Iterable[str] = (),
) -> tuple[NodeOptions, list[str]]:
    """The options of a node as a `Spec`, and what is wrong with their form."""
    who = f"node {name!r}"
    made = made_inputs(reads)
    fields, views = without_views(_named(reads, made))
    read, problems = as_map(fields, "reads", who)
    problems += [problem for name, view in views.items() for problem in view_problems(view, name, schema, who)]
    given: Any = modules
    if given is not None and not isinstance(given, Mapping):
        problems.append(f"{who}: modules takes a dict from parameters to modules, {{'predict': dspy.Predict(...)}}")
        given = None
    written, more = as_map(writes, "writes", who)
    problems += more
    targets = (goto,) if isinstance(goto, str) else tuple(goto)
    return NodeOptions(
        name, schema, read, written, dict(given or {}), targets, frozenset(overlay), views, made
    ), problems


def _named(reads: ReadsSpec | None, made: Mapping[str, ComputedInput]) -> Any:
    """What a node reads, with texts in the place of what is made for it."""
    if not made or not isinstance(reads, Mapping):
        return reads
    return {name: repr(made[name]) if name in made else right for name, right in reads.items()}

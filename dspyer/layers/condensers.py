"""`Condense`: the layer whose modules shorten what a node writes, before it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dspyer.errors import NodeOutputError
from dspyer.layers.layer import Inner, Layer, Place, of_part
from dspyer.nodes.condense import Condenser, condensed
from dspyer.nodes.node import Call, Output, Reply
from dspyer.nodes.outputs import folded, given
from dspyer.nodes.steps import Script


@dataclass(frozen=True, slots=True)
class Condense(Layer):
    """The modules of one node, by field."""

    place: ClassVar[Place] = "output"

    condensers: Mapping[str, Condenser]

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of `inner`, shortened. The modules have attempts of their own: what the node gave is kept."""
        output: Output = yield from inner(call._replace(made=self._unshortened))
        return (yield from of_part(output.call, "condense", partial(self._condensed, output)))

    def _unshortened(self, call: Call, reply: Reply) -> Output:
        """Validates what will not be shortened, before a module is called for nothing. The rest may be too long yet."""
        schema = call.runner.session.graph.topology.schema
        updates = given(call, reply.updates, schema)
        others = {field: update for field, update in updates.items() if field not in self.condensers}
        schema.commit(call.state, others, node=call.node, commit_id=call.execution, whole_values=reply.whole)
        return Output({}, call.state, reply.goto, None, False, None, call, updates, reply.completions)

    def _condensed(self, output: Output, call: Call) -> Script[Output]:
        try:
            updates = yield from condensed(self.condensers, output.updates, call)
            patch, after = folded(call, updates, call.runner.session.graph.topology.schema)
        except NodeOutputError as error:
            error.of_module = True
            raise
        return output._replace(patch=patch, after=after)

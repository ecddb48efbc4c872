"""`GoldLayer`: sees what the nodes of a program write, at any depth, and may put gold in its place.

It is around every node of every graph that is called in its block: those of graphs inside of nodes, of items of maps,
and of all graphs of a hand-written module. What it sees of one call of a program is in a `gold_run.Sheet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import dspy

from dspyer.errors import always_raised, unwrap_stop_iteration
from dspyer.extend import Call, Inner, Layer, Node, Output, Place, Reply, Script, wrapped
from dspyer.layers.attempts import apart_from_earlier
from dspyer.layers.layer import layers_around
from dspyer.lm.tracing import Steps, append_to_trace, execute_attempt, step_count, take_steps
from dspyer.optimize.field_metric import SHEET

if TYPE_CHECKING:
    from dspyer.optimize.gold_run import Sheet, Watched

ROLLOUT_STRIDE = 10**6
"""Times that of later attempts (`lm.requests.STRIDE`): so that what is asked again has other rollout ids."""


@dataclass(frozen=True, slots=True, eq=False)
class GoldLayer(Layer):
    """Writes what it sees on sheets, and commits the gold that they give.

    Attributes:
        sheet: gives the sheet of an outermost run that begins; None for one that is not watched.
    """

    place: ClassVar[Place] = "outside"
    around_parts: ClassVar[bool] = True

    sheet: Callable[[], Sheet | None]

    def of(self, run: Any) -> GoldLayer | None:
        """Its part in a run; none if a gold run is made within another block: what it sees is for that one alone."""
        del run
        return self if [one for one in layers_around() if isinstance(one, GoldLayer)][-1] is self else None

    @property
    def stays_here(self) -> bool:
        """Return whether it watches this call."""
        return self.sheet() is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return Layer, ()  # what it does not watch may be sent to a worker

    @contextmanager
    def run(self, run: Any) -> Iterator[None]:
        """A block around a run: at its end, the sheet learns what its nodes have read."""
        sheet, root, layer = dspy.settings.get(SHEET) or (None, "", None)
        if not run.scope:  # it may be called by the code of a node
            sheet, around = (sheet, root) if layer is self else (self.sheet(), None)
            root = "" if sheet is None else sheet.begin(run, around)
        with dspy.context(**{SHEET: (sheet, root, self)}):
            try:
                yield
            finally:
                if sheet is not None:
                    sheet.end(root, run)

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of a node, with gold in the place of what is wrong; the decision of a router likewise."""
        sheet, root, _ = dspy.settings[SHEET]
        node = call.runner.session.graph.nodes.get(call.node)
        part = call.context.delegate.part
        if sheet is not None and part == "route":
            return (yield from wrapped(inner(call), lambda step: Labelled(step, sheet, root)))
        if sheet is None or part or node is None:  # a part condenses a value, which is judged after it
            return (yield from inner(call))
        visit = sheet.enter(root, call)
        output: Output = yield from inner(call)
        if output.failure is not None:
            sheet.failed(visit, output)
            return output
        if call.node in call.runner.session.graph.rejecting:
            gold = sheet.checked(visit, output)
        else:
            found = sheet.judged(visit, node, output)
            is_wrong = any(one.verdict == "wrong" for one in found)
            if sheet.again and is_wrong and may_ask_again(call, node, output):
                output, found = yield from self._ask_again(sheet, visit, inner, output, found)
            gold = sheet.written(visit, found)
        if gold:  # not by `call.reply`: gold that has waited for its check is committed with what that writes
            replaced = output.call.made(output.call, Reply({**output.updates, **gold}, output.goto))
            output = replaced._replace(exchange=output.exchange)
        return output

    def _ask_again(
        self, sheet: Sheet, visit: Watched, inner: Inner, first: Output, judged: Any
    ) -> Script[tuple[Output, Any]]:
        """The first right output of a node that is asked again, with its values; that of its call if none is right.

        It is no retry: nothing has failed. Its LM calls have rollout ids of their own.
        """
        session, last, execution = visit.call.runner.session, first.call.context.delegate, visit.execution
        kept = take_steps(0)
        known = list(session.notes.failed_attempts.get(execution, ()))

        def lose(steps: Steps) -> None:
            session.lose_steps(last, last.number, steps)

        for time in range(1, sheet.again + 1):
            again = first.call.of_attempt(last.next(last.number))._replace(made=visit.call.made)
            execute_attempt(last.number)
            try:
                output: Output = yield from wrapped(inner(again), apart_from_earlier(ROLLOUT_STRIDE * time, lose))
            except Exception as error:
                if always_raised(unwrap_stop_iteration(error)):
                    raise
            else:
                found = sheet.judged(visit, session.graph.nodes[again.node], output)
                if all(one.verdict != "wrong" for one in found):
                    lose(kept)
                    return output, found
            lose(take_steps(0))
            session.notes.failed_attempts[execution] = list(known)
        append_to_trace(kept)
        return first, judged


def may_ask_again(call: Call, node: Node, output: Output) -> bool:
    """Tell if a node can be asked again: a function gives the same, a graph would go on, siblings have read posts."""
    graph = call.runner.session.graph
    live, fixed = graph.topology.schema.live_fields, {*graph.searches, *graph.rejecting}
    return not (output.targets or node.runs_graph or node.name in fixed or live) and step_count() > 0


class ItemLayer(Layer):
    """Tells the sheet the steps of each item of a map."""

    place: ClassVar[Place] = "retry"

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The result of an item."""
        result = yield from inner(call)
        sheet, root, _ = dspy.settings.get(SHEET) or (None, "", None)  # in a worker there is none
        if sheet is not None and call.context.delegate.index is not None:
            sheet.made_item(root, call)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """The leaf step of a router, with gold in the place of a wrong label."""

    step: Any
    sheet: Any
    root: str

    def call(self, call: Call) -> Any:
        """Calls the module."""
        return self._labelled(call, self.step.call(call))

    async def acall(self, call: Call) -> Any:
        """Calls the module."""
        return self._labelled(call, await self.step.acall(call))

    def _labelled(self, call: Call, prediction: Any) -> Any:
        module = getattr(self.step, "step", self.step).module  # with templates filled in, it is around the leaf
        ways = [way for way in call.runner.session.graph.exits[call.node] if not isinstance(way, str)]
        router = next(way for way in ways if vars(call.program).get(way.module_name) is module)
        return self.sheet.label(self.root, call, router, prediction)

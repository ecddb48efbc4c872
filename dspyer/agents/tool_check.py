"""The check of a tool: it reads `tool`, `args` and `result`; if it finds problems, the call is repeated, once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import dspy
from pydantic import BaseModel

from dspyer.agents.tool_action import Recorded
from dspyer.errors import NodeOutputError, brief, list_names
from dspyer.nodes.check import PROBLEMS, asks_module, build_finder, found_problems, problem_texts
from dspyer.nodes.module import module_io
from dspyer.nodes.node import Call, Node, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import Script, is_program
from dspyer.schema.schema import Schema
from dspyer.values.freezing import freeze

CHECK = "check"
"""The attribute of a check's module in what the program holds for the tool: `program.mail.check`."""

ARGS = "args"
SEEN = ("tool", ARGS, "result")
"""What a check reads."""


Validate: TypeAlias = Callable[[Mapping[str, Any]], object]


class Verdict(NamedTuple):
    """What a check found.

    Attributes:
        problems: what is wrong; empty if the result is good.
        args: the arguments with which to repeat the call; None for the same ones.
    """

    problems: list[str]
    args: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCheck:
    """The check of a tool.

    Attributes:
        finder: the node of the check; `program.<tool>.check` is its module.
        who: the check in errors.
        tool: the name of the tool.
    """

    finder: Node
    who: str
    tool: str

    @property
    def of_module(self) -> bool:
        """Whether a module makes the check: a language model may give another output when it is asked again."""
        return asks_module(self.finder)

    def script(self, call: Call, args: Mapping[str, Any], result: Any, validate: Validate) -> Script[Verdict]:
        """Check a result; `validate` refuses arguments that the tool does not take.

        The verdict is recorded: a later attempt must not come to another one.
        """
        seen: Any = freeze({"tool": self.tool, ARGS: args, "result": result})
        inner = call._replace(overlay=seen, program=getattr(call.program, self.tool, call.program))

        def find(_key: str) -> Script[list[Any]]:
            return list(self._verdict((yield from self.finder.script(inner)), inner, validate))

        return Verdict(*(yield Recorded(f"{CHECK} of the call", find), call))

    def _verdict(self, reply: Reply, call: Call, validate: Validate) -> Verdict:
        """What the reply of the finder says."""
        found, args = found_problems(self.finder, PROBLEMS, reply, call), reply.updates.get(ARGS)
        if isinstance(found, Mapping):  # of a function that gives arguments as well
            unknown = [name for name in found if name not in (PROBLEMS, ARGS)]
            if unknown:
                raise NodeOutputError(
                    f"{self.who} gave {list_names(unknown)}: it gives `problems`, and may give `args`"
                )
            found, args = found.get(PROBLEMS, ()), found.get(ARGS)
        problems = problem_texts(found, self.who, self.of_module)
        # A language model gives an empty dict for "the same arguments".
        if not problems or args is None or args == {}:
            return Verdict(problems)
        try:
            if not isinstance(args, Mapping):
                raise TypeError(f"{brief(args)}: give a dict by name, or None")
            validate(args)
        except (TypeError, ValueError) as refusal:
            error = NodeOutputError(f"{self.who} gave arguments that the tool does not take: {refusal}")
            error.of_module = self.of_module
            raise error from refusal
        return Verdict(problems, dict(args))


def plan_tool_check(check: Any, options: NodeOptions, who: str, problems: list[str]) -> ToolCheck | None:
    """The check of a tool by its option `check`."""
    if check is None:
        return None
    name = f"check of {who}"
    is_module = isinstance(check, dspy.Module)
    is_model = isinstance(check, type) and issubclass(check, BaseModel)
    own = NodeOptions(
        CHECK,
        # A function may read fields as well. What modules and models name is none of them.
        Schema.of(None) if is_module or is_model else options.schema,
        check,
        overlay=frozenset(SEEN),
    )
    problems += _unknown_inputs(check, name) if is_module or is_model else []
    built = build_finder(check, own, PROBLEMS, {ARGS: ARGS} if is_module and ARGS in _outputs(check) else {})
    texts = (*built.problems, *(f"{text} A check of a tool is given {list_names(SEEN)}" for text in built.unknown))
    problems += [text.replace(own.who, name, 1) for text in texts]
    return None if built.node is None else ToolCheck(built.node, name, options.name)


def _outputs(check: Any) -> Collection[str]:
    """The outputs of a module or program, as far as they are known."""
    if is_program(check):
        return (check.graph.writes if check.graph.outputs is None else check.graph.outputs) or ()
    return module_io(check).outputs or ()


def _unknown_inputs(check: Any, name: str) -> list[str]:
    """Required inputs of a module or model that is a check, besides those that it is given."""
    if isinstance(check, dspy.Module):
        if is_program(check):
            needed: Any = check.graph.required
        else:
            found = module_io(check)
            needed = [one for one in found.inputs if one not in found.optional]
    else:
        needed = [one for one, info in check.model_fields.items() if info.is_required()]
    unknown = [one for one in needed if one not in SEEN]
    return [f"{name}: it reads {list_names(unknown)}, and is given {list_names(SEEN)}"] if unknown else []

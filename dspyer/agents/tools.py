"""What a model can call: `tool` gives a function, a `dspy.Tool`, a module or a program the options of a tool."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import dspy
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from dspyer.errors import GraphError, brief, list_names
from dspyer.graph.builder import Graph
from dspyer.hints import signature_of
from dspyer.nodes.callables import FunctionSignature, Parameter, class_of, own_call, plain_function, read_signature
from dspyer.nodes.context import Context
from dspyer.nodes.options import OfGraph
from dspyer.nodes.tool import ToolOptions, ToolSpec
from dspyer.retry import Retry
from dspyer.templates import Fill
from dspyer.views import View

__all__ = ["Context"]  # for the annotations of the examples below


def tool(
    target: Any,
    *,
    name: str | None = None,
    desc: str | None = None,
    reads: Collection[str] | Mapping[str, str | View | Fill] | None = None,
    writes: Collection[str] | Mapping[str, str] | None = None,
    approve: bool | Callable[..., object] = False,
    effect: bool = False,
    render: Callable[[Any], Any] | None = None,
    check: object = None,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    retry: Retry | int | OfGraph | None = OfGraph.RETRY,
    timeout: float | None = None,
) -> ToolSpec:
    """Give something that a model can call the options of a tool.

    Args:
        target: a function, sync or async; a `dspy.Tool` (also one made of an MCP or LangChain tool).
        name: the name under which the model calls it, and of its node; by default that of the function.
        desc: the description that the model is shown; by default the docstring.
        reads: fields of the state for parameters that the model does not see, as in `add_node`.
        writes: the fields that a `Command` of the tool may update, as in `add_node`; by default those of the agent's
            `schema=`.
        approve: True to ask before each call, or a function of arguments and fields that says whether to ask.
        effect: True to record the result, so that no later attempt calls the tool again.
        render: a function of a call that returns what the model is shown of its result.
        check: finds problems in a result.
        raises: exceptions that fail the node. Any other becomes the result of the call.
        retry: which failed attempts are followed by another one, as in `add_node`.
        timeout: the seconds of one attempt, None for no limit.

    Returns:
        The tool, for the list of tools of an agent.

    Raises:
        GraphError: if it cannot be a tool, with all reasons.

    Example:
        >>> def look_up(word: str, ctx):
        ...     "Looks up a word."
        ...     return f"{word}: no entry"
        >>> tool(look_up, name="dictionary", timeout=5)
        tool(dictionary: word)
    """
    if isinstance(target, ToolSpec):
        raise GraphError(f"{target!r} is a tool already: give tool(...) the function, with all options at once")
    who = f"tool {name!r}" if name else f"tool {brief(target)}"
    problems: list[str] = []
    own_reads = frozenset(reads or ())
    fn = target.func if isinstance(target, dspy.Tool) else target
    name = name or (target.name if isinstance(target, dspy.Tool) else _name_of(fn))
    who = f"tool {name!r}"
    signature = _signature(fn, who) if not isinstance(target, dspy.Tool) else _signature_of_tool(fn, who)
    problems += signature.problems
    shown, hidden = _split(signature, own_reads, effect, who, problems)
    if problems:
        raise GraphError(problems)
    if isinstance(target, dspy.Tool):
        model_view = _without(target, {one.name for one in hidden}, name, desc)
        known = {one.name for one in shown if not one.default}
    else:
        model_view = _model_view(fn, shown, signature.takes_all, name, desc)
        known = {one.name for one in shown if not one.default}
    return ToolSpec(
        name,
        model_view,
        fn,
        FunctionSignature(tuple(hidden)),
        frozenset(known),
        reads,
        writes,
        approve,
        effect,
        render,
        check,
        raises if isinstance(raises, tuple) else (raises,),
        retry,
        timeout,
    )


def as_tools(tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
    """The tools of an agent, from functions, `dspy.Tool`s, modules, programs, and what `tool` made of them.

    Raises `GraphError` if two of them have one name; warns of tools without a description.
    """
    found = tuple(one if isinstance(one, ToolSpec) else tool(one) for one in tools)
    names = [one.name for one in found]
    twice = sorted({one for one in names if names.count(one) > 1})
    if twice:
        raise GraphError(f"several tools are called {list_names(twice)}: give each its own name, tool(..., name='...')")
    for one in found:
        if not one.desc.strip():
            warnings.warn(
                f"tool {one.name!r} has no description, so that a model must guess what it does: write a docstring, or "
                "tool(..., desc='...')",
                stacklevel=3,
            )
    return found


def add_tool(graph: Graph, spec: ToolSpec, writes: Collection[str] = (), handoffs: str | None = None) -> None:
    """Add the node of a tool to the graph of an agent.

    `writes` are the fields that it may write by default, `handoffs` is the field for the handoffs that it asks for.
    """
    graph.add_node(
        spec.name,
        ToolOptions(spec, handoffs=handoffs),
        reads=spec.reads,
        writes=writes if spec.writes is None else spec.writes,
        retry=spec.retry,
        timeout=spec.timeout,
    )


# --- what the model sees of a function, and what is hidden from it


def _name_of(fn: Any) -> str:
    return str(getattr(plain_function(fn), "__name__", type(fn).__name__))


def _signature(fn: Any, who: str) -> FunctionSignature:
    return read_signature(fn, who)


def _signature_of_tool(fn: Any, who: str) -> FunctionSignature:
    """The parameters that the function of a `dspy.Tool` names: that of an MCP tool names none."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {one.name for one in signature_of(fn).parameters.values() if one.kind in kinds}
    found = read_signature(fn, who)
    return FunctionSignature(tuple(one for one in found.parameters if one.name in named), found.takes_all)


def _split(
    signature: FunctionSignature, reads: Collection[str], effect: bool, who: str, problems: list[str]
) -> tuple[list[Parameter], list[Parameter]]:
    """The parameters that the model sees, and those that it does not."""
    shown, hidden = [], []
    for one in signature.parameters:
        kind = class_of(one.annotation)
        is_context = kind is Context or one.name == "ctx" or one.text.rpartition(".")[2] == "Context"
        if one.name in reads or is_context or (kind is not None and not _has_schema(one.annotation)):
            hidden.append(one)
        elif one.name == "key" and effect:
            continue  # the idempotency key of the effect
        elif one.text:
            problems.append(
                f"{who}: the annotation {one.text!r} of its parameter {one.name!r} cannot be resolved from here: "
                "define its class at module level"
            )
        else:
            shown.append(one)
    return shown, hidden


def _has_schema(annotation: Any) -> bool:
    """Whether values of a type can come from a model: pydantic has a JSON schema for it. Of others, the run has one."""
    try:
        TypeAdapter(annotation).json_schema()
    except PydanticUserError:
        return False
    return True


def _model_view(fn: Any, shown: Collection[Parameter], takes_all: bool, name: str, desc: str | None) -> dspy.Tool:
    """The `dspy.Tool` of a function as if it had only the parameters that the model sees."""

    def called_by_its_node(**_: Any) -> Any:
        raise TypeError(f"tool {name!r} is called by its node in a graph, and not through the dspy.Tool of a model")

    own, names = signature_of(fn).parameters, [one.name for one in shown]
    parameters = [own[one].replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in names]
    if takes_all:  # DSPy shows them to the model as one argument
        parameters += [one for one in own.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
    called_by_its_node.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # of every function
    called_by_its_node.__annotations__ = {one.name: one.annotation for one in shown}
    return dspy.Tool(called_by_its_node, name=name, desc=_doc_of(fn) if desc is None else desc)


def _doc_of(fn: Any) -> str:
    """The docstring of a function, or of a callable object."""
    source = fn.func if isinstance(fn, partial) else fn
    if inspect.isroutine(source):
        return source.__doc__ or ""
    return source.__doc__ or getattr(own_call(source), "__doc__", None) or ""


def _without(given: dspy.Tool, hidden: Collection[str], name: str, desc: str | None) -> dspy.Tool:
    """A `dspy.Tool` without the parameters that the model does not see."""
    args = {key: value for key, value in (given.args or {}).items() if key not in hidden}
    kinds = {key: value for key, value in (given.arg_types or {}).items() if key not in hidden}
    update = {"args": args, "arg_types": kinds, "name": name, "desc": given.desc if desc is None else desc}
    return given.model_copy(update=update)

"""The private names of LangGraph that a conversion needs: no other file may import one.

The import of this file fails with one sentence if the installed version of LangGraph lacks one of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import sys
import threading
import traceback
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

from langchain_core import messages
from langchain_core.documents import Document
from langchain_core.runnables import RunnableSequence
from langgraph.errors import NodeError
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Interrupt, Send
from pydantic import AfterValidator, BaseModel, BeforeValidator, PlainValidator, WrapValidator
from typing_extensions import ReadOnly

from dspyer import register_value_type
from dspyer.nodes.callables import attributes_of
from dspyer.schema.fields import validated_fields

# The error for a LangGraph of a version that is not known.


TESTED = ("1.2.11", "1.2.22", "1.2.24")
"""The versions of LangGraph with which the converter was tested."""


def unknown_version(error: Exception) -> ImportError:
    """The error if LangGraph lacks a private name that the converter needs."""
    return ImportError(
        f"dspyer.migrate was tested with LangGraph {', '.join(TESTED)}, and {_found()} is installed, which differs "
        f"({error}): pip install 'langgraph>=1.2,<1.3'"
    )


def _found() -> str:
    try:
        return version("langgraph")
    except PackageNotFoundError:
        return "another version"


try:
    from langgraph._internal._constants import (
        CONFIG_KEY_CALL,
        CONFIG_KEY_CHECKPOINT_NS,
        CONFIG_KEY_CHECKPOINTER,
        CONFIG_KEY_NODE_ERROR,
        CONFIG_KEY_READ,
        CONFIG_KEY_RESUME_MAP,
        CONFIG_KEY_RESUMING,
        CONFIG_KEY_RUNTIME,
        CONFIG_KEY_SCRATCHPAD,
        CONFIG_KEY_SEND,
        CONFIG_KEY_STREAM,
        CONFIG_KEY_TASK_ID,
        RESUME,
    )
    from langgraph._internal._runnable import RunnableCallable, RunnableSeq
    from langgraph._internal._scratchpad import PregelScratchpad
    from langgraph._internal._serde import build_serde_allowlist
    from langgraph.channels.binop import _get_overwrite
    from langgraph.errors import ParentCommand, is_invalid_resume
    from langgraph.func import _TaskFunction as TaskFunction
    from langgraph.graph.message import _messages_delta_reducer as add_message_batches
    from langgraph.graph.state import _DEFAULT_ERROR_HANDLER_NODE as DEFAULT_ERROR_HANDLER
    from langgraph.pregel.protocol import StreamProtocol
    from langgraph.types import interrupt

    if not {"value", "idx", "conf"} <= set(interrupt.__code__.co_varnames):
        raise ImportError("interrupt() has no variables 'value', 'idx' and 'conf'")
except ImportError as error:
    raise unknown_version(error) from error

CONFIG_KEY_READ_STATE = "__pregel_read_state"  # LangGraph before 1.2.24 has no name for it

# What other files import by this one; LangGraph may move it.
__all__ = ["DEFAULT_ERROR_HANDLER", "ParentCommand", "RunnableCallable", "TaskFunction", "add_message_batches"]


class Questions:
    """Facts that `interrupt()` asks of the run: the answers that are there, and how many questions a node has asked.

    An answer belongs to the question with its text, since threads and tasks of a node, as those of a `ToolNode`, ask in
    any order. Where no text is the same, the next answer counts for the code of the node itself, whose questions
    have an order and may change; in another thread or task, the question is a new one.
    """

    def __init__(self, answers: Sequence[object], texts: Sequence[str] = ()) -> None:
        self.answers = list(answers)
        self.asked = 0
        self._free = dict(enumerate(texts))
        self._lock, self._place = threading.Lock(), _place()

    def count(self) -> int:
        """The number of the question that `interrupt()` asks, which gives its value to nothing else."""
        # `interrupt` gives its value to nothing that can be replaced, so it is read from its frame.
        text = text_of(sys._getframe(1).f_locals["value"])
        with self._lock:
            number = next((one for one, known in self._free.items() if known == text), None)
            if number is None and _place() == self._place:
                number = next(iter(self._free), None)
            if number is None:
                number = max(self.asked, len(self.answers))
            self._free.pop(number, None)
            self.asked = max(self.asked, number + 1)
        return number


def _place() -> tuple[int, object]:
    """The thread and the task that run this code."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


def text_of(value: object) -> str:
    """The value of an `interrupt()` as the text of a question."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def refused_answer(error: BaseException) -> tuple[str, int] | None:
    """The question whose answer `interrupt()` has refused with this error: its id and its number where it was asked.

    It is not the last question: other threads of the node may have asked since. None for another error.
    """
    if not is_invalid_resume(error):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is interrupt.__code__]
    if not frames:
        return None
    number, place = frames[-1].f_locals["idx"], frames[-1].f_locals["conf"][CONFIG_KEY_CHECKPOINT_NS]
    return Interrupt.from_ns(None, f"{place}|{number}" if number else place).id, number


def node_configurable(
    task: str, runtime: object, questions: Questions, call_task: Callable[..., Any], read: Callable[..., Any]
) -> dict[str, Any]:
    """The private part of the config with which LangGraph calls a node or a router.

    `task` is the id of the call; `call_task` makes the calls of functions with `@task`; `read` reads channels.
    """
    return {
        CONFIG_KEY_TASK_ID: task,
        CONFIG_KEY_CHECKPOINT_NS: task,
        CONFIG_KEY_SEND: _refuse_writes,
        CONFIG_KEY_READ: read,
        CONFIG_KEY_CALL: call_task,
        CONFIG_KEY_RUNTIME: runtime,
        CONFIG_KEY_SCRATCHPAD: _scratchpad(0, questions),
    }


def own_configurable(failed: NodeError | None, read_state: Callable[[], Any] | None) -> dict[str, Any]:
    """Return the parts for nodes: what an error handler gets, and what reads the state that a `Send` has replaced."""
    return {CONFIG_KEY_READ_STATE: read_state, **({} if failed is None else {CONFIG_KEY_NODE_ERROR: failed})}


def engine_configurable(place: str, saver: object, resumes: bool, answers: Mapping[str, object]) -> dict[str, Any]:
    """Return what graphs find in the config if the code of a node calls them: they run in the namespace `place`.

    `resumes` tells that the code is called again after a question; `answers` are by the ids of the questions.
    """
    return {
        CONFIG_KEY_CHECKPOINT_NS: place,
        CONFIG_KEY_CHECKPOINTER: saver,
        CONFIG_KEY_RESUMING: resumes,
        CONFIG_KEY_RESUME_MAP: answers,
        # Else the stream writer of the node would not reach them. What else they stream are no events of the run.
        CONFIG_KEY_STREAM: StreamProtocol(lambda _: None, set()),
    }


def _scratchpad(left: int, questions: Questions) -> PregelScratchpad:
    """The notes that LangGraph makes in one step, with so many steps left."""
    return PregelScratchpad(
        step=-left,
        stop=0,
        call_counter=itertools.count().__next__,
        interrupt_counter=questions.count,
        get_null_resume=_no_answer,
        resume=questions.answers,
        subgraph_counter=itertools.count().__next__,
    )


def managed_value(kind: Any, left: int) -> Any:
    """A managed value, such as `RemainingSteps`, with so many steps left."""
    return kind.get(_scratchpad(left, Questions(())))


def _no_answer(consume: bool = False) -> None:
    """The answer to whichever question is next: none, since answers are given by number."""
    del consume


def _refuse_writes(writes: Sequence[tuple[str, object]]) -> None:
    """`interrupt()` notes here that an answer was used, which needs no note; other writes pass the node's result."""
    others = [channel for channel, _ in writes if channel != RESUME]
    if others:
        raise TypeError(f"a node wrote {', '.join(map(repr, others))} while it ran: return what it writes")


def overwrite(value: Any) -> tuple[bool, Any]:
    """Return whether an update of a reducer bypasses it, and the value that is to be put in place of the old one."""
    found, new = _get_overwrite(value)
    return bool(found), new


def only_async(runnable: Any) -> bool:
    """Return whether a runnable has no sync form."""
    if isinstance(runnable, (RunnableSeq, RunnableSequence)):
        return any(map(only_async, runnable.steps))
    if isinstance(runnable, RunnableCallable):
        return runnable.func is None
    if isinstance(runnable, CompiledStateGraph):
        return any(only_async(spec.runnable) for spec in runnable.builder.nodes.values())
    own = attributes_of(runnable)  # `with_fallbacks` looks for others in what it wraps, and may fail
    return "afunc" in own and "func" not in own


# The classes of LangChain and LangGraph that a state may hold: another process finds them by name in a thread.


def register_langchain_classes() -> None:
    """Register documents and the classes of messages; values of LangChain's other types are dicts."""
    found = [getattr(messages, name) for name in messages.__all__]
    for cls in [*found, Document]:
        if isinstance(cls, type) and issubclass(cls, BaseModel):
            register_value_type(cls)
    # What a `Send` gives a node may be one of these, which the node returns as its own.
    register_value_type(Command)
    register_value_type(Send, encode=_send_parts, decode=lambda parts: Send(**parts))


def _send_parts(send: Send) -> dict[str, Any]:
    return {"node": send.node, "arg": send.arg, "timeout": send.timeout}


AllowedTypes = frozenset[tuple[str, ...]]


def allowed_types(graph: Any, named: Sequence[type]) -> AllowedTypes:
    """The classes that a checkpoint of a graph may hold: those that LangGraph reads from schemas, and those `named`."""
    schemas = [*getattr(graph, "schemas", ()), *named]
    return frozenset(build_serde_allowlist(schemas=schemas, channels=graph.channels))


# What the classes of LangGraph's schemas do beside naming keys: attributes that are no data, and validators.


_VALIDATORS = (AfterValidator, BeforeValidator, PlainValidator, WrapValidator)


def data_channels(builder: Any) -> dict[str, Any]:
    """Return the channels of a `StateGraph` that hold data.

    LangGraph makes channels of the private attributes of pydantic models and of the marker `_: KW_ONLY` of a dataclass
    too. No node can read those.
    """
    return {
        key: channel
        for key, channel in builder.channels.items()
        if getattr(channel, "typ", None) is not dataclasses.KW_ONLY
        and not all(key in private_attributes(schema) for schema, keys in builder.schemas.items() if key in keys)
    }


def private_attributes(schema: Any) -> frozenset[str]:
    """Return the names that a pydantic model has as private attributes; none for another class."""
    is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
    return frozenset(schema.__private_attributes__) if is_model else frozenset()


def own_validation(builder: Any, key: str, annotation: Any) -> str:
    """Return why a key is validated by its class alone, when a node reads it; empty if the annotation says it all.

    A validator may change a value each time it runs, so that a second run before the value is committed would change
    it twice; and it may accept what the annotation does not.
    """
    if _has_validator(annotation):
        return "its annotation has a validator, which runs when a node reads it, as in LangGraph"
    for schema in builder.schemas:
        if isinstance(schema, type) and issubclass(schema, BaseModel) and key in schema.model_fields:
            of_model = schema.__pydantic_decorators__.model_validators.values()
            if key in validated_fields(schema) or any(each.info.mode != "after" for each in of_model):
                return f"{schema.__name__} has a validator for it, which runs when a node reads it, as in LangGraph"
    return ""


def _has_validator(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated and any(isinstance(each, _VALIDATORS) for each in annotation.__metadata__):
        return True
    return any(map(_has_validator, get_args(annotation)))


# Dicts of the standard library's classes: a state holds plain mappings, and the code of a graph expects its class.


_CLASSES: tuple[type, ...] = (Counter, OrderedDict)


def rebuilt_dict(annotation: Any) -> Callable[[Any], Any] | None:
    """Return what makes a plain dict one of the class that an annotation names, and leaves other values as they are.

    A `defaultdict` gets the class of its values as its factory, `list` in `defaultdict[str, list[int]]`. The result is
    None for an annotation that names no such class.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Required, NotRequired, ReadOnly):
        return rebuilt_dict(args[0])
    if origin in (Union, UnionType):
        return next(filter(None, map(rebuilt_dict, args)), None)
    cls = origin or annotation
    if cls is defaultdict:
        factory = get_origin(args[1]) or args[1] if args else None
        return partial(_rebuilt, partial(defaultdict, factory if isinstance(factory, type) else None))
    return partial(_rebuilt, cls) if cls in _CLASSES else None


def _rebuilt(make: Callable[[Any], Any], value: Any) -> Any:
    return make(value) if type(value) is dict else value

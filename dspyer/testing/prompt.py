"""Reads a prompt: fields, instructions, demonstrations and current inputs, from the messages alone; writes an answer.

This is the inverse of DSPy's Chat, JSON and XML adapters: the patterns below follow the texts that they write. Any
other text is a plain prompt without fields.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import dspy
from pydantic_core import to_jsonable_python

from dspyer.lm.not_public import (
    Message,
    Request,
    Response,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextDelta,
    TextPart,
    ToolCallDelta,
    ToolCallPart,
    Usage,
)

PromptForm = Literal["chat", "json", "xml", "plain"]
AnswerKind = Literal["text", "choice", "bool", "number", "json"]

# The texts of DSPy's adapters: a field in the system message, the header or tag of a value, the note on the type of a
# value, the sentence before the instructions, the end of a user message, and the texts for missing values.
_FIELD = re.compile(r"^\d+\. `(\w+)` \((.*?)\):(?: (.*))?$")
_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\][ \t]*", re.MULTILINE)
_TAG = re.compile(r"<(\w+)>\n?(.*?)\n?</\1>", re.DOTALL)
_NOTE = re.compile(r"\{(\w+)\} +# note: the value you produce (.*)")
_OBJECTIVE = "In adhering to this structure, your objective is: "
_REQUEST = re.compile(r"(?:^|\n\n)Respond with (?:a JSON object|the corresponding output fields)[^\n]*(?:\n|\Z)")
_RESULTS = "tool_call_results"
_MISSING = ("Not supplied for this particular example.", "Not supplied for this conversation history message.")


class PromptTurn(NamedTuple):
    """One message of a prompt: `role` is `"system"`, `"user"`, `"assistant"` or `"tool"`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class PromptField:
    """A field of a signature, as the prompt describes it.

    Attributes:
        name: name of the field.
        type: the type as the prompt writes it, for example `"list[str]"`.
        description: the description, empty if there is none.
        kind: the form of an answer.
        choices: the allowed values of a choice, as text.
        schema: the JSON schema in the prompt, None if there is none.
    """

    name: str
    type: str
    description: str
    kind: AnswerKind
    choices: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None


class Tool(NamedTuple):
    """A function that the LM may call, as the request describes it: name, description, JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


class PromptCall(NamedTuple):
    """A native tool call in an answer: providers return it apart from the text. Without an id it gets a new one."""

    name: str
    args: Mapping[str, Any]
    id: str | None = None


class LMAnswer(NamedTuple):
    """An answer: its text, and the tools that it calls."""

    text: str
    calls: tuple[PromptCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Demo:
    """A demonstration: texts by field name, without the fields that it does not have."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The parts of a prompt: what a function in the script of a `ScriptedLM` gets, and `lm.calls[0].prompt`.

    Attributes:
        turns: the messages, in order, each with `role` and `content`.
        form: the form in which the answer must be written: `"chat"`, `"json"`, `"xml"`, or `"plain"` for a text that no
            adapter of DSPy wrote.
        instructions: the instructions of the signature.
        input_fields: the input fields, each with `name`, `type` and `description`.
        output_fields: the output fields, in the same form; none for a plain prompt.
        demos: the demonstrations, first to last, each with its `inputs` and `outputs` as text by name.
        inputs: the current inputs as text, and the newest `tool_call_results` if tools were called; of a plain prompt,
            `{"prompt": ...}`.
        tools: the tools that the answer may call natively, each with `name`, `description` and `schema`.
        must_call: the tools of which it must call one; empty for none.

    Example:
        >>> import dspy
        >>> from dspyer.testing import ScriptedLM
        >>> def answer(prompt):
        ...     return {name: prompt.inputs["text"].upper() for name in prompt.asks}
        >>> with ScriptedLM(answer):
        ...     dspy.Predict("text -> loud")(text="hey").loud
        'HEY'
    """

    turns: tuple[PromptTurn, ...]
    form: PromptForm
    instructions: str
    input_fields: tuple[PromptField, ...]
    output_fields: tuple[PromptField, ...]
    demos: tuple[Demo, ...]
    inputs: Mapping[str, str]
    tools: tuple[Tool, ...] = ()
    must_call: tuple[str, ...] = ()

    @property
    def asks(self) -> tuple[str, ...]:
        """The names of the output fields."""
        return tuple(field.name for field in self.output_fields)


class _Task(NamedTuple):
    instructions: str
    inputs: tuple[PromptField, ...]
    outputs: tuple[PromptField, ...]


def read_prompt(turns: Sequence[PromptTurn], tools: Iterable[Tool] = (), must_call: Iterable[str] = ()) -> Prompt:
    """Reads the messages of one call; messages that no known adapter wrote are a plain prompt."""
    system = turns[0].content if turns and turns[0].role == "system" else ""
    rest = turns[1:] if system else turns
    last = rest[-1].content if rest else ""
    task, offered = _read_task(system), (tuple(tools), tuple(must_call))
    if not task.outputs and not (task.inputs and offered[0]):
        return Prompt(tuple(turns), "plain", system, (), (), (), MappingProxyType({"prompt": last}), *offered)
    form = _form_of(last, system)
    asked = frozenset(field.name for field in task.inputs)
    demos = tuple(_read_demos(rest[:-1], form, asked, frozenset(field.name for field in task.outputs)))
    inputs = MappingProxyType(_read_inputs(rest, form, task))
    return Prompt(tuple(turns), form, task.instructions, task.inputs, task.outputs, demos, inputs, *offered)


def write_answer(prompt: Prompt, values: Mapping[str, object]) -> str:
    """Writes the values of output fields as an answer in the form that the prompt asks for.

    A value is a text, or anything that pydantic can turn into JSON.
    """
    if prompt.form == "chat":
        parts = [f"[[ ## {name} ## ]]\n{_as_text(value)}" for name, value in values.items()]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"])
    if prompt.form == "xml":
        return "\n\n".join(f"<{name}>\n{_as_text(value)}\n</{name}>" for name, value in values.items())
    kinds = {field.name: field.kind for field in prompt.output_fields}
    plain = {name: _as_json(value, kinds.get(name, "text")) for name, value in values.items()}
    return json.dumps(plain, ensure_ascii=False)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    plain = to_jsonable_python(value, fallback=str)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list) else str(plain)


def _as_json(value: object, kind: AnswerKind) -> object:
    if not isinstance(value, str) or kind not in ("bool", "number"):
        return to_jsonable_python(value, fallback=str)
    try:
        return json.loads(value.lower() if kind == "bool" else value)
    except ValueError:
        return value


def _form_of(last: str, system: str) -> PromptForm:
    if "Respond with a JSON object" in last or "Outputs will be a JSON object" in system:
        return "json"
    return "chat" if "[[ ## completed ## ]]" in system else "xml"


def _read_inputs(turns: Sequence[PromptTurn], form: PromptForm, task: _Task) -> dict[str, str]:
    """The inputs after the last answer; in a conversation also those of earlier turns that were not given again."""
    names = frozenset(field.name for field in task.inputs)
    found: dict[str, str] = {}
    is_current = True
    has_history = any(field.type == "History" for field in task.inputs)
    # From the end: what was given last counts.
    for turn in reversed(turns):
        is_current = is_current and turn.role != "assistant"
        if turn.role == "assistant" or not (is_current or has_history):
            continue
        if turn.role == "tool":
            read: Mapping[str, str] = {_RESULTS: turn.content} if is_current else {}
        else:
            read = _read_fields(_without_request(turn.content), form, names | {_RESULTS} if is_current else names)
        found = {**read, **found}
    # As the signature has them, and not as the messages do: scripts and tests read them in this order.
    order = [field.name for field in task.inputs]
    return {name: found[name] for name in sorted(found, key=lambda name: order.index(name) if name in order else -1)}


def _without_request(content: str) -> str:
    # The last one: an input may quote a prompt.
    requests = list(_REQUEST.finditer(content))
    return content[: requests[-1].start()] if requests else content


def _read_demos(
    turns: Sequence[PromptTurn], form: PromptForm, asked: frozenset[str], given: frozenset[str]
) -> Iterator[Demo]:
    for user, assistant in pairwise(turns):
        if (user.role, assistant.role) != ("user", "assistant"):
            continue
        outputs = _read_outputs(assistant.content, form, given)
        # A demo of which only some fields are known shows a text in the place of the others.
        supplied = {name: text for name, text in outputs.items() if not text.strip().startswith(_MISSING)}
        if supplied:
            yield Demo(_read_fields(_without_request(user.content), form, asked), supplied)


def _read_outputs(content: str, form: PromptForm, names: frozenset[str]) -> Mapping[str, str]:
    if form != "json":
        return _read_fields(content, form, names)
    try:
        values = json.loads(content)
    except ValueError:
        return {}
    return {k: _as_text(v) for k, v in values.items() if k in names} if isinstance(values, dict) else {}


@lru_cache(maxsize=2_048)  # the demos of a predictor are in each of its prompts
def _read_fields(content: str, form: PromptForm, names: frozenset[str]) -> Mapping[str, str]:
    """The fields of one message. Only the first header of a known name counts: inputs may quote other prompts."""
    if form == "xml":
        return MappingProxyType({name: text.strip() for name, text in _TAG.findall(content) if name in names})
    heads: list[re.Match[str]] = []
    for match in _HEADER.finditer(content):
        name = match.group(1)
        if name == "completed" or (name in names and name not in {head.group(1) for head in heads}):
            heads.append(match)
    starts = [head.start() for head in heads]
    return MappingProxyType(
        {
            head.group(1): content[head.end() : end].strip()
            for head, end in zip(heads, [*starts[1:], len(content)], strict=False)
            if head.group(1) in names
        }
    )


@lru_cache(maxsize=512)
def _read_task(system: str) -> _Task:
    head, found, objective = system.partition(_OBJECTIVE)
    inputs_text, found_outputs, outputs = head.partition("\nYour output fields are:\n")
    if not found_outputs:
        return _Task(system, (), ())
    listing = re.split(r"\n(?:All interactions|\n)", outputs, maxsplit=1)[0]
    notes = _read_notes(outputs)
    instructions = textwrap.dedent(objective.strip("\n")).strip() if found else ""
    inputs = tuple(_list_fields(inputs_text.splitlines(), {}))
    return _Task(instructions, inputs, tuple(_list_fields(listing.splitlines(), notes)))


def _list_fields(lines: Iterable[str], notes: Mapping[str, str]) -> Iterator[PromptField]:
    current: list[str] | None = None
    for line in [*lines, "0. `end` (str):"]:
        match = _FIELD.match(line)
        if match:
            if current:
                yield _field(current[0], current[1], "\n".join(current[2:]).strip(), notes.get(current[0], ""))
            current = [match.group(1), match.group(2), match.group(3) or ""]
        elif current:
            current.append(line)


def _read_notes(structure: str) -> dict[str, str]:
    """The notes of the prompt on the values of its output fields, by name."""
    start = structure.find("Outputs will be a JSON object with the following fields.")
    brace = structure.find("{", start) if start >= 0 else -1
    lines: Iterable[str] = structure.splitlines()
    if brace >= 0:
        try:
            shown, _ = json.JSONDecoder().raw_decode(structure, brace)
            lines = [str(text) for text in shown.values()]
        except (ValueError, AttributeError):
            pass  # another adapter shows the structure in another way: its lines are read
    return {match.group(1): match.group(2) for line in lines if (match := _NOTE.search(line))}


def _field(name: str, type_: str, description: str, note: str) -> PromptField:
    choices = _literal_values(type_)
    if not choices and " one of: " in note:
        choices = tuple(note.split(" one of: ", 1)[1].split("; "))
    if choices and "[" not in type_.removeprefix("Literal[").removeprefix("Union[Literal["):
        return PromptField(name, type_, description, "choice", choices)
    if type_ == "bool":
        return PromptField(name, type_, description, "bool", ("True", "False"))
    if type_ in ("int", "float"):
        return PromptField(name, type_, description, "number")
    marker = "must adhere to the JSON schema: "
    if marker in note:
        schema = json.loads(note.split(marker, 1)[1])
        return PromptField(name, type_, description, "json", choices, MappingProxyType(schema))
    return PromptField(name, type_, description, "text")


def _literal_values(type_: str) -> tuple[str, ...]:
    start = type_.find("Literal[")
    if start < 0:
        return ()
    end = type_.find("]", start)
    # The values of a `Literal` may hold brackets themselves.
    while end >= 0:
        try:
            values = ast.literal_eval(type_[start + len("Literal") : end + 1])
        except (ValueError, SyntaxError):
            end = type_.find("]", end + 1)  # a bracket inside a value
            continue
        return tuple(str(value) for value in values)
    return ()


# The engine of the LMs for tests: a `dspy.LM`, sync, async and streamed, of a function from a prompt to a text.


_CHUNK = re.compile(r"\s*\S+\s*")


@dataclass(slots=True)
class Sampling:
    """The settings by which an answer may vary.

    Attributes:
        temperature: 0 for always the best answer.
        rollout: the rollout id of the call, None if it has none.
        candidate: the number of the answer among the `n` of one call, from 0.
    """

    temperature: float = 0.0
    rollout: int | None = None
    candidate: int = 0


AnswerWriter = Callable[[Prompt, Sampling], str | LMAnswer]
"""Writes the answer to one prompt: a text, or an `LMAnswer` with tool calls."""

_current_sampling: ContextVar[Sampling | None] = ContextVar("dspyer_testing_sampling", default=None)


class TextEngine:
    """A synchronous engine of `dspy.LM`."""

    supports_function_calling = True

    def __init__(self, writer: AnswerWriter) -> None:
        self.writer = writer

    def complete(self, request: Request) -> Response:
        """The response to a request."""
        written = self.writer(prompt_of(request), _next_sampling(request))
        answer = LMAnswer(written) if isinstance(written, str) else written
        # Calls are numbered through the whole conversation, so that no two of them share an id.
        before = sum(part.type == "tool_call" for message in request.messages for part in message.parts)
        parts: list[Any] = [
            ToolCallPart(id=call.id or f"call_{number}", name=call.name, input=dict(call.args))
            for number, call in enumerate(answer.calls, before)
        ]
        # Counted as a provider counts them: calls are output, too.
        outputs = [answer.text, *(f"{call.name} {json.dumps(call.input)}" for call in parts)]
        read = sum(count_tokens(turn.content) for turn in turns_of(request))
        usage = Usage(input_tokens=read, output_tokens=sum(map(count_tokens, outputs)))
        reason: Any = "tool_call" if parts else "stop"
        parts = [TextPart(text=answer.text), *parts] if answer.text or not parts else parts
        message = Message(role="assistant", parts=tuple(parts))
        return Response(id=None, model=request.model, message=message, finish_reason=reason, usage=usage)

    def stream(self, request: Request) -> Iterator[Any]:
        """The response to a request, word by word."""
        response = self.complete(request)
        yield StreamStartEvent(id=None, model=request.model)
        for index, part in enumerate(response.message.parts):
            if isinstance(part, ToolCallPart):
                name: str | None = part.name  # in the first piece, as providers send it
                for chunk in _CHUNK.findall(json.dumps(part.input)):
                    delta = ToolCallDelta(input=chunk, part_index=index, id=part.id if name else None, name=name)
                    yield StreamDeltaEvent(delta=delta)
                    name = None
            elif isinstance(part, TextPart):
                for chunk in _CHUNK.findall(part.text) or [part.text]:
                    yield StreamDeltaEvent(delta=TextDelta(text=chunk, part_index=index))
        yield StreamEndEvent(finish_reason=response.finish_reason, usage=response.usage)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class AsyncTextEngine:
    """The same engine for `await`. It answers on the caller's event loop and never waits."""

    def __init__(self, engine: TextEngine) -> None:
        self.engine = engine

    async def complete(self, request: Request) -> Response:
        """The response to a request."""
        return self.engine.complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The response to a request, word by word."""
        # The whole response is there at once: nothing has to be awaited.
        for event in self.engine.stream(request):
            yield event

    async def aclose(self) -> None:
        """Does nothing: there is nothing to close."""


class TextLM(dspy.LM):
    """A `dspy.LM` whose answers an `AnswerWriter` writes. By default it does not cache or retry; it has no network."""

    def __init__(self, model: str, writer: AnswerWriter, **kwargs: Any) -> None:
        engine = TextEngine(writer)
        # A cache would hide calls from a test, and a retry would use up a second answer.
        defaults = {"cache": False, "num_retries": 0}
        super().__init__(model, engine=engine, async_engine=AsyncTextEngine(engine), **{**defaults, **kwargs})

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As `dspy.LM.__call__`, with the sampling settings for the writer."""
        with _sampling({**self.kwargs, **kwargs}):
            return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As `dspy.LM.acall`, with the sampling settings for the writer."""
        with _sampling({**self.kwargs, **kwargs}):
            return await super().acall(prompt, messages=messages, **kwargs)


def count_tokens(text: str) -> int:
    """The tokens of a text as these LMs report them: one per word."""
    return len(text.split())


def turns_of(request: Request) -> tuple[PromptTurn, ...]:
    """The messages of a request as texts, with the results of tools; other parts that are no text are left out."""
    system = request.system
    turns = [] if system is None else [PromptTurn("system", system if isinstance(system, str) else _text(system))]
    turns.extend(PromptTurn(message.role, _text(message.parts)) for message in request.messages)
    return tuple(turns)


def prompt_of(request: Request) -> Prompt:
    """Read the prompt of a request."""
    tools = [tool for tool in request.tools or () if tool.type == "function"]
    choice = request.config.tool_choice
    must_call: Any = ()
    if choice is not None and choice.mode == "required":
        must_call = choice.allowed or [tool.name for tool in tools]
    known = [Tool(tool.name, tool.description or "", tool.parameters or {}) for tool in tools]
    return read_prompt(turns_of(request), known, must_call)


def _text(parts: Any) -> str:
    texts = [part.text for part in parts if getattr(part, "type", "") == "text"]
    texts += [_text(part.content) for part in parts if getattr(part, "type", "") == "tool_result"]
    return "".join(texts)


@contextmanager
def _sampling(settings: Mapping[str, Any]) -> Iterator[None]:
    """Passes rollout and candidate to the engine in a context variable: DSPy removes both from the request."""
    token = _current_sampling.set(Sampling(settings.get("temperature") or 0.0, settings.get("rollout_id")))
    try:
        yield
    finally:
        _current_sampling.reset(token)


def _next_sampling(request: Request) -> Sampling:
    call = _current_sampling.get()
    if call is None:
        return Sampling(request.config.temperature or 0.0)
    current = Sampling(call.temperature, call.rollout, call.candidate)
    # One call of DSPy asks for several candidates by one request each.
    call.candidate += 1
    return current

"""`ScriptedLM`: an LM that gives the answers of a test's script, and fails at calls that the script does not expect.

All copies of one `ScriptedLM` share one `AnswerScript`, which holds the answers and records the calls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import dspy
from dspy import LMError
from pydantic import ValidationError

from dspyer.errors import ScriptError, annotate
from dspyer.lm.not_public import BaseCallback
from dspyer.testing.prompt import LMAnswer, Prompt, PromptCall, Sampling, TextLM, write_answer


class ScriptedLM(TextLM):
    """An LM for tests that answers by a script.

    Copies (`deepcopy`, `copy(rollout_id=...)`) share the script and the recorded calls, so optimizers can be tested
    too. As a context manager it is the LM of the block (`dspy.context`) and calls `assert_used` at its end. An error
    that the block raised is raised as it is, and what `assert_used` has found is a note of it; the error of a run that
    failed in the block is the cause of the `ScriptError`.

    Args:
        script: what to answer, one of

            - a list of answers, given in order;
            - a mapping from match to answer, or a list of pairs (match, answer): a call gets an answer of the first
              match that has one left, so parallel branches get the same answers in any order. A match is a text that
              an input of the call contains, `Asks(...)`, or a function of the `Prompt`. A list of answers is used up
              in order, a single answer serves every call that matches;
            - a function from `Prompt` to answer.

            An answer is a text (the raw answer of the LM), a dict of output fields (written in the form that the
            adapter asks for), an exception to raise as DSPy does (of `dspy.utils.exceptions`; any other one becomes an
            `LMUnexpectedError`), or a function from `Prompt` to one of these. DSPy reads None of a field `str | None`
            as the text "None", of any LM, unless the adapter is a `dspy.JSONAdapter`. A field of tool calls is a list
            of `{"name": ..., "args": {...}}`, each with an `id` if it matters: they are returned as native calls if
            the request offers tools.
        model: name of the model, in histories and usage.
        **kwargs: settings of `dspy.LM`; by default it does not cache and does not retry.

    Raises:
        TypeError: the script is none of these.

    Example:
        >>> with ScriptedLM([{"answer": "Paris"}]) as lm:
        ...     dspy.Predict("question -> answer")(
        ...         question="Capital of France?").answer
        'Paris'
        >>> lm.calls[0].prompt.inputs["question"]
        'Capital of France?'
    """

    def __init__(
        self,
        script: Mapping[Any, Any] | Sequence[Any] | Callable[[Prompt], Any],
        *,
        model: str = "scripted",
        **kwargs: Any,
    ) -> None:
        self._script = AnswerScript(rules_of(script))
        super().__init__(model, self._script.write, **kwargs)

    @property
    def calls(self) -> list[ScriptedCall]:
        """The calls so far, of this LM and all its copies, in the order in which they were answered."""
        return list(self._script.calls)

    def assert_used(self) -> None:
        """Checks that every answer was used and that the script had an answer for every call.

        Raises:
            ScriptError: if not, even if the error of an unexpected call was caught by the program.

        Example:
            >>> lm = ScriptedLM([{"answer": "Paris"}])
            >>> lm.assert_used()
            Traceback (most recent call last):
            ...
            dspyer.errors.ScriptError: the script was not followed:
              - not used: 1 of 1 answers
        """
        problems = self._script.problems()
        if problems:
            raise ScriptError("the script was not followed:\n" + "\n".join(f"  - {problem}" for problem in problems))

    def __enter__(self) -> Self:
        stack, failed = ExitStack(), _LastError()
        # The error of a run that does not raise is often why answers are left.
        stack.enter_context(dspy.context(lm=self, callbacks=[*(dspy.settings.callbacks or ()), failed]))
        self._script.entered.append((stack, failed))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # In the script and not here: an optimizer may copy the LM inside of the block.
        stack, failed = self._script.entered.pop()
        stack.close()
        try:
            self.assert_used()
        except ScriptError as unfollowed:
            if error is None:
                raise unfollowed from failed.error
            annotate(error, str(unfollowed))

    def dump_state(self) -> NoReturn:
        """Refuses to save the LM: a script belongs to its test.

        Raises:
            TypeError: always.

        Example:
            >>> ScriptedLM([]).dump_state()
            Traceback (most recent call last):
            ...
            TypeError: a ScriptedLM is not saved: its script lives in the test. Save the
            program without it ...
        """
        raise TypeError(
            "a ScriptedLM is not saved: its script lives in the test. Save the program without it "
            "(set_lm(None)), or set the LM with dspy.context(lm=...)"
        )


class _LastError(BaseCallback):
    """Keeps the last exception of a module: `program.run` does not raise it, and it may be why answers are unused."""

    error: BaseException | None = None

    def on_module_end(self, call_id: str, outputs: object, exception: BaseException | None = None) -> None:
        """Keep an exception."""
        del call_id, outputs
        self.error = exception or self.error


class Asks:
    """Matches calls by their output fields and their inputs, in the script of a `ScriptedLM`.

    Args:
        *fields: names of output fields that the call must ask for.
        **inputs: for each named input field, a text that it must contain.

    Example:
        >>> Asks("category", text="invoice")
        Asks('category', text='invoice')
    """

    def __init__(self, *fields: str, **inputs: str) -> None:
        self.fields = fields
        self.inputs = inputs

    def __call__(self, prompt: Prompt) -> bool:
        """Return whether a call matches."""
        return set(self.fields) <= set(prompt.asks) and all(
            text in prompt.inputs.get(name, "") for name, text in self.inputs.items()
        )

    def __repr__(self) -> str:
        arguments = [*map(repr, self.fields), *(f"{name}={text!r}" for name, text in self.inputs.items())]
        return f"Asks({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call of a scripted LM, an item of `lm.calls`.

    Attributes:
        prompt: the parts of the prompt of the call: its messages in `prompt.turns`, and `prompt.inputs`, `prompt.asks`,
            `prompt.demos`.
        answer: the text of the answer, None if the call raised.
        error: the exception that the call raised, None if it was answered.
        tool_calls: the native tool calls of the answer.

    Example:
        >>> with ScriptedLM([{"answer": "Paris"}]) as lm:
        ...     _ = dspy.Predict("question -> answer")(
        ...         question="Capital of France?")
        >>> lm.calls[0].prompt.asks, lm.calls[0].messages[-1]["role"]
        (('answer',), 'user')
    """

    prompt: Prompt
    answer: str | None = None
    error: BaseException | None = None
    tool_calls: tuple[PromptCall, ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages as `role` and `content`."""
        return [{"role": turn.role, "content": turn.content} for turn in self.prompt.turns]


class UnexpectedCallError(ScriptError, LMError):
    """A call for which the script of a `ScriptedLM` has no answer.

    Example:
        >>> with dspy.context(lm=ScriptedLM([])):
        ...     dspy.Predict("question -> answer")(question="Capital of France?")
        Traceback (most recent call last):
        ...
        dspyer.testing.scripted.UnexpectedCallError: unexpected LM call 1: ...
    """

    def __init__(self, message: str) -> None:
        LMError.__init__(self, message)


# --- the script: which answer a call gets, the recorded calls, and the answers that were not used

ScriptedAnswer = str | Mapping[str, object] | BaseException | Callable[[Prompt], Any]
Match = str | Callable[[Prompt], bool]

_SHOWN = 60  # characters of an input in an error


class AnswerRule:
    """The answers for the calls that match: a single one for any number of calls, or a list, used up in order."""

    def __init__(self, match: Match | None, answers: ScriptedAnswer | Sequence[ScriptedAnswer]) -> None:
        self.match = match
        self.several = isinstance(answers, Sequence) and not isinstance(answers, str)
        self.answers: list[Any] = [*answers] if isinstance(answers, Sequence) and self.several else [answers]
        self.used = 0
        for answer in self.answers:
            if not (isinstance(answer, str | Mapping | BaseException) or callable(answer)):
                raise TypeError(_invalid_answer(answer))

    def matches(self, prompt: Prompt) -> bool:
        """Return whether the answers are for this call."""
        if self.match is None:
            return True
        if isinstance(self.match, str):
            return any(self.match in text for text in prompt.inputs.values())
        return self.match(prompt)

    def has_answer(self) -> bool:
        """Return whether an answer is left for one more call."""
        return not self.several or self.used < len(self.answers)

    def take(self) -> Any:
        """The next answer."""
        answer = self.answers[self.used if self.several else 0]
        self.used += 1
        return answer

    def unused(self) -> str:
        """A text about the answers that were not used, empty if all were."""
        if (self.used and not self.several) or self.used >= len(self.answers):
            return ""
        where = "" if self.match is None else f"{self.match!r}: "
        return f"{where}{len(self.answers) - self.used} of {len(self.answers)} answers"


class AnswerScript:
    """The rules with their answers and the recorded calls, shared by all copies of one `ScriptedLM`."""

    def __init__(self, rules: Iterable[AnswerRule]) -> None:
        self.rules = list(rules)
        self.calls: list[ScriptedCall] = []
        self.lock = threading.Lock()
        self.entered: list[tuple[ExitStack, _LastError]] = []  # the blocks of `with`, which no copy could hold

    def __deepcopy__(self, memo: dict[int, Any]) -> AnswerScript:
        return self  # a copy of a program uses up the same answers as the program

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ScriptedLM cannot be pickled: all its copies share one script and its calls, in this process. "
            "Set it with dspy.context(lm=...) instead of on a predictor that is pickled"
        )

    def write(self, prompt: Prompt, _sampling: Sampling, /) -> LMAnswer:
        """The answer to one call."""
        with self.lock:
            # Under the lock: two threads must not get one answer of a list.
            rule = next((rule for rule in self.rules if rule.matches(prompt) and rule.has_answer()), None)
            answer = rule.take() if rule else UnexpectedCallError(self._unexpected(prompt))
        try:
            written = _written(answer, prompt)
        except BaseException as error:  # an answer may be any exception, KeyboardInterrupt too
            # Recorded though it raises: `assert_used` reports an unexpected call that the program has caught.
            self._record(ScriptedCall(prompt, error=error))
            raise
        self._record(ScriptedCall(prompt, answer=written.text, tool_calls=written.calls))
        return written

    def problems(self) -> list[str]:
        """The unexpected calls and the unused answers, as texts."""
        with self.lock:
            found = [str(call.error) for call in self.calls if isinstance(call.error, ScriptError)]
            unused = [text for rule in self.rules if (text := rule.unused())]
        return found + [f"not used: {text}" for text in unused]

    def _record(self, call: ScriptedCall) -> None:
        with self.lock:
            self.calls.append(call)

    def _unexpected(self, prompt: Prompt) -> str:
        matching = [rule for rule in self.rules if rule.matches(prompt)]
        if matching:
            used = sum(len(rule.answers) for rule in matching)
            why = f"all {used} answers that fit it are used" if used > 1 else "the one answer that fits it is used"
            why = why if used else "the script expects no call"
        else:
            why = (
                f"none of the {len(self.rules)} matches of the script fits it" if self.rules else "the script is empty"
            )
        return f"unexpected LM call {len(self.calls) + 1}: {why}. {_call_text(prompt)}{self._retry_note(prompt)}"

    def _retry_note(self, prompt: Prompt) -> str:
        last = self.calls[-1] if self.calls else None
        if last is None or last.answer is None or prompt.form != "json" or last.prompt.form != "chat":
            return ""
        # Another call, which has nothing to do with the last answer.
        if dict(last.prompt.inputs) != dict(prompt.inputs):
            return ""
        return f". DSPy asks again in JSON because it could not parse the answer before: {_short(last.answer)!r}"


def rules_of(script: Any) -> list[AnswerRule]:
    """The rules of a script in any of its forms, see `ScriptedLM`."""
    if callable(script):
        return [AnswerRule(None, script)]
    if isinstance(script, Mapping):
        return [AnswerRule(match, answers) for match, answers in script.items()]
    if not isinstance(script, Sequence) or isinstance(script, str):
        raise TypeError(
            f"a script is a list of answers, a mapping from match to answer, a list of pairs, or a function, "
            f"not {type(script).__name__}"
        )
    # An answer is never a tuple, so pairs and answers cannot be taken for each other.
    pairs = [isinstance(item, tuple) and len(item) == 2 for item in script]
    # A list of pairs with one lone answer is a mistake that would otherwise match nothing.
    if any(pairs):
        if not all(pairs):
            lone = next(item for item, paired in zip(script, pairs, strict=True) if not paired)
            raise TypeError(
                "a script is a list of answers or a list of pairs (match, answer), not both: its item "
                f"[{pairs.index(False)}] is no pair but {_short(repr(lone))}. Give it a match, such as Asks('answer')"
            )
        return [AnswerRule(match, answers) for match, answers in script]
    return [AnswerRule(None, list(script))]


def _written(answer: Any, prompt: Prompt) -> LMAnswer:
    # Before `callable`: a class of exceptions is callable, too.
    if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
        raise answer
    if isinstance(answer, str):
        return LMAnswer(answer)
    if isinstance(answer, Mapping):
        return _written_fields(answer, prompt)
    if callable(answer):
        return _written(answer(prompt), prompt)
    raise UnexpectedCallError(_invalid_answer(answer))


def _invalid_answer(answer: object) -> str:
    return (
        f"an answer of a script is a text, a dict of output fields, an exception or a function from a Prompt to one "
        f"of these, not {type(answer).__name__}"
    )


def _written_fields(answer: Mapping[str, object], prompt: Prompt) -> LMAnswer:
    calls: tuple[PromptCall, ...] = ()
    if prompt.tools:
        called = {name: _tool_calls(value) for name, value in answer.items() if name not in prompt.asks}
        calls = tuple(call for found in called.values() for call in found or ())
        answer = {name: value for name, value in answer.items() if called.get(name) is None}
        if calls and not answer:
            return LMAnswer("", calls)
    # Nothing names the fields that it asks for.
    if prompt.form == "plain":
        return LMAnswer(json.dumps(dict(answer)), calls)
    unknown = [name for name in answer if name not in prompt.asks]
    missing = [name for name in prompt.asks if name not in answer and name != "reasoning"]
    wrong = [f"{verb} {', '.join(names)}" for verb, names in (("it lacks", missing), ("it has", unknown)) if names]
    if wrong:
        raise UnexpectedCallError(
            f"an answer of the script does not fit the call: {'; '.join(wrong)}. {_call_text(prompt)}"
        )
    # `reasoning` may be left out: few tests are about it.
    values = {name: answer.get(name, "") for name in prompt.asks}
    return LMAnswer(write_answer(prompt, values), calls)


def _tool_calls(value: Any) -> tuple[PromptCall, ...] | None:
    """The calls in a value that `dspy.ToolCalls` accepts; None for any other value."""
    try:
        found = dspy.ToolCalls.model_validate(value)
    except ValidationError:
        return None
    return tuple(PromptCall(call.name, call.args or {}, call.id) for call in found.tool_calls)


def _call_text(prompt: Prompt) -> str:
    inputs = ", ".join(f"{name}={_short(text)!r}" for name, text in prompt.inputs.items())
    asked = ", ".join(prompt.asks) or "a plain text"
    return f"The call asks for {asked}, with inputs {inputs}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"

"""An LM that says what a test wrote down, and complains about every call that the test did not expect."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import dspy
from dspy.utils.exceptions import LMError
from pydantic import ValidationError

from dspyer.errors import ScriptError
from dspyer.testing.prompt import LMAnswer, Prompt, ToolCall, write_answer
from dspyer.testing.text_engine import Sampling, TextLM


class ScriptedLM(TextLM):
    """An LM for tests that answers by a script.

    Copies (`deepcopy`, `copy(rollout_id=...)`) share the script and the record, so optimizers can be tested too.
    As a context manager it is the LM of the block (`dspy.context`) and calls `assert_used` at its end.

    Args:
        script: what to answer, one of

            - a list of answers, given in order;
            - a mapping from match to answer, or a list of pairs (match, answer): the first match with an answer left
              counts, so parallel branches get the same answers in any order. A match is a text that an input of
              the call contains, `Asks(...)`, or a function of the `Prompt`. A list of answers is used up in order, a
              single answer serves every call that matches;
            - a function from `Prompt` to answer.

            An answer is a text (raw, as the LM would say it), a dict of output fields (written in the form that the
            adapter asks for), an exception to raise, or a function from `Prompt` to one of these.
        model: name of the model, in histories and usage.
        **kwargs: settings of `dspy.LM`; by default it does not cache and does not retry.

    Raises:
        TypeError: the script is none of these.

    Example:
        >>> with ScriptedLM([{"answer": "Paris"}]) as lm:
        ...     dspy.Predict("question -> answer")(question="Capital of France?").answer
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
        self._entered: list[ExitStack] = []
        super().__init__(model, self._script, **kwargs)

    @property
    def calls(self) -> list[LMCall]:
        """The calls so far, of this LM and all its copies, in the order in which they were answered."""
        return list(self._script.calls)

    def assert_used(self) -> None:
        """Checks that everything went by the script.

        Raises:
            ScriptError: an answer was not used, or a call came that the script has no answer for, even if somebody
                swallowed the error of that call.
        """
        problems = self._script.problems()
        if problems:
            raise ScriptError("the script was not followed:\n" + "\n".join(f"  - {problem}" for problem in problems))

    def __enter__(self) -> Self:
        stack = ExitStack()
        stack.enter_context(dspy.context(lm=self))
        self._entered.append(stack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().close()
        if error is None:
            self.assert_used()

    def dump_state(self) -> NoReturn:
        """Refuses: a script lives in its test.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a ScriptedLM is not saved: its script lives in the test. Save the program without it "
            "(set_lm(None)), or set the LM with dspy.context(lm=...)"
        )


# --------------------------------------------------------------------------------------------------------------------
# The script behind a `ScriptedLM`: which answer a call gets, what was asked, and what was not used.

ScriptedAnswer = str | Mapping[str, object] | BaseException | Callable[[Prompt], Any]
Match = str | Callable[[Prompt], bool]

_SHOWN = 60  # characters of an input that an error shows


class UnexpectedCallError(ScriptError, LMError):
    """A call that the script of a `ScriptedLM` has no answer for."""

    def __init__(self, message: str) -> None:
        LMError.__init__(self, message)


@dataclass(frozen=True, slots=True)
class LMCall:
    """One call of a scripted LM.

    Attributes:
        prompt: what the call said: `messages` in `prompt.turns`, `prompt.inputs`, `prompt.asks`, `prompt.demos`.
        answer: the text that was answered, None if the call raised.
        tool_calls: the tools that the answer called natively.
        error: what the call raised, None if it was answered.
    """

    prompt: Prompt
    answer: str | None = None
    error: BaseException | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages as `role` and `content`."""
        return [{"role": turn.role, "content": turn.content} for turn in self.prompt.turns]


class Asks:
    """Matches calls by the fields that they ask for and by their inputs.

    Args:
        *fields: names of output fields that the call has to ask for.
        **inputs: for each named input field, a text that it has to contain.

    Example:
        >>> Asks("category", text="invoice")
        Asks('category', text='invoice')
    """

    def __init__(self, *fields: str, **inputs: str) -> None:
        self.fields = fields
        self.inputs = inputs

    def __call__(self, prompt: Prompt) -> bool:
        """Tells whether a call matches."""
        return set(self.fields) <= set(prompt.asks) and all(
            text in prompt.inputs.get(name, "") for name, text in self.inputs.items()
        )

    def __repr__(self) -> str:
        shown = [*map(repr, self.fields), *(f"{name}={text!r}" for name, text in self.inputs.items())]
        return f"Asks({', '.join(shown)})"


class Rule:
    """Answers for one kind of call. A single answer serves any number of calls, a list is used up in order."""

    def __init__(self, match: Match | None, answers: ScriptedAnswer | Sequence[ScriptedAnswer]) -> None:
        self.match = match
        self.several = isinstance(answers, Sequence) and not isinstance(answers, str)
        self.answers: list[Any] = [*answers] if isinstance(answers, Sequence) and self.several else [answers]
        self.used = 0
        for answer in self.answers:
            if not (isinstance(answer, str | Mapping | BaseException) or callable(answer)):
                raise TypeError(_no_answer(answer))

    def meets(self, prompt: Prompt) -> bool:
        """Whether the answers are meant for this call."""
        if self.match is None:
            return True
        if isinstance(self.match, str):
            return any(self.match in text for text in prompt.inputs.values())
        return self.match(prompt)

    def left(self) -> bool:
        """Whether there is an answer for one more call."""
        return not self.several or self.used < len(self.answers)

    def take(self) -> Any:
        """The next answer."""
        answer = self.answers[self.used if self.several else 0]
        self.used += 1
        return answer

    def unused(self) -> str:
        """What of the answers was not used, empty if all were."""
        if (self.used and not self.several) or self.used >= len(self.answers):
            return ""
        where = "" if self.match is None else f"{self.match!r}: "
        return f"{where}{len(self.answers) - self.used} of {len(self.answers)} answers"


class AnswerScript:
    """The answers and the record, shared by all copies of one `ScriptedLM`."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = list(rules)
        self.calls: list[LMCall] = []
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> AnswerScript:
        return self  # copies of a program are asked in turn, as the program itself would be

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ScriptedLM cannot be pickled: all its copies share one script and one record, in this process. "
            "Set it with dspy.context(lm=...) instead of on a predictor that is pickled"
        )

    def write(self, prompt: Prompt, _sampling: Sampling, /) -> LMAnswer:
        """Answers one call by the script."""
        with self.lock:
            rule = next((rule for rule in self.rules if rule.meets(prompt) and rule.left()), None)
            answer = rule.take() if rule else UnexpectedCallError(self._unexpected(prompt))
        try:
            said = _written(answer, prompt)
        except BaseException as error:
            self._record(LMCall(prompt, error=error))
            raise
        self._record(LMCall(prompt, answer=said.text, tool_calls=said.calls))
        return said

    def problems(self) -> list[str]:
        """What did not go by the script."""
        with self.lock:
            found = [str(call.error) for call in self.calls if isinstance(call.error, ScriptError)]
            unused = [text for rule in self.rules if (text := rule.unused())]
        return found + [f"not used: {text}" for text in unused]

    def _record(self, call: LMCall) -> None:
        with self.lock:
            self.calls.append(call)

    def _unexpected(self, prompt: Prompt) -> str:
        fit = [rule for rule in self.rules if rule.meets(prompt)]
        if fit:
            used = sum(len(rule.answers) for rule in fit)
            why = f"all {used} answers that fit it are used" if used > 1 else "the one answer that fits it is used"
            why = why if used else "the script expects no call"
        else:
            why = (
                f"none of the {len(self.rules)} matches of the script fits it" if self.rules else "the script is empty"
            )
        return f"unexpected LM call {len(self.calls) + 1}: {why}. {_shown(prompt)}{self._retry_note(prompt)}"

    def _retry_note(self, prompt: Prompt) -> str:
        last = self.calls[-1] if self.calls else None
        if last is None or last.answer is None or prompt.form != "json" or last.prompt.form != "chat":
            return ""
        if dict(last.prompt.inputs) != dict(prompt.inputs):
            return ""
        return f". DSPy asks again in JSON because it could not parse the answer before: {_short(last.answer)!r}"


def rules_of(script: Any) -> list[Rule]:
    """The rules of a script in any of its forms, see `ScriptedLM`."""
    if callable(script):
        return [Rule(None, script)]
    if isinstance(script, Mapping):
        return [Rule(match, answers) for match, answers in script.items()]
    if not isinstance(script, Sequence) or isinstance(script, str):
        raise TypeError(
            f"a script is a list of answers, a mapping from match to answer, a list of pairs, or a function, "
            f"not {type(script).__name__}"
        )
    pairs = [isinstance(item, tuple) and len(item) == 2 for item in script]
    if any(pairs):
        if not all(pairs):
            lone = next(item for item, paired in zip(script, pairs, strict=True) if not paired)
            raise TypeError(
                "a script is a list of answers or a list of pairs (match, answer), not both: its item "
                f"[{pairs.index(False)}] is no pair but {_short(repr(lone))}. Give it a match, such as Asks('answer')"
            )
        return [Rule(match, answers) for match, answers in script]
    return [Rule(None, list(script))]


def _written(answer: Any, prompt: Prompt) -> LMAnswer:
    if isinstance(answer, type) and issubclass(answer, BaseException):
        raise answer
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, str):
        return LMAnswer(answer)
    if isinstance(answer, Mapping):
        return _written_fields(answer, prompt)
    if callable(answer):
        return _written(answer(prompt), prompt)
    raise UnexpectedCallError(_no_answer(answer))


def _no_answer(answer: object) -> str:
    return (
        f"an answer of a script is a text, a dict of output fields, an exception or a function from a Prompt to one "
        f"of these, not {type(answer).__name__}"
    )


def _written_fields(answer: Mapping[str, object], prompt: Prompt) -> LMAnswer:
    calls: tuple[ToolCall, ...] = ()
    if prompt.tools:
        called = {name: _tool_calls(value) for name, value in answer.items() if name not in prompt.asks}
        calls = tuple(call for found in called.values() for call in found or ())
        answer = {name: value for name, value in answer.items() if called.get(name) is None}
        if calls and not answer:
            return LMAnswer("", calls)
    if prompt.form == "plain":
        return LMAnswer(json.dumps(dict(answer)), calls)
    unknown = [name for name in answer if name not in prompt.asks]
    missing = [name for name in prompt.asks if name not in answer and name != "reasoning"]
    if unknown or missing:
        raise UnexpectedCallError(
            f"an answer of the script does not fit the call: "
            f"{'; '.join([*_names('it lacks', missing), *_names('it has', unknown)])}. {_shown(prompt)}"
        )
    values = {name: answer.get(name, "") for name in prompt.asks}
    return LMAnswer(write_answer(prompt, values), calls)


def _tool_calls(value: Any) -> tuple[ToolCall, ...] | None:
    """The calls in a value as DSPy's `ToolCalls` takes them; None if it is none."""
    try:
        found = dspy.ToolCalls.model_validate(value)
    except ValidationError:
        return None
    return tuple(ToolCall(call.name, call.args or {}) for call in found.tool_calls)


def _names(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what} {', '.join(names)}"] if names else []


def _shown(prompt: Prompt) -> str:
    inputs = ", ".join(f"{name}={_short(text)!r}" for name, text in prompt.inputs.items())
    asked = ", ".join(prompt.asks) or "a plain text"
    return f"The call asks for {asked}, with inputs {inputs}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"

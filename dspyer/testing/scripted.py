"""An LM that says what a test wrote down, and complains about every call that the test did not expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn, Self

import dspy

from dspyer.errors import ScriptError
from dspyer.testing.engine import TextLM
from dspyer.testing.prompt import Prompt
from dspyer.testing.script import AnswerScript, LMCall, rules_of


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

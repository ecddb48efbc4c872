"""Values and exceptions that do not want to travel: each gives what it gives here, or a clear loss."""

from __future__ import annotations

from typing import Any

import dspy
import httpx
import openai
import pytest
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError

from dspyer import END, START, CompiledGraph, Graph, Run
from dspyer.errors import ExecutorLost
from tests.executors.pools import BytesExecutor
from tests.executors.programs import WordLM
from tests.rows import each


class NoTextError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class UnloadedError(Exception):
    def __reduce__(self) -> Any:
        return int, ("no number",)


class UnsentError(Exception):
    def __reduce__(self) -> Any:
        raise OSError("not today")


class OtherError(Exception):
    """Is loaded as something that is no exception."""

    def __reduce__(self) -> Any:
        return int, ("3",)


class HoldingError(Exception):
    """Holds the program whose node has raised it, and itself."""

    def __init__(self, program: Any) -> None:
        super().__init__("held")
        self.program = program
        self.itself = self


class TwiceError(ValueError):
    """Its `args` are not what it takes, as with errors of most clients."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"no {name}")
        self.code = code


class NamedGroup(ExceptionGroup[Exception]):
    """Changes its text where it is made."""

    def __new__(cls, name: str, errors: list[Exception]) -> Any:
        return super().__new__(cls, f"group {name}", errors)


class DiskError(OSError):
    def __init__(self, path: str, *, free: int) -> None:
        super().__init__(28, "No space left", path)
        self.free = free


def of_a_client() -> BaseException:
    # Any: the client's type hints name httpx or httpx2, by its version.
    response: Any = httpx.Response(429, request=httpx.Request("POST", "http://localhost"), headers={"retry-after": "3"})
    return openai.RateLimitError("too many", response=response, body=None)


def unparsed() -> BaseException:
    parsed: Any = {"b": 1}
    error: BaseException = AdapterParseError("JSONAdapter", SIGNATURE, "no JSON", parsed_result=parsed)
    return error


SIGNATURE = dspy.Signature("a -> b")


def group() -> BaseException:
    error = ExceptionGroup("both", [ValueError(1), UnsentError(2)])
    error.add_note("of the group")
    error.__cause__ = KeyError("why")
    return error


ERRORS: dict[str, tuple[Any, type[BaseException], str]] = {
    "no text": (NoTextError, NoTextError, ""),
    "not loaded": (lambda: UnloadedError("a"), RuntimeError, "UnloadedError: a"),
    "not sent": (lambda: UnsentError("b"), RuntimeError, "UnsentError: b"),
    "another": (lambda: OtherError("c"), RuntimeError, "OtherError: c"),
    "arguments of its own": (lambda: TwiceError("tide", 7), TwiceError, "no tide"),
    "of the system": (lambda: DiskError("a.db", free=1), DiskError, "[Errno 28] No space left: 'a.db'"),
    "DSPy": (unparsed, AdapterParseError, ""),
    "DSPy's LM": (lambda: ContextWindowExceededError(model="m"), ContextWindowExceededError, ""),
    "OpenAI": (of_a_client, openai.RateLimitError, "too many"),
    "made in another way": (lambda: NamedGroup("a", [ValueError(1)]), NamedGroup, "group a (1 sub-exception)"),
    "a group": (group, ExceptionGroup, "both (2 sub-exceptions)"),
    "SystemExit": (lambda: SystemExit(3), SystemExit, "3"),
    "StopIteration": (lambda: StopIteration(3), StopIteration, "3"),
}


def fail(kind: str) -> dict[str, str]:
    error = ERRORS[kind][0]()
    raise error


@each("kind", ERRORS)
def test_exceptions(kind: str, pool: BytesExecutor) -> None:
    here = Graph().add_node("fail", fail, writes=["a"]).add_path(START, "fail", END).compile()
    _, expected, text = ERRORS[kind]
    with pytest.raises(BaseException) as local:
        here(kind=kind)
    with pytest.raises(expected) as caught:
        here.with_executor(pool)(kind=kind)
    found = caught.value
    assert type(found) is (type(local.value) if expected is not RuntimeError else expected)
    assert getattr(found, "__notes__", None) == getattr(local.value, "__notes__", None)
    if expected is not RuntimeError:
        assert repr(vars(found)) == repr(vars(local.value))
        assert len(found.args) == len(local.value.args)
    if text:
        assert str(found) == text or str(found) == str(local.value)
    if type(found) is ExceptionGroup:
        assert [type(one).__name__ for one in found.exceptions] == ["ValueError", "RuntimeError"]
        assert isinstance(found.__cause__, KeyError)
    else:
        assert "raise error" in str(found.__cause__)


class Holding(dspy.Module):
    def forward(self, q: str) -> dspy.Prediction:
        raise HoldingError(self)


def test_an_exception_that_holds_a_module_of_the_program_holds_that_of_the_caller(pool: BytesExecutor) -> None:
    far = Graph().add_node("hold", Holding(), reads=["q"], writes=["a"]).add_path(START, "hold", END).compile()
    far = far.with_executor(pool)
    with pytest.raises(HoldingError, match="held") as caught:
        far(q="1")
    assert caught.value.itself is caught.value
    assert type(caught.value.program) is Holding


def asking(**options: Any) -> CompiledGraph:
    return Graph().add_node("ask", dspy.Predict("q -> a")).add_path(START, "ask", END).compile(**options)


class UnsentLM(WordLM):
    """Gives a trace that cannot be pickled."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dspy.settings.trace.append((dspy.Predict("a -> b"), {"a": (one for one in "a")}, dspy.Prediction(b=1)))
        return super().__call__(*args, **kwargs)


def test_a_result_that_cannot_be_sent_back_is_a_loss_and_no_failure(pool: BytesExecutor) -> None:
    far = asking().with_executor(pool)
    with dspy.context(lm=UnsentLM()), pytest.raises(ExecutorLost, match=r"could not send back.*generator"):
        far(q="1")


def test_a_stored_outer_run_records_the_texts_of_a_worker(pool: BytesExecutor) -> None:
    found = []
    for inner in (asking(), asking().with_executor(pool)):
        graph = Graph().add_node("inner", inner).add_path(START, "inner", END)
        program = graph.compile(store=":memory:", record_lm_calls="full")
        with dspy.context(lm=WordLM()):
            run = program.thread("t").run({"q": "1"})
        found.append([(call.messages, call.response, call.model) for call in run.lm_calls])
    assert found[0] == found[1] != []


def test_a_redacted_program_hides_the_same(pool: BytesExecutor) -> None:
    texts = []
    for program in (asking(redact="a"), asking(redact="a").with_executor(pool)):
        with dspy.context(lm=WordLM()):
            run = Run.of(program(q="1"))
        commit = run.record().steps[-1].commit
        texts.append({} if commit is None else dict(commit.patch))
    assert texts == [{"a": "[redacted]"}] * 2


class Reordered(dspy.Module):
    """Has one predictor under two names, and its attributes in another order once it was pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = dspy.Predict("q -> a")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(dict(reversed(state.items())))

    def forward(self, q: str) -> dspy.Prediction:
        found: dspy.Prediction = self.first(q=q)
        return found


def test_a_module_may_have_its_attributes_in_another_order(pool: BytesExecutor) -> None:
    program = Graph().add_node("ask", Reordered(), reads=["q"], writes=["a"]).add_path(START, "ask", END).compile()
    with dspy.context(lm=WordLM(), trace=[]):
        program.with_executor(pool)(q="1")
        ((predictor, _, _),) = dspy.settings.trace
    assert predictor is program.ask.first


class Unloadable:
    """Is pickled, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Leaving(dspy.Module):
    """Calls predictors in a dict, one under a name that DSPy's modules have too, under equal texts, and an object."""

    def __init__(self) -> None:
        super().__init__()
        shared = dspy.Predict("q -> a")
        self.parts = {"history": shared, 1: dspy.Predict("q -> b"), "1": dspy.Predict("q -> c")}
        self.parts[object()] = dspy.Predict("q -> d")  # its text has the address
        self.again = [shared]

    def forward(self, q: str) -> dspy.Prediction:
        return dspy.Prediction(a=" ".join(f"{next(iter(part(q=q).values()))}" for part in self.parts.values()))


def test_each_step_has_the_predictor_of_the_caller(pool: BytesExecutor) -> None:
    program = Graph().add_node("leave", Leaving(), reads=["q"], writes=["a"]).add_path(START, "leave", END).compile()
    program.leave.parts = dict(reversed(program.leave.parts.items()))
    with dspy.context(lm=WordLM(), trace=[]):
        program.with_executor(pool)(q="1")
        found = [predictor for predictor, _, _ in dspy.settings.trace]
    assert [id(one) for one in found] == [id(one) for one in program.leave.parts.values()]


class LateLM(WordLM):
    """Gives a step to the trace whose inputs cannot be loaded."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dspy.settings.trace.append((dspy.Predict("a -> b"), {"a": Unloadable()}, dspy.Prediction(b=1)))
        return super().__call__(*args, **kwargs)


def test_a_result_that_cannot_be_loaded_is_a_loss(pool: BytesExecutor) -> None:
    with dspy.context(lm=LateLM()), pytest.raises(ExecutorLost, match="invalid literal for int"):
        asking().with_executor(pool)(q="1")


def test_a_run_that_cannot_be_loaded_is_no_failure_of_the_metric(pool: BytesExecutor, monkeypatch: Any) -> None:
    def metric(example: Any, prediction: Any, trace: Any = None) -> bool:
        return Run.of(prediction).status == "completed"

    def broken(*_: Any) -> Any:
        raise ImportError("another version")

    examples = [dspy.Example(q=str(n)).with_inputs("q") for n in range(3)]
    evaluate = dspy.Evaluate(devset=examples, metric=metric, num_threads=1, max_errors=99, display_progress=False)
    monkeypatch.setattr(Run, "__setstate__", broken, raising=False)
    with dspy.context(lm=WordLM()), pytest.raises(ExecutorLost, match="another version"):
        evaluate(asking().with_executor(pool))

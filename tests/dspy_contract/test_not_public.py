"""The names of DSPy that are not public, each alone: that it is there, and does what dspyer needs of it.

Who reads a red row here knows what another version of DSPy has changed, before anything else of dspyer has failed.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import dspy
import pytest

import dspyer
from dspyer.errors import DSPyVersionError
from dspyer.lm import not_public
from dspyer.testing import ScriptedLM
from tests.rows import each
from tests.syntax import tree_of

PACKAGE = Path(dspyer.__file__).parent
FILE = PACKAGE / "lm" / "not_public.py"
IMPORTED = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(FILE.read_text()))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dspy.")
    for alias in node.names
}
NAMED = {name for name in vars(not_public) if name.isupper() and name != "TESTED"} - IMPORTED.keys()
SETTINGS = {"CALLERS", "TRACKER", "SEND_STREAM", "LISTENERS", "TRACE", "TRACE_SIZE", "HISTORY_OFF", "HISTORY_SIZE"}

Law = Callable[[], None]
LAWS: dict[str, Law] = {}


def law(test: Law) -> Law:
    """Adds the law of the name that the function is called."""
    LAWS[test.__name__] = test
    return test


def ask(lm: Any = None, **settings: Any) -> dspy.Prediction:
    """One call of a predictor, with further settings of DSPy."""
    lm = lm or ScriptedLM([{"a": "blue"}])
    with dspy.context(lm=lm, **settings):
        return dspy.Predict("q -> a")(q="sky")


def stream(**settings: Any) -> list[Any]:
    """The chunks that such a call streams, with further settings of DSPy."""
    chunks = Stream()

    async def asked() -> None:
        with dspy.context(lm=ScriptedLM([{"a": "blue"}]), **{not_public.SEND_STREAM: chunks, **settings}):
            await dspy.Predict("q -> a").acall(q="sky")

    asyncio.run(asked())
    return chunks.chunks


class Stream:
    """What DSPy takes for the stream of a response."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []

    async def send(self, chunk: Any) -> None:
        self.chunks.append(chunk)


class Noting(not_public.BaseCallback):  # type: ignore[misc,unused-ignore]  # Any without DSPy's types
    """Notes LM calls: their id, and what runs here meanwhile."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.noted += [call_id, instance, inputs]

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        self.noted += [call_id, outputs, exception]


class History(list[Any]):
    """What DSPy takes for the history of a module."""

    def __init__(self) -> None:
        self.history = self


class Usages:
    """What DSPy takes for a usage tracker."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def add_usage(self, lm: str, usage: dict[str, Any]) -> None:
        self.found.append((lm, usage))


def request() -> Any:
    user = not_public.Message(role="user", parts=(not_public.TextPart(text="sky"),))
    return not_public.Request(model="m", messages=(user,), system="be brief")


# --- calls


@law
def BaseCallback() -> None:
    heard = Noting()
    ask(callbacks=[heard])
    begun, lm, inputs, ended, outputs, error = heard.noted
    assert begun == ended
    assert isinstance(lm, ScriptedLM)
    assert {"messages", "prompt", "kwargs"} <= inputs.keys()
    assert "blue" in str(outputs)
    assert error is None


@law
def CALLED() -> None:
    """The local variable from which a list of callbacks knows what is called."""
    called: list[Any] = []

    class Callbacks(list[Any]):
        def __add__(self, others: Any) -> Any:
            frame: Any = sys._getframe(1)
            called.append(frame.f_locals[not_public.CALLED])
            return others

    ask(callbacks=Callbacks())
    assert {type(one) for one in called} == {dspy.Predict, ScriptedLM, dspy.ChatAdapter}


@law
def UsageTracker() -> None:
    tracker = not_public.UsageTracker()
    ask(usage_tracker=tracker)
    [(lm, [usage])] = tracker.usage_data.items()
    assert (lm, usage["total_tokens"] > 0) == ("scripted", True)
    tracker.usage_data[lm].append({"total_tokens": 1})
    assert tracker.get_total_tokens()[lm]["total_tokens"] == usage["total_tokens"] + 1
    with dspy.track_usage() as own:
        assert type(own) is not_public.UsageTracker


# --- settings


@law
def CALLERS() -> None:
    history = History()
    ask(**{not_public.CALLERS: [history]})
    [entry] = history
    assert {"model", "response_model", "messages", "kwargs", "outputs", "response", "usage", "cost"} <= entry.keys()
    inside: list[Any] = []

    class Outer(dspy.Module):
        def forward(self) -> None:
            inside.extend(dspy.settings.get(not_public.CALLERS))

    with dspy.context(**{not_public.CALLERS: [history]}):
        outer = Outer()
        outer()
    assert inside == [history, outer]


@law
def TRACKER() -> None:
    usages = Usages()
    ask(**{not_public.TRACKER: usages})
    [(lm, usage)] = usages.found
    assert lm == "scripted"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


@law
def SEND_STREAM() -> None:
    assert "blue" in "".join(chunk.choices[0].delta.content or "" for chunk in stream())


@law
def LISTENERS() -> None:
    other = dspy.streaming.StreamListener("a", predict=dspy.Predict("q -> a"))
    assert not stream(**{not_public.LISTENERS: [other]}), "with listeners, DSPy streams their predictors alone"


@law
def TRACE() -> None:
    trace: list[Any] = []
    answer = ask(**{not_public.TRACE: trace})
    [(predictor, inputs, prediction)] = trace
    assert (type(predictor), inputs, prediction) == (dspy.Predict, {"q": "sky"}, answer)


@law
def TRACE_SIZE() -> None:
    trace: list[Any] = ["first", "second"]
    ask(**{not_public.TRACE: trace, not_public.TRACE_SIZE: 2})
    assert [type(step) for step in trace] == [str, tuple]


@law
def HISTORY_OFF() -> None:
    history = History()
    ask(**{not_public.CALLERS: [history], not_public.HISTORY_OFF: True})
    assert not history


@law
def HISTORY_SIZE() -> None:
    history = History()
    ask(**{not_public.CALLERS: [history], not_public.HISTORY_SIZE: 0})
    assert not history


@law
def DEFAULT_CONFIG() -> None:
    assert {"lm", "adapter", "rm", "callbacks"} <= not_public.DEFAULT_CONFIG.keys()
    assert "mine" not in not_public.DEFAULT_CONFIG
    with dspy.context(mine=1):
        assert not_public.DEFAULT_CONFIG.keys() < dspy.settings.copy().keys()


# --- requests


def _adapter_call() -> None:
    messages, lm = [{"role": "user", "content": "sky"}], ScriptedLM(["blue"])
    with not_public.adapter_message_call(lm, messages):
        assert not_public._adapter_call.get() == (lm, messages)
        lm(messages=messages)  # which would warn else, and warnings are errors


LAWS["_adapter_call"] = LAWS["adapter_message_call"] = _adapter_call


def _adapter_calls() -> None:
    before = len(not_public._adapter_calls.get())
    with not_public.adapter_fallback_scope() as progress:
        assert not_public._adapter_calls.get()[before:] == (progress,)
        assert not progress.emitted
        stream()
        assert progress.emitted


LAWS["_adapter_calls"] = LAWS["adapter_fallback_scope"] = _adapter_calls


@law
def CLIENT_KEYS() -> None:
    assert {"api_key", "api_base", "timeout"} <= set(not_public.CLIENT_KEYS)
    assert "temperature" not in not_public.CLIENT_KEYS


@law
def LM_CLASS_STATE_KEY() -> None:
    state = dspy.LM("openai/gpt-4o-mini").dump_state()
    named = {**state, not_public.LM_CLASS_STATE_KEY: "tests.dspy_contract.test_not_public.NamedLM"}
    assert type(dspy.BaseLM.load_state(named, allow_custom_lm_class=True)) is NamedLM


class NamedLM(dspy.LM):
    @classmethod
    def load_state(cls, state: Any, **others: Any) -> NamedLM:
        return cls("openai/gpt-4o-mini")


def prepare() -> None:
    prompt = uuid4().hex  # no cache knows it
    lm = ScriptedLM(["blue"], cache=True)
    call = not_public.prepare(lm, prompt, None, {}, asynchronous=False)
    assert call.cache
    assert not_public._cached(lm, call, False) is None
    lm(prompt)
    assert not_public._cached(lm, call, False) is not None
    assert not not_public.prepare(lm, prompt, None, {"cache": False}, asynchronous=True).cache


LAWS["prepare"] = LAWS["_cached"] = prepare


def resolve() -> None:
    route = not_public.resolve(dspy.LM("openai/gpt-4o-mini"))
    info = not_public.model_info(route.provider, route.model)
    assert not_public.rate(info, "input_cost_per_token") > 0
    assert not_public.rate(info, "output_cost_per_token") > 0
    assert not_public.rate({}, "input_cost_per_token") is None


LAWS["resolve"] = LAWS["model_info"] = LAWS["rate"] = resolve


@law
def LM15Error() -> None:
    with pytest.raises(not_public.LM15Error):
        not_public.resolve(dspy.LM("replicate/some-model"))


@law
def default_cache_dir() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPY_CACHEDIR", "/some/folder")
        assert not_public.default_cache_dir() == "/some/folder"


@law
def CACHE_FOLDER() -> None:
    from dspy.clients.cache import Cache

    assert getattr(Cache(False, False, None, None), not_public.CACHE_FOLDER) is None


@law
def history_messages() -> None:
    expected = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "sky"}]
    assert not_public.history_messages(request()) == expected


def _engine() -> None:
    """All that a response is made of: an engine of these names answers, whole and streamed, with text and calls."""
    names, model = not_public, "m"
    text, call = names.TextPart(text="blue"), names.ToolCallPart(id="call_0", name="look", input={"at": "sky"})
    message = names.Message(role="assistant", parts=(text, call))
    usage = names.Usage(input_tokens=2, output_tokens=1)

    class Engine:
        supports_function_calling = True

        def complete(self, asked: Any) -> Any:
            assert isinstance(asked, names.Request)
            return names.Response(id=None, model=model, message=message, finish_reason="tool_call", usage=usage)

        def stream(self, asked: Any) -> Any:
            yield names.StreamStartEvent(id=None, model=model)
            yield names.StreamDeltaEvent(delta=names.TextDelta(text="blue", part_index=0))
            delta = names.ToolCallDelta(input='{"at": "sky"}', part_index=1, id="call_0", name="look")
            yield names.StreamDeltaEvent(delta=delta)
            yield names.StreamEndEvent(finish_reason="tool_call", usage=usage)

        def close(self) -> None: ...

    class AsyncEngine:
        async def complete(self, asked: Any) -> Any:
            return Engine().complete(asked)

        async def stream(self, asked: Any) -> Any:
            for event in Engine().stream(asked):
                yield event

        async def aclose(self) -> None: ...

    lm = dspy.LM(model, engine=Engine(), async_engine=AsyncEngine(), cache=False)
    whole = lm(request())
    with dspy.context(send_stream=Stream()):
        streamed = asyncio.run(lm.acall(request()))
    for response in (whole, streamed):
        assert [(part.type, getattr(part, "input", None)) for part in response.message.parts] == [
            ("text", None),
            ("tool_call", {"at": "sky"}),
        ]
        assert response.usage.input_tokens == 2


OF_ENGINES = """Message Request Response StreamDeltaEvent StreamEndEvent StreamStartEvent TextDelta TextPart
ToolCallDelta ToolCallPart Usage"""
LAWS.update(dict.fromkeys(OF_ENGINES.split(), _engine))


@law
def ENGINE() -> None:
    assert getattr(dspy.LM("openai/gpt-4o-mini"), not_public.ENGINE) == "auto"
    own = ScriptedLM(["blue"])
    assert not isinstance(getattr(own, not_public.ENGINE), str)
    assert not hasattr(type("Own", (dspy.BaseLM,), {})("m"), not_public.ENGINE)


@law
def ENGINES() -> None:
    lm = dspy.LM("openai/gpt-4o-mini", use_developer_role=True, model_type="responses")
    assert [hasattr(lm, name) for name in not_public.ENGINES] == [True] * 4
    assert lm.use_developer_role is True


@law
def DECIDES() -> None:
    heard = Noting()

    class Chooser:
        callbacks: tuple[()] = ()

        @dspy.utils.with_callbacks
        def __call__(self) -> str:
            return "blue"

    setattr(Chooser, not_public.DECIDES, True)
    with dspy.context(callbacks=[heard]):
        Chooser.callbacks = []  # type: ignore[assignment]
        Chooser()()
    assert heard.noted[-2:] == ["blue", None], "its calls are LM calls"


# --- prompts


@law
def field_header_pattern() -> None:
    assert not_public.field_header_pattern.match("[[ ## a ## ]]").group(1) == "a"


def custom_types() -> None:
    begin, end = not_public.CUSTOM_TYPE_START_IDENTIFIER, not_public.CUSTOM_TYPE_END_IDENTIFIER
    shown = dspy.Image("https://example.com/a.png").model_dump()
    assert re.fullmatch(f"{re.escape(begin)}.*{re.escape(end)}", str(shown), re.DOTALL)


LAWS["CUSTOM_TYPE_START_IDENTIFIER"] = LAWS["CUSTOM_TYPE_END_IDENTIFIER"] = custom_types


def decisions() -> None:
    for kind in (not_public.Choice, not_public.Noul, not_public.Score):
        assert issubclass(kind, dspy.Type)


LAWS["Choice"] = LAWS["Noul"] = LAWS["Score"] = decisions


@law
def serialize_for_json() -> None:
    assert not_public.serialize_for_json({"at": Path("/sky")}) == {"at": "/sky"}
    assert isinstance(not_public.serialize_for_json(object()), str)


# --- modules and optimizers


@law
def Parameter() -> None:
    assert issubclass(dspy.Predict, not_public.Parameter)
    assert issubclass(dspy.Retrieve, not_public.Parameter)


@law
def COMPILED() -> None:
    module = dspy.ChainOfThought("q -> a")
    assert getattr(module, not_public.COMPILED) is False
    outer = dspy.Module()
    outer.inner = module
    assert outer.named_parameters()
    setattr(module, not_public.COMPILED, True)
    assert not outer.named_parameters()


@law
def INPUT_KEYS() -> None:
    example = dspy.Example(q="sky", a="blue")
    assert getattr(example, not_public.INPUT_KEYS) is None
    assert getattr(example.with_inputs("q"), not_public.INPUT_KEYS) == {"q"}


@law
def FailedPrediction() -> None:
    with dspy.context(lm=ScriptedLM(["no field", "no field"])):
        found = dspy.bootstrap_trace_data(
            dspy.Predict("q -> a: int"),
            [dspy.Example(q="sky").with_inputs("q")],
            capture_failed_parses=True,
            raise_on_error=False,
            num_threads=1,
        )
    assert isinstance(found[0]["trace"][0][2], not_public.FailedPrediction)


@law
def Hasher() -> None:
    demos = (dspy.Example(q="sky"), dspy.Example(q="sea"))
    assert not_public.Hasher.hash(demos) == not_public.Hasher.hash(demos) != not_public.Hasher.hash(demos[:1])


@law
def BOOTSTRAP() -> None:
    called: list[str] = []

    class Own(dspy.BootstrapFewShot):
        def _bootstrap(self, *, max_bootstraps: int | None = None) -> Any:
            called.append(not_public.BOOTSTRAP)
            return super()._bootstrap(max_bootstraps=max_bootstraps)

    with dspy.context(lm=ScriptedLM([{"a": "blue"}])):
        Own(max_labeled_demos=0).compile(dspy.Predict("q -> a"), trainset=[dspy.Example(q="sky").with_inputs("q")])
    assert called == ["_bootstrap"]


@law
def METRIC() -> None:
    asked: list[Any] = []
    gepa = dspy.GEPA(
        lambda gold, pred, trace, pred_name, pred_trace: 1.0, max_metric_calls=1, reflection_lm=ScriptedLM([])
    )

    def noted(*given: Any) -> float:
        asked.append(given)
        return 1.0

    setattr(gepa, not_public.METRIC, noted)
    with dspy.context(lm=ScriptedLM([{"a": "blue"}])):
        examples = [dspy.Example(q="sky").with_inputs("q")]
        gepa.compile(dspy.Predict("q -> a"), trainset=examples, valset=examples)
    assert asked


@law
def COUNT_CALLS() -> None:
    """That they are of the budget is in `test_gepa.py`."""
    state = importlib.import_module("gepa.core.state").GEPAState
    assert callable(getattr(state, not_public.COUNT_CALLS))


@law
def VALIDATE_ARGUMENTS() -> None:
    class Own(dspy.Tool):
        def _validate_and_parse_args(self, **kwargs: Any) -> dict[str, Any]:
            return {"at": not_public.VALIDATE_ARGUMENTS}

    def look(at: str) -> str:
        return at

    assert Own(look)(at="sky") == "_validate_and_parse_args"


# --- the tests


@each("name", sorted(LAWS))
def test_it_does_what_dspyer_needs(name: str) -> None:
    LAWS[name]()


def test_each_name_has_its_law() -> None:
    assert LAWS.keys() == IMPORTED.keys() | NAMED
    assert {*map(vars(not_public).get, SETTINGS)} <= not_public.DEFAULT_CONFIG.keys()


def import_again() -> None:
    """Imports the module anew, under another name."""
    spec = importlib.util.spec_from_file_location("imported_again", FILE)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@each("name", sorted(IMPORTED))
def test_without_a_name_the_import_says_which_and_names_both_versions(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(sys.modules[IMPORTED[name]], name)
        with pytest.raises(DSPyVersionError) as error:
            import_again()
    text = str(error.value)
    assert f"{name!r} from {IMPORTED[name]!r}" in text
    assert f"DSPy {dspy.__version__} (" in text
    assert text.endswith(f"it is tested with DSPy {not_public.TESTED}")
    assert isinstance(error.value, ImportError)


@each("name", sorted(SETTINGS))
def test_without_a_setting_it_says_which(name: str) -> None:
    setting = getattr(not_public, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(not_public.DEFAULT_CONFIG, setting)
        with pytest.raises(DSPyVersionError, match=f"it has no setting '{setting}'"):
            import_again()


@each(
    "owner, attribute, said",
    [
        ("Module", None, "dspy.Module has no '_compiled'"),
        ("Example", None, "dspy.Example has no '_input_keys'"),
        ("BootstrapFewShot", "_bootstrap", "dspy.BootstrapFewShot has no '_bootstrap'"),
        ("Tool", "_validate_and_parse_args", "dspy.Tool has no '_validate_and_parse_args'"),
    ],
)
def test_without_an_attribute_it_says_which(owner: str, attribute: str | None, said: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if attribute is None:
            patch.setattr(dspy, owner, type(owner, (), {}))
        else:
            patch.delattr(getattr(dspy, owner), attribute)
        with pytest.raises(DSPyVersionError, match=re.escape(said)):
            import_again()


def test_the_versions_are_those_that_the_project_asks_for() -> None:
    assert f'"dspy{not_public.TESTED}"' in (PACKAGE.parent / "pyproject.toml").read_text()


# Words that mean something else, too.
ORDINARY = {"trace", "instance", "use_developer_role"}


def hidden_in(path: Path) -> set[str]:
    """What a file names of DSPy that is not public."""
    names = NAMED - {"ENGINES", "BOOTSTRAP", "VALIDATE_ARGUMENTS"}
    hidden = {*(getattr(not_public, name) for name in names), *not_public.ENGINES} - ORDINARY
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dspy."):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("dspy.")}
        elif isinstance(node, ast.Attribute):
            of_settings = node.attr == "trace" and ast.unparse(node.value).endswith("settings")
            found |= {node.attr} if node.attr in hidden or of_settings else set()
        elif isinstance(node, ast.keyword) and node.arg in hidden:
            found.add(str(node.arg))
        elif isinstance(node, ast.Constant) and node.value in hidden:
            found.add(str(node.value))
    return found


@pytest.mark.slow("parses the package")
def test_no_other_file_names_them() -> None:
    found = {str(path.relative_to(PACKAGE)): hidden_in(path) for path in PACKAGE.rglob("*.py") if path != FILE}
    assert not {name: names for name, names in found.items() if names}, "name them in dspyer/lm/not_public.py"

"""Rules 6 to 10 of the contract: copies, files, frozen modules."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph
from dspyer.errors import InputError
from dspyer.testing import NearestLM
from tests.children import run_python
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import LABEL, PAIRS, Ask, Pair, clean, shared
from tests.dspy_optimizers.table import bootstrap

ROOT = Path(__file__).parents[2]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
CHAIN, FORK = PAIRS[:2]


def state(program: Any) -> dict[str, Any]:
    return {name: predictor.dump_state() for name, predictor in program.named_predictors()}


@pairs
def test_copy_shares_nothing_that_can_be_tuned(pair: Pair, lm: NotingLM) -> None:
    """Rules 6 and 7: no fallback (it would log a warning), and the copy runs its own predictors."""
    program = pair.graph()
    own = {id(predictor) for predictor in program.predictors()}
    for how in (dspy.Module.deepcopy, copy.deepcopy, dspy.Module.reset_copy):
        twin = how(program)
        assert type(twin) is type(program), how
        assert not own & {id(predictor) for predictor in twin.predictors()}, how
        with dspy.context(trace=[]):
            twin(**pair.trainset[0].inputs())
            steps = list(dspy.settings.trace)
        assert steps
        assert {id(step[0]) for step in steps} <= {id(predictor) for predictor in twin.predictors()}, how


def test_copy_answers_with_its_own_demonstrations(lm: NotingLM) -> None:
    """Rule 7: a plan that had captured the predictors would still use the original's."""
    program = FORK.graph()
    twin = program.deepcopy()
    twin.mood.demos = [dspy.Example(text="the sign of the copy", mood="calm")]

    program(question="Where is it?")
    before = len(lm.sent)
    twin(question="Where is it?")

    shown = ["the sign of the copy" in str(sent.turns) for sent in lm.sent]
    assert not any(shown[:before])
    assert sum(shown[before:]) == 1


def test_every_predictor_of_every_copy_has_its_own_signature_class() -> None:
    """Rule 8: `signature.instructions = ...` changes one predictor of one copy; the prompts are unchanged."""
    user = dspy.Predict(Ask)
    program = shared()
    programs = [program, program.deepcopy(), program.reset_copy(), shared()]
    classes = [predictor.signature for each in programs for predictor in each.predictors()]

    assert len({id(signature) for signature in [*classes, Ask]}) == 9
    programs[1].first.signature.instructions = "Changed."
    texts = [each.first.signature.instructions for each in programs] + [Ask.instructions, user.signature.instructions]
    assert texts.count("Changed.") == 1
    for signature in classes:
        assert issubclass(signature, Ask)
        assert signature.fields.keys() == Ask.fields.keys()


@pytest.mark.parametrize(
    "adapter", [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()], ids=lambda a: str(a)[6:10]
)
def test_prompts_are_those_of_the_users_signature(adapter: Any, lm: NotingLM) -> None:
    """Rule 8: the tags that distinguish the nodes are in no prompt."""
    with dspy.context(adapter=adapter):
        shared()(question="A train?")
        first = lm.sent[0]
        lm.sent.clear()
        dspy.Predict(Ask)(question="A train?")

    assert lm.sent == [first]
    assert "dspyer" not in str(first.turns)


def tuned_node(lm: NotingLM) -> Any:
    module = bootstrap(CHAIN.by_hand(), CHAIN.trainset, lm)
    assert module._compiled
    return module


def with_tuned_node(lm: NotingLM, **options: Any) -> Any:
    graph = Graph(name="Outer")
    graph.add_node("inner", tuned_node(lm), writes=["label", "draft"], **options)
    graph.add_node("facts", dspy.Predict("question, label -> facts"))
    return graph.add_path(START, "inner", "facts", END).compile()


def test_compiled_module_stays_frozen_but_is_not_lost(lm: NotingLM, tmp_path: Path) -> None:
    """Rule 9: DSPy neither tunes nor saves it, nor gives it a language model; a graph saves and sets it."""
    program = with_tuned_node(lm)

    assert [name for name, _ in program.named_predictors()] == ["facts"]
    assert len(program.inner.label.demos) == 2
    program.save(tmp_path / "program.json")
    fresh = with_tuned_node(lm)
    fresh.inner.label.demos = []
    fresh.load(tmp_path / "program.json")
    assert len(fresh.inner.label.demos) == 2
    other = NotingLM("fake/other")
    program.set_lm(other)
    assert program.inner.label.lm is other is program.inner.draft.predict.lm
    assert len(program.deepcopy().inner.label.demos) == 2


def test_frozen_can_be_set_explicitly(lm: NotingLM) -> None:
    """Rule 9: `frozen=False` opens a compiled module, `frozen=True` closes one; the user's stays as it was."""
    assert [name for name, _ in with_tuned_node(lm, frozen=False).named_predictors()] == [
        "inner.draft.predict",
        "inner.label",
        "facts",
    ]
    graph = Graph(name="Closed").add_node("label", dspy.ChainOfThought(f"question -> {LABEL}"), frozen=True)
    program = graph.add_node("facts", dspy.Predict("label -> facts")).add_path(START, "label", "facts", END).compile()
    assert [name for name, _ in program.named_predictors()] == ["facts"]


def test_graph_in_a_graph_stays_open(lm: NotingLM) -> None:
    """Rule 9: no compiled graph freezes itself by being compiled."""
    program = PAIRS[5].graph()
    assert not program._compiled
    assert not program.inner._compiled


class Note(BaseModel):
    text: str
    tags: list[str] = []


def test_demos_of_structured_values_are_saved_as_json(lm: NotingLM, tmp_path: Path) -> None:
    """Rule 10: values of the state reach the demonstrations as plain values."""
    graph = Graph(name="Structured")
    graph.add_node("note", lambda question: {"note": Note(text=question, tags=["a"]), "meta": {"k": [1, {"z": 2}]}})
    graph.add_node("label", dspy.Predict(f"question, note, meta: dict -> {LABEL}"))
    program = graph.add_path(START, "note", "label", END).compile()

    tuned = bootstrap(program, CHAIN.trainset, lm)
    tuned.save(tmp_path / "tuned.json")
    saved = json.loads((tmp_path / "tuned.json").read_text())["label"]["demos"][0]

    assert saved["note"] == {"text": CHAIN.trainset[0].question, "tags": ["a"]}
    assert saved["meta"] == {"k": [1, {"z": 2}]}
    assert type(tuned.label.demos[0]["meta"]) is dict
    assert type(tuned.label.demos[0]["meta"]["k"]) is list


def test_file_of_another_graph_changes_nothing(lm: NotingLM, tmp_path: Path) -> None:
    """Rule 10: the state is tried on a copy first, and the error names the nodes that differ."""
    bootstrap(CHAIN.graph(), CHAIN.trainset, lm).save(tmp_path / "chain.json")
    program = FORK.graph()
    before = state(program)

    with pytest.raises(InputError, match=r"draft\.predict"):
        program.load(tmp_path / "chain.json")
    assert state(program) == before


@pairs
def test_a_saved_program_is_loaded_from_disk(pair: Pair, lm: NotingLM, tmp_path: Path) -> None:
    """Saving in every way that DSPy has."""
    tuned = bootstrap(pair.graph(), pair.trainset[:4], lm)
    inputs = pair.trainset[5].inputs()
    expected = dict(tuned(**inputs))
    for kind in ("json", "pkl", "program"):
        if kind == "program":
            tuned.save(tmp_path / "program", save_program=True)
            loaded = dspy.load(tmp_path / "program", allow_pickle=True)
        else:
            tuned.save(tmp_path / f"state.{kind}")
            loaded = pair.graph()
            loaded.load(tmp_path / f"state.{kind}", allow_pickle=True)

        assert state(loaded) == state(tuned), kind
        assert dict(loaded(**inputs)) == expected, kind


FRESH = """
import inspect, sys, dspy
from tests.dspy_optimizers.lm import NotingLM
for folder in sys.argv[1:]:
    program = dspy.load(folder, allow_pickle=True)
    assert type(program).__name__ in inspect.getsource(type(program))
    lm = NotingLM()
    with dspy.context(lm=lm):
        print(program(question="When does the train leave?").label)
        twin = program.deepcopy()
    assert [hash(p.signature) for p in twin.predictors()] == [hash(p.signature) for p in program.predictors()]
    assert all(a.signature is not b.signature for a, b in zip(twin.predictors(), program.predictors()))
"""


def test_whole_programs_run_in_a_fresh_process(lm: NotingLM, tmp_path: Path) -> None:
    """`save_program=True`: the class of each graph is made again, with its source, where it never was compiled."""
    tuned = {}
    for pair in (PAIRS[2], PAIRS[4], PAIRS[5]):
        folder = str(tmp_path / pair.name)
        tuned[folder] = bootstrap(pair.graph(), pair.trainset, lm)
        tuned[folder].save(folder, save_program=True)

    run = run_python(FRESH, *tuned, cwd=ROOT)

    assert run.returncode == 0, run.stderr[-2000:]
    question = "When does the train leave?"
    assert run.stdout.split("\n")[:-1] == [program(question=question).label for program in tuned.values()]


class AskTwice(dspy.Signature):
    """Ask twice."""

    text: str = dspy.InputField()
    label: str = dspy.OutputField()


def importable() -> Any:
    graph = Graph(name="Importable").add_node("clean", clean, writes=["text"]).add_node("label", dspy.Predict(AskTwice))
    return graph.add_path(START, "clean", "label", END).compile(redact=["question"])


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_program_of_importable_parts_is_pickled(pickler: Any, lm: NotingLM) -> None:
    """Plain pickle takes the same parts as in a plain module: functions and signatures of modules."""
    program = importable()
    twin = pickle.loads(pickler.dumps(program))

    assert type(twin) is type(program)
    assert twin.label is not program.label
    assert issubclass(twin.label.signature, AskTwice)
    assert twin.label.signature.equals(program.label.signature)
    assert dict(twin(question="A  train")) == dict(program(question="A  train"))


class Sizes(BaseModel):
    docs: list[str]
    sizes: list[int] = []


def size(doc: str) -> dict[str, int]:
    return {"size": len(doc)}


def test_a_map_into_a_field_of_a_schema_is_pickled() -> None:
    graph = Graph(Sizes).add_map("sizes", size, over="docs", item="doc", into="sizes")
    twin = pickle.loads(pickle.dumps(graph.add_path(START, "sizes", END).compile()))
    assert twin(docs=["a", "bbb"]).sizes == [1, 3]


def test_history_and_callbacks_are_not_copied(lm: NotingLM) -> None:
    """As with every DSPy module: prompts and tracers belong to the one that ran."""
    program = CHAIN.graph()
    program(question="A train?")
    assert program.history
    twin = program.deepcopy()
    assert (twin.history, twin.callbacks) == ([], [])


def test_lm_of_a_program() -> None:
    """`set_lm` reaches every node, `get_lm` gives the one they share."""
    lm = NotingLM()
    program = FORK.graph()
    program.set_lm(lm)
    assert program.get_lm() is lm
    program.mood.lm = NotingLM("fake/other")
    with pytest.raises(ValueError, match="Multiple LMs"):
        program.get_lm()
    assert program(question="A train?").label


class Tone(dspy.Signature):
    """Judge the tone."""

    letter: str = dspy.InputField()
    tone: str = dspy.OutputField()


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
@pytest.mark.parametrize("deep", [False, True], ids=["flat", "inside"])
def test_a_pickle_leaves_out_the_histories_of_lms(pickler: Any, deep: bool) -> None:
    program = Graph().add_node("ask", dspy.Predict(Tone)).add_path(START, "ask", END).compile()
    if deep:
        outer = Graph().add_node("inner", program).add_node("again", program.ask, reads=["letter"])
        program = outer.add_path(START, "inner", "again", END).compile()
    lm = NearestLM()
    program.set_lm(lm)
    small = len(pickler.dumps(program))
    for number in range(50):
        program(letter=f"the secret letter {number}")
    pickled = pickler.dumps(program)
    assert b"secret letter" not in pickled
    assert len(pickled) < small + 100
    assert len(lm.history) == 50 * len(program.graph.nodes)

    twin = pickle.loads(pickled)
    lms = {id(predictor.lm) for predictor in twin.predictors()}
    assert len(lms) == 1
    assert len(twin.predictors()) == 1
    twin(letter="another one")
    assert len(twin.predictors()[0].lm.history) == len(twin.graph.nodes)
    if deep:
        assert twin.inner.ask is twin.again


def test_keys_of_lms_are_in_a_pickle_and_not_in_a_saved_state(tmp_path: Path) -> None:
    program = Graph().add_node("ask", dspy.Predict(Tone)).add_path(START, "ask", END).compile()
    program.set_lm(dspy.LM("openai/some-model", api_key="a-key-to-keep"))
    assert b"a-key-to-keep" in pickle.dumps(program)
    program.save(tmp_path / "whole", save_program=True)
    assert b"a-key-to-keep" in (tmp_path / "whole" / "program.pkl").read_bytes()
    for name in ("state.json", "state.pkl"):
        program.save(tmp_path / name)
        saved = (tmp_path / name).read_bytes()
        assert b"some-model" in saved
        assert b"a-key-to-keep" not in saved

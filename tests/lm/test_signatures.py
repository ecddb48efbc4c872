"""The Signature classes that a program gets: what they share with the user's class, and when they are equal."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Literal

import dspy
from dspy.signatures.signature import SignatureMeta
from pydantic import BaseModel, field_validator

from dspyer import END, START, Graph


class Triage(dspy.Signature):
    """Say who takes it."""

    text: str = dspy.InputField(desc="what was written")
    tags: list[str] = dspy.InputField(default=[])
    desk: Literal["a", "b"] = dspy.OutputField()

    @field_validator("text")
    @classmethod
    def stripped(cls, value: str) -> str:
        return value.strip()


class OddMeta(SignatureMeta):
    """A metaclass of the user's."""


class Odd(dspy.Signature, metaclass=OddMeta):
    """Odd."""

    text: str = dspy.InputField()
    desk: str = dspy.OutputField()


class Parts(dspy.Module):
    """Predictors in a list and a dict, one of them in a module that is compiled already."""

    def __init__(self) -> None:
        super().__init__()
        self.more: Any = [dspy.ChainOfThought("question -> answer"), {"key": dspy.Predict("a -> b")}]
        self.more[0]._compiled = True

    def forward(self, text: str) -> dspy.Prediction:
        return dspy.Prediction(desk=self.more[0](question=text).answer)


def program_of(**modules: dspy.Module) -> Any:
    """A program with these nodes, one after the other."""
    graph = Graph(name="Owning")
    for name, module in modules.items():
        graph.add_node(name, module, writes=["desk"])
    return graph.add_path(START, *modules, END).compile()


def owned() -> Any:
    return program_of(first=dspy.Predict(Triage), second=dspy.Predict(Triage))


def test_every_predictor_has_a_subclass_of_the_users_class() -> None:
    program = owned()

    assert program.first.signature is not program.second.signature
    for predictor in (program.first, program.second):
        signature = predictor.signature
        assert issubclass(signature, Triage)
        assert (signature.__name__, signature.__module__, signature.__qualname__) == ("Triage", __name__, "Triage")
        assert signature.instructions == "Say who takes it."
        assert repr(signature) == repr(Triage)
        assert signature(text=" x ", desk="a").text == "x"
        assert signature.model_fields["tags"].default == []


def test_predictors_in_lists_and_dicts_and_frozen_modules_count() -> None:
    parts = Parts()
    before = [parts.more[0].predict.signature, parts.more[1]["key"].signature]
    more: Any = program_of(parts=parts).parts.more

    after = [more[0].predict.signature, more[1]["key"].signature]
    assert [issubclass(new, old) and new is not old for new, old in zip(after, before, strict=True)] == [True, True]


def test_one_predictor_in_two_places_has_one_class() -> None:
    shared = dspy.Predict(Triage)
    for program in (made := program_of(first=shared, second=shared), made.deepcopy()):
        assert program.first.signature is program.second.signature
        assert program.first.signature is not Triage


def test_instructions_are_set_for_one_predictor_alone() -> None:
    program = owned()
    program.first.signature.instructions = "Be quick."
    assert [program.second.signature.instructions, Triage.instructions] == ["Say who takes it."] * 2


def test_copies_keep_what_an_optimizer_changed() -> None:
    program = owned()
    program.first.signature.instructions = "Be quick."
    program.second.signature = program.second.signature.with_updated_fields("desk", prefix="Desk is:", desc="which")
    program = program.deepcopy()

    assert program.first.signature.instructions == "Be quick."
    field = program.second.signature.fields["desk"].json_schema_extra
    assert (field["prefix"], field["desc"]) == ("Desk is:", "which")
    assert program.first.signature.fields["desk"].json_schema_extra["prefix"] == "Desk:"


def test_chain_of_classes_does_not_grow_with_copies_of_copies() -> None:
    program = owned()
    for _ in range(5):
        program = program.deepcopy()
    assert program.first.signature.__bases__ == (Triage,)


def test_equal_signatures_of_two_nodes_differ_and_those_of_copies_do_not() -> None:
    program = owned()
    for twin in (owned(), program.deepcopy()):
        assert not program.first.signature.equals(program.second.signature)
        assert program.first.signature.equals(twin.first.signature)
        assert hash(program.first.signature) == hash(twin.first.signature) != hash(program.second.signature)
        assert program.first.signature != twin.first.signature
    changed = [predictor.signature.with_instructions("New.") for predictor in (program.first, program.second)]
    assert not changed[0].equals(changed[1])


def test_users_class_equals_that_of_each_node() -> None:
    program = owned()
    for predictor in (program.first, program.second):
        for one, other in ((predictor.signature, Triage), (Triage, predictor.signature)):
            assert one.equals(other)
            assert one.with_instructions("New.").equals(other.with_instructions("New."))
    assert not program.first.signature.equals(Triage.with_instructions("Other."))


def test_copy_of_a_replaced_signature_hashes_like_it() -> None:
    """An optimizer puts a plain class in its place; a teacher that is copied from the student must still match."""
    program = owned()
    program.first.signature = replaced = program.first.signature.with_instructions("New.")
    twin = program.deepcopy()

    assert twin.first.signature is not replaced
    assert hash(twin.first.signature) == hash(replaced)
    assert twin.first.signature.equals(replaced)


def test_extras_of_fields_compare_in_both_directions() -> None:
    """Those of a node equal those of the user, of its copies, and of no other node."""
    program = owned()

    def extra(signature: Any, **changes: str) -> Any:
        changed = signature.with_updated_fields("text", **changes) if changes else signature
        return changed.fields["text"].json_schema_extra

    first, second = program.first.signature, program.second.signature
    rows = [
        (extra(first), extra(Triage), True),
        (extra(first), extra(first), True),
        (extra(first), extra(program.deepcopy().first.signature), True),
        (extra(first), extra(second), False),
        (extra(first), extra(Triage, desc="other"), False),
        (extra(first, desc="other"), extra(first), False),
    ]
    for left, right, equal in rows:
        assert (left == right, right == left) == (equal, equal), (left, right)
        assert (left != right, right != left) == (not equal, not equal), (left, right)
    assert extra(first) != "text"
    assert "dspyer" not in repr(extra(first))
    assert type(copy.deepcopy(extra(first))) is type(extra(first))


def test_own_class_of_an_importable_class_is_pickled() -> None:
    program = owned()
    program.first.signature.instructions = "Be quick."
    first, second = pickle.loads(pickle.dumps((program.first.signature, program.second.signature)))

    assert issubclass(first, Triage)
    assert first is not program.first.signature
    assert first.instructions == "Be quick."
    assert first.equals(program.first.signature)
    assert not first.equals(program.second.signature.with_instructions("Be quick."))
    assert hash(second) == hash(program.second.signature)


def test_class_with_another_metaclass_is_left_alone() -> None:
    assert program_of(first=dspy.Predict(Odd)).first.signature is Odd


def test_types_of_a_function_are_kept() -> None:
    class Local(BaseModel):
        name: str

    class Asking(dspy.Signature):
        """Ask."""

        text: str = dspy.InputField()
        desk: list[Local] = dspy.OutputField()

    made = program_of(first=dspy.Predict(Asking)).first.signature
    assert made.fields["desk"].annotation == Asking.model_fields["desk"].annotation

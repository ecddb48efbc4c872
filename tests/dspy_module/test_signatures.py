"""The Signature classes that a program gets: what they share with the user's class, and when they are equal."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Literal

import dspy
from dspy.signatures.signature import SignatureMeta
from pydantic import BaseModel, field_validator

from dspyer.dspy_module.signatures import FieldExtra, own_signatures
from tests.rows import each


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


class Two(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict(Triage)
        self.second = dspy.Predict(Triage)
        self.more: Any = [dspy.ChainOfThought("question -> answer"), {"key": dspy.Predict("a -> b")}]


def owned() -> Two:
    program = Two()
    own_signatures(program, retag=True)
    return program


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
    program = Two()
    program.more[0]._compiled = True
    before = [program.more[0].predict.signature, program.more[1]["key"].signature]
    own_signatures(program)

    after = [program.more[0].predict.signature, program.more[1]["key"].signature]
    assert [issubclass(new, old) and new is not old for new, old in zip(after, before, strict=True)] == [True, True]


def test_one_predictor_in_two_places_has_one_class() -> None:
    program = Two()
    program.second = program.first
    own_signatures(program)
    assert program.first.signature is program.second.signature


def test_instructions_are_set_for_one_predictor_alone() -> None:
    program = owned()
    program.first.signature.instructions = "Be quick."
    assert [program.second.signature.instructions, Triage.instructions] == ["Say who takes it."] * 2


def test_copies_keep_what_an_optimizer_changed() -> None:
    program = owned()
    program.first.signature.instructions = "Be quick."
    program.second.signature = program.second.signature.with_updated_fields("desk", prefix="Desk is:", desc="which")
    own_signatures(program)

    assert program.first.signature.instructions == "Be quick."
    field = program.second.signature.fields["desk"].json_schema_extra
    assert (field["prefix"], field["desc"]) == ("Desk is:", "which")
    assert program.first.signature.fields["desk"].json_schema_extra["prefix"] == "Desk:"


def test_chain_of_classes_does_not_grow_with_copies_of_copies() -> None:
    program = owned()
    for _ in range(5):
        own_signatures(program)
    assert program.first.signature.__bases__ == (Triage,)


def test_equal_signatures_of_two_nodes_differ_and_those_of_copies_do_not() -> None:
    program, twin = owned(), owned()
    own_signatures(twin)

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
    own_signatures(program)

    assert program.first.signature is not replaced
    assert hash(program.first.signature) == hash(replaced)
    assert program.first.signature.equals(replaced)


@each(
    ("left", "right", "equal"),
    [
        ({"desc": "x"}, {"desc": "x"}, True),
        ({"desc": "x"}, {"desc": "y"}, False),
        ({"desc": "x", "dspyer_node": "a"}, {"desc": "x"}, True),
        ({"desc": "x", "dspyer_node": "a"}, {"desc": "x", "dspyer_node": "a"}, True),
        ({"desc": "x", "dspyer_node": "a"}, {"desc": "x", "dspyer_node": "b"}, False),
        ({"desc": "x", "dspyer_node": "a"}, {"desc": "y"}, False),
    ],
)
def test_field_extras_compare_in_both_directions(left: dict[str, str], right: dict[str, str], equal: bool) -> None:
    for one, other in ((FieldExtra(left), right), (FieldExtra(left), FieldExtra(right)), (right, FieldExtra(left))):
        assert (one == other) is equal
        assert (one != other) is not equal
    assert FieldExtra(left) != "text"
    assert "dspyer_node" not in repr(FieldExtra(left))
    assert type(copy.deepcopy(FieldExtra(left))) is FieldExtra


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
    program = Two()
    program.first = dspy.Predict(Odd)
    own_signatures(program)
    assert program.first.signature is Odd


def test_types_of_a_function_are_kept() -> None:
    class Local(BaseModel):
        name: str

    class Asking(dspy.Signature):
        """Ask."""

        text: str = dspy.InputField()
        found: list[Local] = dspy.OutputField()

    program = Two()
    program.first = dspy.Predict(Asking)
    own_signatures(program)
    assert program.first.signature.fields["found"].annotation == Asking.model_fields["found"].annotation

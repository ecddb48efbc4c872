"""Routers: functions, fields and modules; their labels, targets and problems."""

from __future__ import annotations

import enum
import functools
from typing import Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer.errors import RouteError, UnsetFieldError
from dspyer.nodes.node import Command, Decision, Send
from dspyer.nodes.router import FieldRouter, FunctionRouter, ModuleRouter, Router
from dspyer.scheduler.topology import END
from dspyer.schema.schema import Schema
from tests.nodes.kit import MODES, OPEN, answering, built_router, call_of, decision, holder
from tests.rows import each


class Size(enum.Enum):
    BIG = "big"
    SMALL = "small"


class Ticket(BaseModel):
    question: str
    category: Literal["billing", "other"] | None = None
    urgent: bool = False
    text: str = ""
    label: str = ""
    reason: str = ""


TICKET = Schema.of(Ticket)


def made(route: Any, path_map: Any = None, schema: Schema = OPEN, **options: Any) -> Router:
    found = built_router("judge", route, path_map, schema=schema, **options)
    assert found.problems == ()
    assert found.router is not None
    return found.router


def problems_of(route: Any, path_map: Any = None, schema: Schema = OPEN, **options: Any) -> str:
    return "\n".join(built_router("judge", route, path_map, schema=schema, **options).problems)


def gives(result: object) -> Any:
    return lambda: result


def literal() -> Literal["search", "END"]:
    return "search"


def literals() -> list[Literal["search", "other"]]:
    return ["search", "other"]


def literal_or_sends() -> Literal["END"] | list[Send]:
    return [Send("worker", {"n": 1})]


LABELS = {"again": "search", "done": END, "both": ["search", "other"], True: "other", Size.BIG: "search", "small": END}


@MODES
@each(
    ("fn", "path_map", "targets"),
    [
        (gives("again"), LABELS, ("search",)),
        (gives("done"), LABELS, (END,)),
        (gives("both"), LABELS, ("search", "other")),
        (gives(True), LABELS, ("other",)),
        (gives(Size.BIG), LABELS, ("search",)),
        (gives(Size.SMALL), LABELS, (END,)),
        (gives("other"), LABELS, ("other",)),
        (gives(["again", "other"]), LABELS, ("search", "other")),
        (gives(("again",)), LABELS, ("search",)),
        (gives("search"), ["search", END], ("search",)),
        (gives(["search", END]), ["search", END], ("search", END)),
        (gives(Send("search", {"a": 1})), ["search"], (Send("search", {"a": 1}),)),
        (gives([Send("search", {"a": 1}), "other"]), ["search", "other"], (Send("search", {"a": 1}), "other")),
        (literal, None, ("search",)),
        (literals, None, ("search", "other")),
        (literal, {"search": "a", "END": "b"}, ("a",)),
        (literal_or_sends, ["worker", "END"], (Send("worker", {"n": 1}),)),
    ],
)
def test_a_function_may_return_labels_names_sends_and_lists(
    fn: Any, path_map: Any, targets: tuple[Any, ...], mode: str
) -> None:
    router = made(fn, path_map)
    assert isinstance(router, FunctionRouter)
    assert decision(router, call_of(), mode) == Decision(targets)


@each(
    ("result", "messages"),
    [
        ([], ["the router of 'judge' returned an empty list", "END"]),
        (
            "agian",
            ["returned 'agian'", "labels are 'again', 'done'", "targets 'search', 'END'", "Did you mean 'again'?"],
        ),
        ("other", ["returned 'other'"]),
        (["again", "nowhere"], ["returned 'nowhere'"]),
        (Send("nowhere"), ["went to 'nowhere'", "its targets are 'search', 'END'"]),
        (None, ["returned None", "a router returns a label"]),
        (Command(goto="search"), ["a router returns a label"]),
        ({"a": 1}, ["returned {'a': 1}"]),
        (3, ["returned 3"]),
    ],
)
def test_an_unknown_target_or_none_raises(result: object, messages: list[str]) -> None:
    router = made(gives(result), {"again": "search", "done": END})
    with pytest.raises(RouteError) as caught:
        router.call(call_of())
    assert all(message in str(caught.value) for message in messages), caught.value


@pytest.mark.parametrize(("result", "message"), [("b", "went to 'b'; its targets are 'a'"), (3, "of type int")])
def test_without_labels_the_targets_are_listed(result: object, message: str) -> None:
    def route() -> Literal["a"]:
        return result  # type: ignore[return-value]

    with pytest.raises(RouteError, match=message):
        made(route).call(call_of())


def test_a_router_binds_parameters_as_a_node_does() -> None:
    seen: list[Any] = []

    def route(question, state, ctx, urgent=True):  # type: ignore[no-untyped-def]
        seen.extend([question, state["question"], ctx.node, urgent])
        return "a"

    router = made(route, ["a"], TICKET)
    router.call(call_of({"question": "q"}))
    assert seen == ["q", "q", "node", True]
    typed = made(lambda question, urgent=True: "a", ["a"], TICKET)
    assert (typed.reads, typed.optional) == ({"question": "question", "urgent": "urgent"}, frozenset({"urgent"}))
    with pytest.raises(UnsetFieldError, match="the router of 'judge' reads 'question'"):
        typed.call(call_of())


def test_a_router_sees_the_overlay_of_its_branch() -> None:
    router = made(lambda doc: doc, ["a", "b"])
    assert router.call(call_of({"doc": "a"}, overlay={"doc": "b"})).targets == ("b",)


async def awaits() -> Literal["a"]:
    return "a"


def generates() -> Any:
    yield "a"


@each(
    ("route", "path_map", "message"),
    [
        (awaits, None, "is async: a router is a plain, pure function"),
        (functools.partial(awaits), None, "is async"),
        (generates, ["a"], "is a generator"),
        (gives("a"), None, "does not say where it may go: give it a path map"),
        (gives("a"), {}, "the path map is empty"),
        (gives("a"), "a", "write ['a']"),
        (gives("a"), {"a": 3}, "the path map sends 'a' to 3"),
        (gives("a"), {"a": ["b", 3]}, "the path map sends 'a' to ['b', 3]"),
        (gives("a"), {"a": []}, "the path map sends 'a' to []"),
        (literal, {"search": "a"}, "may give 'END', which the path map does not have"),
        (literal, {"search": "a", "END": "b", "more": "c"}, "never gives 'more', which the path map has"),
        (literal_or_sends, {"worker": "worker"}, "may give 'END'"),
        (lambda qestion: "a", ["a"], "Did you mean 'question'"),
        (3, ["a"], "of type int: give a function, the name of a field, or a dspy.Module"),
    ],
)
def test_wrong_options_of_a_function_router_are_problems(route: Any, path_map: Any, message: str) -> None:
    text = problems_of(route, path_map, TICKET)
    assert message in text


class Renaming(dspy.ChainOfThought):
    def forward(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(way=f"to_{super().forward(**inputs).way}")


WAY = dspy.Signature("question -> way: Literal['a', 'b']")


@pytest.mark.parametrize(
    ("route", "path_map"),
    [
        ("category", {"billing": "a", "other": "b", None: "c"}),
        (dspy.Predict("question -> way: Literal['a', 'b'] | None"), {"a": "a", "b": "b", None: "c"}),
        (Renaming(WAY), ["to_a", "to_b"]),
        (dspy.BestOfN(Renaming(WAY), N=1, reward_fn=lambda *_: 1.0, threshold=0.5), {"to_a": "a", "to_b": "b"}),
    ],
    ids=["a field that may be None", "an output that may be None", "a class that renames", "tried again"],
)
def test_labels_besides_the_literals_are_allowed_if_the_annotation_is_not_complete(route: Any, path_map: Any) -> None:
    assert problems_of(route, path_map, TICKET) == ""


def test_reads_writes_and_targets_of_a_router() -> None:
    router = made(gives("again"), LABELS)
    assert router.targets == ("search", END, "other")
    assert router.labels == {"search": "again, both, Size.BIG", END: "done, small", "other": "both, True"}
    assert (router.name, router.inline, router.module_name, router.sends) == ("judge", True, None, False)
    assert made(literal).labels == {}
    assert made(literal_or_sends, ["worker", "END"]).send_targets == ("worker", "END")


# --- by a field


@MODES
@each(
    ("field", "value", "path_map", "targets"),
    [
        ("category", "billing", {"billing": "a", "other": "b"}, ("a",)),
        ("category", "other", None, ("other",)),
        ("urgent", True, {True: "a", False: "b"}, ("a",)),
        ("text", "b", ["a", "b"], ("b",)),
    ],
)
def test_a_fields_name_routes_by_its_value(
    field: str, value: object, path_map: Any, targets: tuple[str, ...], mode: str
) -> None:
    router = made(field, path_map, TICKET)
    assert isinstance(router, FieldRouter)
    assert router.reads == {field: field}
    assert decision(router, call_of({field: value}), mode) == Decision(targets)


def test_a_list_in_a_field_forks() -> None:
    assert made("next", ["a", "b"]).call(call_of({"next": ["a", "b"]})).targets == ("a", "b")
    assert made("next", ["a", "b"]).call(call_of({"next": "a"}, overlay={"next": "b"})).targets == ("b",)


def test_an_unset_or_unknown_value_of_a_field() -> None:
    router = made("category", ["a"])
    with pytest.raises(UnsetFieldError, match="the router of 'judge' reads 'category'"):
        router.call(call_of())
    with pytest.raises(RouteError, match="by the field 'category' returned 'b'"):
        router.call(call_of({"category": "b"}))


@pytest.mark.parametrize(
    ("field", "path_map", "message"),
    [
        ("categry", ["a"], "Did you mean 'category'?"),
        ("text", None, "does not say where it may go"),
        ("category", {"billing": "a"}, "may give 'other', which the path map does not have"),
        ("category", {"billing": "a", "other": "b", "biling": "c"}, "Did you mean 'billing'?"),
    ],
)
def test_wrong_options_of_a_field_router_are_problems(field: str, path_map: Any, message: str) -> None:
    assert message in problems_of(field, path_map, TICKET)


# --- by a module

CHOOSE = "question -> label: Literal['search', 'END']"


def answer(mode: str, router: Router, module: dspy.Module, **fields: str) -> Decision:
    with dspy.context(lm=answering(fields)):
        return decision(router, call_of({"question": "q"}, program=holder(judge_router=module)), mode)


@MODES
def test_a_module_with_one_literal_output_routes(mode: str) -> None:
    module = dspy.ChainOfThought(CHOOSE)
    found = built_router("judge", module, schema=TICKET)
    assert found.problems == ()
    assert found.module is module
    router = found.router
    assert isinstance(router, ModuleRouter)
    assert (router.module_name, router.inline, router.targets) == ("judge_router", False, ("search", "END"))
    assert (router.reads, router.writes) == ({"question": "question"}, {})
    got = answer(mode, router, module, reasoning="because", label="END")
    assert got == Decision(("END",), {}, "because")


@MODES
@each(
    ("writes", "updates"),
    [
        (None, {}),
        ("category", {"category": "search"}),
        (["label"], {"label": "search"}),
        ({"label": "category", "reasoning": "reason"}, {"category": "search", "reason": "because"}),
    ],
)
def test_a_module_router_commits_what_writes_names(writes: Any, updates: dict[str, str], mode: str) -> None:
    module = dspy.ChainOfThought(CHOOSE)
    router = made(module, None, TICKET, writes=writes)
    got = answer(mode, router, module, reasoning="because", label="search")
    assert got == Decision(("search",), updates, "because")


def test_a_predict_gives_no_reason_and_a_path_map_maps_its_labels() -> None:
    module = dspy.Predict(CHOOSE)
    router = made(module, {"search": "a", "END": "b"}, name="choose")
    assert router.module_name == "choose"
    with dspy.context(lm=answering({"label": "END"})):
        got = router.call(call_of({"question": "q"}, program=holder(choose=module)))
    assert got == Decision(("b",), {}, None)


def test_a_label_that_a_module_made_up_raises() -> None:
    class MadeUp(dspy.Module):
        def forward(self, **inputs: Any) -> dspy.Prediction:
            return dspy.Prediction(label="elsewhere")

    router = made(dspy.Predict(CHOOSE))
    with pytest.raises(RouteError, match="'elsewhere'"):
        router.call(call_of({"question": "q"}, program=holder(judge_router=MadeUp())))


@each(
    ("module", "options", "message"),
    [
        (dspy.Predict("question -> label"), {}, "is a Predict with no Literal output: a router has exactly one"),
        (dspy.Predict("question -> a: Literal['x'], b: Literal['y']"), {}, "with 2 Literal outputs ('a', 'b')"),
        (dspy.Predict(CHOOSE), {"writes": "labell"}, "Did you mean 'label'?"),
        (dspy.Predict(CHOOSE), {"writes": {"category": "label"}}, "write writes={'label': 'category'}"),
        (dspy.Predict(CHOOSE), {"path_map": {"search": "a"}}, "may give 'END'"),
        (dspy.Predict("qestion -> label: Literal['a']"), {}, "its input 'qestion' is no field"),
        (gives("a"), {"path_map": ["a"], "name": "x"}, "name= and writes= are for routers that are modules"),
        ("category", {"writes": "text"}, "name= and writes= are for routers that are modules"),
    ],
)
def test_wrong_options_of_a_module_router_are_problems(module: Any, options: dict[str, Any], message: str) -> None:
    assert message in problems_of(module, options.pop("path_map", None), TICKET, **options)

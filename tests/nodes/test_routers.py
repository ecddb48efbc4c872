"""Routers: functions, fields and modules; their labels, targets and problems."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from typing import Any, Literal

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Command, Commit, CompiledGraph, Graph, Send
from dspyer.errors import GraphError, RouteError, UnsetFieldError
from dspyer.testing import route as route_of
from tests.nodes.kit import MODES, answering, play, with_targets
from tests.rows import each


class Size(enum.Enum):
    BIG = "big"
    SMALL = "small"


class Ticket(BaseModel):
    question: str
    category: Literal["billing", "other"] | None
    urgent: bool
    text: str = ""
    label: str = ""
    reason: str = ""


def graph_of(
    route: Any,
    path_map: Any = None,
    targets: Iterable[str] | None = None,
    *,
    state: Any = None,
    schema: Any = None,
    sent: Any = None,
    **options: Any,
) -> Graph:
    """`given` writes a state, after which `judge` goes where its router says; `targets` if no path map has them."""
    values = dict(state or {})
    graph = Graph(schema, inputs=[]).add_node("given", lambda: values).add_edge(START, "given")
    graph.add_node("judge", lambda state: None, writes=[])
    if sent is None:
        graph.add_edge("given", "judge")
    else:
        graph.add_conditional_edges("given", lambda: Send("judge", sent), ["judge"])
    if targets is None:
        ways = path_map.values() if isinstance(path_map, dict) else path_map or ()
        targets = [name for one in ways for name in ([one] if isinstance(one, str) else one)]
    return with_targets(graph, targets).add_conditional_edges("judge", route, path_map, **options)


def judged(program: CompiledGraph, mode: str = "sync") -> Commit:
    """The commit of a run with the decision of the router."""
    (commit,) = [commit for commit in play(program, mode).commits if commit.node == "judge"]
    return commit


def decision(*args: Any, mode: str = "sync", **options: Any) -> tuple[str, ...]:
    return judged(graph_of(*args, **options).compile(), mode).route


def problems_of(route: Any, path_map: Any = None, schema: Any = Ticket, **options: Any) -> str:
    with pytest.raises(GraphError) as caught:
        graph_of(route, path_map, [], schema=schema, **options).compile()
    return str(caught.value)


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
        (literal, {"search": "a", "END": "b"}, ("a",)),
        (literal_or_sends, ["worker", "END"], (Send("worker", {"n": 1}),)),
    ],
)
def test_a_function_may_return_labels_names_sends_and_lists(
    fn: Any, path_map: Any, targets: tuple[Any, ...], mode: str
) -> None:
    program = graph_of(fn, path_map).compile()
    assert judged(program, mode).route == tuple([one if isinstance(one, str) else one.node for one in targets])
    assert route_of(program, "judge", {}) == [*targets]


def test_an_annotation_takes_the_place_of_a_path_map() -> None:
    assert decision(literal, None, ["search"]) == ("search",)
    assert decision(literals, None, ["search", "other"]) == ("search", "other")


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
    with pytest.raises(RouteError) as caught:
        decision(gives(result), {"again": "search", "done": END})
    assert all(message in str(caught.value) for message in messages), caught.value


@pytest.mark.parametrize(("result", "message"), [("b", "went to 'b'; its targets are 'a'"), (3, "of type int")])
def test_without_labels_the_targets_are_listed(result: object, message: str) -> None:
    def route() -> Literal["a"]:
        return result  # type: ignore[return-value]

    with pytest.raises(RouteError, match=message):
        decision(route, None, ["a"])


def test_a_router_binds_parameters_as_a_node_does() -> None:
    seen: list[Any] = []

    def route(question, state, ctx, urgent=True):  # type: ignore[no-untyped-def]
        seen.extend([question, state["question"], ctx.node, urgent])
        return "a"

    assert decision(route, ["a"], state={"question": "q"}, schema=Ticket) == ("a",)
    assert seen == ["q", "q", "judge", True]
    with pytest.raises(UnsetFieldError, match="the router of 'judge' reads 'question'"):
        decision(lambda question, urgent=True: "a", ["a"], schema=Ticket)


def test_a_router_sees_the_overlay_of_its_branch() -> None:
    assert decision(lambda doc: doc, ["a", "b"], state={"doc": "a"}, sent={"doc": "b"}) == ("b",)


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
    assert message in problems_of(route, path_map)


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
    graph_of(route, path_map, schema=Ticket).compile()


def test_explain_shows_the_labels_of_each_target() -> None:
    text = graph_of(gives("again"), LABELS).compile().graph.explain()
    assert "-> search ('again, both, Size.BIG'), END ('done, small'), other ('both, True')" in text
    text = graph_of(gives(True), {True: "search", False: END, None: END}).compile().graph.explain()
    assert "-> search (True), END (False, None)" in text


# --- by a field


@MODES
@each(
    ("field", "value", "path_map", "target"),
    [
        ("category", "billing", {"billing": "a", "other": "b"}, "a"),
        ("category", "other", None, "other"),
        ("urgent", True, {True: "a", False: "b"}, "a"),
        ("text", "b", ["a", "b"], "b"),
    ],
)
def test_a_fields_name_routes_by_its_value(field: str, value: object, path_map: Any, target: str, mode: str) -> None:
    names = None if path_map else ["billing", "other"]
    assert decision(field, path_map, names, state={field: value}, schema=Ticket, mode=mode) == (target,)


def test_a_list_in_a_field_forks() -> None:
    assert decision("next", ["a", "b"], state={"next": ["a", "b"]}) == ("a", "b")
    assert decision("next", ["a", "b"], state={"next": "a"}, sent={"next": "b"}) == ("b",)


def test_an_unset_or_unknown_value_of_a_field() -> None:
    with pytest.raises(UnsetFieldError, match="the router of 'judge' by the field 'category' reads"):
        decision("category", ["a"])
    with pytest.raises(RouteError, match="by the field 'category' returned 'b'"):
        decision("category", ["a"], state={"category": "b"})


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
    assert message in problems_of(field, path_map)


# --- by a module

CHOOSE = "question -> label: Literal['search', 'END']"


def choice(
    module: dspy.Module, path_map: Any = None, mode: str = "sync", *, label: str = "search", **options: Any
) -> tuple[list[str], Any]:
    """The names of a program's predictors, and its commit after a module has routed."""
    graph = graph_of(module, path_map, None if path_map else ["search"], state={"question": "q"}, **options)
    program = graph.compile()
    with dspy.context(lm=answering({"reasoning": "because", "label": label})):
        return [name for name, _ in program.named_predictors()], judged(program, mode)


@MODES
def test_a_module_with_one_literal_output_routes(mode: str) -> None:
    names, commit = choice(dspy.ChainOfThought(CHOOSE), None, mode, label="END", schema=Ticket)
    assert names == ["judge_router.predict"]
    assert (commit.route, commit.patch, commit.reason) == (("END",), {}, "because")


@MODES
@each(
    ("writes", "updates"),
    [
        (None, {}),
        ("text", {"text": "search"}),
        (["label"], {"label": "search"}),
        ({"label": "text", "reasoning": "reason"}, {"text": "search", "reason": "because"}),
    ],
)
def test_a_module_router_commits_what_writes_names(writes: Any, updates: dict[str, str], mode: str) -> None:
    _, commit = choice(dspy.ChainOfThought(CHOOSE), None, mode, schema=Ticket, writes=writes)
    assert (commit.route, commit.patch, commit.reason) == (("search",), updates, "because")


def test_a_predict_gives_no_reason_and_a_path_map_maps_its_labels() -> None:
    names, commit = choice(dspy.Predict(CHOOSE), {"search": "a", "END": "b"}, label="END", name="choose")
    assert names == ["choose"]
    assert (commit.route, commit.patch, commit.reason) == (("b",), {}, None)


def test_a_label_that_a_module_made_up_raises() -> None:
    class MadeUp(dspy.Module):
        def forward(self, **inputs: Any) -> dspy.Prediction:
            return dspy.Prediction(label="elsewhere")

    program: Any = graph_of(dspy.Predict(CHOOSE), None, ["search"], state={"question": "q"}).compile()
    program.judge_router = MadeUp()
    with pytest.raises(RouteError, match="'elsewhere'"):
        play(program)


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
    assert message in problems_of(module, **options)

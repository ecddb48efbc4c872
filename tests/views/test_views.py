"""Views: the parts of a field that a node reads, their form, and the views that are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Entry, Graph, Replace, Send, View, errors, reducers, view
from dspyer.testing import ScriptedLM
from tests.rows import each


class Finding(BaseModel):
    text: str
    page: int = 1


class Board(BaseModel):
    topic: str = "tides"
    notes: Annotated[list[str], reducers.extend] = ["first"]
    log: Annotated[list[str], reducers.append] = []
    owners: Annotated[dict[str, str], reducers.update] = {}
    tags: Annotated[set[str], reducers.union] = set()
    calls: Annotated[int, reducers.increment] = 0
    found: Annotated[list[Finding], reducers.append] = []
    best: Annotated[int, reducers.max] = 0
    plain: list[str] = []
    table: dict[str, int] = {}


def team(read: View, look: Callable[..., Any], field: str = "notes", rounds: int = 2, **more: Any) -> Graph:
    """Two writers and a reader in a loop."""

    def write(ctx: Context) -> dict[str, Any]:
        name = f"{ctx.node[0]}{ctx.visit}"
        return {
            "notes": [name],
            "log": name,
            "owners": {"lead": ctx.node, name: "x"},
            "tags": {name, "t"},
            "calls": 2,
            "found": Finding(text=name),
            "best": ctx.visit,
            "plain": [name, "p"],
            "table": {name: ctx.visit},
        }

    graph = Graph(Board).add_node("ann", write).add_node("bob", write)
    graph.add_node("reader", look, reads={field: read, **more})
    graph.add_path(START, "ann", "bob", "reader")
    return graph.add_conditional_edges("reader", lambda ctx: "ann" if ctx.visit < rounds else END, ["ann", END])


def seen(read: View, kind: Any = Any, rounds: int = 2) -> list[Any]:
    """What the reader gets at each of its visits."""
    found: list[Any] = []

    def look(it: Any, notes: list[str]) -> dict[str, Any]:
        found.append(it)
        return {"notes": ["r"]}

    look.__annotations__["it"] = kind
    graph = team(read, look, "it", rounds, notes="notes")
    run = graph.compile().run({})
    run.raise_error()
    return found


SHOWN: dict[str, tuple[View, Any, list[Any]]] = {
    "new": (view("notes").new(), list[str], [["first", "a1", "b1"], ["a2", "b2"]]),
    "last": (view("notes").last(2), list[str], [["a1", "b1"], ["a2", "b2"]]),
    "own": (view("notes").own(), list[str], [[], ["r"]]),
    "others": (view("notes").others(), list[str], [["first", "a1", "b1"], ["first", "a1", "b1", "a2", "b2"]]),
    "by": (view("notes").by("bob", "START"), list[str], [["first", "b1"], ["first", "b1", "b2"]]),
    "fit": (view("notes").fit(4), list[str], [["a1", "b1"], ["a2", "b2"]]),
    "fit nothing": (view("notes").fit(1), list[str], [[], []]),
    "new and by": (view("notes").new().by("ann"), list[str], [["a1"], ["a2"]]),
    "last and by": (view("notes").last(2).by("ann"), list[str], [["a1"], ["a2"]]),
    "new and last": (view("notes").new().last(1), list[str], [["b1"], ["b2"]]),
    "last and new": (view("notes").last(3).new(), list[str], [["first", "a1", "b1"], ["a2", "b2"]]),
    "all": (view("log"), list[str], [["a1", "b1"], ["a1", "b1", "a2", "b2"]]),
    "then": (view("log").new().then(len), int, [2, 2]),
    "text": (view("notes").new(), str, ["START: first\nann: a1\nbob: b1", "ann: a2\nbob: b2"]),
    "text or None": (view("log").new().last(1), str | None, ["bob: b1", "bob: b2"]),
    "text of one": (view("log").by("ann"), str, ["- a1", "- a1\n- a2"]),
    "text of two": (view("log").by("ann", "bob").last(2), str, ["ann: a1\nbob: b1", "ann: a2\nbob: b2"]),
    "text of keys": (view("owners").new(), str, ["a1: x\nlead: bob\nb1: x", "a2: x\nlead: bob\nb2: x"]),
    "keys": (
        view("owners").new(),
        dict,
        [{"a1": "x", "lead": "bob", "b1": "x"}, {"a2": "x", "lead": "bob", "b2": "x"}],
    ),
    "keys of one": (view("owners").by("ann"), dict[str, str], [{"a1": "x"}, {"a1": "x", "a2": "x"}]),
    "members": (view("tags").new(), list[str], [["a1", "t", "b1"], ["a2", "b2"]]),
    "amount": (view("calls").new(), int, [4, 4]),
    "amount by": (view("calls").by("ann"), int, [2, 4]),
    "amount as text": (view("calls").own(), str, ["0", "0"]),
    "models": (view("found").new().last(1), list[Finding], [[Finding(text="b1")], [Finding(text="b2")]]),
    "models as text": (
        view("found").by("ann").last(1),
        str,
        ['{"text": "a1", "page": 1}', '{"text": "a2", "page": 1}'],
    ),
    "plain list": (view("plain").last(1), list[str], [["p"], ["p"]]),
    "plain dict": (view("table").last(1), dict, [{"b1": 1}, {"b2": 2}]),
}


@each(("read", "kind", "expected"), SHOWN.values(), ids=SHOWN)
def test_the_values_of_each_view(read: View, kind: Any, expected: list[Any]) -> None:
    """S000-21, S000-26, S003-11."""
    assert seen(read, kind) == expected


def test_entries_have_author_and_commit() -> None:
    """S000-26, S004-11."""
    (first, second) = seen(view("log").new(), list[Entry])
    assert first == [Entry("a1", "ann", "trunk:1"), Entry("b1", "bob", "trunk:2")]
    assert second == [Entry("a2", "ann", "trunk:4"), Entry("b2", "bob", "trunk:5")]
    assert seen(view("owners").by("bob").last(1), list[Entry])[0] == [Entry("x", "bob", "trunk:2", "b1")]


def test_a_value_that_a_join_keeps_is_of_the_branch_that_changed_it() -> None:
    """The other branch has put the value there that was there before."""
    found: list[list[Entry]] = []

    def look(it: list[Entry]) -> None:
        found.append(it)

    def write(put: str, /) -> dict[str, Any]:
        return {"owners": {"lead": put}}

    graph = Graph(Board)
    for name, put in {"seed": "x", "left": "y", "right": "x"}.items():
        graph.add_node(name, partial(write, put), writes=["owners"])
    graph.add_node("meet", look, reads={"it": view("owners")}, writes=[])
    graph.add_edge(START, "seed").add_edge("seed", ["left", "right"]).add_edge(["left", "right"], "meet")
    graph.add_edge("meet", END).compile().run({}).raise_error()
    assert [entry[:2] for (entry,) in found] == [("y", "left")]


def test_the_values_of_a_view_are_copies() -> None:
    """S000-11: changing it changes no state."""

    def spoil(notes: list[str], found: list[Entry]) -> None:
        notes.append("mine")
        for entry in found:
            entry.value.text = "mine"

    run = team(view("notes").new(), spoil, found=view("found")).compile().run({})
    run.raise_error()
    assert "mine" not in run.state["notes"]
    assert [found.text for found in run.state["found"]] == ["a1", "b1", "a2", "b2"]


def test_after_a_replace_the_whole_field_is_new() -> None:
    found: list[list[str]] = []

    def write(ctx: Context) -> dict[str, Any]:
        return {"notes": Replace(["x", "y"]) if ctx.visit == 2 else [f"w{ctx.visit}"]}

    def look(notes: list[str]) -> dict[str, Any]:
        found.append(notes)
        return {}

    graph = Graph(Board).add_node(write).add_node("look", look, reads={"notes": view("notes").new()})
    graph.add_path(START, "write", "look")
    graph.add_conditional_edges("look", lambda ctx: "write" if ctx.visit < 3 else END, ["write", END])
    graph.compile().run({}).raise_error()
    assert found == [["first", "w1"], ["x", "y"], ["w3"]]


def test_each_copy_of_a_send_reads_all_in_its_first_round_and_its_siblings_after_the_join() -> None:
    found: dict[str, list[str]] = {}

    def work(log: list[str], ctx: Context, part: str) -> dict[str, Any]:
        found[f"{part}{ctx.visit}"] = log
        return {"log": f"{part}{ctx.visit}"}

    graph = Graph(Board).add_node("seed", lambda: {"log": "seed"}, writes=["log"])
    graph.add_node("work", work, reads={"log": view("log").new()}, writes=["log"])
    graph.add_node("meet", lambda: None, writes=[]).add_path(START, "seed")

    def fan(ctx: Context) -> list[Send]:
        return [Send("work", {"part": part}) for part in "pq"]

    graph.add_conditional_edges("seed", fan, ["work"])
    graph.add_edge("work", "meet")

    def again(ctx: Context) -> Any:
        return [Send("work", {"part": "s"})] if ctx.visit == 1 else END

    graph.add_conditional_edges("meet", again, ["work", END])
    run = graph.compile().run({})
    run.raise_error()
    assert found["p1"] == found["q1"] == ["seed"]
    assert found["s3"] == []  # what both brought lies behind commits of the node itself
    assert run.state["log"] == ["seed", "p1", "q1", "s3"]


def test_entries_of_siblings_are_new_after_the_join() -> None:
    found: list[list[str]] = []

    def left(log: list[str]) -> dict[str, Any]:
        found.append(log)
        return {"log": "l"}

    graph = Graph(Board).add_node("left", left, reads={"log": view("log").new()}, writes=["log"])
    graph.add_node("right", lambda: {"log": "r"}, writes=["log"]).add_node("meet", lambda: None, writes=[])
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "meet")
    graph.add_conditional_edges("meet", lambda ctx: "left" if ctx.visit == 1 else END, ["left", END])
    graph.add_edge("left", "meet")
    graph.compile().run({}).raise_error()
    assert found == [[], ["r"]]


def test_a_view_of_an_unset_field_is_empty() -> None:
    class Late(BaseModel):
        notes: Annotated[list[str], reducers.append]
        plain: list[str]
        table: dict[str, int]

    found: list[Any] = []

    def look(a: list[str], b: str, c: list[str], d: dict) -> dict[str, Any]:  # type: ignore[type-arg]
        found.append((a, b, c, d))
        return {}

    reads = {
        "a": view("notes").new(),
        "b": view("notes").last(1),
        "c": view("plain").last(1),
        "d": view("table").last(1),
    }
    graph = Graph(Late, inputs=[]).add_node("look", look, reads=reads, writes=[])
    graph.add_path(START, "look", END).compile().run({}).raise_error()
    assert found == [([], "", [], {})]


def test_a_module_reads_through_a_view_by_the_type_of_its_input() -> None:
    prompts: list[Any] = []
    module = dspy.Predict("log, notes: list[str], calls: int -> topic")
    reads = {"log": view("log").new(), "notes": view("notes").by("bob"), "calls": view("calls").new()}
    graph = team(view("log"), lambda log: None, "log", rounds=1)
    graph.add_node("ask", module, reads=reads, writes=["topic"])
    graph.add_conditional_edges("bob", lambda calls: "ask", ["ask"]).add_edge("ask", END)

    def answer(prompt: Any) -> dict[str, Any]:
        prompts.append(dict(prompt.inputs))
        return {"topic": "done"}

    with ScriptedLM(answer):
        graph.compile().run({}).raise_error()
    assert prompts == [{"log": "ann: a1\nbob: b1", "notes": '["b1"]', "calls": "4"}]


def test_views_in_a_map_and_in_a_subgraph() -> None:
    """In a subgraph new is what came since it began; its caller's inputs come from `START`."""
    found: list[Any] = []

    def item(doc: str, log: list[str]) -> str:
        found.append((doc, log))
        return doc.upper()

    class Inner(BaseModel):
        log: Annotated[list[str], reducers.append] = []

    def step(log: list[Entry], ctx: Context) -> dict[str, Any]:
        found.append([(entry.value, entry.author) for entry in log])
        return {"log": f"i{ctx.visit}"}

    inner = Graph(Inner, inputs=["log"]).add_node("step", step, reads={"log": view("log").new()}, writes=["log"])
    inner.add_node("other", lambda: {"log": "o"}, writes=["log"]).add_path(START, "step", "other")
    inner.add_conditional_edges("other", lambda ctx: "step" if ctx.visit < 2 else END, ["step", END])

    class Outer(Board):
        log2: list[str] = []

    outer = Graph(Outer).add_node("seed", lambda: {"log": "s", "plain": ["x", "y"]}, writes=["log", "plain"])
    outer.add_map("each", item, over="plain", item="doc", into="log2", reads={"doc": "doc", "log": view("log").new()})
    outer.add_node("inner", inner.compile(), reads={"log": view("log").new()})
    outer.add_path(START, "seed", "each", "inner", END)
    run = outer.compile().run({})
    run.raise_error()
    assert sorted(found[:2]) == [("x", ["s"]), ("y", ["s"])]
    assert found[2:] == [[("s", "START")], [("o", "other")]]
    assert run.state["log"] == ["s", "i1", "o", "i2", "o"]
    assert run.state["log2"] == ["X", "Y"]


def test_a_subgraph_that_reads_a_view_of_a_plain_list_does_not_write_it_back() -> None:
    class Inner(BaseModel):
        plain: list[str] = []
        topic: str = ""

    inner = Graph(Inner, inputs=["plain"]).add_node("cut", lambda plain: {"plain": plain[:0], "topic": "t"})
    program = inner.add_path(START, "cut", END).compile()
    outer = Graph(Board).add_node("inner", program, reads={"plain": view("plain").last(1)})
    run = outer.add_path(START, "inner", END).compile().run({"plain": ["a", "b"]})
    assert (run.state["plain"], run.state["topic"]) == (["a", "b"], "t")


def plain(it: Any) -> dict[str, Any]:
    return {}


REFUSED: dict[str, tuple[View, Any, str]] = {
    "unknown field": (view("nots").new(), Any, "'nots' in reads is no field of the state"),
    "unknown node": (view("notes").by("anne"), Any, "'anne' is no node. Did you mean 'ann'"),
    "no reducer": (view("plain").new(), Any, "keeps its parts apart: give it one of append, log, extend"),
    "no parts": (view("best").new(), Any, "no reducer that keeps its parts apart"),
    "one value": (view("topic").last(1), Any, "holds one str: read the field itself"),
    "a list for a dict": (view("notes").new(), dict, "gives a list, and it is annotated with dict"),
    "an amount for a list": (view("calls").new(), list[str], "gives one amount, and it is annotated with list"),
    "keys for an int": (view("owners").new(), int, "gives a dict of keys, and it is annotated with int"),
    "a tuple of entries": (view("notes").new(), tuple[Entry, ...], r"'it' .* entries come as a list, annotate it with"),
    "one entry": (view("notes").last(1), Entry, "entries come as a list, annotate it with list"),
    "entries by key": (view("owners").new(), dict[str, Entry], "entries come as a list, annotate it with list"),
    "text or list": (view("notes").new(), str | list[str], r"'it' .* str \| list.* allows several forms"),
    "entries or list": (view("notes").new(), list[Entry] | list[str], "allows several forms"),
    "entries or text": (view("notes").new(), Annotated[Sequence[Entry] | str, "news"], "allows several forms"),
    "a tuple": (view("notes").new(), tuple[str, ...], "gives a list, and it is annotated with tuple"),
    "a model": (view("found").new(), Finding, "gives a list, and it is annotated with Finding"),
    "a list for a mapping": (view("notes").new(), Mapping[str, str], "gives a list, and it is annotated with"),
    "keys for a sequence": (view("owners").new(), Sequence[str], "gives a dict of keys, and it is annotated with"),
    "an amount for a sequence": (view("calls").new(), Sequence[int] | None, "gives one amount, and it is annotated"),
    "what nothing is": (view("notes").new(), "Nowhere[Entry]", r"'Nowhere\[Entry\]' cannot be resolved"),
}


@each(("read", "kind", "text"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_view_is_an_error_when_the_graph_is_built(read: View, kind: Any, text: str) -> None:
    def look(it: Any) -> dict[str, Any]:
        return {}

    look.__annotations__["it"] = kind
    with pytest.raises(errors.GraphError, match=text):
        team(read, look, "it").compile()


FORMS: dict[str, tuple[View, Any, Any]] = {
    "annotated text": (view("log").by("ann").last(1), Annotated[str, "the news"], "a1"),
    "text or none": (view("log").by("ann").last(1), str | None, "a1"),
    "optional and annotated": (view("log").by("ann").last(1), Annotated[str, "news"] | None, "a1"),
    "annotated and optional": (view("log").by("ann").last(1), Annotated[str | None, "news"], "a1"),
    "a sequence of entries": (view("log").by("ann"), Sequence[Entry], [Entry("a1", "ann", "trunk:1")]),
    "an iterable of entries": (view("log").by("ann"), Iterable[Entry], [Entry("a1", "ann", "trunk:1")]),
    "a collection of entries": (view("log").by("ann"), Collection[Entry] | None, [Entry("a1", "ann", "trunk:1")]),
    "annotated entries": (view("log").by("ann"), Annotated[list[Entry], "news"], [Entry("a1", "ann", "trunk:1")]),
    "written entries": (view("log").by("ann"), "list[Entry]", [Entry("a1", "ann", "trunk:1")]),
    "written text": (view("log").by("ann").last(1), "Annotated[str, 'news']", "a1"),
    "a sequence": (view("log").by("ann"), Sequence[str], ["a1"]),
    "lists": (view("log").by("ann"), list[str] | list[int], ["a1"]),
    "a mapping": (view("owners").by("ann"), Mapping[str, str], {"a1": "x"}),
    "an object": (view("log").by("ann"), object, ["a1"]),
    "what a function makes": (view("log").then(len), tuple[int] | str, 2),
}


@each(("read", "kind", "expected"), FORMS.values(), ids=FORMS)
def test_the_annotation_decides_the_form_of_a_view(read: View, kind: Any, expected: Any) -> None:
    assert seen(read, kind)[0] == expected


def test_the_annotation_of_a_modules_input_decides_the_form() -> None:
    signature = dspy.make_signature({"it": (str | list[str], dspy.InputField()), "topic": (str, dspy.OutputField())})
    graph = Graph(Board).add_node("ask", dspy.Predict(signature), reads={"it": view("notes").new()})
    with pytest.raises(errors.GraphError, match=r"'it' .* allows several forms"):
        graph.add_path(START, "ask", END).compile()


def test_without_a_schema_views_have_no_authors() -> None:
    graph = Graph().add_node("look", plain, reads={"it": view("notes").new()}, writes=[])
    with pytest.raises(errors.GraphError, match="without a schema no field has a reducer"):
        graph.add_path(START, "look", END).compile()
    found: list[Any] = []

    def keep(it: Any) -> None:
        found.append(it)

    graph = Graph().add_node("look", keep, reads={"it": view("notes").last(1)}, writes=[])
    graph.add_path(START, "look", END).compile()(notes=["a", "b"])
    assert found == [["b"]]


BAD_STEPS: dict[str, tuple[Callable[[], Any], str]] = {
    "last 0": (lambda: view("notes").last(0), "whole number of at least 1"),
    "last True": (lambda: view("notes").last(True), "whole number of at least 1"),
    "fit -1": (lambda: view("notes").fit(-1), "whole number of at least 1"),
    "fit text": (lambda: view("notes").fit("4k"), "whole number of at least 1"),  # type: ignore[arg-type]
    "by nobody": (lambda: view("notes").by(), "takes names of nodes"),
    "by a list": (lambda: view("notes").by(["ann"]), "takes names of nodes"),  # type: ignore[arg-type]
    "then nothing": (lambda: view("notes").then(3), "takes a function"),  # type: ignore[arg-type]
    "after then": (lambda: view("notes").then(len).new(), "nothing follows .then"),
    "no name": (lambda: view(len), "takes the name of a field"),  # type: ignore[arg-type]
}


@each(("make", "text"), BAD_STEPS.values(), ids=BAD_STEPS)
def test_an_invalid_step_is_an_error_at_once(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(errors.GraphError, match=text):
        make()


def test_the_repr_of_a_view_is_its_code() -> None:
    read = view("notes").new().by("ann", "bob").last(3).fit(9).then(len)
    assert repr(read) == "view('notes').new().by('ann', 'bob').last(3).fit(9).then(len)"


# --- ctx.view and ctx.delta


def asked(ask: Callable[[Context], Any], reads: Any = None, rounds: int = 2) -> list[Any]:
    """What a node asks in its code at each of its visits."""
    found: list[Any] = []

    def look(ctx: Context) -> dict[str, Any]:
        found.append(ask(ctx))
        return {"notes": ["r"]}

    def write(ctx: Context, topic: str) -> dict[str, Any]:
        return {"notes": [f"w{ctx.visit}"], "calls": 1, "topic": f"t{ctx.visit}", "owners": {"k": "v"}}

    graph = Graph(Board).add_node("write", write)
    graph.add_node("look", look, reads=reads, writes=["notes"]).add_path(START, "write", "look")
    graph.add_conditional_edges("look", lambda ctx: "write" if ctx.visit < rounds else END, ["write", END])
    graph.compile().run({}).raise_error()
    return found


def test_ctx_view_reads_the_fields_of_the_node() -> None:
    """S004-7, S004-9."""
    first, second = asked(lambda ctx: ctx.view(view("notes").new()), ["notes"])
    assert [entry.value for entry in first] == ["first", "w1"]
    assert second == [Entry("w2", "write", "trunk:3")]
    assert asked(lambda ctx: ctx.view(view("calls").then(len))) == [2, 3]
    with pytest.raises(errors.InputError, match=r"'notes' is not among its reads \('topic'\)"):
        asked(lambda ctx: ctx.view(view("notes")), ["topic"])
    with pytest.raises(errors.InputError, match="is no node"):
        asked(lambda ctx: ctx.view(view("notes").by("nobody")))
    with pytest.raises(errors.InputError, match="that is no field"):
        asked(lambda ctx: ctx.view(view("note")))
    with pytest.raises(errors.InputError, match="no reducer that keeps"):
        asked(lambda ctx: ctx.view(view("plain").new()))


def test_a_delta_has_all_changes_of_the_fields_that_a_node_reads() -> None:
    """S000-8, S000-26, S004-14."""
    first, second = asked(Context.delta)
    assert first.patch["topic"] == "t1"
    assert first.patch["notes"] == ["first", "w1"]
    assert second.patch == {"topic": "t2", "notes": ["w2"], "owners": {"k": "v"}, "calls": 1}
    assert second.text == "topic: t2\nnotes:\n- write: w2\nowners:\n- write: k: v\ncalls: 1 more"
    only = asked(Context.delta, ["calls"])
    assert [delta.patch for delta in only] == [{"calls": 1}, {"calls": 1}]


def test_a_delta_is_the_net_change_of_a_plain_field() -> None:
    found: list[Any] = []

    def there(ctx: Context) -> dict[str, Any]:
        return {"topic": "there", "table": {"a": ctx.visit, "b": 1}, "plain": ["x"]}

    def back(ctx: Context) -> dict[str, Any]:
        return {"topic": "tides"}

    def look(ctx: Context) -> dict[str, Any]:
        found.append(ctx.delta())
        return {}

    graph = Graph(Board).add_node(there).add_node(back).add_node("look", look, writes=[])
    graph.add_path(START, "there", "back", "look")
    graph.add_conditional_edges("look", lambda ctx: "there" if ctx.visit < 2 else END, ["there", END])
    graph.compile().run({}).raise_error()
    assert found[1].patch == {"table": {"a": 2}}
    assert found[1].text == 'table: {"a": 2, "b": 1}'


def test_a_router_gets_no_views_and_no_posts() -> None:
    def route(ctx: Context) -> str:
        ctx.view(view("notes"))
        return END

    graph = Graph(Board).add_node("write", lambda: {"log": "x"}, writes=["log"]).add_edge(START, "write")
    run = graph.add_conditional_edges("write", route, [END]).compile().run({})
    assert isinstance(run.error, errors.NodeOutputError)
    assert "after the node has returned" in str(run.error)


def test_other_values_are_shown_as_json() -> None:
    seen: list[str] = []

    def look(found: str) -> None:
        seen.append(found)

    graph = Graph(Board).add_node("write", lambda: {"found": Finding(text="ä")}, writes=["found"])
    graph.add_node("look", look, reads={"found": view("found").by("write")}, writes=[])
    graph.add_path(START, "write", "look", END).compile().run({}).raise_error()
    assert seen == ['- {"text": "ä", "page": 1}']

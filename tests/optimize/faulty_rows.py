"""The table of faulty graphs: one row for each shape, with the nodes in which faults can be planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import dspy
from pydantic import BaseModel

from dspyer import END, START, Command, CompiledGraph, Graph, Send, agents, reducers
from dspyer.optimize import by_field, equals
from dspyer.testing import ScriptedLM
from tests.agents.kit import turn
from tests.optimize.planted import BAD, REFUSED, FakePredict, Planting


class Row(NamedTuple):
    """One shape of a program.

    Attributes:
        build: makes it, with the faults of a planting.
        keys: the metric of each key, as a column or function for `equals`; the last one is the goal.
        nodes: the name under which each node that may get a fault is a culprit.
        examples: the examples, with the nodes that run on each, if all are right.
        needs: a node that is called only if another one is wrong in the run itself: the fix of a check.
        hidden: nodes that are not reached if another one is wrong: where a `Command` goes is its own, no gold mends it.
    """

    build: Callable[[Planting], dspy.Module]
    keys: Mapping[str, Any]
    nodes: Mapping[str, str]
    examples: tuple[tuple[dspy.Example, set[str]], ...]
    needs: Mapping[str, str] = {}
    hidden: Mapping[str, str] = {}

    @property
    def metric(self) -> Any:
        return by_field({key: equals(gold) for key, gold in self.keys.items()}, goal=[*self.keys][-1])

    def expected(self, faults: set[str], runs: set[str]) -> set[str]:
        """The culprits on an example."""
        found = {name for name in faults & runs if self.needs.get(name, name) in faults}
        return {self.nodes[name] for name in found if self.hidden.get(name) not in faults}


def row(build: Callable[[Planting], dspy.Module], nodes: str | Mapping[str, str], keys: Any, **inputs: Any) -> Row:
    """A row with one example whose inputs are given; the gold of a field is `ok` and its name, unless keys say more."""
    found = names(nodes) if isinstance(nodes, str) else nodes
    keys = names(keys) if isinstance(keys, str) else keys
    columns = {key: f"ok {key}" for key in keys.values() if isinstance(key, str)}
    example = dspy.Example(**{**columns, **inputs}).with_inputs("items" if "items" in inputs else "q")
    return Row(build, keys, found, ((example, {*found}),))


def names(text: str) -> dict[str, str]:
    """Names that stand for themselves."""
    return {name: name for name in text.split()}


class Fields(BaseModel):
    """The state of most of them."""

    q: str = ""
    a: str = ""
    b: str = ""
    c: str = ""
    draft: str = ""
    rounds: int = 0
    label: str = ""
    answer: str = ""
    items: list[str] = []
    tags: list[str] = []
    docs: list[dict[str, str]] = []
    notes: Annotated[list[str], reducers.append] = []
    problems: list[str] = []
    report: str = ""


def chain(plant: Planting, *steps: str, around: str = "") -> CompiledGraph:
    """A path of predictors; a step is its signature, and its node is named by its output."""
    graph, names = Graph(Fields, name="Chain", inputs=[steps[0].split(" ->")[0]]), []
    for step in steps:
        names.append(step.split("-> ")[1])
        graph.add_node(names[-1].upper(), plant.predictor(f"{around}{names[-1].upper()}", step))
    return graph.add_path(START, *(name.upper() for name in names), END).compile()


def flat(plant: Planting) -> CompiledGraph:
    return chain(plant, "q -> a", "a -> b", "b, a -> answer")


def fork(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Fork", inputs=["q"])
    for step in ("q -> a", "a -> b", "a -> c", "b, c -> answer"):
        name = step.split("-> ")[1]
        graph.add_node(name.upper(), plant.predictor(name.upper(), step))
    graph.add_edge(START, "A").add_edge("A", ["B", "C"])
    return graph.add_edge(["B", "C"], "ANSWER").add_edge("ANSWER", END).compile()


def loop(plant: Planting) -> CompiledGraph:
    """Three rounds of a draft and notes on it, which the next draft reads; each draft has gold of its own."""
    graph = Graph(Fields, name="Loop", inputs=["q"])
    draft = plant.predictor("write", "q, a, rounds: int -> draft", lambda rounds, **_: f"draft {rounds}")
    graph.add_node("write", draft)
    graph.add_node("look", plant.predictor("look", "draft -> a", lambda draft: f"on {draft}"))
    graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"])
    graph.add_node("end", plant.predictor("end", "a -> answer")).add_path(START, "write", "look", "count")
    graph.add_conditional_edges("count", lambda rounds: "end" if rounds > 2 else "write", ["end", "write"])
    return graph.add_edge("end", END).compile()


def add_arms(graph: Graph, plant: Planting) -> Graph:
    """Two arms, of which the one that the question names is right."""
    for arm in ("left", "right"):
        give = lambda q, arm=arm: f"by {arm}" if arm in q else BAD  # noqa: E731
        graph.add_node(arm, plant.predictor(arm, "q -> b", give)).add_edge(arm, "last")
    return graph.add_node("last", plant.predictor("last", "b -> answer")).add_edge("last", END)


def router(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Routed", inputs=["q"]).add_node("read", plant.predictor("read", "q -> a"))
    decide = FakePredict(
        "q, a -> label: Literal['left', 'right']",
        lambda q, a: plant.value("read_router", [q, a], *decided(q)),
    )
    graph.add_edge(START, "read").add_conditional_edges("read", decide, ["left", "right"], writes="label")
    return add_arms(graph, plant).compile()


def decided(q: str) -> tuple[str, str]:
    """The right label, and the wrong one."""
    return ("left", "right") if "left" in q else ("right", "left")


def command(plant: Planting) -> CompiledGraph:
    def decide(q: str, ask: Any) -> Command[Literal["left", "right"]]:
        found = ask(q=q).label
        return Command({"label": found}, found)

    graph = Graph(Fields, name="Commanded", inputs=["q"])
    ask = FakePredict("q -> label", lambda q: plant.value("decide", [q], *decided(q)))
    graph.add_node("decide", decide, modules={"ask": ask}, writes=["label"]).add_edge(START, "decide")
    return add_arms(graph, plant).compile()


def arms(build: Any, nodes: dict[str, str]) -> Row:
    """A row with an example for each of two arms."""
    examples = []
    for arm in ("left", "right"):
        example = dspy.Example(q=f"go {arm}", a="ok a", label=arm, b=f"by {arm}", answer="ok answer")
        examples.append((example.with_inputs("q"), {*nodes} - {"right" if arm == "left" else "left"}))
    keys = {key: key for key in ("a", "label", "b", "answer") if key != "a" or "read" in nodes}
    return Row(build, keys, nodes, tuple(examples))


def nested(plant: Planting) -> CompiledGraph:
    """The inner graph has two nodes; what the outer one reads of it is renamed."""
    graph = Graph(Fields, name="Nested", inputs=["q"]).add_node("first", plant.predictor("first", "q -> a"))
    inner = chain(plant, "a -> b", "b -> c")
    graph.add_node("inner", inner, writes={"c": "draft"}).add_node("last", plant.predictor("last", "draft -> answer"))
    return graph.add_path(START, "first", "inner", "last", END).compile()


def nested_twice(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Middle", inputs=["q"]).add_node("before", plant.predictor("before", "q -> a"))
    graph.add_node("deep", chain(plant, "a -> b", "b -> c")).add_node("after", plant.predictor("after", "c -> draft"))
    middle = graph.add_path(START, "before", "deep", "after", END).compile()
    outer = Graph(Fields, name="Outer", inputs=["q"]).add_node("middle", middle, writes=["draft"])
    outer.add_node("last", plant.predictor("last", "draft -> answer"))
    return outer.add_path(START, "middle", "last", END).compile()


def mapped(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Mapped", inputs=["items"])
    graph.add_node("first", plant.predictor("first", "items: list[str] -> a"))
    tag = plant.predictor("tag", "item, a -> tag", lambda item, a: f"ok {item}")
    graph.add_map("tag", tag, over="items", item="item", into="tags")
    graph.add_node("last", plant.predictor("last", "tags: list[str] -> answer"))
    return graph.add_path(START, "first", "tag", "last", END).compile()


def of_item(example: Any, state: Any) -> str:
    return f"ok {state['item']}"


def each() -> type[BaseModel]:
    class Item(BaseModel):
        item: str
        note: str = ""
        kind: str = ""
        tag: str = ""

    return Item


def map_of_graph(plant: Planting) -> CompiledGraph:
    one = Graph(each(), name="One", inputs=["item"])
    one.add_node("note", plant.predictor("note", "item -> note", lambda item: f"ok {item}"))
    one.add_node("tag", plant.predictor("tag", "item, note -> tag", lambda item, note: f"tag {item}"))
    graph = Graph(Fields, name="Items", inputs=["items"])
    inner = one.add_path(START, "note", "tag", END).compile()
    graph.add_map("each", inner, over="items", item="item", into="docs", writes=["note", "tag"])
    graph.add_node("last", plant.predictor("last", "docs: list[dict] -> answer"))
    return graph.add_path(START, "each", "last", END).compile()


def sends(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Sent", inputs=["items"])
    graph.add_node("first", plant.predictor("first", "items: list[str] -> a"))
    work = plant.predictor("work", "item, a -> note", lambda item, a: f"ok {item}")
    graph.add_node("work", work, writes={"note": "notes"})

    def spread(items: list[str]) -> list[Send]:
        return [Send("work", {"item": item}) for item in items]

    graph.add_edge(START, "first").add_conditional_edges("first", spread, ["work"])
    graph.add_node("last", plant.predictor("last", "notes: list[str] -> answer"))
    return graph.add_edge("work", "last").add_edge("last", END).compile()


def send_to_graph(plant: Planting) -> CompiledGraph:
    """Each `Send` goes to a graph of two nodes, with a router between them."""
    one = Graph(each(), name="Sent", inputs=["item"])
    one.add_node("note", plant.predictor("note", "item -> note", lambda item: f"ok {item}"))
    route = FakePredict("note -> kind: Literal['x', 'other']", lambda note: plant.value("route", [note], *kinds(note)))
    one.add_edge(START, "note").add_conditional_edges("note", route, ["x", "other"], writes="kind")
    for kind in ("x", "other"):
        give = lambda item, kind=kind: f"tag {item}" if kind == kinds(item)[0] else BAD  # noqa: E731
        one.add_node(kind, plant.predictor(kind, "item -> tag", give)).add_edge(kind, END)

    def spread(items: list[str]) -> list[Send]:
        return [Send("each", {"item": item}) for item in items]

    graph = Graph(Fields, name="SentGraphs", inputs=["items"]).add_conditional_edges(START, spread, ["each"])
    graph.add_node("each", one.compile(), writes={"tag": "notes"})
    graph.add_node("last", plant.predictor("last", "notes: list[str] -> answer"))
    return graph.add_edge("each", "last").add_edge("last", END).compile()


def kinds(text: str) -> tuple[str, str]:
    """The right kind, and the wrong one."""
    return ("x", "other") if text.endswith("x") else ("other", "x")


class OfItem(dspy.Module):
    """A module of two graphs for one item."""

    def __init__(self, plant: Planting) -> None:
        super().__init__()
        note = plant.predictor("note", "item -> note", lambda item: f"ok {item}")
        tag = plant.predictor("tag", "item, note -> tag", lambda item, note: f"tag {item}")
        self.first = Graph(name="First").add_node("note", note).add_path(START, "note", END).compile()
        self.then = Graph(name="Then").add_node("tag", tag).add_path(START, "tag", END).compile()

    def forward(self, item: str) -> dspy.Prediction:
        return self.then(item=item, note=self.first(item=item).note)


def map_of_module(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Modules", inputs=["items"])
    graph.add_map("each", OfItem(plant), over="items", item="item", into="tags", writes=["tag"])
    graph.add_node("last", plant.predictor("last", "tags: list[str] -> answer"))
    return graph.add_path(START, "each", "last", END).compile()


class TwoGraphs(dspy.Module):
    """A module of two graphs; what the first gives is input of the second, as it is or within a text."""

    def __init__(self, plant: Planting) -> None:
        super().__init__()
        self.notes = chain(plant, "q -> a", "a -> b", around="notes ")
        self.sort = [chain(plant, "draft -> c", "c -> answer", around="sort ")]

    def forward(self, q: str) -> dspy.Prediction:
        given = self.notes(q=q).b
        return self.sort[0](draft=f"{given}, in a text")


def editor(plant: Planting) -> CompiledGraph:
    graph = Graph(Fields, name="Edited", inputs=["q"])
    graph.add_node("write", plant.predictor("write", "q -> draft", lambda q: "first draft"))
    edit = plant.predictor("edit", "draft -> edited", lambda draft: "last draft")
    graph.add_node("edit", edit, writes={"edited": "draft"})
    graph.add_node("last", plant.predictor("last", "draft -> answer"))
    return graph.add_path(START, "write", "edit", "last", END).compile()


def checked(plant: Planting) -> CompiledGraph:
    """What a fault in the node gives is refused, and corrected by a fix that may be wrong itself."""
    graph = Graph(Fields, name="Checked", inputs=["q"]).add_node("first", plant.predictor("first", "q -> a"))
    graph.add_node("write", plant.predictor("write", "a -> b", wrong=REFUSED))
    fix = FakePredict(
        "a, previous_b, problems: list[str] -> b",
        lambda a, **_: plant.value("write_fix", [a], "ok b"),
    )
    graph.add_check("fits", lambda b: ["refused"] if b == REFUSED else [], of="write", fix=fix)
    graph.add_node("last", plant.predictor("last", "b -> answer"))
    return graph.add_path(START, "first", "write", "last", END).compile()


def agent(plant: Planting) -> CompiledGraph:
    """An agent calls a tool and submits."""

    def look(place: str) -> str:
        """Looks."""
        return "7"

    def say(prompt: Any) -> Any:
        if len(prompt.turns) < 3:
            return turn(("look", {"place": "there"}))
        return turn(("submit", {"report": plant.value("react", [prompt.inputs["a"]], "ok report")}))

    inner = agents.tool_loop("a -> report", [look], name="Agent").compile()
    graph = Graph(Fields, name="WithAgent", inputs=["q"]).add_node("first", plant.predictor("first", "q -> a"))
    graph.add_node("agent", inner, lm=ScriptedLM(say), writes=["report"])
    graph.add_node("last", plant.predictor("last", "report -> answer"))
    return graph.add_path(START, "first", "agent", "last", END).compile()


def function(plant: Planting) -> CompiledGraph:
    """A function between two predictors."""
    graph = Graph(Fields, name="Function", inputs=["q"]).add_node("first", plant.predictor("first", "q -> a"))
    graph.add_node("join", lambda a: {"b": plant.value("join", [a], "ok b")}, writes=["b"])
    graph.add_node("last", plant.predictor("last", "b -> answer"))
    return graph.add_path(START, "first", "join", "last", END).compile()


def functions_async(plant: Planting) -> CompiledGraph:
    """Async functions, one of which calls a predictor."""

    async def join(a: str) -> dict[str, str]:
        return {"b": plant.value("join", [a], "ok b")}

    async def ask(b: str, one: Any) -> dict[str, str]:
        return {"c": (await one.acall(b=b)).c}

    graph = Graph(Fields, name="Async", inputs=["q"]).add_node("first", plant.predictor("first", "q -> a"))
    graph.add_node("join", join, writes=["b"])
    graph.add_node("ask", ask, modules={"one": plant.predictor("ask", "b -> c")}, writes=["c"])
    graph.add_node("last", plant.predictor("last", "b, c -> answer"))
    return graph.add_path(START, "first", "join", "ask", "last", END).compile()


def plan(example: Any, state: Any) -> str:
    return f"draft {state['rounds']}"


LOOP = {"draft": plan, "a": lambda example, state: f"on {plan(example, state)}", "answer": "answer"}
INNER = {"B": "inner.B", "C": "inner.C"}
DEEP = {"before": "middle.before", "B": "middle.deep.B", "C": "middle.deep.C", "after": "middle.after", "last": "last"}
TWO = {"notes A": "notes.A", "notes B": "notes.B", "sort C": "sort[0].C", "sort ANSWER": "sort[0].ANSWER"}
DOCS = [{"note": f"ok {item}", "tag": f"tag {item}"} for item in "xyz"]
ITEMS = [*"xyz"]
TAGS = [f"ok {item}" for item in ITEMS]
KEYS = {
    "each.note": of_item,
    "each.tag": lambda example, state: f"tag {state['item']}",
    "docs": "docs",
    "answer": "answer",
}

TAGGED = [f"tag {item}" for item in ITEMS]
PARTS = {
    "each.note": of_item,
    "each.kind": lambda example, state: kinds(state["item"])[0],
    "each.tag": lambda example, state: f"tag {state['item']}",
    "notes": "notes",
    "answer": "answer",
}
SENT = {"note": "each.note", "route": "each.note_router", "x": "each.x", "other": "each.other", "last": "last"}
OF_MODULE = {
    "each.first.note": lambda example, state: f"ok {state['item']}",
    "each.then.tag": lambda example, state: f"tag {state['item']}",
    "tags": "tags",
    "answer": "answer",
}

ROWS = {
    "flat": row(flat, "A B ANSWER", "a b answer", q="?"),
    "fork": row(fork, "A B C ANSWER", "a b c answer", q="?"),
    "loop": row(loop, "write look end", LOOP, q="?"),
    "module router": arms(router, names("read read_router left right last")),
    "nested": row(nested, {"first": "first", **INNER, "last": "last"}, "a b c answer", q="?"),
    "nested twice": row(nested_twice, DEEP, "a b c draft answer", q="?"),
    "map": row(mapped, "first tag last", "a tags answer", items=ITEMS, tags=TAGS),
    "map of a graph": row(
        map_of_graph, {"note": "each.note", "tag": "each.tag", "last": "last"}, KEYS, items=ITEMS, docs=DOCS
    ),
    "Send": row(sends, "first work last", "a notes answer", items=ITEMS, notes=TAGS),
    "Send to a graph with a router": row(send_to_graph, SENT, PARTS, items=ITEMS, notes=TAGGED),
    "map of a module of graphs": row(
        map_of_module,
        {"note": "each.first.note", "tag": "each.then.tag", "last": "last"},
        OF_MODULE,
        items=ITEMS,
        tags=TAGGED,
    ),
    "two graphs": row(TwoGraphs, TWO, "a b c answer", q="?"),
    "editor": row(
        editor,
        "write edit last",
        {"draft": "draft", "edit.draft": "edited", "answer": "answer"},
        q="?",
        draft="first draft",
        edited="last draft",
    ),
    "check": row(checked, "first write write_fix last", "a b answer", q="?")._replace(needs={"write_fix": "write"}),
    "agent": row(agent, {"first": "first", "react": "agent.react", "last": "last"}, "a report answer", q="?"),
    "function": row(function, "first join last", "a b answer", q="?"),
    "async functions": row(functions_async, {**names("first join last"), "ask": "ask.one"}, "a b c answer", q="?"),
    "Command": arms(command, {"decide": "decide.ask", **names("left right last")})._replace(
        hidden=dict.fromkeys(("left", "right"), "decide")
    ),
}

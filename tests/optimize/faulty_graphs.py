"""Random graphs in which some nodes go wrong at some of their visits, and what is known of that without dspyer.

A node gives a right value if all that it reads is right, if it should run at all, and if no fault is planted in this
visit of it. Where only the last is not so, the node notes itself as a culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import dspy
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from dspyer import END, START, Command, CompiledGraph, Graph, Send, reducers
from dspyer.optimize import equals
from tests.optimize.planted import BAD, REFUSED, FakePredict, is_right


class Block(NamedTuple):
    """A part of a graph, which ends at one node; `reads` choose among the fields before it."""

    kind: str
    reads: tuple[int, ...]
    size: int


class Plan(NamedTuple):
    """The blocks of a graph, and its faults: the number of a node and its visit, 0 for all visits."""

    blocks: tuple[Block, ...]
    faults: tuple[tuple[int, int], ...]


def reading(field: str, function: Callable[[Any], Any], returns: Any = None) -> Callable[..., Any]:
    """The same function with a parameter of this name: a node or router reads the field, and nothing else."""
    named: Callable[..., Any] = eval(f"lambda {field}: function({field})", {"function": function})
    named.__annotations__.update({} if returns is None else {"return": returns})
    return named


def signature(inputs: Sequence[str], output: str = "out") -> str:
    return f"{', '.join(inputs)} -> {output}"


def all_right(example: Any, **fields: Any) -> bool:
    return all(map(is_right, fields.values()))


class FaultyGraph:
    """The graph of a plan. Every node but counters and pure routers has a predictor.

    Attributes:
        program: the program.
        metrics: the metric of each field that a node with a predictor writes.
        example: the right values.
        culprits: in the last run, the nodes that went wrong although nothing before them had; fixes in any run.
        runs: how often the program was called.
    """

    def __init__(self, plan: Plan) -> None:
        self.fields: dict[str, Any] = {"q": (str, ...)}
        self.gold: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.culprits: set[str] = set()
        self.nodes: list[str] = []
        self._readable = ["q"]
        self._folding: list[tuple[str, str]] = []
        self._predictors: dict[str, str] = {}  # where they are not named as their nodes
        self._visits: Counter[str] = Counter()
        self._steps: list[Callable[[Graph], Any]] = []
        self.runs = 0
        self._do(lambda g: g.add_node("begin", self._begin, writes=[]).add_edge(START, "begin"))
        last = "begin"
        for number, block in enumerate(plan.blocks):
            last = getattr(self, f"_{block.kind}")(f"b{number}", block, last)
        self._node_at("goal", self._readable[-1:], last)
        self._edge("goal", END)
        schema: type[BaseModel] = create_model("Planted", **self.fields)
        graph = Graph(schema, inputs=["q"], name="Planted")
        for step in self._steps:
            step(graph)
        self.faults = {self.nodes[at % len(self.nodes)]: visit for at, visit in plan.faults}
        self.program = graph.compile()
        self.example = dspy.Example(q="ok", **self.gold).with_inputs("q")

    @property
    def blamed(self) -> set[str]:
        """The culprits, and those who have folded something into what a culprit gave: nobody can tell them apart."""
        return self.culprits.union(*[pair for pair in self._folding if self.culprits.intersection(pair)])

    def _begin(self) -> None:
        self.runs += 1
        self._visits.clear()
        self.culprits = {name for name in self.culprits if name.endswith("_fix")}

    # --- what a node does

    def _answer(
        self, node: str, inputs: Sequence[Any], right: Any, wrong: Any = BAD, misled: bool = False, visit: int = 0
    ) -> Any:
        """The output of a node; `wrong` is what a planted fault gives."""
        self._visits[node] += 1
        visit = visit or self._visits[node]
        if misled or not all(map(is_right, inputs)):
            return BAD if wrong == REFUSED else wrong
        if node in self.faults and self.faults[node] in (0, visit):
            self.culprits.add(self._predictors.get(node, node))
            return wrong
        return right

    # --- building

    def _field(self, name: str, kind: Any = str, default: Any = "", gold: Any = None, metric: Any = None) -> str:
        self.fields[name] = (kind, default)
        self.gold[name] = f"ok:{name}" if gold is None else gold
        self.metrics[name] = metric or equals(name)
        return name

    def _reads(self, block: Block) -> list[str]:
        return list(dict.fromkeys(self._readable[at % len(self._readable)] for at in block.reads))

    def _node_at(
        self, name: str, reads: Sequence[str], last: str | None, field: str | None = None, **options: Any
    ) -> str:
        """A node with a predictor that reads fields and writes one, of its name if none is given."""
        field = self._field(f"f{name}") if field is None else field
        own = {f"i{at}": read for at, read in enumerate(reads)}

        def give(**inputs: Any) -> Any:
            inputs.pop("problems", None), inputs.pop("previous_out", None)
            return self._answer(name, list(inputs.values()), f"ok:{field}", **options)

        self.nodes.append(name)
        self._do(lambda g: g.add_node(name, FakePredict(signature([*own]), give), reads=own, writes={"out": field}))
        if last is not None:
            self._edge(last, name)
        if field == f"f{name}":
            self._readable.append(field)
        return name

    def _edge(self, source: str | list[str], target: str | list[str]) -> None:
        self._do(lambda g: g.add_edge(source, target))

    def _do(self, step: Callable[[Graph], Any]) -> None:
        self._steps.append(step)

    # --- the kinds of blocks

    def _node(self, name: str, block: Block, last: str) -> str:
        return self._node_at(name, self._reads(block), last)

    def _fork(self, name: str, block: Block, last: str) -> str:
        reads = self._reads(block)
        arms = [self._node_at(f"{name}_{at}", reads, last) for at in range(block.size)]
        meet = self._node_at(f"{name}_meet", [f"f{arm}" for arm in arms[:2]], None)
        self._edge(arms, meet)
        return meet

    def _arms(self, name: str) -> dict[str, str]:
        """Arms behind a label. The right one is wrong; the left one writes a field that the other one lacks."""
        both, one = self._field(f"a{name}"), self._field(f"z{name}")
        left, right = f"{name}_left", f"{name}_right"
        self._node_at(left, ["q"], None, both)
        more = self._node_at(f"{name}_more", [both], left, one)
        self._node_at(right, ["q"], None, both, misled=True)
        meet = self._node_at(f"{name}_meet", [both], None)
        self._edge(more, meet)
        self._edge(right, meet)
        return {"left": left, "right": right}

    def _function_router(self, name: str, block: Block, last: str) -> str:
        self._node_at(name, self._reads(block), last)
        targets, label = self._arms(name), f"f{name}"

        def route(value: str) -> str:
            return "left" if is_right(value) else "right"

        self._do(lambda g: g.add_conditional_edges(name, reading(label, route), targets))
        return f"{name}_meet"

    def _module_router(self, name: str, block: Block, last: str) -> str:
        self._node_at(name, self._reads(block), last)
        read, router = f"f{name}", f"{name}_router"
        label = self._field(f"l{name}", str, "", "left")
        targets = self._arms(name)

        def give(**inputs: Any) -> Any:
            return self._answer(router, list(inputs.values()), "left", "right")

        self.nodes.append(router)
        module = FakePredict(signature([read], "label: Literal['left', 'right']"), give)
        self._do(lambda g: g.add_conditional_edges(name, module, targets, writes={"label": label}))
        return f"{name}_meet"

    def _command(self, name: str, block: Block, last: str) -> str:
        """A function with a predictor decides by a `Command`."""
        (read, *_), label = self._reads(block), self._field(f"f{name}")
        targets = self._arms(name)

        def give(value: Any) -> Any:
            return self._answer(name, [value], f"ok:{label}")

        def decide(value: Any, ask: Any) -> Any:
            out = ask(value=value).out
            return Command({label: out}, targets["left" if is_right(out) else "right"])

        self.nodes.append(name)
        self._predictors[name] = f"{name}.ask"
        ask = FakePredict("value -> out", give)
        options: Any = {"reads": {"value": read}, "writes": [label], "goto": [*targets.values()]}
        self._do(lambda g: g.add_node(name, decide, modules={"ask": ask}, **options))
        self._edge(last, name)
        return f"{name}_meet"

    def _loop(self, name: str, block: Block, last: str) -> str:
        """Two or three rounds; with an odd size each reads what the one before has written."""
        own, count = self._field(f"f{name}", default="ok"), f"n{name}"
        self.fields[count] = (int, 0)
        self._node_at(name, [*self._reads(block), *([own] if block.size % 2 else [])], last, own)
        self._do(lambda g: g.add_node(f"{name}_count", lambda n: {count: n + 1}, reads={"n": count}, writes=[count]))
        self._edge(name, f"{name}_count")
        self._do(lambda g: g.add_node(f"{name}_out", lambda: None, writes=[]))

        def again(rounds: int) -> bool:
            return rounds < block.size

        ways = {True: name, False: f"{name}_out"}
        self._do(lambda g: g.add_conditional_edges(f"{name}_count", reading(count, again), ways))
        self._readable.append(own)
        return f"{name}_out"

    def _sends(self, name: str, block: Block, last: str) -> str:
        """Workers append to one field. Which of them has a fault depends on its item."""
        self._node_at(name, self._reads(block), last)
        read, worker = f"f{name}", f"{name}_worker"
        notes = self._field(
            f"w{name}", Annotated[list[str], reducers.append], [], [f"ok:{item}" for item in range(block.size)]
        )

        def give(item: int, value: Any) -> Any:
            return self._answer(worker, [value], f"ok:{item}", visit=item + 1)

        def spread(value: str) -> list[Send]:
            return [Send(worker, {"item": item}) for item in range(block.size)]

        self.nodes.append(worker)
        module = FakePredict("item: int, value -> out", give)
        reads = {"value": read}
        self._do(lambda g: g.add_conditional_edges(name, reading(read, spread, list[Send]), [worker]))
        self._do(lambda g: g.add_node(worker, module, reads=reads, writes={"out": notes}))
        return self._node_at(f"{name}_meet", [notes], worker)

    def _folded(self, name: str, block: Block, last: str) -> str:
        """Two nodes append to one field, one after the other, without having read it."""
        notes = self._field(f"w{name}", Annotated[list[str], reducers.append], [], metric=all_right)
        first = self._node_at(name, self._reads(block), last, notes)
        second = self._node_at(f"{name}_second", ["q"], first, notes)
        self._folding.append((first, second))
        return self._node_at(f"{name}_meet", [notes], second)

    def _check(self, name: str, block: Block, last: str) -> str:
        """A check refuses what a planted fault gives, and a fix corrects it."""
        reads, field, problems = self._reads(block), f"f{name}", f"p{name}"
        self._node_at(name, reads, last, wrong=REFUSED)
        self.fields[problems] = (list[str], [])
        inputs = [*(f"i{at}" for at in range(len(reads))), "previous_out", "problems: list[str]"]

        def give(**inputs: Any) -> Any:
            return self._answer(f"{name}_fix", [inputs[one] for one in inputs if one[0] == "i"], f"ok:{field}")

        def finds(value: str) -> list[str]:
            return ["no"] if value == REFUSED else []

        self.nodes.append(f"{name}_fix")
        fix = FakePredict(signature(inputs), give)
        self._do(
            lambda g: g.add_check(f"{name}_check", reading(field, finds), of=name, max_fixes=2, fix=fix, into=problems)
        )
        return self._node_at(f"{name}_meet", [field], name)

    def _inner(self, name: str, given: str, right: Callable[[Any], tuple[str, int]]) -> CompiledGraph:
        """A graph of two predictors; `right` gives the end of a right value, and the visit that it is, 0 to count."""
        inner = Graph(name=f"Inner_{name}", inputs=[given])
        for node, read, output in (("one", given, "x"), ("two", f"x, {given}", "out")):
            full = f"{name}.{node}"

            def give(full: str = full, output: str = output, **inputs: Any) -> Any:
                end, visit = right(inputs[given])
                return self._answer(full, [*inputs.values()], f"ok:{output}{end}", visit=visit)

            self.nodes.append(full)
            inner.add_node(node, FakePredict(f"{read} -> {output}", give))
        return inner.add_path(START, "one", "two", END).compile()

    def _nested(self, name: str, block: Block, last: str) -> str:
        """A graph whose two outputs have other names outside of it."""
        (read, *_) = self._reads(block)
        inner = self._inner(name, "given", lambda value: (name, 0))
        outputs = {
            "x": self._field(f"x{name}", gold=f"ok:x{name}"),
            "out": self._field(f"f{name}", gold=f"ok:out{name}"),
        }
        for output, field in outputs.items():
            self.metrics[f"{name}.{output}"] = equals(field)
        self._do(lambda g: g.add_node(name, inner, reads={"given": read}, writes=outputs))
        self._edge(last, name)
        self._readable.append(f"f{name}")
        return name

    def _split(self, name: str, block: Block, last: str) -> str:
        """A function makes items of a value: each has its number."""
        (read, *_), items = self._reads(block), f"s{name}"
        self.fields[items] = (list[str], [])

        def split(value: str) -> dict[str, Any]:
            return {items: [f"{'ok' if is_right(value) else BAD}:{at}" for at in range(block.size)]}

        self._do(lambda g: g.add_node(f"{name}_split", reading(read, split), writes=[items]))
        self._edge(last, f"{name}_split")
        return items

    def _map(self, name: str, block: Block, last: str) -> str:
        """Items of which some may have a fault."""
        items, gold = self._split(name, block, last), [f"ok:out:{at}" for at in range(block.size)]
        tags = self._field(f"m{name}", list[str], [], gold)
        self.nodes.append(name)

        def give(item: str) -> Any:
            return self._answer(name, [item], f"ok:out:{item[-1]}", visit=int(item[-1]) + 1)

        one = FakePredict("item -> out", give)
        self._do(lambda g: g.add_map(name, one, over=items, item="item", into=tags))
        self._edge(f"{name}_split", name)
        return self._node_at(f"{name}_meet", [tags], name)

    def _map_of_graphs(self, name: str, block: Block, last: str) -> str:
        """The same with a graph for each item, of which one output is kept."""
        items, gold = self._split(name, block, last), [f"ok:out:{at}" for at in range(block.size)]
        tags = self._field(f"m{name}", list[str], [], gold)
        inner = self._inner(name, "item", lambda item: (f":{item[-1]}", int(item[-1]) + 1))
        for output in ("x", "out"):
            self.metrics[f"{name}.{output}"] = equals(gold_of_item(output))
        self._do(lambda g: g.add_map(name, inner, over=items, item="item", into=tags, writes=["out"]))
        self._edge(f"{name}_split", name)
        return self._node_at(f"{name}_meet", [tags], name)


def gold_of_item(output: str) -> Callable[..., str]:
    return lambda example, state: f"ok:{output}:{state['item'][-1]}"


KINDS = ["node", "fork", "function_router", "module_router", "command", "loop", "sends", "folded", "check"]
KINDS += ["nested", "map", "map_of_graphs"]
BLOCKS = st.builds(
    Block, st.sampled_from(KINDS), st.lists(st.integers(0, 99), min_size=1, max_size=2).map(tuple), st.integers(2, 3)
)


def plans(most_faults: int, most_blocks: int = 4) -> st.SearchStrategy[Plan]:
    blocks = st.lists(BLOCKS, min_size=1, max_size=most_blocks).map(tuple)
    faults = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2)), min_size=1, max_size=most_faults).map(tuple)
    return st.builds(Plan, blocks, faults)

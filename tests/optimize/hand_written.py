"""Modules written by hand around graphs and predictors: three steps from `q` to `a`, `b` and `c`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dspy

from dspyer import END, START, CompiledGraph, Graph


class Parts(dspy.Module):
    """A module of some parts, and the function that calls them."""

    def __init__(self, call: Callable[..., dspy.Prediction], **parts: Any) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, q: str) -> dspy.Prediction:
        return self.call(self, q)


Steps = Mapping[str, dspy.Module]
"""Predictors of `q -> a`, `a -> b` and `b -> c`, by output."""


def graph(steps: Steps, *outputs: str, name: str = "") -> CompiledGraph:
    found = Graph(name=name or "".join(outputs))
    for output in outputs:
        found.add_node(output, steps[output])
    return found.add_path(START, *outputs, END).compile()


def chained(self: Any, q: str) -> dspy.Prediction:
    return self.last(b=self.first(q=q).b)


def in_threads(self: Any, q: str) -> dspy.Prediction:
    calls = [(self.first, {"q": q}), (self.first, {"q": q})]
    found = dspy.Parallel(num_threads=2, disable_progress_bar=True)(calls)
    return self.last(b=found[1].b)


def three(self: Any, q: str) -> dspy.Prediction:
    return self.c(b=self.b(a=self.a(q=q).a).b)


def two_graphs(steps: Steps) -> Parts:
    return Parts(chained, first=graph(steps, "a", "b"), last=graph(steps, "c"))


def shared(steps: Steps) -> Parts:
    """Two graphs with one predictor."""
    return Parts(
        chained, first=graph(steps, "a", "b"), more=graph(steps, "a", "b", name="more"), last=graph(steps, "c")
    )


def in_a_node(steps: Steps) -> CompiledGraph:
    """A graph whose node is a module that calls two graphs."""
    within = two_graphs(steps)
    outer = Graph(name="Outer").add_node("within", within, reads=["q"], writes=["c"])
    return outer.add_path(START, "within", END).compile()


def around_another(steps: Steps) -> Parts:
    """A module around a graph whose node is a module of graphs."""
    return Parts(lambda self, q: self.outer(q=q), outer=in_a_node(steps))


def of_parts(steps: Steps) -> Parts:
    """A module of modules."""
    return Parts(lambda self, q: self.inner(q=q), inner=two_graphs(steps))


MODULES: dict[str, tuple[Callable[[Steps], dspy.Module], tuple[str, str, str]]] = {
    "two graphs": (two_graphs, ("first.a", "first.b", "last.c")),
    "a predictor, a graph, a predictor": (
        lambda steps: Parts(three, a=steps["a"], b=graph(steps, "b"), c=steps["c"]),
        ("a", "b.b", "c"),
    ),
    "a shared predictor": (shared, ("first.a", "first.b", "last.c")),
    "equal names": (
        lambda steps: Parts(chained, first=graph(steps, "a", "b", name="G"), last=graph(steps, "c", name="G")),
        ("first.a", "first.b", "last.c"),
    ),
    "a list": (
        lambda steps: Parts(
            lambda self, q: self.parts[1](b=self.parts[0](q=q).b),
            parts=[graph(steps, "a", "b"), graph(steps, "c")],
        ),
        ("parts[0].a", "parts[0].b", "parts[1].c"),
    ),
    "a dict": (
        lambda steps: Parts(
            lambda self, q: self.parts["last"](b=self.parts["first"](q=q).b),
            parts={"first": graph(steps, "a", "b"), "last": graph(steps, "c")},
        ),
        ("parts['first'].a", "parts['first'].b", "parts['last'].c"),
    ),
    "threads": (
        lambda steps: Parts(in_threads, first=graph(steps, "a", "b"), last=graph(steps, "c")),
        ("first.a", "first.b", "last.c"),
    ),
    "a module of modules": (of_parts, ("inner.first.a", "inner.first.b", "inner.last.c")),
    "a module of graphs in a node": (in_a_node, ("within.first.a", "within.first.b", "within.last.c")),
    "a module around that": (
        around_another,
        ("outer.within.first.a", "outer.within.first.b", "outer.within.last.c"),
    ),
}

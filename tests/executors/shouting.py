"""Programs for tests of executors: a module that workers can import."""

from __future__ import annotations

import os

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph


class Text(BaseModel):
    text: str
    loud: str = ""


class OtherArgumentsError(Exception):
    """Its `__init__` takes other arguments than it passes on, so pickle cannot make it by a call."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def shout(text: str) -> dict[str, str]:
    if text == "odd":
        raise ValueError("odd")
    if text == "other arguments":
        raise OtherArgumentsError(1, 2)
    if text == "killed":
        os._exit(9)
    return {"loud": text.upper()}


def shouting() -> CompiledGraph:
    graph = Graph(Text).add_node("shout", shout, reads=["text"], writes=["loud"])
    return graph.add_path(START, "shout", END).compile()

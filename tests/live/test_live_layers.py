"""Layers of users around nodes that read each other's posts: they change nothing, and what they reply is posted."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

from dspyer import CompiledGraph, Run
from dspyer.extend import Layer, Place, Reply, using
from tests.extend.kit import nothing
from tests.live.kit import echo, finished, modes, team, writer


def program() -> CompiledGraph:
    """A path, since in parallel the numbers depend on which node is faster."""
    return team(writer=(writer, ["notes"]), listens=(echo("sync"), ["echoes"]), sequence=True).compile()


def committed(run: Run) -> list[Any]:
    return [(commit.node, dict(commit.patch), commit.live) for commit in finished(run).commits]


@modes
def test_layers_that_do_nothing_change_no_post(go: Any) -> None:
    found = []
    for around in (nullcontext(), using(*nothing())):
        with around:
            found.append(committed(go(program())))
    assert found[1] == found[0]


class Instead(Layer):
    """Replies without the node, around all layers of the graph."""

    place: ClassVar[Place] = "outside"

    def surrounds(self, node: Any) -> bool:
        return bool(node.name == "writer")

    def around(self, call: Any, inner: Any) -> Any:
        if call.read("task") == "t":
            return call.reply(Reply({"notes": "instead"}))
        return (yield from inner(call))


@modes
def test_what_a_layer_replies_is_posted(go: Any) -> None:
    with using(Instead()):
        run = finished(go(program()))
    exchanged = {commit.node: (commit.live.posts, commit.live.reads) for commit in run.commits if commit.live}
    assert exchanged == {"writer": ({"notes": (1,)}, {}), "listens": ({"echoes": (2,)}, {"notes": 1})}
    assert list(run.state["echoes"]) == ["writer instead"]

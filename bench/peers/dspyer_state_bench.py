"""The workloads of this repository's states."""

from __future__ import annotations

from typing import Any

from bench.peers.measure import Round, Work, allocated, expect, filler, leaf_of, message, nested, versions_alive
from dspyer import ImmutableState

PACKAGES = ["dspyer", "pyrsistent"]


def patch_key(keys: int, alive: int, ops: int) -> Round:
    """A patch of one key."""
    return versions_alive(
        ImmutableState(filler(keys + 1)),
        lambda state, i: state.apply_patch({f"k{i}": -i}),
        lambda state: expect(state[f"k{ops - 1}"], 1 - ops),
        alive,
        ops,
    )


def append_message(messages: int, alive: int, ops: int) -> Round:
    """A patch with the longer list."""
    return versions_alive(
        ImmutableState({"messages": [message(i) for i in range(messages)]}),
        lambda state, i: state.apply_patch({"messages": state["messages"] + [message(i)]}),
        lambda state: expect(len(state["messages"]), messages + ops),
        alive,
        ops,
    )


def patch_leaf(depth: int, alive: int, ops: int) -> Round:
    """A patch of one leaf of a deep tree."""

    def change(state: ImmutableState, i: int) -> ImmutableState:
        patch: dict[str, Any] = {"leaf": i}
        for _ in range(depth - 1):
            patch = {"down": patch}
        return state.apply_patch(patch)

    return versions_alive(
        ImmutableState(nested(depth)), change, lambda state: expect(leaf_of(state, depth), ops - 1), alive, ops
    )


def memory(keys: int, versions: int) -> Round:
    """What the states hold, each with one key set and one item appended."""
    base = ImmutableState({**filler(keys), "log": []})

    def work() -> list[ImmutableState]:
        kept = [base]
        for i in range(versions):
            state = kept[-1]
            kept.append(state.apply_patch({f"k{i % (keys - 1)}": -i, "log": state["log"] + [i]}))
        expect(len(kept[-1]["log"]), versions)
        return kept

    return lambda: allocated(work)


def fork_bytes(items: int) -> Round:
    """What a second version holds that changes one item of a list."""
    base = ImmutableState({"items": [message(i) for i in range(items)]})

    def work() -> ImmutableState:
        forked = base.apply_patch({"items": base["items"][:-1] + [message(-1)]})  # noqa: RUF005  a display would be a plain list
        expect(forked["items"][-1], message(-1))
        return forked

    return lambda: allocated(work)


WORKS: dict[str, Work] = {
    "patch_key": patch_key,
    "append_message": append_message,
    "patch_leaf": patch_leaf,
    "memory": memory,
    "fork_bytes": fork_bytes,
}

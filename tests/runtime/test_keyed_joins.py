"""Fields whose reducer keeps one value per key: what branches write under one key is never lost without a record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from dspyer import (
    DELETE,
    END,
    START,
    Command,
    Conflict,
    Context,
    Graph,
    Replace,
    Run,
    Send,
    Updates,
    errors,
    limit,
    reducers,
    view,
)
from tests.runtime.conftest import Play, play
from tests.scheduler.test_joins import layers

__all__ = ["play"]  # the fixture of the runtime tests


class Files(BaseModel):
    code: Annotated[dict[str, Any], reducers.update] = {}
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    plain: dict[str, Any] = {}
    shown: dict[str, Any] = {}


FIELDS = ["code", "said", "plain"]


def message(key: str, text: object) -> dict[str, Any]:
    return {"id": key, "content": text}


def entries(field: str, value: Any) -> dict[str, Any]:
    """A field as a plain dict by key."""
    return {each["id"]: each["content"] for each in value} if field == "said" else dict(value)


def puts(field: str, update: Any) -> Iterator[tuple[str, Any]]:
    """What a written update puts, by key; markers put nothing that this oracle follows."""
    for one in update.updates if isinstance(update, Updates) else (update,):
        if one is not DELETE and not isinstance(one, Replace):
            yield from entries(field, one).items()


def resets(update: Any) -> bool:
    return any(
        one is DELETE or isinstance(one, Replace)
        for one in (update.updates if isinstance(update, Updates) else (update,))
    )


def random_update(rng: random.Random, name: str, marks: bool) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for field in ("code", "said", "plain"):
        if rng.random() < 0.3:
            continue
        updates: list[Any] = []
        for part in range(rng.choice((1, 1, 2) if field != "plain" else (1,))):
            value = rng.choice([name + str(part), name + str(part), "same", "base"])
            chosen = dict.fromkeys(rng.sample("xyz", rng.randint(1, 2)), value)
            updates.append([message(*pair) for pair in chosen.items()] if field == "said" else chosen)
        if marks and rng.random() < 0.2:
            whole = [message("x", name)] if field == "said" else {"x": name}
            updates = [rng.choice((DELETE, Replace(whole)))]
        patch[field] = updates[0] if len(updates) == 1 else Updates(*updates)
    return patch


def behind(run: Run) -> dict[str, set[str]]:
    """For each commit, the ids of those that it contains, with its own."""
    found: dict[str, set[str]] = {}
    for commit in run.commits:
        found[commit.id] = {commit.id}.union(*(found[parent] for parent in commit.parents))
    return found


def lost(run: Run) -> list[tuple[str, str, str, Any]]:
    """Writes that are nowhere: not in the last state, not overwritten behind them, and in no record of a conflict."""
    ancestors, commits = behind(run), {commit.id: commit for commit in run.commits}
    states = {id_: {field: entries(field, run.at(id_)[field]) for field in FIELDS} for id_ in commits}
    found = []
    for commit in run.commits:
        if commit.node.startswith("join:") or commit.node in (START, "last"):
            continue
        for field, update in commit.patch.items():
            known = [states[other][field] for other in ancestors[commit.id] - {commit.id}]
            for key, value in dict(puts(field, update)).items():
                if value is DELETE or any(before.get(key) == value for before in known):
                    continue  # it was there, or is there again: net, nothing changed
                agree = {other for other in commits if states[other][field].get(key) == value}
                after = [later for id_, later in commits.items() if agree & (ancestors[id_] - {id_})]
                nodes = [one for one in after if not one.node.startswith("join:")]
                written = [one.patch[field] for one in nodes if field in one.patch]
                overwritten = any(resets(later) or key in dict(puts(field, later)) for later in written)
                recorded = any(
                    conflict.path in ((field,), (field, key))
                    and any(value == held(field, conflict.path, kept, key) for _, kept in conflict.values)
                    for conflict in run.conflicts
                )
                if entries(field, run.state[field]).get(key) != value and not overwritten and not recorded:
                    found.append((commit.id, field, key, value))
    return found


def held(field: str, path: Sequence[Any], value: Any, key: str) -> Any:
    if value is DELETE:
        return None
    if len(path) == 1:
        return entries(field, value).get(key)
    return value["content"] if field == "said" else value


SHOWN = {"code": view("code"), "said": view("said")}


def written(edges: Mapping[str, str], policy: Any, wrote: Callable[[Context], dict[str, Any]]) -> Run:
    """A run of nodes that write what `wrote` gives for each, with one last node, which looks at views of the fields."""
    reached = {START}
    built = Graph(Files, inputs=FIELDS, outputs=FIELDS, merge=policy)

    def work(ctx: Context) -> dict[str, Any]:
        return wrote(ctx)

    for source, targets in edges.items():  # the layers come in order
        if source in reached:
            reached |= {*targets.split()}
            built.add_edge(source, ["last" if target == END else target for target in targets.split()])
    for name in edges:
        if name in reached - {START}:
            built.add_node(name, work, writes=FIELDS)
    built.add_node("last", looks, reads=SHOWN, writes=["shown"]).add_edge("last", END)
    return built.compile().run({"code": {"x": "base"}, "said": [message("x", "base")], "plain": {"x": "base"}})


def looks(code: dict[str, Any], said: list[dict[str, Any]]) -> dict[str, Any]:
    return {"shown": {"code": code, "said": entries("said", said)}}


POLICIES = st.sampled_from(["last_write_wins", "first_write_wins", lambda conflict: conflict.left, "raise"])


def disagreeing(run: Run) -> list[tuple[str, str, str]]:
    """Joins whose state differs under a key from what all of the joined branches hold there."""
    found = []
    for commit in run.commits:
        for field in FIELDS if len(commit.parents) > 1 else ():
            held = [entries(field, run.at(parent)[field]) for parent in commit.parents]
            joined = entries(field, run.at(commit.id)[field])
            for key in "xyz":
                values = {side.get(key, "none") for side in held}
                if len(values) == 1 and {joined.get(key, "none")} != values:
                    found.append((commit.id, field, key))
    return found


@pytest.mark.slow("random graphs with branches that write under few keys")
@settings(max_examples=2 * settings().max_examples)
@given(layers(), POLICIES, st.integers(0, 2**32), st.booleans())
def test_a_write_is_kept_overwritten_or_in_a_conflict(
    edges: dict[str, str], policy: Any, seed: int, marks: bool
) -> None:
    """And what all branches hold is joined unchanged, and views show what the state holds."""
    run = written(
        edges, policy, lambda ctx: random_update(random.Random(f"{seed}{ctx.execution}"), ctx.execution, marks)
    )
    if policy == "raise" and run.error is not None:
        assert isinstance(run.error, errors.MergeConflictError)
        return
    run.raise_error()
    assert lost(run) == []
    assert disagreeing(run) == []
    assert run.state["shown"] == {field: entries(field, run.state[field]) for field in SHOWN}


CROSSED = {
    START: "n00 n01 n02",
    "n00": "n10 n20 n12",
    "n01": "n12 n11",
    "n02": "n11",
    "n10": "n20",
    "n11": "n20 n30",
    "n12": "n30",
    "n20": "n31",
    "n30": "END",
    "n31": "END",
}
"""The branches of n31 and n30 both contain what n11 wrote; that of n30 also what n12's join decided before."""


@pytest.mark.parametrize("other", [{}, {"x": "left"}], ids=["only the right branch wrote", "both branches wrote"])
def test_a_shared_commit_overwrites_what_one_branch_replays(other: dict[str, str]) -> None:
    """Both joined branches hold what n11 wrote last: the older value that n12's join kept must not return."""
    wrote = {"n00": {"y": "new"}, "n01": {"y": "old"}, "n11": {"y": "new"}, "n31": other}
    run = written(CROSSED, "last_write_wins", lambda ctx: {"code": wrote[ctx.node]} if ctx.node in wrote else {})
    assert run.state["code"] == {"y": "new", "x": "base", **other} == run.state["shown"]["code"]


CASES: dict[str, tuple[str, Any, Any, Any]] = {
    "a mapping": ("code", {"a.py": "x"}, {"a.py": "y"}, ("a.py", "x", "y")),
    "a message": ("said", message("m", "x"), [message("m", "y")], ("m", message("m", "x"), message("m", "y"))),
    "several updates": ("code", Updates({"a": 0}, {"a": 1}), Updates({"b": 1}, {"a": 2}), ("a", 1, 2)),
    "values are whole": ("code", {"a": {"one": 1}}, {"a": {"two": 2}}, ("a", {"one": 1}, {"two": 2})),
}


def forked(merge: Any, left: Any, right: Any, field: str, **inputs: Any) -> Any:
    built = Graph(Files, inputs=["code", "said"], outputs=["code", "said"], merge=merge)
    built.add_node("left", lambda: {field: left}, writes=[field])
    built.add_node("right", lambda: {field: right}, writes=[field])
    built.add_edge(START, ["left", "right"]).add_edge(["left", "right"], END)
    return built.compile(), inputs


@pytest.mark.parametrize(("field", "left", "right", "found"), CASES.values(), ids=CASES)
def test_two_values_under_one_key_conflict(play: Play, field: str, left: Any, right: Any, found: Any) -> None:
    key, ours, theirs = found
    program, inputs = forked(None, left, right, field)
    run = play(program, inputs)
    assert run.status == "failed"
    assert isinstance(run.error, errors.MergeConflictError)
    assert (run.error.path, run.error.writers) == ((field, key), ("left", "right"))
    for policy, kept, winner in (
        ("last_write_wins", theirs, "right"),
        ("first_write_wins", ours, "left"),
        ({f"{field}.*": "first_write_wins"}, ours, "left"),
        ({(field, key): "last_write_wins", f"{field}.*": "raise"}, theirs, "right"),
    ):
        run = play(*forked(policy, left, right, field))
        (conflict,) = run.conflicts
        assert (conflict.path, conflict.values) == ((field, key), (("left", ours), ("right", theirs)))
        assert (conflict.value, conflict.winner) == (kept, winner)
        assert entries(field, run.state[field])[key] == (kept if field == "code" else kept["content"])
        assert run.blame((field, key)).node == winner or field == "said"


def test_different_keys_and_equal_values_are_no_conflict(play: Play) -> None:
    run = play(*forked(None, {"a": 1, "b": 2}, {"a": 1, "c": 3}, "code"))
    assert (run.state["code"], run.conflicts) == ({"a": 1, "b": 2, "c": 3}, ())


@pytest.mark.parametrize("order", ["left right", "right left"])
def test_a_branch_that_writes_what_was_there_changes_nothing(order: str) -> None:
    """A module that returns all that it was given, with one key more."""
    built = Graph(Files, inputs=["code"], outputs=["code"])
    built.add_node("left", lambda code: {"code": {**code, "a": 5}}, writes=["code"])
    built.add_node("right", lambda code: {"code": {**code, "b": 1}}, writes=["code"])
    built.add_edge(START, order.split()).add_edge(["left", "right"], END)
    run = built.compile().run({"code": {"a": 0}})
    assert (run.state["code"], run.conflicts) == ({"a": 5, "b": 1}, ())
    assert (run.blame(("code", "a")).node, run.blame(("code", "b")).node) == ("left", "right")


def test_within_one_branch_the_later_value_stands(play: Play) -> None:
    built = Graph(Files, inputs=["code"], outputs=["code"])
    built.add_node("one", lambda: {"code": {"a": 1}}, writes=["code"])
    built.add_node("two", lambda: {"code": {"a": 2}}, writes=["code"])
    built.add_path(START, "one", "two", END)
    run = play(built.compile(), {})
    assert (run.state["code"], run.conflicts) == ({"a": 2}, ())


def test_branches_of_sends_conflict_by_key() -> None:
    built = Graph(Files, inputs=["code"], outputs=["code"], merge={"code.*": "first_write_wins"})
    built.add_node("plan", lambda: Command(goto=[Send("work", {"n": n}) for n in range(3)]), goto=["work"], writes=[])
    built.add_node("work", lambda n: {"code": {"shared": n, str(n): n}}, writes=["code"])
    built.add_path(START, "plan").add_edge("work", END)
    run = built.compile().run({})
    assert run.state["code"] == {"shared": 0, "0": 0, "1": 1, "2": 2}
    (conflict,) = run.conflicts
    assert [value for _, value in conflict.values] == [0, 1, 2]


def inner(merge: Any) -> Graph:
    built = Graph(Files, name="inner", inputs=["code"], outputs=["code"], merge=merge)
    built.add_node("c", lambda: {"code": {"k": "c"}}, writes=["code"])
    built.add_node("d", lambda: {"code": {"k": "d"}}, writes=["code"])
    return built.add_edge(START, ["c", "d"]).add_edge(["c", "d"], END)


def test_what_a_graph_inside_decided_stands_outside() -> None:
    built = Graph(Files, inputs=["code"], outputs=["code"])
    built.add_node("sub", inner("first_write_wins").compile())
    built.add_path(START, "sub", END)
    assert built.compile().run({}).state["code"] == {"k": "c"}
    raised = Graph(Files, inputs=["code"], outputs=["code"]).add_node("sub", inner(None).compile())
    assert isinstance(raised.add_path(START, "sub", END).compile().run({}).error, errors.MergeConflictError)


def test_a_graph_inside_conflicts_with_its_sibling() -> None:
    built = Graph(Files, inputs=["code"], outputs=["code"], merge="last_write_wins")
    built.add_node("sub", inner("first_write_wins").compile())
    built.add_node("other", lambda: {"code": {"k": "o"}}, writes=["code"])
    built.add_edge(START, ["sub", "other"]).add_edge(["sub", "other"], END)
    run = built.compile().run({})
    (conflict,) = run.conflicts
    assert (run.state["code"], conflict.values) == ({"k": "o"}, (("sub", "c"), ("other", "o")))


def keyed_by(name: str) -> dict[str, Any]:
    return {"code": {"k": name, name: 1}}


def test_a_resolved_key_is_resolved_again_where_its_join_meets_another_branch() -> None:
    built = Graph(Files, inputs=["code"], outputs=["code"], merge="first_write_wins")
    for name in "abc":
        built.add_node(name, partial(keyed_by, name), writes=["code"])
    built.add_node("j", lambda: None, writes=[])
    built.add_edge(START, ["a", "b", "c"]).add_edge(["a", "b"], "j").add_edge(["j", "c"], END)
    run = built.compile().run({})
    assert run.state["code"] == {"k": "a", "a": 1, "b": 1, "c": 1}
    assert [conflict.values for conflict in run.conflicts] == [(("a", "a"), ("b", "b")), (("a", "a"), ("c", "c"))]
    assert run.blame(("code", "k")).node == "a"


@pytest.mark.parametrize("mark", [Replace({"z": 1}), DELETE], ids=["Replace", "DELETE"])
def test_a_whole_value_beside_a_key_is_one_conflict_of_the_field(mark: Any) -> None:
    program, _ = forked("first_write_wins", {"a": 1}, mark, "code")
    run = program.run({"code": {"b": 2}})
    (conflict,) = run.conflicts
    assert (conflict.path, run.state["code"]) == (("code",), {"b": 2, "a": 1})


def test_a_policy_may_remove_a_key() -> None:
    def neither(conflict: Conflict) -> Any:
        return DELETE

    run = forked(neither, {"a": 1, "b": 1}, {"a": 2}, "code")[0].run({})
    assert (run.state["code"], run.conflicts[0].value) == ({"b": 1}, DELETE)
    assert run.at(run.commits[-1].id)["code"] == {"b": 1}
    run = forked(neither, [message("m", 1), message("n", 1)], message("m", 2), "said")[0].run({})
    assert [each["id"] for each in run.state["said"]] == ["n"]


def test_a_policy_that_changes_an_id_is_refused() -> None:
    def renamed(conflict: Conflict) -> Any:
        return message("other", "x")

    run = forked(renamed, message("m", 1), message("m", 2), "said")[0].run({})
    assert "keep the id" in str(run.error)
    assert "'renamed'" in str(run.error)


class Small(BaseModel):
    table: Annotated[dict[str, int], reducers.update, limit(kb=0.03, full="drop_oldest")] = {}
    three: Annotated[dict[str, int], reducers.update, Field(max_length=3)] = {}


def test_limits_and_constraints_hold_for_what_branches_made_together() -> None:
    built = Graph(Small, inputs=["table", "three"], outputs=["table", "three"], merge="last_write_wins")
    built.add_node("a", lambda: {"table": {"a": 1, "k": 1}, "three": {"a": 1, "k": 1}}, writes=["table", "three"])
    built.add_node("b", lambda: {"table": {"b": 1, "k": 2}, "three": {"b": 1, "k": 2}}, writes=["table", "three"])
    built.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END)
    run = built.compile().run({"table": {"old": 0}})
    assert (run.state["table"], run.state["three"]) == ({"a": 1, "b": 1, "k": 2}, {"a": 1, "k": 2, "b": 1})
    refused = built.compile().run({"three": {"old": 0}})
    assert "at most 3 items" in str(refused.error)

"""What is different between the graph that made a run and the one that is to go on with it, said by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dspyer.errors import ChangedGraphError
from dspyer.threads.shape import FingerprintFacts, GraphFingerprint

NodeNames = Mapping[str, str]
"""New names of nodes by their old ones."""

AllowChanged = bool | NodeNames
"""What `resume(allow_changed_graph=...)` takes."""


def changes(old: FingerprintFacts, new: FingerprintFacts) -> list[str]:
    """What is different, one sentence each.

    Args:
        old: the facts of the graph that made the run.
        new: those of the graph that is there now.
    """
    return list(_changes(old, new, ""))


def changed_graph(
    thread: str, made_by: GraphFingerprint | None, now: GraphFingerprint, names: NodeNames | None = None
) -> ChangedGraphError:
    """The error that the last run of a thread was made by another graph.

    Args:
        thread: the name of the thread.
        made_by: the shape of that graph; None if it is not there any more.
        now: the shape of the graph now.
        names: new names of nodes that were given already.
    """
    found = ["it is not known any more how"]
    if made_by is not None:
        found = changes(rename_in_facts(made_by.facts, names or {}), now.facts)
        found += [f"node renamed? pass allow_changed_graph={pair}" for pair in likely_names(made_by.facts, now.facts)]
    lines = "\n".join(f"  - {change}" for change in found)
    return ChangedGraphError(
        f"the graph has changed since the open run of thread {thread!r} was made:\n{lines}\n"
        "Nothing was called. Go on where the log still fits with t.resume(allow_changed_graph=True), or with a mapping "
        "{'old name': 'new name'} of nodes; or leave the run as it is with t.run(..., abandon=True)",
        found,
    )


def rename_in_facts(facts: FingerprintFacts, names: NodeNames) -> FingerprintFacts:
    """The facts of a graph whose nodes have other names."""
    if not names:
        return facts

    def now(name: str) -> str:
        return names.get(name, name)

    found = dict(facts)
    for part in ("nodes", "routers", "joins"):
        if part in facts:
            found[part] = {now(name): about for name, about in facts[part].items()}
    found["edges"] = [[now(source), now(target)] for source, target in facts.get("edges", ())]
    for part in ("before", "after"):
        if part in facts:
            found[part] = sorted(map(now, facts[part]))
    return found


def likely_names(old: FingerprintFacts, new: FingerprintFacts) -> list[dict[str, str]]:
    """Nodes that may have got another name: one is gone, one is new, and they look alike."""
    before, after = old.get("nodes", {}), new.get("nodes", {})
    gone = [name for name in before if name not in after]
    come = [name for name in after if name not in before]
    found = []
    for name in gone:
        alike = [other for other in come if after[other] == before[name]]
        if len(alike) == 1:
            come.remove(alike[0])
            found.append({name: alike[0]})
    return found


def changed_fields(old: FingerprintFacts, new: FingerprintFacts) -> set[str]:
    """The fields of both graphs whose values may not fit any more: their types, or classes among these, are others."""
    before, after = old.get("fields", {}), new.get("fields", {})
    types = {name for name in new.get("types", {}) if old.get("types", {}).get(name) != new["types"][name]}
    if new.get("open"):
        return set()
    if old.get("open"):
        return set(after)
    found = set()
    for name in before.keys() & after.keys():
        reached = _reached(after[name][0], new.get("types", {}))
        if before[name] != after[name] or reached & types:
            found.add(name)
    return found


def _reached(text: str, types: Mapping[str, Any]) -> set[str]:
    """The classes that a type names, and those that these name."""
    found: set[str] = set()
    waiting = [text]
    while waiting:
        text = waiting.pop()
        for name in types.keys() - found:
            if name in text:
                found.add(name)
                waiting.append(str(types[name]))
    return found


def _changes(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    yield from _node_changes(old.get("nodes", {}), new.get("nodes", {}), inside)
    yield from _edge_changes(old.get("edges", []), new.get("edges", []), inside)
    yield from _field_changes(old, new, inside)
    for name, were, are in _both(old.get("types", {}), new.get("types", {})):
        yield from _type_changes(name, were, are, inside)
    yield from _policy_changes(old.get("merge", []), new.get("merge", []), f"{inside}merge policy")
    for node, were, are in _both(old.get("joins", {}), new.get("joins", {})):
        yield from _policy_changes(were or [], are or [], f"{inside}merge policy of the join at {node!r}")
    for node, were, are in _both(old.get("routers", {}), new.get("routers", {})):
        yield f"{inside}the routers of {node!r} write {_said(were)} -> {_said(are)}"
    for when in ("before", "after"):
        were, are = old.get(when, []), new.get(when, [])
        yield from (f"{inside}interrupt {when} {node!r} is gone" for node in were if node not in are)
        yield from (f"{inside}interrupt {when} {node!r} is new" for node in are if node not in were)


def _node_changes(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    for name, were, are in _both(old, new):
        if are is None or were is None:
            yield f"{inside}node {name!r} is {'gone' if are is None else 'new'}"
            continue
        for verb in ("reads", "writes"):
            if were[verb] != are[verb]:
                yield f"{inside}node {name!r} {verb} {_said(were[verb])} -> {_said(are[verb])}"
        if were.get("map") != are.get("map"):
            yield f"{inside}node {name!r}: map {_map_said(were.get('map'))} -> {_map_said(are.get('map'))}"
        if were.get("asks") != are.get("asks"):
            yield f"{inside}node {name!r} asks for {were.get('asks', 'no answer')} -> {are.get('asks', 'no answer')}"
        if "graph" in were and "graph" in are:
            yield from _changes(were["graph"], are["graph"], f"{inside}in the graph of node {name!r}: ")
        elif "graph" in were or "graph" in are:
            yield f"{inside}node {name!r} is {'a graph now' if 'graph' in are else 'no graph any more'}"


def _edge_changes(old: list[list[str]], new: list[list[str]], inside: str) -> Iterator[str]:
    before, after = _targets(old), _targets(new)
    for source, were, are in _both(before, after):
        gone = [target for target in were or () if target not in (are or ())]
        come = [target for target in are or () if target not in (were or ())]
        yield from (f"{inside}edge {source!r} -> {target!r} is gone" for target in gone)
        yield from (f"{inside}edge {source!r} -> {target!r} is new" for target in come)
        if not gone and not come:
            yield f"{inside}the edges of {source!r} have another order: {_said(were)} -> {_said(are)}"


def _targets(edges: list[list[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for source, target in edges:
        found.setdefault(source, []).append(target)
    return found


def _field_changes(old: FingerprintFacts, new: FingerprintFacts, inside: str) -> Iterator[str]:
    if old.get("open") or new.get("open"):
        if old.get("open") != new.get("open"):
            yield f"{inside}the state {'has a schema now' if old.get('open') else 'has no schema any more'}"
        return
    before, after = old.get("fields", {}), new.get("fields", {})
    for name, were, are in _both(before, after):
        if were is None or are is None:
            yield f"{inside}field {name!r} is {'gone' if are is None else 'new'}"
            continue
        if were[0] != are[0]:
            yield f"{inside}field {name!r}: {were[0]} -> {are[0]}"
        if were[1] != are[1]:
            yield f"{inside}field {name!r}: reducer {were[1] or 'none'} -> {are[1] or 'none'}"
        if were[2:] != are[2:]:
            yield f"{inside}field {name!r}: limit {_limit(were)} -> {_limit(are)}"


def _limit(facts: Sequence[Any]) -> str:
    return f"{facts[2][0]:g} KB, {facts[2][1]}" if len(facts) > 2 else "none"


def _type_changes(name: str, were: Any, are: Any, inside: str) -> Iterator[str]:
    short = name.rpartition(":")[2]
    if were is None or are is None:  # the fields that name it say so
        return
    if isinstance(were, list) or isinstance(are, list):
        yield f"{inside}{short}: members {_said(were)} -> {_said(are)}"
        return
    for part, before, after in _both(were, are):
        if before is None or after is None:
            yield f"{inside}{short}.{part} is {'gone' if after is None else 'new'}"
        else:
            yield f"{inside}{short}.{part}: {before} -> {after}"


def _policy_changes(old: list[list[str]], new: list[list[str]], what: str) -> Iterator[str]:
    found = False
    for path, were, are in _both(dict(map(tuple, old)), dict(map(tuple, new))):  # type: ignore[arg-type]
        found = True
        yield f"{what} of {path!r}: {were or 'none'} -> {are or 'none'}"
    if not found and old != new:
        yield f"{what}: the patterns have another order"


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What differs, by name: as it was and as it is, None for what is not there."""
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def _said(names: Iterable[str] | None) -> str:
    if names is None:
        return "anything"
    return ", ".join(map(repr, names)) or "nothing"


def _map_said(about: list[str] | None) -> str:
    return "none" if about is None else f"over {about[0]!r} as {about[1]!r} into {about[2]!r}"

"""What the nodes of a session see through views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import TYPE_CHECKING, Any

from dspyer.nodes import FunctionNode, MapNode, ModuleNode, Node, SubgraphNode
from dspyer.nodes.sight import Changed
from dspyer.patch import DELETE
from dspyer.pictures.tokens import Read
from dspyer.scheduler.lineage import Entry, Log
from dspyer.scheduler.provenance import Behind, Folded, Parts, Spanning, last_visits, parts_of, unseen
from dspyer.scheduler.runstate import Branch
from dspyer.scheduler.topology import START
from dspyer.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values import PersistentVector, same
from dspyer.views import Look

if TYPE_CHECKING:
    from dspyer.building.blueprint import Blueprint
    from dspyer.running.session import Session

Earlier = Callable[[str], Behind]
"""Gives, for a field, what lies behind a run. It is asked once somebody looks there."""


class SessionSight:
    """What can be seen in a session.

    Args:
        session: the session. It must not refer back: its states would wait for the cyclic garbage collector.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def schema(self) -> Schema:
        """The fields of the state."""
        return self._session.blueprint.topology.schema

    @property
    def authors(self) -> tuple[str, ...]:
        """The nodes, and `START`."""
        return (START, *self._session.blueprint.nodes)

    def parts(self, field: str, branch: Branch, reader: str, new: bool) -> Parts | None:
        """Who brought what to a field, up to where a branch stands; None if the field has no parts."""
        found = self.schema.fields.get(field)
        if found is None or found.reducer is None or found.reducer.parts is None:
            return None
        session = self._session
        whole = session.journal is None or bool(session.scope)
        before = "/".join((*session.opening.label, *session.scope))
        prefix = f"{before}/" if before else ""
        drops = found.limit is not None and found.limit.full == "drop_oldest"
        most = len(branch.state.raw(field, None) or ()) if drops else None
        of = Folded(field, found.reducer, found.fixed_default, whole, most, prefix)
        return parts_of(self._log(field), [branch.head], of, reader, new=new)

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> list[Changed]:
        """What has changed since a node last ran, of some fields or all."""
        session = self._session
        known = tuple(self.schema.fields) or tuple(branch.state)
        log = session.run.log if session.opening.earlier is None else self._log("")
        fresh = unseen(log, [branch.head], reader)
        touched = {name for place in fresh for name in log[place].commit.patch}
        visits = last_visits(log, fresh, [branch.head], reader)
        base = log[visits[0]].state if len(visits) == 1 else ImmutableState()
        names = [*known, *sorted(touched - set(known))]
        found = []
        for name in names:
            if name not in touched or (fields is not None and name not in fields):
                continue
            before, after = base.raw(name, DELETE), branch.state.raw(name, DELETE)
            parts = self.parts(name, branch, reader, True)
            news = not same(before, after) if parts is None else _is_news(parts, before, after)
            if news:
                found.append(Changed(name, before, after, parts))
        return found

    def permits(self, node: str, option: str) -> frozenset[str] | None:
        """The fields that a node `"reads"` or `"writes"`; None for all."""
        known = self._session.blueprint.nodes.get(node)
        return None if known is None else _permitted(known, option)

    def looked(self, look: Look) -> None:
        """Counts what a view has shown. May be called from any thread."""
        self._session.looks.append(look)

    def _log(self, field: str) -> Log:
        session = self._session
        earlier = session.opening.earlier
        return session.run.log if earlier is None else Spanning(session.run.log, lambda: earlier(field))


class StateSight:
    """What can be seen of a state alone: all of it is new, and comes from `START`.

    Args:
        blueprint: the graph.
        state: the state.
    """

    def __init__(self, blueprint: Blueprint, state: ImmutableState) -> None:
        self.schema = blueprint.topology.schema
        self.authors = (START, *blueprint.nodes)
        self._nodes = blueprint.nodes
        self._state = state

    def parts(self, field: str, branch: Branch, reader: str, new: bool) -> Parts | None:
        """Who brought what to a field; None if the field has no parts."""
        del branch
        found = self.schema.fields.get(field)
        if found is None or found.reducer is None or found.reducer.parts is None:
            return None
        of = Folded(field, found.reducer, found.fixed_default)
        return parts_of(Behind.state(self._state, START).log, [0], of, reader, new=new)

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> list[Changed]:
        """All that is set."""
        names = [name for name in self._state if fields is None or name in fields]
        parts = [self.parts(name, branch, reader, True) for name in names]
        return [Changed(name, DELETE, self._state.raw(name), found) for name, found in zip(names, parts, strict=True)]

    def permits(self, node: str, option: str) -> frozenset[str] | None:
        """The fields that a node `"reads"` or `"writes"`; None for all."""
        return _permitted(self._nodes[node], option)

    def looked(self, look: Look) -> None:
        """Nobody counts."""


def reads_of(nodes: Mapping[str, Node], log: PersistentVector[Entry], first: int) -> list[Read]:
    """What nodes have read whole, by the commits of a run.

    Args:
        nodes: the nodes of the graph.
        log: the commits.
        first: the place of the first one that counts.
    """
    found: list[Read] = []
    for place in range(first, len(log)):
        entry = log[place]
        node = nodes.get(entry.commit.node)
        if node is not None and entry.parents:
            before = log[entry.parents[0]].state
            found += [Read(node.name, *one) for one in _plain_inputs(node, before)]
    return found


def _plain_inputs(node: Node, state: ImmutableState) -> list[tuple[str, Any]]:
    """What a node has read of a state without a view: its own name and the value."""
    if isinstance(node, MapNode):
        over = state.raw(node.over, None)
        return _plain_inputs(node.inner, state) * (len(over) if isinstance(over, Sized) else 0)
    if isinstance(node, FunctionNode):
        given = [(one.name, one.field) for one in node.binding.fields if one.readable and not one.view and not one.made]
        given += [(name, name) for name in state] if node.whole_state and node.reads is None else []
    elif isinstance(node, (ModuleNode, SubgraphNode)):
        given = [(one.name, one.field) for one in node.inputs if one.readable and not one.view and not one.made]
    else:
        given = []
    return [(name, state.raw(field)) for name, field in given if field in state]


def _is_news(parts: Parts, before: Any, after: Any) -> bool:
    """Whether something came, or all of it went."""
    if parts.shape == "amount":
        return any(part.value for part in parts.parts)
    return bool(parts.parts) or (before is not DELETE and bool(before) and not after)


def _permitted(node: Node, option: str) -> frozenset[str] | None:
    """A function that takes `ctx` and says nothing about what it reads may look at all of it, as by parameters."""
    if isinstance(node, MapNode):
        return _permitted(node.inner, option)
    names = node.binding.reads if option == "reads" and isinstance(node, FunctionNode) else getattr(node, option)
    return None if names is None else frozenset(names.values())

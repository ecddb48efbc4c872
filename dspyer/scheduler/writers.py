"""Who wrote each value: an index of the log by path, folded commit by commit when it is first asked for.

It answers as `git blame` does. A value belongs to the last commit that wrote at, in or above its path. Where branches
joined, the branches that hold the joined value count: one that wrote a value and later put the old one back has changed
nothing. If several hold it, the last of those that have written since they parted counts, in the order of the
branches. A value that a conflict decided belongs to the commit that won.

The index after a commit is a tree that shares with the one before what the commit did not write. Of a field with a
reducer it has the parts too (`scheduler.provenance`): an item belongs to the commit that brought it or last changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dspyer.patch import each_update, resets
from dspyer.scheduler.lineage import Log, LogEntry, unshared_commits, value_at
from dspyer.scheduler.provenance import FieldIndex, FieldPart, IndexedField
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap
from dspyer.values.refusals import KeyPath


class Written(NamedTuple):
    """Who wrote a value, and the values in it.

    Attributes:
        at: the log index of the commit that last wrote at, in or above the path; -1 if none did.
        writer: the log index of the commit that the value belongs to: `at`, or of a decided conflict the winner.
        made: the log index of the commit that has made this entry of the index: `at`, or a join of the values in it.
        keys: by key, of what was written apart since the value was last written as a whole.
        rest: of all other keys; None if nothing was written apart: they are as the value.
        sides: of a joined value, those of the branches that hold it or, if none does, of those that changed it; of a
            decided conflict, that of the winner.
        depth: the length of the path that the sides are of. As `rest`, an entry stands for paths below that one too.
    """

    at: int = -1
    writer: int | None = None
    made: int = -1
    keys: PersistentMap[Any, Written] = PersistentMap()
    rest: Written | None = None
    sides: tuple[Written, ...] = ()
    depth: int = 0

    def under(self, *path: Any) -> Written:
        """Who wrote what is at a path in the value."""
        found = self
        for key in path:
            found = found.keys.get(key) or found.rest or found
        return found


NOT_WRITTEN = Written()

FindParts = Callable[[str, int], tuple[IndexedField, FieldIndex] | None]
"""Finds the parts of a field after a commit of the log; None if it has none."""


class Writers:
    """The index of a log. Safe for use by several threads at once.

    Args:
        log: the commits.
        before: commits whose writes do not count, and so do those that they descend from.
        parts: finds the parts of a field; None if they are not asked for.
    """

    def __init__(self, log: Log, before: Iterable[int] = (), parts: FindParts | None = None) -> None:
        self._log = log
        self._before = tuple(before)
        self._parts = parts
        self._known = dict.fromkeys(self._before, NOT_WRITTEN)
        self._by_id: Mapping[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:  # it is made again
        return Writers, (self._log, self._before, self._parts)

    def of(self, index: int, path: KeyPath) -> int | None:
        """The commit that what is at a path after a commit belongs to; None if no commit that counts has written it."""
        item = self.item(index, path)
        if item is None:
            return self.at(index).under(*path).writer
        place = self._places(item[0]).get(item[1].commit)
        return None if place in self._before else place

    def item(self, index: int, path: KeyPath) -> tuple[IndexedField, FieldPart] | None:
        """The item of a list, message or member that a path leads to or into; None if it leads to none."""
        found = self._parts(path[0], index) if self._parts is not None and len(path) > 1 else None
        if found is None or found[0].reducer.kind in ("keys", "amount"):
            return None
        part = found[1].item(found[0], self._log[index].state.raw(path[0], None), path[1])
        return None if part is None else (found[0], part)

    def of_parts(self, of: IndexedField, parts: Iterable[FieldPart]) -> set[int]:
        """The commits of the log that brought parts of a field."""
        places = self._places(of)
        ids = {commit for part in parts for commit in (part.commit, *part.also_from)}
        return {places[commit] for commit in ids if commit in places}

    def commits_behind(self, field: str, index: int, folds: bool) -> set[int]:
        """All commits that contributed to what a field holds after a commit.

        Of parts these are the commits that brought them, of a mapping those of its keys. `folds`: whether a reducer has
        made one value of the updates; then all those since it was last replaced count.
        """
        parts = None if self._parts is None else self._parts(field, index)
        if parts is not None and (brought := self.of_parts(parts[0], parts[1].parts)):
            return brought
        value, found = self._log[index].state.raw(field, None), set[int]()
        path: KeyPath = (field,)
        stack, seen = [(self.at(index).under(field), path, value)], set[tuple[int, KeyPath]]()
        while stack:
            one, path, value = stack.pop()
            if (id(one), path) in seen:
                continue
            seen.add((id(one), path))
            if isinstance(value, FrozenDict) and one.rest is not None and value and not folds:
                inside = [key for key in one.keys if key in value]
                stack += [(one.keys[key], (*path, key), value.raw(key)) for key in inside]
                if len(inside) == len(value):
                    continue
                if one.rest.sides:  # several commits may have written the other keys
                    stack += [(one.rest, (*path, key), value.raw(key)) for key in value if key not in one.keys]
                elif one.rest.writer is not None:
                    found.add(one.rest.writer)
            elif one.sides:
                stack += [(side.under(*path[one.depth :]), path, value) for side in one.sides]
            elif one.writer is not None:
                found.add(one.writer)
                entry = self._log[one.at]
                if folds and not resets(entry.commit.patch[field]):
                    stack += [(self.at(parent).under(field), path, value) for parent in entry.parents]
        return found

    def at(self, index: int) -> Written:
        """Who wrote the state after a commit."""
        known, stack = self._known, [index]
        while stack:
            here = stack.pop()
            if here in known:
                continue
            entry = self._log[here]
            missing = [parent for parent in entry.parents if parent not in known]
            if missing:
                stack += [here, *missing]
            else:  # another thread may have made it meanwhile: entries are compared by identity, so the first one stays
                known.setdefault(here, self._after(here, entry))
        return known[index]

    def last(self, heads: Sequence[int], path: KeyPath, value: Any) -> int | None:
        """The commit to which a value at a path belongs that branches hold together; None if no commit wrote it."""
        written = [(self.at(head).under(*path), value_at(self._log[head].state, path)) for head in heads]
        written = [(one, held) for one, held in written if one.writer is not None]
        if not written:
            return None
        trees, values = zip(*written, strict=True)
        return _Branches(self._log, heads, -1).holding(trees, values, value)[-1].writer

    def _places(self, of: IndexedField) -> Mapping[str, int]:
        """The log index of each commit by its global id, as parts have it."""
        if not self._by_id:
            self._by_id = {of.global_id(self._log, at): at for at in range(len(self._log))}
        return self._by_id

    def _after(self, index: int, entry: LogEntry) -> Written:
        parents = [self._known[parent] for parent in entry.parents]
        if len(parents) > 1:
            states = [self._log[parent].state for parent in entry.parents]
            joined = _Branches(self._log, entry.parents, index).joined(parents, states, entry.state, 0)
            return self._decided(index, entry, joined, entry.commit.patch, (), index)
        return _updated(parents[0] if parents else NOT_WRITTEN, entry.commit.patch, index)

    def _decided(
        self, index: int, entry: LogEntry, joined: Written, update: Any, path: KeyPath, winner: int
    ) -> Written:
        """Who wrote a joined value at a path after what the join itself has decided."""
        winner = entry.winners.get(path, winner)
        if isinstance(update, Mapping):
            keys = joined.keys
            for key, part in _raw_items(update):
                keys = keys.set(key, self._decided(index, entry, joined.under(key), part, (*path, key), winner))
            return Written(index, winner, index, keys, joined.rest or joined)
        if winner == index:
            return Written(index, index, index)
        value, won = value_at(entry.state, path), value_at(self._log[winner].state, path)
        if same(value, won):
            sides = (self._known.get(winner, NOT_WRITTEN).under(*path),)
            return Written(index, winner, index, sides=sides, depth=len(path))
        found = Written(index, index, index) if joined.writer is None else joined
        if not isinstance(value, FrozenDict) or not isinstance(won, FrozenDict):
            return found
        below = [(key, (*path, key)) for key in (*value, *won)]
        apart = {key: self._decided(index, entry, joined.under(key), None, inner, winner) for key, inner in below}
        return found._replace(made=index, keys=PersistentMap(apart), rest=Written(index, winner, index))


def _updated(old: Written, patch: Any, index: int) -> Written:
    """Who wrote a value after an update by one commit: of a mapping, which is merged, by key."""
    for update in each_update(patch):
        if isinstance(update, Mapping):
            keys = old.keys
            for key, part in _raw_items(update):
                keys = keys.set(key, _updated(old.under(key), part, index))
            old = Written(index, index, index, keys, old.rest or old)
        else:
            old = Written(index, index, index)
    return old


def _raw_items(update: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return update.raw_items() if isinstance(update, FrozenDict) else update.items()


class _Branches:
    """Branches that join at an index of the log."""

    def __init__(self, log: Log, heads: Sequence[int], index: int) -> None:
        self._log = log
        self._heads = heads
        self._index = index

    @cached_property
    def _order(self) -> Mapping[int, int]:
        """The place of each commit since they parted in lineage order."""
        return {item.log_index: place for place, item in enumerate(unshared_commits(self._log, self._heads))}

    def holding(self, trees: Sequence[Written], values: Sequence[Any], value: Any) -> list[Written]:
        """Those of the branches that hold the joined value, or of all if none does, in the order of the last write."""
        hold = [one for one, held in zip(trees, values, strict=True) if same(held, value)] or trees
        return sorted({id(one): one for one in hold}.values(), key=lambda one: self._order.get(one.at, -1))

    def joined(self, trees: Sequence[Written], values: Sequence[Any], value: Any, depth: int) -> Written:
        """Who wrote a joined value at a path of some length, given who wrote that of each branch."""
        different = {id(one): one for one in trees}
        changed = [one for one in different.values() if len(different) == 1 or one.made in self._order]
        if len(changed) == 1:
            return changed[0]
        hold = self.holding(trees, values, value)
        sides = tuple([one for one in hold if one.made in self._order]) or (hold[-1],)
        rests = [one.rest or one for one in trees]
        keys = {key for one in trees for key in one.keys}
        if any(rest is not rests[0] for rest in rests) and not all(same(held, value) for held in values):
            keys.update(key for held in (*values, value) if isinstance(held, FrozenDict) for key in held)
        is_apart = bool(keys) or any(one.rest is not None for one in trees)
        rest = self._under(object(), rests, values, value, depth) if is_apart else None
        found = {key: self._under(key, trees, values, value, depth) for key in keys}
        apart = PersistentMap({key: one for key, one in found.items() if one is not rest})
        return Written(hold[-1].at, hold[-1].writer, self._index, apart, rest, sides, depth)

    def _under(self, key: Any, trees: Sequence[Written], values: Sequence[Any], value: Any, depth: int) -> Written:
        """Who wrote what is under a key; a key that none of the branches has stands for all other ones."""
        below = [value_at(held, (key,)) for held in values]
        return self.joined([one.under(key) for one in trees], below, value_at(value, (key,)), depth + 1)

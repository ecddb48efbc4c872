"""The tree of a search as its policy sees it: trials by name, in the order in which they were chosen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.failure import Failure
from dspyer.search.trial import ROOT


class Trial(NamedTuple):
    """One candidate of a search.

    Attributes:
        name: the positions on the path to it, as `"0.1.0"`: the first child of the second child of the root `"0"`.
        parent: the name of the trial that it continues; `""` for the root, which is no trial.
        patch: what it changed of its parent's state, a JSON merge patch; of a field with a reducer the list of its
            updates. A field that it set to None, or to a mapping that holds a None, is in `whole` instead, with its
            new value.
        reward: its reward; None if it failed, and for the root.
        value: the sum of the rewards of the trial and all trials below it.
        visits: the number of these trials, those that failed included.
        done: whether no trial may continue it: it is a solution, or it failed.
        failure: the record of what it raised; None if it did not fail.
        whole: the fields whose new value cannot be written as a JSON merge patch.
        closed: whether `mcts` has tried all that is below it.
    """

    name: str
    parent: str
    patch: Mapping[str, Any]
    reward: float | None
    value: float
    visits: int
    done: bool
    failure: Failure | None
    whole: Mapping[str, Any] = {}
    closed: bool = False

    @property
    def depth(self) -> int:
        """The number of trials on the path to it, itself included; 0 for the root."""
        return self.name.count(".")


class Tree(Mapping[str, Trial]):
    """The trials of a search by name, in the order in which they were chosen. What a policy of `search.tree` gets.

    Nothing is copied: reading one trial costs the same in a tree of ten and of ten thousand.

    Args:
        entries: the field `tree` of a state.
        last: the names of the trials of the last round.

    Example:
        >>> entry = {"name": "0.0", "parent": "0", "patch": {"n": 1}, "reward": 0.5, "value": 0.5, "visits": 1}
        >>> tree = Tree({"0.0": {**entry, "done": False, "failure": None}}, ["0.0"])
        >>> tree["0.0"].reward, [trial.name for trial in tree.children(tree.root)], tree.root.visits
        (0.5, ['0.0'], 1)
    """

    def __init__(self, entries: Mapping[str, Any], last: Sequence[str] = ()) -> None:
        self._entries = entries
        self._last = last

    def __getitem__(self, name: str) -> Trial:
        return Trial(**self._entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def root(self) -> Trial:
        """The state with which the search began: it is no trial, and not among the values of the tree."""
        value = sum(trial.value for trial in self.children(ROOT))
        return Trial(ROOT, "", {}, None, value, len(self), False, None)

    @property
    def last(self) -> list[Trial]:
        """The trials of the last round, in their order; none before the first round."""
        return [self[name] for name in self._last]

    def children(self, parent: Trial | str) -> list[Trial]:
        """The trials that continue a trial, or the root, in their order.

        Args:
            parent: the trial, or its name.

        Returns:
            The trials.

        Example:
            >>> Tree({}).children("0")
            []
        """
        found: list[Trial] = []
        name = parent if isinstance(parent, str) else parent.name
        while (child := f"{name}.{len(found)}") in self._entries:
            found.append(self[child])
        return found

    def next_place(self, parent: Trial | str) -> int:
        """The place of the next child of a trial, or of the root: the number of its children.

        Args:
            parent: the trial, or its name.

        Returns:
            The place, counted from 0.

        Example:
            >>> Tree({}).next_place("0")
            0
        """
        name = parent if isinstance(parent, str) else parent.name
        most = 1
        while f"{name}.{most - 1}" in self._entries:
            most *= 2
        return bisect_left(range(most), 1, key=lambda place: f"{name}.{place}" not in self._entries)

    def __repr__(self) -> str:
        return f"<Tree of {len(self)} trials>"

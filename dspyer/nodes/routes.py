"""What a router returned, as targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from dspyer.errors import RouteError, brief, suggestion
from dspyer.nodes.base import Goto, Send
from dspyer.nodes.names import listed
from dspyer.nodes.outputs import check_target

PathMap: TypeAlias = Mapping[Any, str | Sequence[str]] | Iterable[str]


@dataclass(frozen=True, slots=True)
class Routes:
    """The ways out that a router may take.

    Attributes:
        labels: targets by label; empty if the router names its targets itself.
        targets: the names of all targets, in order.
        by_text: targets by what a router may return as a text: a label, or a name.
    """

    labels: Mapping[Any, tuple[str, ...]]
    targets: tuple[str, ...]
    by_text: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        texts = {label: names for label, names in self.labels.items() if isinstance(label, str)}
        object.__setattr__(self, "by_text", {**{name: (name,) for name in self.targets}, **texts})

    def resolve(self, result: object, who: str) -> tuple[Goto, ...]:
        """What a router returned, as targets.

        Args:
            result: a label, a name, a `Send`, or a list of these.
            who: the router, for errors.

        Returns:
            The targets, at least one.

        Raises:
            RouteError: for an unknown target or label, or none at all.
        """
        if type(result) is str and result in self.by_text:
            return self.by_text[result]
        if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
            found = tuple(target for part in result for target in self._one(part, who))
            if not found:
                raise RouteError(f"{who} returned an empty list: name a target, or END to finish the branch")
            return found
        return self._one(result, who)

    def _one(self, part: object, who: str) -> tuple[Goto, ...]:
        if isinstance(part, Send):
            check_target(part, self.targets, who, _FIX)
            return (part,)
        label = self._label(part)
        if label is not None:
            return label
        if not self.labels:
            check_target(part, self.targets, who, _FIX)
        hint = suggestion(part, [*self.labels, *self.targets])
        raise RouteError(
            f"{who} returned {brief(part)}; its labels are {listed(self.labels)} and its targets "
            f"{listed(self.targets)}: {_FIX}.{hint}"
        )

    def _label(self, part: object) -> tuple[str, ...] | None:
        if isinstance(part, str) and part in self.by_text:
            return self.by_text[part]
        try:
            if part in self.labels:
                return self.labels[part]
        except TypeError:  # an unhashable value is no label
            return None
        return self.labels.get(part.value) if isinstance(part, Enum) else None


_FIX = "add it to the path map"


def routes_of(
    path_map: PathMap | None, promised: Sequence[object], who: str, complete: bool = True, unset: bool = False
) -> tuple[Routes | None, list[str]]:
    """The ways out of a router, and what is wrong with them.

    Args:
        path_map: targets by label, or a list of names; None if not given.
        promised: the labels that the router's annotation promises; empty for unknown.
        who: the router, for problems.
        complete: whether it promises to give nothing else.
        unset: whether it may give `None` besides, which needs no target.

    Returns:
        The routes, None if they are unknown.
    """
    if path_map is None:
        names = tuple(name for name in promised if isinstance(name, str))
        if not names or len(names) < len(promised):
            labels = f" for {listed(promised)}" if promised else ""
            fix = "a dict from label to node, a list of nodes, or a return annotation `-> Literal['a', 'b']`"
            return None, [f"{who} does not say where it may go: give it a path map{labels}: {fix}"]
        return Routes({}, tuple(dict.fromkeys(names))), []
    if isinstance(path_map, str):
        return None, [f"{who}: the path map {path_map!r} is one name: write [{path_map!r}]"]
    if not isinstance(path_map, Mapping):
        path_map = {name: name for name in path_map}
    problems: list[str] = []
    labels_of: dict[Any, tuple[str, ...]] = {}
    for label, target in path_map.items():
        names = (target,) if isinstance(target, str) else tuple(target) if isinstance(target, (list, tuple)) else ()
        if not names or not all(isinstance(name, str) for name in names):
            problems.append(
                f"{who}: the path map sends {label!r} to {brief(target)}: give the name of a node, or a list of names"
            )
        labels_of[label] = names
    targets = tuple(dict.fromkeys(name for names in labels_of.values() for name in names))
    if not labels_of:
        problems.append(f"{who}: the path map is empty: give it at least one target")
    given = [label for label in labels_of if label is not None or not unset]
    problems += _uncovered(given, targets, promised, who, complete)
    return Routes(labels_of, targets), problems


def _uncovered(
    labels: Sequence[Any], targets: Sequence[str], promised: Sequence[object], who: str, complete: bool
) -> list[str]:
    """Labels without a target, and entries that no label can reach."""
    if not promised:
        return []
    problems = [
        f"{who} may give {label!r}, which the path map does not have: add {{{label!r}: 'a node'}}."
        f"{suggestion(label, labels)}"
        for label in promised
        if label not in labels and label not in targets
    ]
    problems += [
        f"{who} never gives {label!r}, which the path map has; it gives {listed(promised)}: remove it."
        f"{suggestion(label, promised)}"
        for label in labels
        if complete and label not in promised
    ]
    return problems

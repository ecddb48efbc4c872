"""The mark of a live field: what is posted to it is seen by running siblings at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dspyer.errors import GraphError
from dspyer.reducers import Reducer

LiveConflictRule = Literal["merge", "last_write_wins", "reject"]


@dataclass(frozen=True, slots=True)
class Live:
    """Marks a field as live, beside its reducer. `live` is one; `live(on_conflict="reject")` gives another.

    A post replaces what its author has read, posted itself, or has behind it. It is a *conflict* if there is a value
    that it does not replace: of the same key in a field of keys, of the field as a whole in one without a reducer and
    where conflicts are rejected. Every conflict is an event that names both authors.

    Attributes:
        on_conflict: `"merge"`: both count; of two values of one key, mappings are merged by key, lists are put one
            after the other, and of other values the later one counts. `"last_write_wins"`: the later value counts.
            `"reject"`: the post raises, and its author may read and post again.
        show_reads: whether each entry that a node hears is an event, `Heard`.

    Example:
        >>> live(on_conflict="reject")
        live(on_conflict='reject')
    """

    on_conflict: LiveConflictRule = "merge"
    show_reads: bool = False

    def __call__(self, *, on_conflict: LiveConflictRule = "merge", show_reads: bool = False) -> Live:
        """The mark with another rule for conflicts, or with an event for each entry that is heard.

        Args:
            on_conflict: what becomes of a value that was written unread.
            show_reads: whether each entry that a node hears is an event.

        Raises:
            GraphError: if there is no such rule.
        """
        known = get_args(LiveConflictRule)
        if on_conflict not in known:
            raise GraphError(f"live(on_conflict={on_conflict!r}): it is one of {', '.join(map(repr, known))}")
        return Live(on_conflict, show_reads)

    def __repr__(self) -> str:
        given = [] if self.on_conflict == "merge" else [f"on_conflict={self.on_conflict!r}"]
        given += ["show_reads=True"] if self.show_reads else []
        return f"live({', '.join(given)})" if given else "live"


live = Live()


def live_problem(mark: Live, reducer: Reducer | None) -> str:
    """Why a field cannot be live, with the fix; empty if it can.

    Args:
        mark: the mark.
        reducer: the reducer of the field.
    """
    if reducer is None:
        return ""  # the latest value
    if reducer.parts is None:
        return (
            f"it is live, but reducer {reducer.name!r} does not keep the posts apart: give it one of extend, append, "
            "add_messages, union, update or increment"
        )
    if mark.on_conflict == "last_write_wins" and reducer.keyed is None:
        return (
            "live(on_conflict='last_write_wins') is for a field of keys or messages (reducers.update, add_messages): "
            f"what reducer {reducer.name!r} folds stands side by side. Leave it out, or reject what was written unread"
        )
    return ""

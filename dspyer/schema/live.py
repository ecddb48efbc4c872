"""The mark of a live field: what is posted to it is seen by running siblings at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dspyer.errors import GraphError
from dspyer.reducers import Reducer

OnConflict = Literal["merge", "last_write_wins", "reject"]


@dataclass(frozen=True, slots=True)
class Live:
    """Marks a field as live, beside its reducer. `live` is one; `live(on_conflict="reject")` gives another.

    A write is a *conflict* if its author has not read the latest entry of another author: of the same key, in a field
    of keys, and of the field as a whole where conflicts are rejected. Every conflict is an event that names both.

    Attributes:
        on_conflict: `"merge"`: both stand; of two values of one key, mappings are merged by key, lists are put one
            after the other, and of other values the later one stands. `"last_write_wins"`: the later value of a key
            stands. `"reject"`: the post raises, and its author may read and post again.

    Example:
        >>> live(on_conflict="reject")
        live(on_conflict='reject')
    """

    on_conflict: OnConflict = "merge"

    def __call__(self, *, on_conflict: OnConflict = "merge") -> Live:
        """The mark with another rule for conflicts.

        Raises:
            GraphError: if there is no such rule.
        """
        known = get_args(OnConflict)
        if on_conflict not in known:
            raise GraphError(f"live(on_conflict={on_conflict!r}): it is one of {', '.join(map(repr, known))}")
        return Live(on_conflict)

    def __repr__(self) -> str:
        return "live" if self == live else f"live(on_conflict={self.on_conflict!r})"


live = Live()


def live_problem(mark: Live, reducer: Reducer | None) -> str:
    """Why a field cannot be live, with the fix; empty if it can.

    Args:
        mark: the mark.
        reducer: the reducer of the field.
    """
    if reducer is None:
        return (
            "it is live and has no reducer to fold the posts of several nodes: write for example "
            "Annotated[list[str], reducers.append, live]"
        )
    if reducer.parts is None:
        return (
            f"it is live, but reducer {reducer.name!r} does not keep the posts apart: give it one of extend, append, "
            "add_messages, union, update or increment"
        )
    if mark.on_conflict == "last_write_wins" and reducer.shape != "keys":
        return (
            f"live(on_conflict='last_write_wins') is for a field of keys (reducers.update): what reducer "
            f"{reducer.name!r} folds stands side by side. Leave it out, or reject what was written unread"
        )
    return ""

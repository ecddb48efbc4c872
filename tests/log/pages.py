"""Pages of a history, cut from the whole of it."""

from __future__ import annotations

from dspyer.events import Commit


def page_of(commits: list[Commit], first: int | None, count: int, newest: bool) -> list[Commit]:
    """At most `count` of the commits from version `first` on, of all of them in order; `newest` turns it around.

    A commit of a fork that has not joined has no version: a page begins with none of these, unless `first` is None.
    """
    listed = commits[::-1] if newest else list(commits)
    while first is not None and listed:
        version = listed[0].version
        if version is not None and (version <= first if newest else version >= first):
            break
        del listed[0]
    return listed[:count]

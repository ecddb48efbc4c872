"""Ids of runs, commits and executions: the one place that writes and reads their text.

An id is made of names with slashes between them: `t-42.1/trunk:2[0]/1.0:3[route]`. They are, from the left: the label
of the run; the executions around, in which graphs run; the execution itself. That one has the path of its branch and
its index there, then, in brackets, parts: an item of a map, a trial of a search, a router, what condenses, the key of a
called program. A commit has the id of the execution that made it; one that no node made is `trunk:3+1`.

The name of a thread may hold any character, so that labels do too: ids are read from the right. The label of a run is
the name of its thread, a point and a number (`label_of`), and nothing with such an end can be an execution.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import index, itemgetter
from secrets import token_bytes
from typing import NamedTuple
from urllib.parse import quote, unquote

from dspyer.errors import brief

_NUMBER = "(?:0|[1-9][0-9]{0,17})"  # as `str` writes it; no run has so many commits that a number is longer than that
_OWN = re.compile(
    rf"(?:trunk|(?P<path>{_NUMBER}(?:\.{_NUMBER})*)):(?P<index>{_NUMBER})(?P<part>\+[1-9][0-9]{{0,17}}|(?:\[[^][/]*\])*)"
)
_KEY = re.compile(r"\[([^][]*)\]")
_PART = re.compile(r"[/\[]")  # where the id of an execution goes on from that of the one around it
_DIGITS = re.compile(r"([0-9]+)")
FIRST = "trunk:0"
"""The id of the first commit of a run."""

_ESCAPES = str.maketrans({char: quote(char, safe="") for char in "%/[]"})


def commit_name(name: object) -> int | str:
    """Return the version or the id by which a caller names a commit; raises `TypeError` for anything else.

    Example:
        >>> commit_name(3), commit_name("t-42.1/trunk:3")
        (3, 't-42.1/trunk:3')
    """
    if isinstance(name, str):
        return name
    if hasattr(name, "__index__"):
        return index(name)
    raise TypeError(f"{brief(name)} names no commit: give its version, a number, or its id, a text (commit.id)")


def new_run_id(of: bytes | None = None) -> str:
    """The id of a run, 12 characters: random, or, for a run with a key, a hash of what makes it that run.

    It is repeated in each row of the run, so it is as short as 72 bits can be: that two of a hundred million runs in a
    store have the same one has a probability of one in a million.

    Example:
        >>> new_run_id(b"t-42")
        '7l__OnkbJ2xf'
    """
    digest = token_bytes(9) if of is None else blake2b(of, digest_size=9).digest()
    return urlsafe_b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class Address:
    """An id in its parts. `Address.parse(str(address)) == address`.

    Attributes:
        run: the label of the run; "" for an id within its run.
        scope: the executions around it, outermost first.
        path: the path of the branch.
        index: the number of the execution on this path; -1 for a name that is no execution.
        part: what follows the index, as it is written: `"[0]"`, `"[0][again]"`, `"+1"`. Of a name that is no execution,
            such as `"pruned"`, the name.

    Example:
        >>> Address.parse("a/b.1/trunk:2[0]/1.0:3[route]")
        Address(run='a/b.1', scope=('trunk:2[0]',), path=(1, 0), index=3,
        part='[route]')
    """

    run: str = ""
    scope: tuple[str, ...] = ()
    path: tuple[int, ...] = ()
    index: int = -1
    part: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address with a text. A text of any form has one: what is no id is the name of no execution."""
        *before, own = text.split("/")
        begin = len(before)
        while begin and _OWN.fullmatch(before[begin - 1]):
            begin -= 1
        run, scope = "/".join(before[:begin]), tuple(before[begin:])
        if begin and not run:
            return cls(part=text)
        found = _OWN.fullmatch(own)
        if found is None:
            return cls(run, scope, part=own)
        path, index, part = found.groups()
        return cls(run, scope, () if path is None else tuple(map(int, path.split("."))), int(index), part)

    def __str__(self) -> str:
        return id_prefix(self.run, *self.scope) + self.own

    @property
    def own(self) -> str:
        """The id without what is around: `"trunk:1[0]"` of `"t-42.1/trunk:2/trunk:1[0]"`."""
        return self.part if self.index < 0 else f"{execution_id(self.path, self.index)}{self.part}"

    @property
    def inside(self) -> tuple[str, ...]:
        """The scope of what runs inside of it."""
        return (*self.scope, self.own)

    @property
    def is_commit(self) -> bool:
        """Return whether a commit of a graph can have this id: it names no part of an execution."""
        return self.index >= 0 and not self.part.startswith("[")

    @property
    def keys(self) -> list[str]:
        """The keys of the parts, from the outside to the inside: `["0", "again"]` of `"trunk:2[0][again]"`."""
        return [unquote(key) for key in _KEY.findall(self.part)]

    @property
    def change(self) -> int:
        """The number of manual commits after the commit of an execution, this one included."""
        return int(self.part[1:]) if self.part.startswith("+") else 0

    def changed(self) -> Address:
        """The address of a manual commit after this one: `trunk:3+1` after `trunk:3`, then `trunk:3+2`."""
        return replace(self, part=f"+{self.change + 1}")


def is_manual_id(name: str) -> bool:
    """Return whether a commit with this id was made by `thread.update`: its id is that of the one before, with `+1`.

    Example:
        >>> is_manual_id("trunk:2+1"), is_manual_id("trunk:2")
        (True, False)
    """
    return "+" in name and Address.parse(name).change > 0  # few ids are parsed: most have no "+"


def path_text(path: tuple[int, ...]) -> str:
    """A branch path as ids, reports and errors show it.

    Example:
        >>> path_text(()), path_text((1, 0))
        ('trunk', '1.0')
    """
    return ".".join(map(str, path)) if path else "trunk"


def execution_id(path: tuple[int, ...], index: int) -> str:
    """The id of the commit number `index` of a branch path, and of the execution that makes it."""
    return f"{path_text(path)}:{index}" if path else f"trunk:{index}"  # made at each step of a run


def part_id(execution: str, key: object) -> str:
    """The id of a part of an execution. In a key, slashes and brackets are escaped.

    Example:
        >>> part_id("trunk:2", 0), part_id("trunk:2", "a/b")
        ('trunk:2[0]', 'trunk:2[a%2Fb]')
    """
    return f"{execution}[{str(key).translate(_ESCAPES)}]"


def full_id(*names: str) -> str:
    """The id made of the label of a run, executions around and an id inside of them; names that are empty are left out.

    Example:
        >>> full_id("t-42.1", "trunk:2[0]", "trunk:1"), full_id("", "trunk:1")
        ('t-42.1/trunk:2[0]/trunk:1', 'trunk:1')
    """
    return "/".join(filter(None, names))


def id_prefix(*names: str) -> str:
    """Return the beginning of the ids in a run, or inside of executions; "" for none."""
    return "/".join([*filter(None, names), ""])


def prefix_at(index: int, prefixes: Sequence[tuple[int, str]], last: str) -> str:
    """Return the beginning of the id of a commit: of (first index behind, prefix) in order the one for its index."""
    place = bisect_right(prefixes, index, key=itemgetter(0))
    return prefixes[place][1] if place < len(prefixes) else last


def label_of(thread: str, number: int | str) -> str:
    """The label of a run, with which the ids of its commits begin: `"t-42.3"`."""
    return f"{thread}.{number}"


def whole_execution(execution: str) -> str:
    """The id of the node's execution of which another one may be a part.

    Example:
        >>> whole_execution("trunk:2[0]"), whole_execution("trunk:2")
        ('trunk:2', 'trunk:2')
    """
    # Keys have no brackets of their own, and the name of a thread, which may have some, ends before the last slash.
    return execution[: execution.find("[", execution.rfind("/") + 1)] if execution.endswith("]") else execution


def outermost_execution(execution: str) -> str:
    """The id of the execution in the run's own graph that contains another one, or is it.

    Example:
        >>> (outermost_execution("trunk:2[0]/trunk:1"),
        ...     outermost_execution("t-42.1/trunk:2[0]"))
        ('trunk:2', 't-42.1/trunk:2')
    """
    if "/" not in execution:
        return whole_execution(execution)
    found = Address.parse(execution)
    return full_id(found.run, whole_execution(found.inside[0]))


def path_of_id(execution: str) -> tuple[int, ...]:
    """The branch path in an id: that of the execution in the run's own graph; `()` for `""`.

    Example:
        >>> (path_of_id("1.0:2"), path_of_id("1.0:2[0]/trunk:1"),
        ...     path_of_id("trunk:3"))
        ((1, 0), (1, 0), ())
    """
    return Address.parse(outermost_execution(execution)).path


def ids_around(execution: str) -> list[str]:
    """The ids of the executions of which another one is a part, outermost first.

    Example:
        >>> ids_around("trunk:2[0]/trunk:1")
        ['trunk:2', 'trunk:2[0]']
    """
    return [execution[: mark.start()] for mark in _PART.finditer(execution)]


def is_within(execution: str, outer: str) -> bool:
    """Return whether an execution is another one, or a part of it.

    Example:
        >>> (is_within("trunk:2[0]/trunk:1", "trunk:2"),
        ...     is_within("trunk:21", "trunk:2"))
        (True, False)
    """
    return execution == outer or execution.startswith((f"{outer}/", f"{outer}["))


def id_order(execution: str) -> list[tuple[int, str]]:
    """A key that sorts `trunk:2` before `trunk:10`."""
    # Every second part is a number. `isdigit` would take a superscript for one.
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(_DIGITS.split(execution))]


class RunIds(NamedTuple):
    """The ids of a run, and what begins those that are derived from it.

    Attributes:
        run_id: its own.
        root: that of the outermost run.
        label: the name of the outermost run, in front of the ids of its questions; "" if it is not stored.
        scope: the executions around the run, if it is a part of another one.
        prefix: what the ids of its commits begin with among all runs of a thread.
        around: what the ids of its executions begin with in `executing_id`.
        called_in: the execution of another run whose code has called the program, in which its LM calls are counted;
            "" for none, and for a run that is a part of another one.
    """

    run_id: str
    root: str
    label: str
    scope: tuple[str, ...]
    prefix: str
    around: str
    called_in: str

    def local_id(self, execution_id: str) -> str:
        """The id of an execution within the outermost run: after those of the executions around this graph."""
        return self.around + execution_id

    def global_id(self, execution_id: str, *rest: str) -> str:
        """The id of an execution among all runs of a thread: reducers derive the ids of messages from it."""
        return full_id(self.prefix + execution_id, *rest) if rest else self.prefix + execution_id

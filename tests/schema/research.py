"""The schema of the tests in this folder, with one field for each kind of reducer, type and constraint."""

from __future__ import annotations

from datetime import date
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
)
from typing_extensions import TypedDict

from dspyer import reducers
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState


class Address(BaseModel):
    street: str
    town: str = "Ulm"


class User(BaseModel):
    name: str
    nick: str | None = "N"
    address: Address | None = None
    tags: dict[str, int] = {}
    serial: int = Field(default_factory=count().__next__)


class Options(TypedDict, total=False):
    colour: str
    size: int


def double(current: int, update: int) -> int:
    return 2 * current + update


class Research(BaseModel):
    """A schema with a field for each reducer and kind of type."""

    question: str
    findings: Annotated[list[str], reducers.extend] = []
    log: Annotated[list[str], reducers.append] = []
    calls: Annotated[int, reducers.increment] = 0
    best: Annotated[float | None, reducers.max] = None
    seen: Annotated[set[str], reducers.union] = set()
    table: Annotated[dict[str, int], reducers.update] = {}
    messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    doubled: Annotated[int, double] = 1
    answer: str | None = None
    score: float = 0.0
    risk: Literal["low", "high"] | None = None
    free: dict[str, Any] = {}
    typed: dict[str, int] = {}
    nested: dict[int, dict[str, int]] = {}
    options: Options = {}
    user: User | None = None
    replaced: Annotated[dict[str, int], reducers.replace] = {}
    tags: list[str] = Field(default=[], max_length=3)
    short: Annotated[list[str], reducers.extend, Field(max_length=3)] = []
    born: date | None = None
    anything: Any = None

    def shout(self) -> str:
        return f"{self.question}!"

    @property
    def size(self) -> int:
        return len(self.findings)


SCHEMA = Schema.of(Research)
START = SCHEMA.initial_state({"question": "why"})


def commit(updates: dict[str, Any], state: ImmutableState = START, **options: Any) -> Any:
    return SCHEMA.commit(state, updates, node="search", commit_id="trunk:1", **options)


def after(*updates: dict[str, Any]) -> ImmutableState:
    state = START
    for update in updates:
        state = commit(update, state)[1]
    return state

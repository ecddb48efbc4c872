"""The values that a run records, then its events, in the order in which a reader meets them in a stream.

Every one is a frozen dataclass, can be pickled and compared, and has a `to_dict()` whose result `json.dumps` takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Annotated, Any

from dspyer.errors import brief, error_text, shows_removed
from dspyer.failure import Failure
from dspyer.ids import Address, id_prefix, is_manual_id
from dspyer.record_codec import JSON, JsonRecord, Update, changed, encode, fast, size_text
from dspyer.values.freezing import register_value_type
from dspyer.values.frozen import FrozenDict, thaw

BranchPath = tuple[int, ...]
"""The number of the branch in each fork around it, the outermost first: `(0, 1)`; `()` is the trunk."""

register_value_type(Failure)  # so that a graph without a schema can store one in a state

# --- records


@shows_removed
@fast
@dataclass(frozen=True, slots=True)
class Commit(JsonRecord):
    """One patch that was applied to the state of a branch.

    Attributes:
        id: path of the branch and index in it, for example `"trunk:3"` or `"0.1:2"`; fixed when the node starts.
        version: position in the canonical order, by step and then by branch; None in a fork that has not joined yet.
        node: name of the node; `"START"` for the inputs, `"join:NAME"` for a join.
        branch: path of the branch, `()` for the trunk.
        visit: number of commits of this node in the lineage of the branch, including this one.
        step: 1 + the largest step of the parents.
        patch: what changed, with the markers `DELETE`, `Replace` and `Updates` as in every patch.
        parents: ids of the commits that this one builds on: several for a join.
        attempt: 1 for the first attempt of the node.
        route: names of the nodes to which the branch continued.
        reason: the reason that an LM router gave for the route; None otherwise.
        started: wall clock, seconds since the epoch; of a join, the time at which its last branch arrived.
        duration: seconds.
        live: what the node exchanged over live fields; None if nothing.
        calls: number of calls to predictors and to tools.
        sizes: bytes of the JSON form after the commit, for each field with a limit that it wrote.
        failure: the failure after which the branch went along an error edge, or that a tool reported to its model; None
            for the commit of a node that returned.
        failed_attempts: the attempts that raised before this one.
        cached: whether the patch came from the node's cache and not from a call.
    """

    id: str
    version: int | None
    node: str
    branch: BranchPath
    visit: int
    step: int
    patch: Mapping[str, Update]
    parents: tuple[str, ...]
    attempt: int = 1
    route: tuple[str, ...] = ()
    reason: str | None = None
    started: float = 0.0
    duration: float = 0.0
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)
    sizes: Mapping[str, int] = FrozenDict()
    failure: Failure | None = None
    failed_attempts: tuple[Failure, ...] = ()
    cached: bool = False

    def is_manual(self) -> bool:
        """Return whether no node made it: `thread.update` did."""
        return is_manual_id(self.id)

    @property
    def ended(self) -> float:
        """The time at which the node had finished, wall clock."""
        return self.started + self.duration


@dataclass(frozen=True, slots=True)
class Exchange(JsonRecord):
    """The exchange of a node with running siblings over live fields.

    Attributes:
        posts: by field, the arrival number of each of its posts, in the order of the updates in its patch.
        reads: by field, the arrival number up to which it has read, in earlier visits too.
    """

    posts: Mapping[str, tuple[int, ...]]
    reads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MergedConflict(JsonRecord):
    """One conflict of a join: a path that several branches changed, and how it was resolved.

    Attributes:
        join: name of the node at which the branches joined.
        path: the path of the conflict.
        base: the value from which the branches started; `DELETE` for absent.
        values: (author, value) of each branch that changed the path, in branch order; `DELETE` for absent.
        policy: name of the merge policy.
        value: the value that the policy chose; None if it raised.
        winner: author of that value: a node, or `"join:NAME"` for a new value; None if the policy raised.
    """

    join: str
    path: tuple[Any, ...]
    base: Any
    values: tuple[tuple[str, Any], ...]
    policy: str
    value: Any = None
    winner: str | None = None


@dataclass(frozen=True, slots=True)
class AskedCall(JsonRecord):
    """The call of a tool that a question is about.

    Attributes:
        name: name of the tool.
        args: its arguments, as the model gave them or a person has changed them.
        id: the id of the call in the conversation.
        schema: the JSON schema of the arguments.
    """

    name: str
    args: Annotated[Mapping[str, Any], JSON]
    id: str
    schema: Annotated[Mapping[str, Any], JSON]

    def text(self) -> str:
        """Return the call as its question shows it, whole: what is not shown is not approved.

        Example:
            >>> AskedCall("mail", {"to": "Ada", "text": "At 9:40."}, "call_0_0",
            ...     {}).text()
            "mail(to='Ada', text='At 9:40.')?"
        """
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.args.items())})?"


@dataclass(frozen=True, slots=True)
class Question(JsonRecord):
    """A question of a node that the run waits to have answered.

    Attributes:
        key: its name in the node; `"before"` or `"after"` for a stop that the program was compiled with.
        text: the question.
        answer: the JSON schema of the answer, `{}` if any value will do; None if it takes no answer and asks only for
            permission to continue, which every `resume` gives.
        node: name of the node that asks.
        branch: path of its branch.
        execution: id of the execution that asks, preceded by those around it.
        run: name of the run that asked first, as in `ctx.execution`; empty for a run that is not stored.
        call: the call that is to be approved; None for any other question.
        expires: when it expires, seconds since the epoch; None for never.
    """

    key: str
    text: str
    answer: Mapping[str, Any] | None
    node: str
    branch: BranchPath
    execution: str
    run: str = ""
    call: AskedCall | None = None
    expires: float | None = None

    def __repr__(self) -> str:
        return f"Question(key={self.key!r}, node={self.node!r}, execution={self.execution!r}, text={self.text!r})"

    @property
    def id(self) -> str:
        """Its name among all questions of a thread, of run, execution and key: `"t-42.1/trunk:3/approve"`."""
        return id_prefix(self.run, self.execution) + self.key


@dataclass(frozen=True, slots=True)
class Answer(JsonRecord):
    """The answer to a question, as it was given first.

    With `compile(redact=...)` an open question is shown as it was asked. Once it is answered, what shows the run hides
    its value, unless that is a yes or no, and the arguments of the call that was approved.

    Attributes:
        question: the question.
        value: the answer; None to a question that takes none.
        by: who gave it, as `resume(by=)` says; None if that says nothing, and for `answers=` of a run or program.
        comment: what was said with it; None for nothing.
        at: wall clock, seconds since the epoch.
    """

    question: Question
    value: Any
    by: str | None = None
    comment: str | None = None
    at: float | None = None

    def __repr__(self) -> str:
        by = "" if self.by is None else f", by={size_text(self.by)}"
        return f"Answer({self.question.id!r}, value={size_text(self.value)}{by}, at={self.at!r})"


@dataclass(frozen=True, slots=True)
class Sent(JsonRecord):
    """A message to a thread: what `thread.send` returns.

    Attributes:
        number: its place among the messages of the thread, from 0 on.
        text: the text.
        by: who sent it; `""` if nothing says so.
        at: wall clock, seconds since the epoch.
        to: the agent that it is for; None for the agent that the program is, or for each that is a node of it.
        open: whether a run of the thread was open when it was sent, which will be shown it; else the next one will.
    """

    number: int
    text: str
    by: str
    at: float
    to: str | None = None
    open: bool = True


@dataclass(frozen=True, slots=True)
class FieldShape(JsonRecord):
    """The declaration of a field in the schema.

    Attributes:
        name: name of the field.
        type: its type, as text.
        reducer: name of its reducer; empty if a write replaces the value.
        live: the rule for conflicts in a live field, `on_conflict`; empty if the field is not live.
        limit_kb: most kilobytes that it may hold; None for no limit.
        full: what happens at that limit, `"refuse"` or `"drop_oldest"`; empty for no limit.
    """

    name: str
    type: str
    reducer: str = ""
    live: str = ""
    limit_kb: float | None = None
    full: str = ""


@dataclass(frozen=True, slots=True)
class TraceStep(JsonRecord):
    """One call of a predictor, as DSPy's trace has it, and what became of it.

    Attributes:
        execution: id of the execution that made the call. The calls inside of a graph that is a node have that of the
            node.
        node: name of the node.
        predictor: the predictor; of a rejected step a shallow copy of it.
        inputs: its inputs by name.
        outputs: what it returned, a `dspy.Prediction`.
        attempt: the number of the node's attempt, from 1.
        status: `"used"` if the step led to the result, `"rejected"` if a check refused the output, `"lost"` if the
            attempt raised, or belongs to a trial that lost, to the judge of a search, or to an agent that asked itself
            for problems or called no tool. Steps that were lost are not in `run.trace`.
    """

    execution: str
    node: str
    predictor: Any
    inputs: Mapping[str, Any]
    outputs: Any
    attempt: int = 1
    status: str = "used"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; of the predictor, its class and a text."""
        outputs = dict(self.outputs.items()) if hasattr(self.outputs, "items") else self.outputs
        return encode(replace(self, outputs=outputs))


@fast
@dataclass(frozen=True, slots=True)
class LMCall(JsonRecord):
    """One LM call of a run: made by a predictor, answered by a server or a cache, or failed.

    It is no part of a state: resuming, replaying and comparing runs ignore it. On a thread it is written with the next
    row of its execution, so a process that is killed loses those of the nodes that it was working on.

    Attributes:
        execution: id of the execution that made it, after those around it: `"trunk:2"`, of an item of a map
            `"trunk:2[0]"`, of a node in a graph that is a node `"trunk:2/trunk:1"`.
        node: name of the node that made it.
        predictor: name of the predictor, as in `program.named_predictors()`; of one that the program does not have, the
            name of its class; empty if no predictor made the call.
        model: the model that was asked for.
        response_model: the model that has answered, as its server says; None if it says nothing.
        prompt_tokens: tokens of the prompt; 0 for a response from a cache, and where no number is known.
        response_tokens: tokens of the response; 0 likewise.
        cost: US dollars, 0 for a response from a cache; None if no price is known.
        seconds: how long it took.
        started: wall clock, seconds since the epoch.
        cached: whether the response came from DSPy's cache.
        finish_reason: why the response ended, as the server says: `"stop"`, `"length"`, `"tool_call"`; None if unknown.
        attempt: the number of the node's attempt, from 1.
        failed: the class of what the call raised, with `record_lm_calls="full"` its text too; None for a success.
        messages: the prompt, a list of messages with role and content; None if it is not recorded, or not shown.
        response: the response: a text, or a list of several, or of parts such as tool calls; None likewise.
        requests: how many requests it has sent, one for each response that was asked for; 0 if a cache answered. What
            DSPy itself repeats (`num_retries` of `dspy.LM`) is one request here; each one that `dspyer.lms.reliable`
            repeats or passes on to a backup is an LM call of its own.
        fallback: whether the response came from another LM than the first one of `dspyer.lms.reliable`.
    """

    execution: str
    node: str
    predictor: str
    model: str
    response_model: str | None
    prompt_tokens: int
    response_tokens: int
    cost: float | None
    seconds: float
    started: float
    cached: bool = False
    finish_reason: str | None = None
    attempt: int = 1
    failed: str | None = None
    messages: Any = None
    response: Any = None
    requests: int = 1
    fallback: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of prompt and response."""
        return self.prompt_tokens + self.response_tokens

    def again(self, lm: Any = None, messages: Sequence[Mapping[str, Any]] | None = None) -> LMCall:
        """Send the prompt again, as it was or edited, to see what the language model answers now.

        It is no part of a run, and nothing is stored. No cache answers it or keeps the response: that would be the
        first one. Of the first call messages alone are recorded: other options, such as tools, are those of `lm`.

        Args:
            lm: the language model; None for that of DSPy's settings.
            messages: the messages; None for those that were recorded.

        Returns:
            The new call, with messages and response.

        Raises:
            LMCallError: if no messages are given, and none were recorded.
            ValueError: if there is no language model.
            LMError: whatever the language model raises.

        Example:
            >>> import dspy
            >>> from dspyer import END, START, Graph
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("ask", dspy.Predict("question -> answer"))
            >>> program = graph.add_path(START, "ask", END).compile(
            ...     store=":memory:", record_lm_calls="full")
            >>> t = program.thread("t-42")
            >>> with ScriptedLM([{"answer": "Lyon"}, {"answer": "Paris"}]):
            ...     run = t.run({"question": "Capital of France?"})
            ...     first = t.record().calls("t-42.1/trunk:1")[0]
            ...     again = first.again()
            >>> "Lyon" in first.response, "Paris" in again.response
            (True, True)
        """
        # By its name: calls are read without DSPy, which is above all that is stored.
        found: LMCall = import_module("dspyer.lm.tap").call_again(self, lm, messages)
        return found


# --- events: the base class


@dataclass(frozen=True, slots=True)
class Event(JsonRecord):
    """Something that happens in a run. One of your own is a frozen dataclass that `call.publish` or `ctx.emit` takes.

    It is in streams, server-sent events, `run.events`, spans, `progress()` and on the command line, by its `label()`
    and its fields. A field `node` or `execution` says where it belongs.

    Attributes:
        scope: ids of the executions around the run: empty for the outermost run.
        at: wall clock, seconds since the epoch. Two events that differ in nothing else are equal.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Slowness(Event):
        ...     node: str
        ...     seconds: float
        >>> Slowness("read", 2.1).label()
        'slowness: seconds 2.1'
    """

    # `publish` fills in both.
    scope: tuple[str, ...] = field(default=(), kw_only=True, repr=False)
    at: float = field(default=0.0, kw_only=True, repr=False, compare=False)

    def label(self) -> str:
        """Return what happened in a few words: by default the name of the class and the fields."""
        name = type(self).__name__
        shown = [f"{one.name} {brief(getattr(self, one.name))}" for one in fields(self) if one.name not in _PLACE]
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower()
        return f"{words}: {', '.join(shown)}" if shown else words

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the name of the class as `"event"`, then the fields."""
        return {"event": type(self).__name__, **encode(self)}


_STAMPS, _TAKEN = ("scope", "at"), ("label", "to_dict", "event")
_PLACE = (*_STAMPS, "node", "branch", "execution")
"""The fields that say where and when an event happened: what shows events shows them beside the label."""


def own_copy(event: Event, **changes: Any) -> Event:
    """Return a copy of an event that a user has made: it gets a scope and a time, and the user may publish it again.

    Raises `TypeError` if its class is no dataclass, or takes the place of a label, scope or time.
    """
    cls = type(event)
    if "__dataclass_fields__" not in vars(cls):
        raise TypeError(f"the event class {cls.__name__} is no dataclass: put @dataclass(frozen=True) above it")
    taken = [one.name for one in fields(event) if one.name in _TAKEN or (one.name in _STAMPS and not one.kw_only)]
    if taken:
        raise TypeError(f"the event class {cls.__name__} has a field {taken[0]!r}, which every event has: rename it")
    if not callable(cls.label):
        raise TypeError(f"the event class {cls.__name__} has a label that is no method: write def label(self)")
    return changed(event, **changes)


def is_built_in(event: Event) -> bool:
    """Return whether displays have a form of their own for the class of an event. Others are shown as they say."""
    return type(event).__module__ == __name__ and type(event) is not Event


def told(event: Event) -> str:
    """Return the line that shows an event: its label, after the node that it names.

    Example:
        >>> told(Doing("read", (), "trunk:2", "reading"))
        'read: reading'
    """
    node = getattr(event, "node", "")
    return f"{node}: {event.label()}" if node else str(event.label())


def path_of_event(event: Event) -> tuple[str, ...]:
    """Return the ids of the executions that an event belongs to, the outermost first; empty if it says none.

    Example:
        >>> path_of_event(Doing("read", (), "trunk:2", "reading",
        ...     scope=("trunk:1",)))
        ('trunk:1', 'trunk:2')
    """
    execution = event.commit.id if isinstance(event, Committed) else getattr(event, "execution", "")
    if not execution:
        return event.scope
    # `call.execution` has the executions around it in front; the events of this module have their own id alone.
    found = Address.parse(execution)
    return found.inside if found.scope else (*event.scope, found.own)


# --- events: a run, its nodes, forks and joins


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run has started; it is the first event of the run.

    Attributes:
        run_id: id of the run.
        graph: name of the graph.
        fields: the fields of its schema; empty for a graph without one.
    """

    run_id: str
    graph: str
    fields: tuple[FieldShape, ...] = ()

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"run of {self.graph} started"


@fast
@dataclass(frozen=True, slots=True)
class NodeStarted(Event):
    """A node has started. `execution` is the id that its commit will have."""

    node: str
    branch: BranchPath
    visit: int
    execution: str

    def label(self) -> str:
        """Return what happened in a few words."""
        return "started" if self.visit == 1 else f"started, visit {self.visit}"


@fast
@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A patch was applied to the state of a branch.

    Attributes:
        commit: the commit. In a fork it has no version yet: versions follow the order of the branches, and a branch
            with a smaller path may still commit. `Numbered` says it once the fork has joined.
        position: position of the commit in the order in which commits were made, counted like versions; equal to the
            version if the commit has one.
        operations: by field that it writes, how: the name of the reducer that folds the update in, or `"replace"`.
    """

    commit: Commit
    position: int = 0
    operations: Mapping[str, str] = FrozenDict()

    def label(self) -> str:
        """Return what happened in a few words."""
        written = ", ".join(map(str, self.commit.patch))
        return f"committed {written}" if written else "committed"


@dataclass(frozen=True, slots=True)
class Forked(Event):
    """A branch has split into several. `branches` are the paths of the new ones, in the order of `targets`."""

    branch: BranchPath
    targets: tuple[str, ...]
    branches: tuple[BranchPath, ...]

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"forked into {', '.join(self.targets)}"


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """Several branches have become one, `branch`, at `node`."""

    node: str
    branches: tuple[BranchPath, ...]
    branch: BranchPath

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"joined {len(self.branches)} branches"


@dataclass(frozen=True, slots=True)
class Numbered(Event):
    """The branches of a fork have all joined: `versions` of the commits in it, by id, follow the join."""

    versions: Mapping[str, int]

    def label(self) -> str:
        """Return what happened in a few words."""
        numbers = self.versions.values()
        return f"numbered versions {min(numbers)} to {max(numbers)}"


@dataclass(frozen=True, slots=True)
class ConflictFound(Event):
    """A join has found that several branches changed one path; the conflict says whether it was resolved."""

    conflict: MergedConflict

    def label(self) -> str:
        """Return what happened in a few words."""
        found = self.conflict
        path = ".".join(map(str, found.path))
        return f"conflict at {path}: {'not resolved' if found.winner is None else f'that of {found.winner} is kept'}"


@dataclass(frozen=True, slots=True)
class NodeFailed(Event):
    """A node, its router or a join has raised `error`. Nothing of the execution was committed."""

    node: str
    branch: BranchPath
    execution: str
    error: BaseException

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"failed: {_said(self.error)}"


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """An attempt of a node, or of an item of a map, has raised `error`; another one follows after `pause` seconds.

    A router and the condensers of a node have attempts of their own, under `"trunk:1[route]"` and
    `"trunk:1[condense]"`: what the node itself gave is kept.

    The error has no traceback: that would keep the values of the attempt as long as the event.
    """

    node: str
    branch: BranchPath
    execution: str
    attempt: int
    error: BaseException
    pause: float

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"attempt {self.attempt} failed: {_said(self.error)}; the next one follows after {self.pause:.1f} s"


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """A node has asked a question and was stopped to wait for the answer. Nothing of it was committed."""

    question: Question

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"asks: {self.question.text}"


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """A question has an answer, which is stored."""

    answer: Answer

    def label(self) -> str:
        """Return what happened in a few words."""
        one = self.answer
        by, comment = f" by {one.by}" if one.by else "", f": {one.comment}" if one.comment else ""
        return f"{one.question.key}: answered{by} with {brief(thaw(one.value), 160)}{comment}"


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """A run has ended, as its last event: `"completed"`, `"failed"`, `"interrupted"` or `"stopped"`."""

    run_id: str
    status: str

    def label(self) -> str:
        """Return what happened in a few words."""
        return self.status


# --- events: what a node reports while it runs


@fast
@dataclass(frozen=True, slots=True)
class Emitted(Event):
    """A node has called `ctx.emit(value)`."""

    node: str
    branch: BranchPath
    execution: str
    value: Any

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"emitted {brief(self.value)}"


@dataclass(frozen=True, slots=True)
class Doing(Event):
    """A node has said what it is working on, with `ctx.doing(text)`."""

    node: str
    branch: BranchPath
    execution: str
    text: str

    def label(self) -> str:
        """Return what happened in a few words."""
        return self.text


@dataclass(frozen=True, slots=True)
class ItemStarted(Event):
    """A map has started an item, one of `items`. Items that an earlier attempt finished do not start again."""

    node: str
    branch: BranchPath
    execution: str
    item: int
    items: int

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"item {self.item + 1} of {self.items} started"


@dataclass(frozen=True, slots=True)
class ItemFinished(Event):
    """An item of a map has ended: `"completed"`, `"failed"`, `"interrupted"` by a question, or `"stopped"`."""

    node: str
    branch: BranchPath
    execution: str
    item: int
    items: int
    status: str

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"item {self.item + 1} of {self.items} {self.status}"


@fast
@dataclass(frozen=True, slots=True)
class Token(Event):
    """The next piece of the text of a predictor's output field; only in streams that were asked for with `tokens=True`.

    The texts of the tokens of a field, joined, are its value: a text as it is, any other value as JSON or as the LM has
    written it. If the attempt fails, they count no more; `AttemptFailed` or `NodeFailed` says so. `run.events` has no
    tokens, and no store keeps them. The whole field is one token from DSPy's cache, from a model that does not stream,
    from an adapter with a `parse` of its own, and where `redact` may hide the field: what a node may write decides it.
    A program that a function calls like any module is a run of its own, without tokens here. What is committed counts:
    DSPy may mend malformed JSON that was shown, and a check that refuses an output takes no token back.

    Attributes:
        node: name of the node.
        branch: path of its branch.
        execution: id of its execution; of an item of a map with the index of the item, as in `"trunk:2[0]"`; of its
            router `"trunk:2[route]"`, and of its condensers `"trunk:2[condense]"`.
        visit: as in `Commit`.
        attempt: the number of the attempt of that execution, from 1.
        predictor: name of the predictor, as in `program.named_predictors()`; empty for one that the program does not
            have. In a graph that is a node, the name is that in the graph.
        field: the output field of the predictor. Of an agent's final call, `submit`, each argument is a field. Texts
            that it gives other tools are `"<tool>.<argument>"`; of several calls of one tool they come one after the
            other, each with an end of its own.
        text: the piece.
        done: whether it is the last piece; it may be empty.
    """

    node: str
    branch: BranchPath
    execution: str
    visit: int
    attempt: int
    predictor: str
    field: str
    text: str
    done: bool

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"{self.field}: {self.text}"


@dataclass(frozen=True, slots=True)
class Read(Event):
    """An execution of a node begins, which reads `fields`; only in streams that were asked for with `reads=True`.

    They are the fields that the node declares, or else those that its parameters name.
    """

    node: str
    execution: str
    fields: tuple[str, ...]

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"reads {', '.join(self.fields)}" if self.fields else "reads nothing"


# --- events: posts, and reads of live fields


@fast
@dataclass(frozen=True, slots=True)
class Posted(Event):
    """A node has called `ctx.post`. If the field is live, running siblings can read the value from now on.

    A post to another field is in the commit of the node, and nowhere if its attempt fails: `AttemptFailed` or
    `NodeFailed` says so. Its value is the one that was given, before the schema has validated it.

    Attributes:
        field: name of the field.
        node: name of the node.
        branch: path of its branch.
        execution: id of its execution.
        seq: arrival number of the post among all posts of the run, whatever their field. In a resumed run, numbers of
            posts to fields that are not live may come again.
        size: bytes of the JSON form of the value.
        value: the update, as it will be in the patch of the node's commit.
        operation: how it is folded in: the name of the reducer, or `"replace"`.
        time: wall clock, seconds since the epoch.
        live: whether others can read it before the commit of the node.
    """

    field: str
    node: str
    branch: BranchPath
    execution: str
    seq: int
    size: int
    value: Update
    operation: str
    time: float
    live: bool = True

    def label(self) -> str:
        """Return what happened in a few words."""
        return f"posted to {self.field}: {brief(self.value)}"


@dataclass(frozen=True, slots=True)
class LiveConflict(Event):
    """A node has written to a live field without having read what another node had written there.

    Attributes:
        field: name of the field.
        key: the key in a field of keys, the id in a field of messages; None in other fields.
        author: name of the node that wrote.
        other: name of the node whose latest entry it had not read.
        other_seq: arrival number of that entry.
        rule: the `on_conflict` of the field, by which the conflict was resolved.
    """

    field: str
    key: Any
    author: str
    other: str
    other_seq: int
    rule: str

    def label(self) -> str:
        """Return what happened in a few words."""
        name = self.field if self.key is None else f"{self.field}.{self.key}"
        return f"wrote {name} without having read what {self.other} had written ({self.rule})"


def _said(error: BaseException) -> str:
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

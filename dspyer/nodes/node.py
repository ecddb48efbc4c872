"""One call of a node: what goes in (`Call`), what comes out (`Reply`), and `Node`, the base of all kinds.

`Send` and `Command`, which users return from nodes and routers, are here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias

import dspy
from typing_extensions import TypeVar

from dspyer.errors import NodeOutputError, brief, list_names, suggestion
from dspyer.events import Exchange, Question
from dspyer.nodes.context import Context
from dspyer.nodes.steps import FunctionStep, ModuleStep, Script, Step, is_async
from dspyer.patch import DELETE
from dspyer.templates import NO_TEMPLATES, Templates
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.views import View, ViewForm

if TYPE_CHECKING:
    from dspyer.failure import Failure
    from dspyer.nodes.attempt import Attempt
    from dspyer.scheduler.lineage import LogEntry
    from dspyer.scheduler.schedule import Target
    from dspyer.schema.schema import Schema
    from dspyer.state import ImmutableState

T = TypeVar("T")
LayerT = TypeVar("LayerT")
TargetT = TypeVar("TargetT", default=str)

SENT = "_sent"
"""In the overlay of a `Send` to a graph, or to a node of a converted graph: what it gets in place of the state."""


@dataclass(init=False, repr=False, unsafe_hash=True, slots=True)
class Send:
    """One branch of a node, with values that this branch alone sees.

    Branches that a `Send` has started never join at its target; from the next node on they join like any others. A
    target that reads `state` or has `**kwargs` gets all of the values.

    Args:
        node: name of the node to start.
        overlay: values by name. They hide fields of the same name; other names need not be fields. The node must read
            each of them. They are never committed.

    Raises:
        TypeError: if `node` is no text.
        UnsupportedValueError: if a value cannot be protected from later changes.

    Example:
        >>> Send("worker", {"doc": "a.txt"})
        Send('worker', overlay of ['doc'])
    """

    node: str
    overlay: FrozenDict[str, Any]

    def __init__(self, node: str, overlay: Mapping[str, object] | None = None) -> None:
        if not isinstance(node, str):
            raise TypeError(f"Send takes the name of a node, not {type(node).__name__}: write Send('worker', {{...}})")
        # Frozen here, so that a value that cannot be protected is an error of the code that sends it.
        frozen = freeze(dict(overlay or {}), ("overlay",))
        assert isinstance(frozen, FrozenDict)
        object.__setattr__(self, "node", node)
        object.__setattr__(self, "overlay", frozen)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Send cannot be changed: make a new one instead of setting {name!r}")

    def __repr__(self) -> str:
        return f"Send({self.node!r}, overlay of {list(self.overlay)})"

    def __reduce__(self) -> tuple[type[Send], tuple[str, FrozenDict[str, Any]]]:
        return type(self), (self.node, self.overlay)


Goto: TypeAlias = str | Send

Shape: TypeAlias = Literal["function", "module", "subgraph", "map", "interrupt", "check", "tool"]
"""What a node looks like in pictures, in outline and colour."""


@dataclass(frozen=True, slots=True)
class Command(Generic[TargetT]):
    """A node's patch together with where to go next.

    The targets are declared by the return annotation, `-> Command[Literal["again", "done"]]`, or by
    `add_node(goto=[...])`.

    Args:
        update: a patch, as a node returns it; None writes nothing.
        goto: where to go instead of along the node's edges: a name, a `Send` or a list of them; None takes the edges.
            In a tool of an agent, the name of the mode that takes the next turn.
        result: what the model is shown of the call, if the node is a tool of an agent. Any other node that gives one
            fails.

    Example:
        >>> Command(update={"score": 1}, goto="judge")
        Command(update={'score': 1}, goto='judge', result=None)
    """

    update: object = None
    goto: Goto | Sequence[Goto] | None = None
    result: object = None


class Runner:
    """The way in which a node makes several calls at once, for the items of a map; a driver gives one with each `Call`.

    Calls start in their order, and results come in that order. After a call has raised, no new one is started and those
    that run are finished; then the first failure in the order of the calls is raised unchanged. A call that asks a
    question stops no other call. If a rule (the `Tolerance` of a map, which lies above) ends the calls, the results are
    those of the calls that started.

    This class makes one sync call after the other, for a node that is called without a run.

    Attributes:
        session: the run that the node belongs to (a `Session` of the runtime, which lies above the nodes); None for a
            node that is called without a run.
    """

    __slots__ = ()
    session: Any = None

    def gather(self, calls: Sequence[Callable[[], T]], max_concurrency: int | None, rule: Any = None) -> list[T]:
        """The results of sync calls."""
        del max_concurrency
        results: list[T] = []
        for index, call in enumerate(calls):
            if rule is not None and not rule.may_start:
                break
            results.append(call())
            if rule is not None:
                rule.note(index, results[-1])
        return results

    async def agather(
        self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None, rule: Any = None
    ) -> list[T]:
        """The results of async calls."""
        raise NotImplementedError


IN_ORDER = Runner()
NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Call(NamedTuple):
    """One call of a node or a router, and of an item of a map, which is an execution of its own.

    Attributes:
        state: the state of the branch.
        context: what a parameter `ctx` gets.
        program: the program, whose attributes are the modules of the graph.
        overlay: frozen values of a `Send` or of one item of a map, which hide fields of the same name.
        resources: the run's resources by type.
        runner: how to make several calls at once.
        made: validates a reply, and gives what the execution makes of it: an `Output`, of an item its result.
    """

    state: ImmutableState
    context: Context
    program: dspy.Module
    overlay: FrozenDict[str, Any] | None = None
    resources: Mapping[type, object] = NOTHING
    runner: Runner = IN_ORDER
    made: Callable[[Call, Reply], Any] = lambda _, reply: reply  # without a run, nothing validates it

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.context.node

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.context.run_id

    @property
    def execution(self) -> str:
        """The id of the execution, and of the commit that it makes."""
        return self.context.execution

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.context.delegate.number

    def read(self, field: str) -> Any:
        """A plain copy of a field, or of what a `Send` or a map brought under its name; `KeyError` if it is not set."""
        overlay = self.overlay
        return thaw(overlay.raw(field) if overlay is not None and field in overlay else self.state.raw(field))

    def of_attempt(self, attempt: Attempt) -> Call:
        """The same call in another attempt of its execution, or of a part of it."""
        return self._replace(context=replace(self.context, delegate=attempt))

    def module(self, name: str, /, **inputs: object) -> tuple[Step, Call]:
        """The leaf step that calls a module of the node, `prediction = yield call.module("judge", text=...)`.

        It is a predictor of the program like any other: it is tuned, saved and in the trace.
        """
        held: Any = getattr(self.program, self.node, None)
        module = vars(held).get(name) if isinstance(held, dspy.Module) else None
        if module is None:
            known = vars(held) if isinstance(held, dspy.Module) else ()
            known = [one for one in known if isinstance(getattr(held, one), dspy.Module)]
            raise AttributeError(
                f"node {self.node!r} has no module {name!r}.{suggestion(name, known)} Its modules are "
                f"{list_names(known)}: give it modules={{{name!r}: ...}}"
            )
        return ModuleStep(module, inputs), self

    def function(self, fn: Callable[..., Any], /, *args: object) -> tuple[Step, Call]:
        """The leaf step that calls a function, sync or async: `page = yield call.function(fetch, url)`."""
        return FunctionStep(partial(fn, *args), NOTHING, is_async(fn)), self

    def reply(self, reply: Reply) -> Any:
        """The output that the execution makes of a reply, validated as if the node had returned it."""
        return self.made(self, checked_reply(reply, self))

    def publish(self, event: Any) -> None:
        """Adds an event to those of the run; of any other value an `Emitted`, as `ctx.emit` does.

        Args:
            event: an `Event`, such as one of a class of your own, or any other value.
        """
        self.context.delegate.publish(event)

    def layer(self, kind: type[LayerT]) -> LayerT | None:
        """The part in this run of the layer of a kind, if one is around this node; else None."""
        session = self.runner.session
        found = () if session is None else session.layers.of(self.node)
        return next((layer for layer in found if isinstance(layer, kind)), None)

    def read_view(self, view: View, form: ViewForm, name: str) -> Any:
        """The values that a view shows of its field, or of the value that a `Send` or a map brought for it."""
        sent = DELETE if self.overlay is None else self.overlay.raw(view.field, DELETE)
        return self.context.delegate.read_view(view, form, name, sent, self.overlay)


class Reply(NamedTuple):
    """The result of a node call, to be committed.

    Attributes:
        updates: by field of the state; permitted, not validated.
        goto: targets that replace the node's edges, of a layer or a kind also one alone; None takes the edges.
        whole: whether the values replace what is there, without a merge of dicts.
    """

    updates: Mapping[str, object]
    goto: tuple[Goto, ...] | None = None
    whole: bool = False


def checked_reply(reply: object, call: Call) -> Reply:
    """The values that a layer gave as a reply of a node, or of an item.

    Raises:
        TypeError: if it is none.
        NodeOutputError: if the node does not write one of its fields.
    """
    if not isinstance(reply, Reply):
        raise TypeError(f"a layer replied {brief(reply)}, of type {type(reply).__name__}: give Reply({{field: value}})")
    if not isinstance(reply.updates, Mapping):
        raise TypeError(f"a layer replied Reply({brief(reply.updates)}): give Reply({{field: value}})")
    node = call.runner.session.graph.nodes.get(call.node)  # None for the routers of `START`
    if node is not None and node.mapped is not None and call.context.delegate.index is not None:
        node = node.inner
    if node is not None and node.writes is not None:
        fields = list(node.writes.values())
        for name in reply.updates:
            if name not in fields and name not in node.reports_in and name != "":  # "" is the bare value of an item
                raise NodeOutputError(
                    f"a layer replied {name!r} for {node.who}, whose writes are {list_names(fields)}: give these."
                    f"{suggestion(str(name), fields)}"
                )
    goto: object = reply.goto
    return reply._replace(goto=(goto,)) if isinstance(goto, (str, Send)) else reply


class Output(NamedTuple):
    """The output of an execution of a node, validated: what is committed, and where the branch goes.

    Attributes:
        patch: by field, what is committed.
        after: the state with it.
        goto: targets of a `Command`, which replace the node's edges; None takes the edges.
        targets: where the branch goes instead of along edges or to `goto`, such as to the handler of a failure.
        cached: whether the node was not called, since its result was kept.
        failure: what the output reports of an exception, if the node has raised one.
        call: the call that gave it: of the last attempt.
        updates: the updates of the node, of which `patch` is the effect on the state.
        exchange: what the node has exchanged with nodes that run at the same time; None for nothing.
    """

    patch: Mapping[str, Any]
    after: ImmutableState
    goto: tuple[Goto, ...] | None
    targets: tuple[Target, ...] | None
    cached: bool
    failure: Failure | None
    call: Call
    updates: Mapping[str, object] = NOTHING
    exchange: Exchange | None = None


class Decision(NamedTuple):
    """The result of a router call.

    Attributes:
        targets: where to go, at least one.
        updates: whole values to commit in the same transition, by field.
        reason: the reason, in a module's own words; None if it gave none.
    """

    targets: tuple[Goto, ...]
    updates: Mapping[str, object] = NOTHING
    reason: str | None = None


class Look(NamedTuple):
    """The look of a node in pictures and `explain()`.

    Attributes:
        shape: what it looks like, `"function"`, `"module"`, `"subgraph"`, `"map"`, `"interrupt"`, `"check"`, `"tool"`.
        label: the word below its name; "" for none.
        note: what `explain()` says of it besides its fields and layers; "" for nothing.
    """

    shape: Shape = "function"
    label: str = ""
    note: str = ""


class MapOptions(NamedTuple):
    """Options that make a node a map.

    Attributes:
        over: the field with the items.
        item: the name under which the node sees its item; it need not be a field.
        into: the field for the results.
        max_concurrency: most items that run at once; None for no limit of its own.
        failures: the field for the failures of items; None if an item that fails fails the map.
        min_success: the share of the items that must succeed.
    """

    over: str
    item: str
    into: str
    max_concurrency: int | None = None
    failures: str | None = None
    min_success: float = 0.0


@dataclass(frozen=True, init=False, kw_only=True, eq=False)
class Node:
    """A node: what is declared of it, and its `script`. A subclass is a kind of node.

    A graph's nodes hold no `dspy.Module`: these are attributes of the program, so that a node is frozen and shared by
    all copies of a program. `add_node` gives a node its name.

    Args:
        reads: the fields that the script may read, by `call.read`; None for any.
        writes: the fields that it may write; None for unknown.
        goto: the targets that its `Reply` may name; empty if it follows its edges.
        sends: whether these targets may be `Send`s.
        resources: the types of the resources of the run that it needs, by any name.
        modules: the modules that it calls by `call.module`.
        layers: what surrounds its calls, inside of the layers that the node and the graph are given.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.extend import Node, Reply
        >>> from dspyer.testing import ScriptedLM
        >>> class Vote(Node):
        ...     kind = "vote"
        ...     def script(self, call):
        ...         ballots = []
        ...         for _ in range(3):
        ...             ballots.append((yield call.module("judge",
        ...                 text=call.read("text"))).label)
        ...         return Reply({"label": max(set(ballots), key=ballots.count)})
        >>> vote = Vote(reads=["text"], writes=["label"],
        ...     modules={"judge": dspy.Predict("text -> label")})
        >>> program = Graph().add_node("vote", vote).add_path(START, "vote",
        ...     END).compile()
        >>> program.set_lm(ScriptedLM([{"label": "spam"}, {"label": "ham"},
        ...     {"label": "spam"}]))
        >>> program(text="Win!").label
        'spam'

    Attributes:
        kind: the name of the kind, as pictures show it; "" for a function.
        of_module: whether a module gives its output: what is refused is asked for again.
        name: the node's name, under which the program holds its modules.
        inner: the node whose code it runs, once or for each item; None for none.
        mapped: of a kind that runs it for each item, the fields with the items and results. The layers from `retry`
            inwards are then around each item, and not around the node.
        takes: the names that a `Send` to it may bring; None for any.
        reads: fields of the state by the node's own names; None for the whole state.
        optional: fields among `reads` that may be unset.
        writes: fields of the state by the node's own names; None for unknown.
        goto: the targets that a `Command` may name; empty if it returns none.
        sends: whether a `Command` of it may hold `Send`s.
        resources: the types of the resources that it needs, by parameter.
        templates: the templates in its inputs and in the instructions of its predictors.
        modules: the modules that a node was given which is not in a graph yet.
        layers: the `Layer`s of its kind.
        bounded: whether its kind bounds how often it runs: the default of `max_steps` does not count it.
        conversations: the message fields to which each call adds its turn.
        always_writes: the fields that every call that returns has written; those with the value that they had are in no
            patch.
        reports_in: the fields by which it reports what its last attempt raised (`error_reply`); empty if it fails.
        programs: the attributes, of its own module, with the programs that its function may call.
        frozen_modules: the attributes of the program with modules for it that optimizers leave alone, whatever the
            options say.
        lasting: its options by which a call may do what is not undone, as a search must know.
        answer_types: the types of the answers to its questions, by key, where they are known before it runs.
        who: the name of the node in errors.
    """

    kind: ClassVar[str] = ""
    of_module: ClassVar[bool] = False
    listens: ClassVar[bool] = False
    """Whether it takes messages to the thread, as the turns of an agent do."""

    name: str = ""
    inner: Node | None = None
    mapped: MapOptions | None = None
    takes: frozenset[str] | None = frozenset()
    reads: Mapping[str, str] | None = None
    optional: frozenset[str] = frozenset()
    writes: Mapping[str, str] | None = None
    goto: tuple[str, ...] = ()
    sends: bool = False
    resources: Mapping[str, type] = field(default_factory=dict)
    templates: Templates = NO_TEMPLATES
    modules: Mapping[str, dspy.Module] | None = None
    layers: Iterable[Any] = ()
    bounded: bool = False
    conversations: tuple[str, ...] = ()
    always_writes: tuple[str, ...] = ()
    reports_in: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    frozen_modules: tuple[str, ...] = ()
    lasting: tuple[str, ...] = ()
    answer_types: Mapping[str, Any] = field(default_factory=dict)
    who: str = field(init=False, repr=False)

    def __init__(
        self,
        *,
        reads: Collection[str] | None = None,
        writes: Collection[str] | None = None,
        goto: Sequence[str] = (),
        sends: bool = False,
        resources: Mapping[str, type] | None = None,
        modules: Mapping[str, dspy.Module] | None = None,
        layers: Iterable[Any] = (),
    ) -> None:
        facts = {**locals(), "resources": resources or {}, "answer_types": {}}
        # The dataclasses of kinds have constructors of their own; this one is for kinds that a user writes.
        for fact in fields(Node):
            object.__setattr__(self, fact.name, facts.get(fact.name, fact.default))
        self.__post_init__()

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", f"node {self.name!r}")

    @property
    def look(self) -> Look:
        """The look in pictures and `explain()`."""
        return Look(label=self.kind)

    @property
    def runs_graph(self) -> bool:
        """Tell if what the program holds for it is a compiled graph, which it runs per call or per item."""
        return self.inner is not None and self.inner.runs_graph

    def permitted_fields(self, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """The fields that its code may read or write through `ctx`; None for all."""
        if self.inner is not None:
            return self.inner.permitted_fields(option)
        names = self.reads if option == "reads" else self.writes
        return None if names is None else frozenset(names.values())

    @property
    def may_give(self) -> frozenset[str] | None:
        """The fields of the state that its outputs are meant for, which may be written later; None for any."""
        return None if self.writes is None else frozenset(self.writes.values())

    @property
    def sources(self) -> Mapping[str, str]:
        """The fields that it is given as they are, by its own names: without views and templates."""
        return {} if self.inner is None else self.inner.sources

    @property
    def predicted(self) -> Mapping[str, str] | None:
        """The fields of its outputs by name, if it is one predictor that is given fields as they are; else None."""
        return None if self.inner is None else self.inner.predicted

    def told(self, state: ImmutableState) -> Mapping[str, Any]:
        """Attributes of a prediction besides the outputs, of a run whose last turn was one of the node."""
        del state
        return {}

    def whole_fields(self, state: ImmutableState) -> list[tuple[str, str]]:
        """The fields that a call reads whole, without a view, each as the node's own name and the field."""
        return [] if self.inner is None else self.inner.whole_fields(state)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The node's own names of what `read_inputs` gives."""
        return ()

    def read_inputs(self, call: Call) -> dict[str, Any]:
        """Values that a call reads, by its own names: fields, views and templates, without resources and modules."""
        del call
        return {}

    def error_reply(self, call: Call, error: Exception) -> Reply | None:
        """The output instead of what its last attempt raised; None if the node fails. Asked if it has `reports_in`."""
        del call, error
        return None

    def trials_in(self, log: Iterable[LogEntry]) -> dict[str, list[tuple[str, bool]]]:
        """Of a kind that makes trials: those of each of its executions, and whether they led to the best one.

        Before the search has ended, none of them did.
        """
        del log
        return {}

    def with_fake(self, fake: object, schema: Schema) -> Built | None:
        """The node with a function or a value instead of what it calls, for a test; None if any node can stand in."""
        del fake, schema
        return None

    def amended(
        self, state: ImmutableState, inputs: Mapping[str, Any], questions: Sequence[Question]
    ) -> tuple[Mapping[str, Any], str, Any] | None:
        """Answers to the questions of an open run by its new inputs, and what is kept of these; None: it takes none.

        What is kept is a value and a key, under which a later node finds it: `records.added(key)`.

        Args:
            state: the last state that all branches of the run shared.
            inputs: the inputs, validated.
            questions: those without an answer.

        Raises:
            ThreadError: if one of the questions cannot be answered by them.
            InputError: if an open run does not take them.
        """
        del state, inputs, questions
        return None

    def script(self, call: Call) -> Script[Any]:
        """The work of a call of the node, as a generator of leaf steps: the same code serves sync and async runs."""
        raise NotImplementedError(f"{self.who}: a kind of node defines `script(self, call)`")

    def attempt(self, call: Call) -> Script[Any]:
        """The inmost part of all layers: the script of the node, whose reply is validated."""
        attempt = call.context.delegate
        if attempt.over:  # a layer calls the node again: what the call before has posted and used is not of this one
            attempt.following = attempt.next(attempt.number)
            call = call.of_attempt(attempt.following)
        try:
            reply = yield from self.script(call)
            return call.made(call, reply)
        except NodeOutputError as error:
            # A model may answer otherwise when it is asked again, so `Retry` repeats what it gave; a function would
            # give the same.
            error.of_module = error.of_module or self.of_module
            raise
        # Also after an error: what it has started must not write into the attempt that follows.
        finally:
            call.context.delegate.over = True


class Flaws:
    """Problems of a node or a router that is built: the functions that plan its parts add to it.

    Attributes:
        who: how problems name it.
        problems: what is wrong, each with its fix.
        unknown: what is wrong unless a `Send` brings the missing values.
    """

    def __init__(self, who: str, problems: Iterable[str] = ()) -> None:
        self.who = who
        self.problems = list(problems)
        self.unknown: list[str] = []

    def without_sends(self) -> list[str]:
        """All problems, where no `Send` can bring a missing value.

        Example:
            >>> found = Flaws("node 'vote'", ["node 'vote': it has no judge"])
            >>> found.without_sends()
            ["node 'vote': it has no judge"]
        """
        self.problems += self.unknown
        self.unknown.clear()
        return self.problems

    def built(self, node: Node | None, module: dspy.Module | None = None, **more: Any) -> Built:
        """The node that was built, with what was found.

        Args:
            node: the node; None if it cannot be built.
            module: what the program holds for it; None for nothing.
            more: other facts of `Built`.

        Returns:
            Both.

        Example:
            >>> Flaws("node 'vote'", ["node 'vote': it has no judge"]).built(
            ...     None).problems
            ("node 'vote': it has no judge",)
        """
        return Built(node, module, tuple(self.problems), tuple(self.unknown), **more)


class Built(NamedTuple):
    """A node, or the reasons why it cannot be built.

    Attributes:
        node: None if nothing is known of what the node does.
        module: what the program holds at the attribute of the node's name; None for nothing.
        problems: what is wrong with it, each with its fix.
        unknown: what is wrong with it unless a `Send` brings the missing values.
        more: further modules that the program holds for it, by attribute.
        types: the types of its outputs that are written; None if they are not known.
    """

    node: Node | None
    module: dspy.Module | None = None
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    more: Mapping[str, dspy.Module] = NOTHING
    types: Sequence[Any] | None = None

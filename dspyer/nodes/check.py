"""Checks of a node's output: the three forms of a check, and `CheckNode`, which decides what follows.

`Graph.add_check` expands into ordinary nodes: `of -> check -> fix -> check -> ...`. The check is sent to directly, like
a branch of a `Send`, so it joins with no other branch: the commits of one visit of `of` and of its corrections are a
chain in the log. How many corrections were made is counted along this chain, so it depends on no timing. The check
sends the fix what `of` has read, what `of` gave (`previous_...`) and the problems. These values are a part of the log,
which makes every correction an example to learn from (`runtime.repairs`).

`build_finder` makes a node of any of the three forms: its reply has the problems. `problem_texts` validates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import dspy
from pydantic import BaseModel, ValidationError

from dspyer.errors import CheckError, NodeOutputError, annotate, brief, list_names, with_article
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.binding import Binding, FieldParameter, plan_binding
from dspyer.nodes.build import refused_class
from dspyer.nodes.callables import hidden_problems, read_signature
from dspyer.nodes.field_access import FieldNames, unknown_field_text
from dspyer.nodes.function import FunctionNode
from dspyer.nodes.module import build_module, module_io
from dspyer.nodes.node import NOTHING, Built, Call, Flaws, Look, Node, Reply, Send
from dspyer.nodes.options import KindOptions, NodeOptions
from dspyer.nodes.steps import Script, is_async, is_program
from dspyer.patch import DELETE, apply_value
from dspyer.scheduler.lineage import NOTHING_SENT, Log, LogEntry, lineage_counts
from dspyer.scheduler.schedule import Branch
from dspyer.schema.fields import input_name
from dspyer.schema.type_fit import fits, misfit, shown_type
from dspyer.templates import RUN
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.persistent import PersistentMap

PROBLEMS = "problems"
"""The output of a module that is a check, and the input of a fix that gets the problems."""

PREVIOUS = "previous_"
"""How the inputs of a fix begin that get the output that was refused."""


@dataclass(frozen=True, slots=True)
class CheckOptions(KindOptions):
    """Options that make a node a check: the arguments of `Graph.add_check`."""

    check: object
    of: str
    max_fixes: int
    fix: object
    into: str
    accept: bool

    def build(self, options: NodeOptions) -> Built:
        """The finder of problems. The node that asks it needs the node that is checked, so `graph.checks` makes it."""
        return build_finder(self.check, options, self.into)

    def text(self, name: str, show: Callable[[object], str]) -> str:
        """The line of a program's source that adds the node."""
        more = f", fix={show(self.fix)}" if self.fix is not None else ""
        more += f', into="{self.into}"' if self.into != "problems" else ""
        more += ", accept=True" if self.accept else ""
        return f'graph.add_check("{name}", {show(self.check)}, of="{self.of}", max_fixes={self.max_fixes}{more})'


# --- the three forms of a check


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """A pydantic model as a function of its fields: what it refuses are the problems."""

    model: type[BaseModel]

    def __call__(self, **fields: Any) -> list[str]:
        given = {input_name(self.model, name): value for name, value in fields.items()}
        try:
            # `from_attributes`: a value may be an object of another class, such as that of a field of the state.
            self.model.model_validate(given, from_attributes=True)
        except ValidationError as refusal:
            errors = refusal.errors(include_url=False, include_input=False, include_context=False)
            return [_problem(error["loc"], error["msg"]) for error in errors]
        return []


def _problem(path: tuple[int | str, ...], message: str) -> str:
    kind, _, text = message.partition(", ")
    if kind not in ("Value error", "Assertion failed"):
        text = message
    elif not text.strip():  # of an `assert` or an error without a text
        text = kind
    return f"{'.'.join(map(str, path))}: {text}" if path else text


def build_finder(check: object, options: NodeOptions, into: str, more: FieldNames = NOTHING) -> Built:
    """A node of one of the three forms of a check, and what is wrong with it. Its reply has the problems at `into`.

    `more` are further outputs of a module, with their names in the reply.
    """
    if isinstance(check, type) and issubclass(check, dspy.Module | dspy.Signature):  # a signature is a pydantic model
        return Built(None, None, (f"{options.who} {refused_class(check)}",))
    if isinstance(check, type) and issubclass(check, BaseModel):
        return _build_model(check, options, into)
    if isinstance(check, dspy.Module):
        problems = _output_problems(check, options.who)
        built = build_module(check, options._replace(node=check, writes={PROBLEMS: into, **more}))
        return built._replace(problems=tuple(problems)) if problems else built
    if not callable(check) or isinstance(check, type):
        text = (
            f"{options.who} is {brief(check)}, of type {type(check).__name__}: give a function of fields that returns "
            "a list of problems, a class of pydantic's BaseModel, or a module with an output `problems: list[str]`"
        )
        return Built(None, None, (text,))
    found = Flaws(options.who)
    signature = read_signature(check, options.who, "a list of problems")
    binding = plan_binding(signature, options, found)
    fix = (
        f"make the module itself the check, with an output `problems: list[str]`, add_check({options.name!r}, {{name}})"
    )
    found.problems += hidden_problems(check, options.who, fix)
    return found.built(function_finder(check, binding, options, into))


def function_finder(fn: Callable[..., object], binding: Binding, options: NodeOptions, into: str) -> FunctionNode:
    """A node that calls a bound function. Its reply has the result at `into`."""
    facts, writes = binding.facts(), {into: into}
    return FunctionNode(name=options.name, **facts, writes=writes, fn=fn, asynchronous=is_async(fn), into=into)


def _build_model(model: type[BaseModel], options: NodeOptions, into: str) -> Built:
    schema, found = options.schema, Flaws(options.who)
    known = [name for name in model.model_fields if name in schema]
    needed = [name for name, info in model.model_fields.items() if info.is_required()]
    found.unknown += [
        f"{options.who}: the field {name!r} of {model.__name__} {unknown_field_text(name, schema)}"
        for name in needed
        if name not in known
    ]
    # Each may be unset in a run: then the model says that it is missing. What it requires must have a writer, or be an
    # input: no correction gives it.
    parameters = tuple([FieldParameter(name, name, True, True) for name in known])
    node = function_finder(ModelCheck(model), Binding(options.who, parameters, schema=schema), options, into)
    return found.built(replace(node, optional=node.optional.difference(needed)))


def _output_problems(module: dspy.Module, who: str) -> list[str]:
    """Problems with the outputs of a module that is a check."""
    line = "a module that is a check has an output `problems: list[str]`"
    found = module_io(module)
    if found.outputs is None:
        return []
    if PROBLEMS not in found.outputs:
        kind = "graph" if is_program(module) else type(module).__name__
        return [f"{who}: the {kind} gives {list_names(found.outputs)}: {line}"]
    kind = found.type_of(PROBLEMS)
    return [] if fits(kind, list[str]) else [f"{who}: its output `problems` is {shown_type(kind)}: {line}"]


def problem_texts(found: object, who: str, of_module: bool = False) -> list[str]:
    """The problems that a check gave, validated.

    Blank texts of a module are none: a language model may give one for "nothing". Those of a function are its mistake:
    it has found something and does not say what.
    """
    hint = ""
    if isinstance(found, list | tuple | FrozenList) and all(isinstance(text, str) for text in found):
        told = [text for text in found if text.strip()]
        if of_module or len(told) == len(found):
            return told
        hint = ", in which a text is blank: say what is wrong, or leave it out"
    elif isinstance(found, str):
        hint = ": write a list around it"
    elif isinstance(found, Iterator | set | frozenset):
        hint = ": return list(...) of it"
    error = NodeOutputError(
        f"{who} gave {brief(found)}, {with_article(type(found).__name__)}{hint}. A check gives a list of problems, one "
        "text each; an empty list says that the output is good"
    )
    error.of_module = of_module
    raise error


def asks_module(finder: Node) -> bool:
    """Return whether a module or graph finds the problems: it may give another output when it is asked again."""
    return not isinstance(finder, FunctionNode)


def found_problems(finder: Node, into: str, found: Reply, call: Call) -> object:
    """The findings of a finder, not yet validated."""
    value = found.updates.get(into, DELETE)
    if value is DELETE and finder.runs_graph:  # a graph gives what has changed: the list is still its default
        field = getattr(call.program, finder.name).graph.topology.schema.fields.get(PROBLEMS)
        value = None if field is None else field.fixed_default
    return thaw(value)


def into_problems(into: str, options: NodeOptions) -> list[str]:
    """Problems with the field that gets the problems."""
    schema = options.schema
    if schema.accepts_any_key:
        return []
    if into not in schema.fields:
        line = f"add `{into}: list[str] = []` to the schema, or name another field, into='...'"
        return [f"{options.who}: into={into!r} {unknown_field_text(into, schema)} It gets the problems: {line}"]
    if schema.reducer(into) is not None or into in schema.live_fields:
        why = "folds what is written, and a check that passes empties the list of problems"
        return [f"{options.who}: the field {into!r} {why}: give it a field without a reducer, into='...'"]
    wrong = misfit(schema, into, list[str])
    return [f"{options.who}: what it gives {wrong}: name a field for a list of texts, into='...'"] if wrong else []


# --- the node


class Repair(NamedTuple):
    """The output that was refused, and what was accepted in its place. Values are frozen.

    Attributes:
        inputs: what led to the outputs.
        accepted: the outputs that the check accepted.
        rejected: those that it refused, oldest first.
        problems: what it found in each of them.
        reads: the field of each input.
        writes: the field of each output.
    """

    inputs: Mapping[str, Any]
    accepted: Mapping[str, Any]
    rejected: Sequence[Mapping[str, Any]]
    problems: Sequence[Any]
    reads: FieldNames
    writes: FieldNames


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinderNode(Node):
    """A node that decides by the problems that another one, `inner`, finds: that of `add_check`, the check of an agent.

    Attributes:
        what: what it checks in texts, as in `the output of 'draft'`.
        into: the field that gets the problems.
        max_fixes: how many corrections follow at most.
        accept: whether the output is accepted after the last correction, with its problems.
        fix: the node that corrects what is refused; None for none, and for an agent.
        modes: of the check of an agent, the modes: one of them gave what is checked, and corrects it.
        onwards: where it leads what it accepts; None for its edges.
        note: a note for the error that it raises; "" for none.
    """

    kind: ClassVar[str] = "check"

    inner: Node
    what: str
    into: str
    max_fixes: int
    accept: bool
    fix: str | None = None
    modes: tuple[str, ...] = ()
    onwards: tuple[str, ...] | None = None
    note: str = ""

    @property
    def named(self) -> str:
        """The name of it in its errors."""
        return f"the check {self.name!r}"

    def rejects(self, route: tuple[str, ...]) -> bool:
        """Return whether a commit of it with this route has rejected what it checked."""
        return bool(route) and route[0] in (self.fix, *self.modes)

    def output_before(self, log: Sequence[LogEntry], index: int) -> set[str]:
        """The executions that wrote what it checked, from the last commit before it backwards, at `index`."""
        raise NotImplementedError

    def repair_in(self, log: Sequence[LogEntry], index: int, nodes: Mapping[str, Node]) -> Repair | None:
        """The correction that its commit at `index` has accepted; None if it has refused nothing before."""
        raise NotImplementedError

    @property
    def look(self) -> Look:
        """The look in pictures."""
        return Look("check", self.kind)

    def script(self, call: Call) -> Script[Reply]:
        """Find the problems, and decide."""
        found = yield from self.inner.script(call)
        problems = problem_texts(
            found_problems(self.inner, self.into, found, call), self.named, asks_module(self.inner)
        )
        fixes = self.fixes_before(call) if problems else 0
        if problems and fixes < self.max_fixes:
            return self.correction(problems, call)
        if problems and not self.accept:
            after = f" after {fixes} correction{'s' if fixes > 1 else ''}" if fixes else ""
            error = CheckError(f"{self.named} refuses {self.what}{after}: {'; '.join(problems)}", problems)
            if self.note:
                annotate(error, self.note)
            raise error
        return Reply({self.into: problems}, self.onwards, True)

    def fixes_before(self, call: Call) -> int:
        """The number of corrections of what it checks."""
        raise NotImplementedError

    def correction(self, problems: list[str], call: Call) -> Reply:
        """The reply that asks for a correction."""
        raise NotImplementedError


def facts_around(finder: Node) -> dict[str, Any]:
    """Declarations of a node that decides by what a finder finds."""
    facts = ("takes", "reads", "optional", "resources", "templates")
    return {fact: getattr(finder, fact) for fact in facts} | {"inner": finder}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckNode(FinderNode):
    """A node that checks what another one has written, and decides whether a correction follows.

    Attributes:
        of: the node whose output it checks.
        outputs: the fields that `of` writes, by its own names.
    """

    of: str
    outputs: FieldNames

    def fixes_before(self, call: Call) -> int:
        """The number of corrections that followed the visit of `of`."""
        return self._visit(call).fixes

    def correction(self, problems: list[str], call: Call) -> Reply:
        """Values for the fix: what `of` has read, what it or the last correction gave, and the problems."""
        fix, previous = str(self.fix), self._previous()
        given = {
            sent: call.state.raw(self.outputs[name])
            for name, sent in previous.items()
            if self.outputs[name] in call.state
        }
        inputs = self._inputs(self._visit(call), call)
        return Reply({self.into: problems}, (Send(fix, {**inputs, **given, PROBLEMS: problems}),), True)

    def _previous(self) -> dict[str, str]:
        """The inputs of the fix that get the output that was refused, by the names of the outputs."""
        return {name: f"{PREVIOUS}{name}" for name in self.outputs}

    # --- the chain of commits since `of` ran

    def _back(self, log: Log | Sequence[LogEntry], index: int) -> Iterator[tuple[int, LogEntry]]:
        """The commits of a visit of `of` and its corrections, from `index` backwards, and manual ones in between."""
        while index >= 0:
            entry = log[index]
            if entry.commit.node not in (self.of, self.name, self.fix) and not entry.commit.is_manual():
                return
            yield index, entry
            index = entry.parents[0] if entry.parents else -1

    def visit_at(self, log: Log, head: int) -> CheckedVisit:
        """The visit of `of` and its corrections, from the last commit before the check backwards."""
        fixes, sent = 0, NOTHING_SENT
        for index, entry in self._back(log, head):
            if entry.commit.node == self.of:
                return CheckedVisit(index, fixes, sent)
            fixes += entry.commit.node == self.fix
            if entry.commit.node == self.name:
                sent = entry.sent or NOTHING_SENT
        return CheckedVisit(-1, fixes, sent)

    def output_before(self, log: Sequence[LogEntry], index: int) -> set[str]:
        """The execution that wrote what the check saw."""
        back = [entry.commit for _, entry in self._back(log, index)]
        return set(next(([commit.id] for commit in back if commit.node in (self.of, self.fix)), ()))

    def repair_in(self, log: Sequence[LogEntry], index: int, nodes: Mapping[str, Node]) -> Repair | None:
        """The correction that its commit at `index` has accepted: from what `of` has read."""
        refused: list[FrozenDict[str, Any]] = []  # what the fix was sent after each refusal, newest first
        since: list[Mapping[str, Any]] = []  # the patches after the last refusal, newest first
        for _, entry in self._back(log, log[index].parents[0] if log[index].parents else -1):
            if entry.commit.node == self.of and not entry.commit.is_manual():
                break
            if entry.commit.node == self.name and entry.sent is not None:
                refused.append(entry.sent)
            elif not refused:
                since.append(entry.commit.patch)
        else:
            return None
        if not refused:
            return None
        own = self._previous()
        inputs = {name: one for name, one in refused[-1].raw_items() if name not in (PROBLEMS, *own.values())}
        accepted = {name: refused[0].raw(sent, DELETE) for name, sent in own.items()}
        for patch in reversed(since):
            for name, field in self.outputs.items():
                if field in patch:
                    accepted[name] = apply_value(accepted[name], patch[field])
        rejected = [{name: one.raw(key) for name, key in own.items() if key in one} for one in reversed(refused)]
        problems = [one.raw(PROBLEMS) for one in reversed(refused)]
        reads = nodes[self.of].reads or {}
        corrected = {name: value for name, value in accepted.items() if value is not DELETE}
        return Repair(
            inputs, corrected, rejected, problems, {name: reads.get(name, name) for name in inputs}, self.outputs
        )

    def sent_on(self, log: Log, node: str, head: int, overlay: FrozenDict[str, Any] | None) -> FrozenDict[str, Any]:
        """The values that the check is sent: the values of the `Send` that started `of`. The fix got others."""
        if node == self.of:
            return NOTHING_SENT if overlay is None else overlay
        # The fix was sent the problems and the earlier output; the check must see what `of` saw.
        of = self.visit_at(log, head).of
        return NOTHING_SENT if of < 0 else log[of].sent or NOTHING_SENT

    def _visit(self, call: Call) -> CheckedVisit:
        session, position = call.runner.session, call.context.delegate.position
        if session is None or position is None:  # called without a run
            return CheckedVisit(-1, 0, NOTHING_SENT)
        return self.visit_at(session.run.log, position.head)

    def _inputs(self, visit: CheckedVisit, call: Call) -> Mapping[str, Any]:
        """The values that `of` has read, by its own names: later corrections get what the first one got."""
        session = call.runner.session
        if visit.fixes:
            own = {PROBLEMS, *self._previous().values()}
            return {name: value for name, value in visit.sent.raw_items() if name not in own}
        if session is None:
            return {}
        node: Node = session.graph.nodes[self.of]
        old = call.context.delegate
        # As `of` read it, from the state before its commit: what it wrote itself is sent as the previous output.
        before = old.position if visit.of < 0 else _branch_before(session.run.log, visit.of, node)
        if before is None:
            return {}
        attempt = Attempt(old.host, self.of, before.path, old.execution, old.local_id, before)
        context = replace(call.context, node=self.of, delegate=attempt)
        return node.read_inputs(call._replace(state=before.state, context=context))


class CheckedVisit(NamedTuple):
    """A visit of a node that has a check.

    Attributes:
        of: the log index of its commit; -1 if it has none, since the node was called without a run.
        fixes: how many corrections followed it.
        sent: what the check has sent to the first of them.
    """

    of: int
    fixes: int
    sent: FrozenDict[str, Any]


def _branch_before(log: Log, index: int, node: Node) -> Branch:
    """The branch as it was when a node read it whose commit is at `index`."""
    parent = log[index].parents[0]
    entry, path = log[parent], log[index].commit.branch
    counts: PersistentMap[Any, Any] = PersistentMap()
    if any(name.startswith(RUN) for name in node.templates.names):  # costs a walk along the lineage
        counts = lineage_counts(log, parent)
    return Branch(path, ((),), entry.state, parent, entry.commit.id, entry.commit.step, counts)


def checks_of(nodes: Mapping[str, Node]) -> dict[str, CheckNode]:
    """The checks of other nodes among some nodes, by name."""
    return {name: node for name, node in nodes.items() if isinstance(node, CheckNode)}


# --- what a check has refused


def rejected_executions(
    log: Iterable[LogEntry], checks: Mapping[str, FinderNode], failed: Iterable[tuple[str, int]] = ()
) -> set[str]:
    """The executions whose output a check has refused, from the log alone.

    `failed` are the checks that ended a branch with a `CheckError`, each with the log index of its last commit.
    """
    entries = log if isinstance(log, Sequence) else list(log)
    found: set[str] = set()
    for entry in entries:
        check = checks.get(entry.commit.node)
        if check is None or not entry.parents:
            continue
        failure = entry.commit.failure
        if check.rejects(entry.commit.route) or (failure is not None and failure.type == CheckError.__name__):
            found |= check.output_before(entries, entry.parents[0])
    for name, head in failed:
        found |= checks[name].output_before(entries, head)
    return found

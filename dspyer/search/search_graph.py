"""The graph of a search: `choose -> trial -> grow -> choose -> ... -> finish`.

`choose` asks the policy for the trials of a round, `trial` makes them (`search.trial`), `grow` adds them to the tree,
and `finish` writes the fields of the best one. All but `trial` are pure, so a run that is resumed, or replayed, comes
to the same tree.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack, cast, get_type_hints

import dspy
from pydantic import Field, create_model
from typing_extensions import TypedDict

from dspyer import DELETE, END, START, Command, Context, Graph, ImmutableState, Kept, Replace, Send
from dspyer.errors import (
    GraphError,
    NodeOutputError,
    SearchError,
    brief,
    list_names,
    noting,
    suggestion,
    with_article,
)
from dspyer.extend import (
    NodeOptions,
    Schema,
    is_number,
    is_program,
    is_whole_number,
    module_io,
    modules_in,
    read_signature,
)
from dspyer.nodes.binding import is_record, is_value_class
from dspyer.nodes.field_access import name_map
from dspyer.reducers import Updates
from dspyer.search.trial import (
    BEST,
    CHOSEN,
    FINISH,
    REWARD,
    ROOT,
    TREE,
    TRIALS,
    Beam,
    BestOf,
    Bounds,
    MonteCarlo,
    Tree,
    Trial,
    TrialOptions,
    as_float,
    change_of,
    path_to,
    state_of,
)
from dspyer.threads.graph_changes import named_classes

Choose = Callable[[Tree], Iterable[tuple[str, int]]]
Names = Collection[str] | Mapping[str, str]
"""Names of fields: a list, or a map from a module's own names to those of the state."""


class SearchOptions(TypedDict, total=False):
    """Options of all searches, as `tree` explains them."""

    reads: Names | None
    writes: Names | None
    rollout_id: int
    temperature: float
    name: str


TrialEntry: Any = cast(Any, TypedDict)("TrialEntry", get_type_hints(Trial), total=False)
"""An entry of the field `tree`: the attributes of a `Trial`. Without a value: `whole` empty."""


# --- the public functions


def tree(
    module: dspy.Module | Graph,
    reward: Callable[..., float] | dspy.Module | Graph,
    choose: Choose,
    *,
    done: Callable[..., bool] | None = None,
    reads: Names | None = None,
    writes: Names | None = None,
    rollout_id: int = 0,
    temperature: float = 1.0,
    name: str = "Search",
) -> Graph:
    """The graph of a search whose policy is a function: it decides which trials each round makes.

    The state has the fields of `module`, `tree` with all trials by name, and `best`, the name of the best one. A trial
    begins with the state of its parent, and stores only what it changed. The result does not depend on timing: the
    policy sees completed rounds only, and each trial has a number, its rollout id for DSPy's cache.

    A trial that fails has no reward, and if all fail the search raises `SearchError`. `compile(retry=)` retries the
    module within its trial, and the judge without the module. A trial may ask a question: no other one is made again
    for it. Tools with `effect=` or `approve=` are refused. In a graph around it a search writes what its module writes,
    without `tree` and `best`. Optimizers see the steps of the best trials, and not those of the judge.

    Args:
        module: what a trial runs, a DSPy module, a program or a graph: it maps a state to the next one, so what it
            writes must be what it reads. `reads=` and `writes=` map its names, as in `Graph.add_node`.
        reward: rates the state after a trial, the higher the better: a function of fields, or a judge, which is a
            module, program or graph with one number as its output. Parameters that are no fields become inputs.
        choose: the policy, a pure function of a `Tree`: returns the trials of the next round, each as the name of its
            parent and its place among the children, counted from 0; an empty list ends the search.
        done: a function of fields that says whether a trial is a solution: no trial continues it, and the best of the
            solutions is the result. Without it, that is the best trial.
        reads: the inputs of `module`, or a map from its names to fields.
        writes: the outputs of `module`, or a map from its names to fields.
        rollout_id: the number of the first trial. A search with another one asks LMs for other responses.
        temperature: of the requests in a trial, wherever a predictor has none of its own.
        name: the name of the graph.

    Returns:
        The graph. `program.trial` is the module, and `program.reward` the judge, which optimizers leave alone.

    Raises:
        GraphError: if an argument is not what it must be.

    Example:
        >>> import dspy
        >>> class Step(dspy.Module):
        ...     def forward(self, n):
        ...         return dspy.Prediction(n=n + 3)
        >>> def chain(tree):  # continues the last trial, three times
        ...     return [] if len(tree) == 3 else [
        ...         (([tree.root, *tree.values()])[-1].name, 0)]
        >>> program = tree(Step(), lambda n: -abs(n - 7), chain,
        ...     writes=["n"]).compile()
        >>> run = program.run({"n": 1})
        >>> run.state["n"], run.state["best"], len(run.state["tree"])
        (7, '0.0.0', 3)
    """
    if not callable(choose):
        raise GraphError(
            f"choose is {brief(choose)}: give a function of a tree, choose(tree) -> [(parent, place), ...]"
        )
    bounds = choose.bounds if isinstance(choose, BestOf | Beam | MonteCarlo) else Bounds()
    _check_options(temperature, rollout_id, bounds)
    module, reward = _program(module, "module"), _program(reward, REWARD)
    _check_lasting(module)
    fields = _fields_of(module, reward, done, reads, writes)
    if bounds.depth != 1:
        lost = [field for field in fields.given if field not in fields.inputs]
        if lost:
            raise GraphError(
                f"a search of more than one level continues what its module gave, and {list_names(lost)} is none of "
                f"its inputs ({list_names(fields.inputs)}): map it to one, for example writes={{{lost[0]!r}: "
                f"{(fields.inputs or ['a field'])[0]!r}}}"
            )
    model = _schema(fields, name)
    schema = Schema.of(model)
    known = [field for field in fields.types if field not in (TREE, BEST)]
    graph = Graph(model, name=name, inputs=fields.inputs, required=fields.required, outputs=fields.given)
    graph.add_node("choose", _choose_node(choose), writes=[], goto=["trial", FINISH])
    trial = TrialOptions(module, reward, done, rollout_id, float(temperature))
    graph._nodes["trial"] = NodeOptions("trial", schema, trial, fields.reads, fields.writes)
    graph.add_node("grow", grow, writes=[TREE])
    graph.add_node(FINISH, _finish_node(name, schema), reads=[TREE, *known], writes=[BEST, *fields.given])
    graph.add_path(START, "choose").add_path("trial", "grow", "choose").add_edge(FINISH, END)
    if bounds.rounds is not None:
        # A graph with a loop has no bound of its own, and a long search must not end at the default of `max_steps=`.
        graph._least_steps = 3 * bounds.rounds + 3
    return graph


def best_of(
    module: dspy.Module | Graph,
    n: int,
    reward: Callable[..., float] | dspy.Module | Graph,
    *,
    threshold: float | None = None,
    per_round: int = 1,
    **options: Unpack[SearchOptions],
) -> Graph:
    """The graph of a search that runs a module up to `n` times on the same inputs and keeps the best result.

    With `per_round=1` it makes the requests of `dspy.BestOfN`, and picks the same result. It differs where a trial is
    lost: its result survives crashes, its trials run at once with `per_round`, and if all of them fail it raises.

    Args:
        module: what a trial runs: a DSPy module, a program or a graph.
        n: the most trials.
        reward: as in `tree`.
        threshold: a reward that is good enough: the search ends after the round in which a trial reaches it. None for
            `n` trials in any case.
        per_round: how many trials run at once.
        options: `reads`, `writes`, `rollout_id`, `temperature` and `name`, as in `tree`.

    Returns:
        The graph.

    Raises:
        GraphError: if an argument is not what it must be.

    Example:
        >>> import dspy
        >>> from dspyer.testing import ScriptedLM
        >>> short = lambda answer: -len(answer)
        >>> program = best_of(dspy.Predict("question -> answer"), 3,
        ...     short).compile()
        >>> with ScriptedLM([{"answer": "It is 4."}, {"answer": "4"},
        ...     {"answer": "four"}]):
        ...     run = program.run({"question": "2 + 2?"})
        >>> run.state["answer"], run.state["best"]
        ('4', '0.1')
    """
    _check_counts(n=n, per_round=per_round)
    threshold = None if threshold is None else _number("threshold", threshold)
    options.setdefault("name", "BestOf")
    return tree(module, reward, BestOf(n, threshold, per_round), **options)


def beam(
    module: dspy.Module | Graph,
    reward: Callable[..., float] | dspy.Module | Graph,
    *,
    width: int,
    branch: int,
    depth: int,
    done: Callable[..., bool] | None = None,
    threshold: float | None = None,
    **options: Unpack[SearchOptions],
) -> Graph:
    """The graph of a beam search: the `width` best trials of each level are continued `branch` times each.

    A level is a round: its trials run at once. Trials that are done, or failed, leave the beam. The search makes at
    most `branch + (depth - 1) * width * branch` trials.

    Args:
        module: as in `tree`.
        reward: as in `tree`.
        width: how many trials of a level are continued.
        branch: how many trials continue each of them, and the root.
        depth: the number of levels.
        done: as in `tree`.
        threshold: the search ends after the round in which a trial reaches this reward; with `done=`, one that is done.
        options: `reads`, `writes`, `rollout_id`, `temperature` and `name`, as in `tree`.

    Returns:
        The graph.

    Raises:
        GraphError: if an argument is not what it must be.

    Example:
        >>> import dspy
        >>> class Double(dspy.Module):
        ...     def forward(self, n):
        ...         return dspy.Prediction(n=2 * n)
        >>> solved = lambda n: n >= 40
        >>> graph = beam(Double(), lambda n: -abs(n - 40), width=1, branch=2,
        ...     depth=9, done=solved, writes=["n"])
        >>> run = graph.compile().run({"n": 5})
        >>> run.state["n"], run.state["best"]
        (40, '0.0.0.0')
    """
    _check_counts(width=width, branch=branch, depth=depth)
    threshold = None if threshold is None else _number("threshold", threshold)
    _warn_of_depth("beam", depth, done)
    policy = Beam(width, branch, depth, threshold, done is not None)
    options.setdefault("name", "Beam")
    return tree(module, reward, policy, done=done, **options)


def mcts(
    module: dspy.Module | Graph,
    reward: Callable[..., float] | dspy.Module | Graph,
    *,
    branch: int,
    depth: int,
    max_trials: int,
    done: Callable[..., bool] | None = None,
    c: float = 1.4,
    per_round: int = 1,
    threshold: float | None = None,
    **options: Unpack[SearchOptions],
) -> Graph:
    """The graph of a Monte Carlo tree search by upper confidence bounds.

    Each trial continues the parent with the best mean reward below it, plus a bound for how little it was tried.
    Trials of one round look elsewhere: each that is chosen counts as a visit without a reward when the next is chosen.

    Args:
        module: as in `tree`.
        reward: as in `tree`; `c` fits to rewards between 0 and 1.
        branch: how many trials continue each trial, and the root.
        depth: the longest path.
        max_trials: the most calls of `module`, retries apart.
        done: as in `tree`.
        c: how much the search explores: 0 follows the best mean alone.
        per_round: how many trials run at once.
        threshold: the search ends after the round in which a trial reaches this reward; with `done=`, one that is done.
        options: `reads`, `writes`, `rollout_id`, `temperature` and `name`, as in `tree`.

    Returns:
        The graph.

    Raises:
        GraphError: if an argument is not what it must be.

    Example:
        >>> import dspy
        >>> class Double(dspy.Module):
        ...     def forward(self, n):
        ...         return dspy.Prediction(n=2 * n)
        >>> solved = lambda n: n >= 40
        >>> near = lambda n: 1 / (1 + abs(n - 40))
        >>> graph = mcts(Double(), near, branch=1, depth=5, max_trials=10,
        ...     done=solved, writes=["n"])
        >>> run = graph.compile().run({"n": 5})
        >>> run.state["n"], run.state["best"], len(run.state["tree"])
        (40, '0.0.0.0', 3)
    """
    _check_counts(branch=branch, depth=depth, max_trials=max_trials, per_round=per_round)
    threshold = None if threshold is None else _number("threshold", threshold)
    c = _number("c", c)
    _warn_of_depth("mcts", depth, done)
    policy = MonteCarlo(branch, depth, max_trials, c, per_round, threshold, done is not None)
    options.setdefault("name", "MCTS")
    return tree(module, reward, policy, done=done, **options)


# --- the arguments


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if not is_whole_number(count) or count < 1:
            raise GraphError(f"{name}={count!r}: it must be a whole number of at least 1")


def _number(name: str, given: Any) -> float:
    number = as_float(given)
    if number is None:
        raise GraphError(f"{name}={given!r}: give a number")
    return number


def _warn_of_depth(kind: str, depth: int, done: object) -> None:
    if done is None and depth > 1:
        warnings.warn(
            f"{kind}(depth={depth}) without done=: nothing says that a trial is a solution, so the search goes on to "
            "its end and picks the best trial of any depth. Give done=, a function of fields",
            stacklevel=3,  # the line of the user
        )


def _check_options(temperature: Any, rollout_id: Any, bounds: Bounds) -> None:
    if not is_number(temperature) or not math.isfinite(temperature) or temperature < 0:
        raise GraphError(f"temperature={temperature!r}: give a number greater than 0")
    if temperature == 0 and bounds.trials != 1:
        raise GraphError(
            "temperature=0: an LM gives one response to equal requests then, and all trials would be the same one. "
            "Give a temperature greater than 0"
        )
    if not is_whole_number(rollout_id) or rollout_id < 0:
        raise GraphError(f"rollout_id={rollout_id!r}: give a whole number of at least 0")


# --- the graph


def _program(given: Any, what: str) -> Any:
    """A module, or the function of a reward; a graph is compiled."""
    if not isinstance(given, Graph):
        if what == "module" and not isinstance(given, dspy.Module):
            kind = type(given).__name__
            raise GraphError(
                f"the module of a search is {brief(given)}, {with_article(kind)}: give a dspy.Module, a program or a "
                "Graph"
            )
        return given
    with noting(f"in the graph that was given as the {what} of a search"):
        return given.compile()


def _check_lasting(module: dspy.Module) -> None:
    """Refuse a module with tools whose calls are not undone: trials lose, and what they did would stay."""
    # In graphs inside of it, too: a tool may be many modules deep.
    for path, part in modules_in(module):
        for name, node in part.graph.nodes.items() if is_program(part) else ():
            if lasting := node.lasting:
                options = " and ".join(f"{option}=" for option in lasting)
                place = f" (in {path!r})" if path else ""
                raise GraphError(
                    f"the module of a search has the tool {name!r} with {options}{place}: "
                    "what a trial does is not undone when it loses. Let a node after the search do it"
                )


class _Fields(NamedTuple):
    """The fields of a search.

    Attributes:
        types: their types, with the default; of a program's fields with the reducer.
        inputs: those that a run may be given.
        required: those that a run must be given.
        given: those that the module writes.
        reads: the option `reads` of the module, in full form.
        writes: the option `writes` of the module, in full form.
    """

    types: dict[str, Any]
    inputs: list[str]
    required: list[str]
    given: list[str]
    reads: dict[str, str] | None
    writes: dict[str, str] | None


def _fields_of(module: Any, reward: Any, done: Any, reads: Any, writes: Any) -> _Fields:
    reads, writes = _names("reads", reads), _names("writes", writes)
    inputs, optional, outputs = _io(module)
    types: dict[str, Any] = {}
    found: list[str] = []
    needed: list[str] = []
    for name, field in ({name: name for name in inputs} | (reads or {})).items():
        types.setdefault(field, inputs.get(name, (Any, Field())))
        found.append(field)
        if name in inputs and name not in optional:
            needed.append(field)
    written = {name: name for name in outputs or ()} if writes is None else writes
    # Without a name for what it gives, a trial would change nothing.
    if outputs is None and writes is None:
        raise GraphError(
            f"a module of class {type(module).__name__} does not say what it gives: name it, writes=['a name']"
        )
    for name, field in written.items():
        types.setdefault(field, (outputs or {}).get(name, (Any, Field())))
    known = frozenset(types)
    for name in _judged_inputs(reward, done):
        if name not in types and name not in (TREE, BEST, TRIALS):
            types[name] = (Any, Field())
            found.append(name)
            needed.append(name)
    taken = [name for name in (TREE, BEST, TRIALS) if name in types]
    if taken:
        raise GraphError(
            f"{list_names(taken)}: a search has fields of this name itself: map that of the module to another field, "
            f"reads={{{taken[0]!r}: 'a field'}} or writes={{...}}"
        )
    # Last: the other problems explain themselves better.
    given = list(written.values())
    _check_reads(reward, known, given)
    if is_program(module):
        writes = written
    return _Fields(types, list(dict.fromkeys(found)), list(dict.fromkeys(needed)), given, reads, writes)


def _names(option: str, given: Any) -> dict[str, str] | None:
    names, problems = name_map(given, option, "the module of a search")
    if isinstance(given, Mapping):
        problems += [
            f"the module of a search: {option}[{own!r}] is {brief(field)}: it must be the name of a field"
            for own, field in given.items()
            if not isinstance(field, str)
        ]
    if problems:
        raise GraphError(problems)
    return None if names is None else dict(names)


Types = dict[str, Any]


def _io(module: Any) -> tuple[Types, Collection[str], Types | None]:
    """The inputs of a module with their types, those that may be left out, and its outputs; None for unknown."""
    if not is_program(module):
        found = module_io(module)
        inputs = {name: _field(kind) for name, kind in found.inputs.items()}
        if found.outputs is None:
            return inputs, found.optional, None
        return inputs, found.optional, {name: _field(found.type_of(name)) for name in found.outputs}
    graph = cast(Any, module).graph
    schema = graph.topology.schema
    names = list(graph.inputs if graph.outputs is None else dict.fromkeys((*graph.inputs, *graph.outputs)))
    known = {} if schema.model is None else schema.model.model_fields
    kinds = {name: (known[name].annotation, known[name]) if name in known else (Any, Field()) for name in names}
    kinds |= {name: (cast(Any, Kept)[kind], info) for name, (kind, info) in kinds.items() if graph.lasts(name)}
    changed = [name for name in graph.inputs if graph.writes is None or name in graph.writes]
    written = graph.writes if graph.outputs is None else graph.outputs
    has_search = any(part.graph.searches for _, part in modules_in(module) if is_program(part))
    own = (TREE, BEST, TRIALS) if has_search else ()  # what a search in a trial says of itself stays there
    outputs = None if written is None else [name for name in dict.fromkeys([*written, *changed]) if name not in own]
    given = None if outputs is None else {name: kinds.get(name, (Any, Field())) for name in outputs}
    optional = frozenset(graph.inputs) - graph.required
    return {name: kinds[name] for name in graph.inputs}, optional, given


def _field(kind: Any) -> tuple[Any, Any]:
    """A field for an input or output of a DSPy module. DSPy checks no plain types, so a search does not either.

    A class must be named, since a store reads only objects of classes that the schema names.
    """
    try:
        probe = create_model("Probe", value=(kind, Field()))
        named = [cls for cls in named_classes(Schema.of(probe)) if cls is not probe]
    except Exception:  # noqa: BLE001 - a type that pydantic or a state does not know
        return (Any, Field())
    return (kind if named else Any, Field())


def _judged_inputs(reward: Any, done: Any) -> list[str]:
    """Inputs that a reward and `done` read and cannot do without."""
    found: list[str] = []
    for part in (reward, done):
        if isinstance(part, dspy.Module):
            io = module_io(part)
            found += [name for name in io.inputs if name not in io.optional]
        elif callable(part) and not isinstance(part, type):
            own = read_signature(part, "").parameters
            # What has a default, or comes from the run itself, need not be an input.
            plain = [one.name for one in own if not one.default and one.name not in ("state", "ctx") and _is_plain(one)]
            found += plain
    return found


def _check_reads(reward: Any, fields: Collection[str], given: Sequence[str]) -> None:
    """Refuse a function of other names than those of fields, such as the `(args, pred)` of `dspy.BestOfN`."""
    if isinstance(reward, dspy.Module | type) or not callable(reward):
        return
    # It may read inputs of the run besides; it is wrong only if it reads nothing that a trial makes.
    unknown = [name for name in _judged_inputs(reward, None) if name not in fields]
    own = {one.name for one in read_signature(reward, "").parameters}
    if unknown and own.isdisjoint([*given, "state"]):
        raise GraphError(
            f"the reward reads {list_names(unknown)}, and nothing that the module gives ({list_names(given)})."
            f"{suggestion(unknown[0], given)} A reward is a function of fields: def reward({', '.join(given[:2])})"
        )


def _is_plain(parameter: Any) -> bool:
    """Return whether a parameter is not a resource: it has no annotation, or one that is a value of a state."""
    kind = parameter.annotation
    return not isinstance(kind, type) or kind is Any or is_value_class(kind) or is_record(kind)


def _schema(fields: _Fields, name: str) -> Any:
    own: dict[str, Any] = {
        TREE: (dict[str, TrialEntry], {}),
        BEST: (str, Field()),
        TRIALS: (list[TrialEntry], []),
    }
    with noting("these are the fields of the module of a search"):
        return create_model(name, **fields.types, **own)


# --- the nodes


def _choose_node(choose: Choose) -> Callable[..., Any]:
    def choose_trials(tree, trials):  # type: ignore[no-untyped-def]
        # Completed rounds alone: what is under way may end in any order.
        seen = Tree(tree, [trial["name"] for trial in trials])
        chosen = _checked(choose(seen), seen)
        return Command(goto=Send("trial", {CHOSEN: chosen}) if chosen else FINISH)

    choose_trials.__name__ = "choose"
    return choose_trials


def _checked(found: Any, tree: Tree) -> list[dict[str, Any]]:
    """The chosen trials, each with its name and number; an error if they are no places of the tree."""
    shape = "choose must return a list of (parent, place), such as [('0', 0), ('0', 1)]"
    if found is None or isinstance(found, str | Mapping) or not isinstance(found, Iterable):
        raise NodeOutputError(f"{shape}, and it returned {brief(found)}. An empty list ends the search")
    chosen: list[dict[str, Any]] = []
    new: dict[str, int] = {}
    for pair in found:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise NodeOutputError(f"{shape}, and {brief(pair)} is in it")
        parent, place = pair
        if parent != ROOT and parent not in tree:
            raise NodeOutputError(f"choose named the parent {parent!r}, which is no trial of an earlier round, nor '0'")
        if parent != ROOT and tree[parent].done:
            why = "failed" if tree[parent].failure is not None else "is done"
            raise NodeOutputError(f"choose named the parent {parent!r}, which {why}: nothing continues it")
        # The next place of a parent counts those that are chosen in this round.
        if parent not in new:
            new[parent] = tree.next_place(parent)
        if not is_whole_number(place) or place != new[parent]:
            raise NodeOutputError(
                f"choose named place {place!r} below {parent!r}, where the next one is {new[parent]}: places are "
                "counted from 0, without a gap"
            )
        new[parent] += 1
        chosen.append({"name": f"{parent}.{place}", "parent": parent, "number": len(tree) + len(chosen)})
    return chosen


def grow(tree, trials):  # type: ignore[no-untyped-def]
    """The trials of a round in the tree, whose parents, up to the root, count them."""
    changes: dict[str, dict[str, Any]] = {}
    for trial in trials:
        for name in path_to(trial["parent"]):
            before = tree[name]
            change = changes.setdefault(name, {"value": before["value"], "visits": before["visits"]})
            change["value"] += trial["value"]
            change["visits"] += 1
    # An entry replaces what is there, though its name is new: a merge would leave out a None in it.
    return {TREE: {**{trial["name"]: Replace(trial) for trial in trials}, **changes}}


def _finish_node(search: str, schema: Schema) -> Callable[..., Any]:
    def finish(state: ImmutableState, ctx: Context) -> dict[str, Any]:
        entries = state.raw(TREE)
        best = _best(Tree(entries), search, ctx)
        return {BEST: best, **_changes(state, entries, best, schema)}

    return finish


def _best(tree: Tree, search: str, ctx: Context) -> str:
    """The name of the best trial: of those that are done or, if none is, of all; the first of equal ones."""
    rated = [trial for trial in tree.values() if trial.reward is not None]
    if rated:
        # A solution beats what is only rated higher.
        solved = [trial for trial in rated if trial.done]
        return max(solved or rated, key=lambda trial: cast(float, trial.reward)).name
    failures = [trial.failure for trial in tree.values() if trial.failure is not None]
    if not failures:
        raise SearchError(f"the search {search!r} has made no trial: its choose returned an empty list at once")
    text = f"all {len(failures)} trials of the search {search!r} failed. The first of them: {failures[0]}"
    first = ctx.delegate.host.first_trial_error
    raise SearchError(text, failures) from first


def _changes(state: ImmutableState, entries: Any, best: str, schema: Schema) -> dict[str, Any]:
    """Changes by the trials on the path to the best one, as updates of the state."""
    updates: dict[str, list[Any] | None] = {}  # of a field with a reducer, as long as nothing replaces its value
    for name in path_to(best):
        change = change_of(entries.raw(name))
        for field, update in change.patch.raw_items():
            before = updates.get(field, [])
            folds = before is not None and update is not None and schema.reducer(field) is not None
            updates[field] = [*(before or ()), *update.raw_items()] if folds else None
        updates |= dict.fromkeys(change.whole)
    after = state_of(state, entries, best, schema)
    # Whole values, and for reducers the updates in their order: the join and the history then show what the best trial
    # wrote.
    whole = {field: Replace(after.raw(field)) if field in after else DELETE for field in updates}
    return {field: whole[field] if parts is None else Updates(*parts) for field, parts in updates.items()}

"""`GEPA`: DSPy's GEPA, which edits the nodes that made the mistakes.

DSPy's `compile` gives everything to `gepa.optimize`, the public function of the package `gepa`, which it imports when
it is called. `_compile` is DSPy's own code with another function under that name: it puts `CountingAdapter` around
DSPy's adapter, and adds a component selector and a callback. All else is what DSPy passes.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Collection, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import dspy
from gepa.api import optimize as gepa_optimize
from gepa.core.data_loader import ensure_loader

from dspyer import Run
from dspyer.errors import always_raised, refuses_removed
from dspyer.extend import same, thaw
from dspyer.lm.not_public import FailedPrediction, gepa_compile
from dspyer.optimize.few_shot import validate_examples
from dspyer.optimize.field_metric import FieldMetric
from dspyer.optimize.gepa_adapter import Candidate, Components, CountingAdapter
from dspyer.optimize.gepa_stats import GEPAStats, edits_between, noting_errors
from dspyer.optimize.run_judge import author_of

# `CulpritSelector`: the component selector of `optimize.GEPA`.


logger = logging.getLogger("dspyer")


class Responsible(NamedTuple):
    """The nodes that are responsible for what is wrong in a run.

    Attributes:
        culprits: those that made a mistake.
        suspects: those of which one did, where no culprit is known.
    """

    culprits: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()


class CulpritSelector:
    """Selects the components of all culprits of a minibatch.

    A run without a known culprit adds one of its suspects, in turn, unless one of them is selected already. So each run
    that is wrong has a part in the proposal, and if only the goal has a metric, where all nodes are suspects, the
    selector goes round robin. It does so over all components that ran if nothing is known to be wrong.

    If all culprits are functions, tools or frozen nodes, nothing is selected: GEPA goes on with the next minibatch.
    """

    def __init__(self, adapter: CountingAdapter, metric: FieldMetric, stats: GEPAStats) -> None:
        self._adapter = adapter
        self._metric = metric
        self._stats = stats
        self._signatures: Mapping[str, Any] = {}  # of the predictors of the candidate
        self._judged: dict[int, tuple[Any, Responsible]] = {}  # by prediction, which is kept

    def __call__(
        self, state: Any, trajectories: list[Any], subsample_scores: list[float], candidate_idx: int, candidate: Any
    ) -> list[str]:
        """The names of the components to edit."""
        del subsample_scores
        # A component without a record would end the reflection with an error.
        ran = self._reflectable(candidate, trajectories)
        found = [self._responsible(trajectory) for trajectory in trajectories]
        culprit_nodes = frozenset[str]().union(*(one.culprits for one in found))
        selected = self._components(culprit_nodes, ran)
        for one in found:
            suspects = self._components(one.suspects, ran)
            if not one.culprits and suspects and not set(suspects) & set(selected):
                selected += self._next(state, candidate_idx, suspects)
        if selected:
            return [name for name in candidate if name in selected]
        # No text can mend them: an edit of another node would teach it a wrong rule.
        if culprit_nodes and not self._components(culprit_nodes, candidate):
            self._stats.untunable += 1
            return []
        return self._next(state, candidate_idx, ran or list(candidate))

    def _components(self, nodes: frozenset[str], among: Collection[str]) -> list[str]:
        return [name for name in among if not nodes.isdisjoint(self._adapter.components.nodes_of(name))]

    def _next(self, state: Any, candidate_idx: int, allowed: Collection[str]) -> list[str]:
        """The next component of a candidate in turn, as DSPy's round robin, of those that are allowed."""
        names: list[str] = state.list_of_named_predictors
        turns: list[int] = state.named_predictor_id_to_update_next_for_program_candidate
        order = [(turns[candidate_idx] + step) % len(names) for step in range(len(names))]
        place = next(place for place in order if names[place] in allowed)
        # In the state of gepa: it is saved in `log_dir`, and goes on from there.
        turns[candidate_idx] = (place + 1) % len(names)
        return [names[place]]

    def _reflectable(self, candidate: Candidate, trajectories: list[Any]) -> list[str]:
        """The components for which a run of the minibatch gives DSPy's adapter a record."""
        inner = self._adapter.inner
        signatures = {name: one.signature for name, one in inner.build_program(candidate).named_predictors()}
        self._signatures = signatures
        return [
            name
            for name in candidate
            if name not in signatures  # the code of a `dspy.Flex`: each run is a record
            or any(_has_record(one, signatures[name], inner.add_format_failure_as_feedback) for one in trajectories)
        ]

    def _responsible(self, trajectory: Mapping[str, Any]) -> Responsible:
        prediction = trajectory["prediction"]
        known = self._judged.get(id(prediction))
        if known is None:
            known = self._judged[id(prediction)] = (prediction, self._judge(trajectory))
        return known[1]

    def _judge(self, trajectory: Mapping[str, Any]) -> Responsible:
        """The responsible nodes of a run, which are counted; none of a run that failed: see `GEPAStats`."""
        prediction = trajectory["prediction"]
        try:
            run = Run.of(prediction)
        except (LookupError, TypeError):
            self._stats.without_run += isinstance(prediction, dspy.Prediction) and bool(prediction.keys())
            return Responsible()
        try:
            notes = self._metric._judgement(run, trajectory["example"]).culprits.notes
        except Exception as error:
            if always_raised(error):
                raise
            self._stats.unjudged += 1
            logger.warning("optimize.GEPA: a run has no known culprits, a field metric raised", exc_info=True)
            return Responsible()
        found = Responsible(
            frozenset(note.cause for note in notes if note.cause is not None),
            frozenset(node for note in notes if note.cause is None for node in note.suspects),
        )
        if not self._adapter.components.exact:
            found = self._in_module(found, run, trajectory)
        self._stats.judged += 1
        for node in found.culprits:
            self._stats.node(node).culprit += 1
        for node in found.suspects - found.culprits:
            self._stats.node(node).suspect += 1
        return found

    def _in_module(self, found: Responsible, run: Run, trajectory: Mapping[str, Any]) -> Responsible:
        """The same for a module that called the graph, and may have called others.

        If the graph was given what is not of the example, that may be the fault: all else that ran is a suspect, too.
        """
        internals, example = run.internals, trajectory["example"]
        own = {id(step.outputs): author_of(step, internals.graph) for step in run.trace_steps}
        by_node: dict[str, set[str]] = {}
        for name, signature in self._signatures.items():
            for predictor, _, outputs in trajectory["trace"]:
                if predictor.signature.equals(signature):
                    by_node.setdefault(own.get(id(outputs), ""), set()).update(self._adapter.components.nodes_of(name))
        culprits, suspects = (frozenset[str]().union(*(by_node.get(one, {one}) for one in nodes)) for nodes in found)
        given = {name: thaw(value) for name, value in internals.inputs.raw_items()}
        # What a module around the graph has given to it may be what is wrong.
        if "" not in by_node or all(name in example and same(value, example[name]) for name, value in given.items()):
            return Responsible(culprits, suspects)
        return Responsible(suspects=culprits | suspects | by_node[""] if any(found) else frozenset())


def _has_record(trajectory: Mapping[str, Any], signature: Any, with_failures: bool) -> bool:
    """Tell if DSPy's adapter makes a record of a run for a predictor; the conditions are those of the adapter."""
    steps = [step for step in trajectory["trace"] if step[0].signature.equals(signature)]
    failed = [step for step in steps if isinstance(step[2], FailedPrediction)]
    if with_failures and failed:
        return True
    return len(steps) > len(failed) and not isinstance(trajectory["prediction"], FailedPrediction)


_SELECTORS: Final = ("culprits", "round_robin", "all")


class GEPA(dspy.GEPA):
    """`dspy.GEPA`, which edits the nodes that made the mistakes.

    It takes the arguments of `dspy.GEPA` and works as it does, with two differences, which take a metric by
    `optimize.by_field`. With another metric, or another selector, it does what `dspy.GEPA` does.

    - It edits the predictors of the *culprits* of a minibatch (`optimize.culprits`), and not one after the other.
    - It asks the reflection LM for another proposal (with a new `rollout_id`) if it has had one for the same candidate
      and the same records. With DSPy's cache, it would get the same proposal again.

    Args:
        metric: `optimize.by_field(...)`, or any metric of `dspy.GEPA`.
        component_selector: `"culprits"`, one of DSPy's (`"round_robin"`, `"all"`), or a function as in DSPy.
        options: the other arguments of `dspy.GEPA`.

    Attributes:
        stats: what the last `compile` did, a table of the nodes.

    Raises:
        ValueError: for an unknown component selector.
        TypeError: for an option that was removed (`errors.REMOVED`).

    Example:
        >>> import dspy
        >>> from dspyer import optimize
        >>> def exact(example, prediction, trace=None, pred_name=None, pred_trace=None):
        ...     return prediction.answer == example.answer
        >>> gepa = optimize.GEPA(exact, reflection_lm=dspy.LM("openai/gpt-5"), max_metric_calls=400)
        >>> gepa.component_selector
        'culprits'
    """

    @refuses_removed("GEPA")
    def __init__(
        self,
        metric: Any,
        *,
        component_selector: Any = "culprits",
        **options: Any,
    ) -> None:
        if isinstance(component_selector, str) and component_selector not in _SELECTORS:
            raise ValueError(
                f"component_selector: {component_selector!r} is unknown; it is one of "
                f"{', '.join(map(repr, _SELECTORS))}, or a function as dspy.GEPA takes it"
            )
        super().__init__(metric, component_selector=component_selector, **options)
        self._stats: GEPAStats | None = None

    @property
    def stats(self) -> GEPAStats:
        """Statistics of the last `compile`: per node, times culprit and edits. See `GEPAStats`.

        While `compile` runs it shows what was done so far, also after an error.

        Raises:
            LookupError: before the first `compile`.
        """
        if self._stats is None:
            raise LookupError("gepa.stats: nothing was optimized yet; call gepa.compile(program, trainset=...) first")
        return self._stats

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
    ) -> dspy.Module:
        """Optimizes a program; arguments and result are those of `dspy.GEPA.compile`.

        Args:
            student: the program.
            trainset: the examples that give feedback.
            teacher: none; GEPA has no teacher.
            valset: the examples that choose candidates; by default the trainset.

        Returns:
            The program with the instructions of the best candidate; with `track_stats=True` it has `detailed_results`.

        Raises:
            TypeError: if an example is no `dspy.Example`.
            ValueError: if the program has no predictor to edit, if the examples do not fit its inputs, or if a metric
                by field does not fit them or the program.

        Example:
            >>> import io
            >>> from contextlib import redirect_stdout
            >>> import dspy
            >>> from dspyer import END, START, Graph, optimize
            >>> from dspyer.testing import ScriptedLM
            >>> graph = Graph().add_node("add", dspy.Predict("question -> answer")).add_path(START, "add", END)
            >>> examples = [dspy.Example(question="1 + 2?", answer="3"), dspy.Example(question="2 + 2?", answer="4")]
            >>> examples = [example.with_inputs("question") for example in examples]
            >>> metric = optimize.by_field({"answer": optimize.equals("answer")}, goal="answer")
            >>> gepa = optimize.GEPA(metric, reflection_lm=ScriptedLM([]), max_metric_calls=2, num_threads=1)
            >>> with ScriptedLM([{"answer": "3"}, {"answer": "4"}]), redirect_stdout(io.StringIO()):  # progress bars
            ...     tuned = gepa.compile(graph.compile(), trainset=examples)
            >>> gepa.stats.metric_calls
            2
        """

        def optimize(**given: Any) -> Any:
            return gepa_optimize(**self._changed(student, given))

        return _compile(optimize)(self, student, trainset=trainset, teacher=teacher, valset=valset)

    def _changed(self, student: dspy.Module, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments for `gepa.optimize`, made of those that DSPy has for it."""
        if not given["seed_candidate"]:
            raise ValueError(
                "optimize.GEPA: there is nothing to edit: the program has no predictor, or all of its modules are "
                "frozen, as an optimizer leaves what it compiled; with add_node(..., frozen=False) it is edited again"
            )
        components = Components(student, given["seed_candidate"])
        self._stats = stats = GEPAStats(components.nodes, components.tunable)
        train: Any = ensure_loader(given["trainset"])
        val: Any = ensure_loader(given["valset"])
        trainset, valset = train.fetch(train.all_ids()), val.fetch(val.all_ids())
        validate_examples(student, trainset, "trainset")
        validate_examples(student, valset, "valset")
        if isinstance(self.metric_fn, FieldMetric):  # DSPy scores 0 what a metric raises, and goes on
            self.metric_fn.validate(student, trainset if given["valset"] is given["trainset"] else [*trainset, *valset])
        # DSPy scores 0 what raises, and says so in a log alone: a misspelt metric would look like a bad program.
        given["adapter"].metric_fn = noting_errors(given["adapter"].metric_fn, stats)
        adapter = CountingAdapter(given["adapter"], components, stats)
        selector = given["module_selector"]
        if isinstance(selector, str) and selector == "culprits":
            adapter.anew = isinstance(self.metric_fn, FieldMetric)
            selector = CulpritSelector(adapter, self.metric_fn, stats) if adapter.anew else "round_robin"
        return {
            **given,
            "adapter": adapter,
            "module_selector": selector,
            "callbacks": [*(given.get("callbacks") or ()), _Observer(components, stats)],
        }


class _Observer:
    """A callback of `gepa`: counts candidates and accepted edits."""

    def __init__(self, components: Components, stats: GEPAStats) -> None:
        self._components = components
        self._stats = stats
        self._state: Any = None

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        self._stats.candidates = max(self._stats.candidates, event["candidate_idx"] + 1)

    def on_optimization_end(self, event: Mapping[str, Any]) -> None:  # without an iteration, if `log_dir` had all
        self._stats.candidates = len(event["final_state"].program_candidates)

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        self._state = event["state"]

    def on_candidate_accepted(self, event: Mapping[str, Any]) -> None:
        candidates, index = self._state.program_candidates, event["new_candidate_idx"]
        # Of a merge there are none: each of its texts is that of a parent, where it was counted.
        for component in edits_between([candidates[parent] for parent in event["parent_ids"]], candidates[index]):
            for node in self._components.nodes_of(component):
                self._stats.node(node).kept += 1


def _compile(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """`dspy.GEPA.compile` with another `gepa.optimize`.

    Only this function sees the other one: other optimizers may run in other threads meanwhile.
    """
    own = gepa_compile

    def importing(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        module = builtins.__import__(name, *args, **kwargs)
        if name != "gepa":
            return module
        changed = ModuleType(name)
        vars(changed).update(vars(module), optimize=optimize)
        return changed

    # The function imports `gepa` when it is called: only its own `__import__` is another one.
    names = {**own.__globals__, "__builtins__": {**vars(builtins), "__import__": importing}}
    made = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    made.__kwdefaults__ = own.__kwdefaults__
    return made

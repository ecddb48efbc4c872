"""`ReusingAdapter`: DSPy's adapter for `gepa`, which makes no run twice, and asks for a repeated proposal anew."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import dspy
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import CachedEvaluation, EvaluationCache

from dspyer import START, CompiledGraph, Run
from dspyer.errors import error_text, needs_new_response
from dspyer.events import LMCall, TraceStep
from dspyer.failure import Failure
from dspyer.ids import outermost_execution
from dspyer.lm.not_public import CALLERS, InstructionProposer
from dspyer.lm.parameters import modules_in, path_in_program, walk, walk_parameters
from dspyer.lm.requests import STRIDE
from dspyer.lm.tap import Subscriber, TappedCall, subscribing
from dspyer.lm.tracing import Executing
from dspyer.nodes.router import Router
from dspyer.optimize.gepa_stats import GEPAStats
from dspyer.runtime.request import FAILED_RUNS
from dspyer.runtime.run import without_run

# What GEPA may edit of a program, its components: the predictors by name. And which nodes of the graph they are in.


class Components:
    """The components of a program and its nodes.

    A component is in the node whose module has its predictor, at any depth: `write.draft.predict` is in the node
    `write`, whose program has a node `draft`. A router and a condenser with a module count as nodes of their own. The
    graph may also be inside of a module that does more than call it. A component outside of the graph stands for
    itself; so does every component of a module with several graphs, or none.

    Attributes:
        nodes: the names of the nodes, in the order of the graph; of a program without one, the components.
        exact: whether the program is a graph, so that its run knows of everything that ran.
    """

    def __init__(self, program: dspy.Module, components: Iterable[str]) -> None:
        self._all = tuple(components)
        graph = only_graph(program)
        self.exact = graph is program
        if graph is None:
            self._in = {name: (name,) for name in self._all}
            self._used: dict[str, tuple[str, ...]] = {}
            self._modules: tuple[str, ...] = ()
            self.nodes: tuple[str, ...] = self._all
            return
        names = {id(parameter): name for name, parameter in program.named_parameters() if name in self._all}
        modules = {name: part for name, part in vars(graph).items() if isinstance(part, dspy.Module)}
        self._in = {
            attribute: tuple(dict.fromkeys(names[id(part)] for _, part in walk(module) if id(part) in names))
            for attribute, module in modules.items()
        }
        spec = graph.graph
        self._modules = tuple(modules)
        inside = {name for names in self._in.values() for name in names}
        self._in |= {name: (name,) for name in self._all if name not in inside}
        self._used = {
            node: (
                node,
                *(way.module_name for way in spec.exits.get(node, ()) if isinstance(way, Router) and way.module_name),
                *(part.name for part in spec.condensers.get(node, {}).values()),
            )
            for node in (START, *spec.nodes)
        }
        self.nodes = tuple(dict.fromkeys([*spec.nodes, *self._in]))

    @property
    def tunable(self) -> tuple[str, ...]:
        """The nodes with a component."""
        return tuple(node for node in self.nodes if self._in.get(node))

    def nodes_of(self, component: str) -> tuple[str, ...]:
        """The nodes that a component is in, several if they share it; of one outside of the graph, its own name."""
        return tuple(node for node, inside in self._in.items() if component in inside) or (component,)

    def node_of_step(self, step: TraceStep) -> str:
        """The node that made a step of a run: for a router or condenser this one, and not the node that it follows."""
        path = path_in_program(step.predictor) or ""
        if path in self._in.get(step.node, ()):  # also one that another node has, too, under whose name it is listed
            return step.node
        within = (node for node in self._modules if path == node or path.startswith((f"{node}.", f"{node}[")))
        return next(within, step.node)

    def used_in(self, prediction: Any) -> tuple[str, ...]:
        """The components that the run of a prediction may have called: those of the nodes that ran."""
        if not self.exact:
            return self._all
        try:
            run = Run.of(prediction)
        except (LookupError, TypeError):
            return self._all
        ran = {START, *(commit.node for commit in run.commits), *(step.node for step in run.trace_steps)}
        of_nodes = {
            component
            for attributes in self._used.values()
            for attribute in attributes
            for component in self._in.get(attribute, ())
        }
        used = {
            component
            for node in ran
            for attribute in self._used.get(node, (node,))
            for component in self._in.get(attribute, ())
        }
        return tuple(component for component in self._all if component in used or component not in of_nodes)


def nodes_by_part(program: dspy.Module) -> dict[int, tuple[str, ...]]:
    """The nodes of each module and predictor of a program, by id; outside of the graph, the component."""
    graph = only_graph(program)
    found: dict[int, tuple[str, ...]] = {}
    for attribute, module in vars(graph).items() if graph is not None else ():
        if isinstance(module, dspy.Module):
            for _, part in modules_in(module):
                found[id(part)] = (*found.get(id(part), ()), attribute)
    return {id(parameter): (name,) for name, parameter in program.named_parameters()} | found


def only_graph(program: dspy.Module) -> CompiledGraph | None:
    """The graph of a program, if it has just one, those inside of it not counted."""
    if isinstance(program, CompiledGraph):
        return program
    graphs = [part for _, part in modules_in(program) if isinstance(part, CompiledGraph)]
    inner = {id(part) for graph in graphs for _, part in modules_in(graph) if part is not graph}
    outer = [graph for graph in graphs if id(graph) not in inner]
    return outer[0] if len(outer) == 1 else None


# Counting the LM calls of a program where they are made: each one for the node whose module made it.


class LMCounts(Subscriber):
    """The LM calls of a block. May be used from several threads.

    Args:
        programs: the ids of the programs with the nodes: a metric may call others.

    Attributes:
        made: the calls that no cache of DSPy served, failed ones too, by node; "" for those of no node.
        cached: those that a cache of DSPy served.
    """

    def __init__(self, programs: Container[int] = ()) -> None:
        self._programs = programs
        self.made: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self._nodes: dict[int, _Nodes] = {}  # by program, which is kept
        self._lock = Lock()

    def ended(self, call: TappedCall) -> None:
        """Count a call that has ended."""
        hit = getattr((call.entry or {}).get("response"), "cache_hit", None)
        if hit is None:  # DSPy gives the responses of its caches no usage
            hit = not call.usages and bool(getattr(call.lm, "cache", False))
        with self._lock:
            counts = self.cached if hit and call.error is None else self.made
            counts[self._node(call.callers, call.execution)] += 1

    def returned(self, calls: Sequence[LMCall], program: Any, nodes: Mapping[str, str]) -> None:
        """Count the calls that a worker of an executor has made for a program."""
        predictors, callers = dict(walk_parameters(program)), dspy.settings.get(CALLERS) or []
        for call in calls:
            execution = outermost_execution(call.execution)
            running = nodes.get(execution, call.node)
            inner = predictors.get(call.predictor) if execution == call.execution else vars(program).get(running)
            counts = self.made if call.requests else self.cached
            with self._lock:
                counts[self._node([*callers, program, inner], Executing(execution, running, program))] += 1

    def _node(self, callers: Sequence[Any], here: Executing) -> str:
        """The node that calls: that of the innermost calling module which its program has, else the one that runs."""
        root = next((one for one in callers if id(one) in self._programs), None)
        if root is None:
            return ""
        known = self._nodes.get(id(root))
        if known is None:
            known = self._nodes[id(root)] = _Nodes(root, only_graph(root), nodes_by_part(root))
        nodes = next((known.of_part[id(one)] for one in reversed(callers) if id(one) in known.of_part), ())
        running = here.node if here.program is known.graph is not None else ""
        return running if running in nodes or not nodes else nodes[0]


class _Nodes(NamedTuple):
    """The nodes of a program, by the ids of their modules and predictors."""

    program: dspy.Module
    graph: CompiledGraph | None
    of_part: dict[int, tuple[str, ...]]


@contextmanager
def counting_lm_calls(programs: Container[int] = ()) -> Iterator[LMCounts]:
    """Count the LM calls of a block, in all its threads, by the nodes of the programs with these ids."""
    counts = LMCounts(programs)
    with dspy.context(**subscribing(counts)):
        yield counts


Candidate = Mapping[str, str]
Batch = EvaluationBatch[Any, Any]
_Items = Sequence[tuple[Candidate, list[Any]]]  # candidates, each with its batch


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run of a candidate on an example.

    Attributes:
        example: the example; while it is referred to, no other one has its id.
        output: the prediction; it has a run only if there is a trajectory.
        score: its score.
        objectives: its other scores, as `gepa` has them.
        trajectory: what DSPy captured of it; None if the example is none of the trainset, and so gives no feedback.
        calls: the LM calls that an equal run would make, by node.
    """

    example: Any
    output: Any
    score: float
    objectives: dict[str, float]
    trajectory: Mapping[str, Any] | None
    calls: Mapping[str, int]


class _Runs:
    """The known runs. A run is found by its example and the texts of the components that it may have called."""

    def __init__(self) -> None:
        self._of_example: dict[int, dict[tuple[str, ...], dict[tuple[str | None, ...], KnownRun]]] = {}

    def add(self, candidate: Candidate, used: tuple[str, ...], run: KnownRun) -> None:
        by_used = self._of_example.setdefault(id(run.example), {})
        by_used.setdefault(used, {})[tuple(candidate.get(name) for name in used)] = run

    def find(self, candidate: Candidate, example: Any, *, traced: bool) -> KnownRun | None:
        for used, by_texts in self._of_example.get(id(example), {}).items():
            found = by_texts.get(tuple(candidate.get(name) for name in used))
            if found is not None and (found.trajectory is not None or not traced):
                return found
        return None


class ReusingAdapter:
    """DSPy's adapter with another one around it; `gepa` calls this one.

    Attributes:
        inner: DSPy's adapter.
        components: the components of the program.
        spared_since_made: how many runs were reused since the last one that was made.
    """

    def __init__(
        self, inner: Any, components: Components, stats: GEPAStats, trainset: Iterable[Any], *, reuse: bool
    ) -> None:
        self.inner = inner
        self.components = components
        self.reuse = reuse
        self.spared_since_made = 0
        self._stats = stats
        self._runs = _Runs()
        self._trainset = {id(example): example for example in trainset}
        self._proposer = copy.copy(inner)
        self._proposer.reflection_lm = inner.reflection_lm or dspy.settings.lm
        self._proposed: Counter[str] = Counter()
        self._predictors = dict(inner.student.named_predictors())
        self._programs: WeakValueDictionary[int, dspy.Module] = WeakValueDictionary()  # of candidates, by id
        inner.build_program = self._noting(inner.build_program)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _noting(self, build: Callable[[Candidate], dspy.Module]) -> Callable[[Candidate], dspy.Module]:
        """What builds the program of a candidate, and notes it: LM calls of other programs are none of a node."""
        programs = self._programs

        def built(candidate: Candidate) -> dspy.Module:
            program = build(candidate)
            programs[id(program)] = program
            return program

        return built

    # --- runs

    def evaluate(self, batch: list[Any], candidate: Candidate, capture_traces: bool = False) -> Batch:
        """The scores of a candidate on a batch."""
        # The validation set may be the trainset, of which the same run is asked for again with traces.
        traced = capture_traces or (self.reuse and any(id(example) in self._trainset for example in batch))

        def make(items: _Items) -> list[Batch]:
            return [self.inner.evaluate(examples, one, capture_traces=traced) for one, examples in items]

        (found,) = self._evaluate([(candidate, batch)], make, traced=capture_traces)
        return found

    def batch_evaluate(self, items: _Items) -> list[Batch]:
        """The scores of several candidates, each on its batch."""
        return self._evaluate(items, self.inner.batch_evaluate, traced=True)

    def _evaluate(self, items: _Items, make: Callable[[_Items], list[Batch]], *, traced: bool) -> list[Batch]:
        if not self.reuse:
            return self._made(items, make)
        missing = [self._missing(candidate, batch, traced) for candidate, batch in items]
        asked = [(candidate, lacks) for (candidate, _), lacks in zip(items, missing, strict=True) if lacks]
        fresh = iter(self._made(asked, make) if asked else ())
        return [
            self._combined(candidate, batch, lacks, next(fresh) if lacks else None, traced)
            for (candidate, batch), lacks in zip(items, missing, strict=True)
        ]

    def _made(self, items: _Items, make: Callable[[_Items], list[Batch]]) -> list[Batch]:
        """What `make` gives for the items, all of whose runs are made."""
        with self._making(sum(len(batch) for _, batch in items)):
            made = make(items)
            self._stats.failed_runs += sum(_has_failed(output) for batch in made for output in batch.outputs)
            return made

    def _missing(self, candidate: Candidate, batch: list[Any], traced: bool) -> list[Any]:
        """The examples of a batch without a known run, each of them once."""
        lacks = {
            id(example): example for example in batch if self._runs.find(candidate, example, traced=traced) is None
        }
        return list(lacks.values())

    def _combined(
        self, candidate: Candidate, batch: list[Any], lacks: list[Any], made: Batch | None, traced: bool
    ) -> Batch:
        """The results of a batch: of known runs, and of those that were just made, which then are known if they can."""
        fresh = {} if made is None else self._keep(candidate, lacks, made)
        results, used = [], set()
        for example in batch:
            result = fresh.get(id(example)) or self._runs.find(candidate, example, traced=traced)
            assert result is not None
            if id(example) not in fresh or id(example) in used:
                self._spare(result)
            used.add(id(example))
            results.append(result)
        objectives = [result.objectives for result in results]
        return EvaluationBatch(
            outputs=[result.output for result in results],
            scores=[result.score for result in results],
            trajectories=[
                {**result.trajectory, "example_ind": index}
                for index, result in enumerate(results)
                if result.trajectory is not None
            ]
            if traced
            else None,
            objective_scores=objectives if any(objectives) else None,
            num_metric_calls=len(lacks),
        )

    def _keep(self, candidate: Candidate, batch: list[Any], made: Batch) -> dict[int, KnownRun]:
        """The runs that were just made, by the ids of their examples; keeps those that succeeded."""
        captured = {trajectory["example_ind"]: trajectory for trajectory in made.trajectories or ()}
        fresh = {}
        for place, example in enumerate(batch):
            output, score = made.outputs[place], made.scores[place]
            objectives = dict(made.objective_scores[place]) if made.objective_scores else {}
            run = KnownRun(example, output, score, objectives, captured.get(place), {})
            fresh[id(example)] = run
            if _has_failed(output) or _had_failures(output):
                continue
            run = replace(run, calls=self._repeatable_calls(output))
            used = self.components.used_in(output)
            if id(example) not in self._trainset:
                run = replace(run, output=without_run(output), trajectory=None)
            self._runs.add(candidate, used, run)
        return fresh

    def _repeatable_calls(self, prediction: Any) -> Counter[str]:
        """The LM calls that another run like that of a prediction would make, by node: not those that DSPy has cached.

        Each call of a predictor counts as one, which is the least that it makes.
        """
        try:
            steps = Run.of(prediction).trace_steps
        except (LookupError, TypeError):
            return Counter()
        return Counter(self.components.node_of_step(step) for step in steps if not _is_cached(step.predictor))

    def known(self, candidate: Candidate, example: Any) -> KnownRun | None:
        """A known run, which is counted as spared."""
        found = self._runs.find(candidate, example, traced=False)
        if found is not None:
            self._spare(found)
        return found

    @contextmanager
    def _making(self, runs: int) -> Iterator[None]:
        """A block that makes runs: counts them, and their LM calls."""
        self._stats.metric_calls += runs
        self.spared_since_made = 0
        failed: list[list[Failure]] = []
        with dspy.context(**{FAILED_RUNS: failed}), self.counting():
            try:
                yield
            finally:
                for failure in itertools.chain(*failed):
                    self._stats.node(failure.node).failed += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A block whose LM calls are counted, those of the nodes of a candidate and all others."""
        with counting_lm_calls(self._programs) as counts:
            try:
                yield
            finally:
                self._count_calls(counts)

    def _count_calls(self, counts: LMCounts) -> None:
        for node, made in counts.made.items():
            if node:
                self._stats.node(node).lm_calls += made
            else:
                self._stats.other_lm_calls += made
        for node, cached in counts.cached.items():
            if node:
                self._stats.node(node).lm_cached += cached

    def _spare(self, run: KnownRun) -> None:
        self._stats.metric_spared += 1
        self.spared_since_made += 1
        for node, calls in run.calls.items():
            self._stats.node(node).lm_spared += calls

    # --- proposals

    def make_reflective_dataset(self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]) -> Any:
        """The records for the reflection LM; none for no component."""
        if not components_to_update:
            return {}
        with self.counting(), self._reflecting():  # the metric is asked for feedback, and may ask an LM
            return self.inner.make_reflective_dataset(candidate, eval_batch, components_to_update)

    def propose_new_texts(
        self, candidate: Candidate, reflective_dataset: Mapping[str, Any], components_to_update: list[str]
    ) -> dict[str, str]:
        """New texts for components.

        What the reflection LM was asked for this candidate and these records before is asked with a rollout id of its
        own. DSPy's proposer asks for each instruction alone; other proposers are asked for all components at once.
        """
        asked: list[str] = []
        texts: dict[str, str] = {}
        with counting_lm_calls() as counts, self._reflecting():
            try:
                for group in self._groups(components_to_update, reflective_dataset):
                    records = {name: reflective_dataset[name] for name in group if name in reflective_dataset}
                    asked.append(_digest(candidate, records))
                    proposer = self._proposer_for(asked[-1])
                    texts.update(proposer.propose_new_texts(dict(candidate), records, group))
            except Exception as error:
                # `gepa` drops the texts, and asks once more for all of them: as before, but for an unusable response.
                self._proposed.subtract(asked[:-1] if needs_new_response(error) else asked)
                raise
            finally:
                self._stats.reflection_calls += counts.made.total()
                self._stats.reflection_cached += counts.cached.total()
        for name, text in texts.items():
            if text != candidate.get(name):
                for node in self.components.nodes_of(name):
                    self._stats.node(node).proposed += 1
        return texts

    @contextmanager
    def _reflecting(self) -> Iterator[None]:
        """A block that reflects: counts what it raises, after which `gepa` goes on and says so in a log alone."""
        try:
            yield
        except Exception as error:
            self._stats.reflection_errors += 1
            self._stats.reflection_error = f"{type(error).__name__}: {error_text(error)}"
            raise

    def _groups(self, names: list[str], dataset: Mapping[str, Any]) -> list[list[str]]:
        """The components that are asked for together; without reuse all of them, as DSPy does."""
        if not self.reuse:
            return [names] if names else []
        known = [name for name in names if name in dataset]
        if type(self.inner.custom_instruction_proposer) is not InstructionProposer:
            return [names] if known else []
        code = [name for name in known if name not in self._predictors]  # of a `dspy.Flex`
        return [*([name] for name in known if name in self._predictors), *([code] if code else [])]

    def _proposer_for(self, key: str) -> Any:
        """What proposes, with other requests than before for the same key."""
        repeats, self._proposed[key] = self._proposed[key], self._proposed[key] + 1
        if not self.reuse or not repeats:
            return self._proposer
        self._stats.repeated += 1
        proposer = copy.copy(self._proposer)
        proposer.reflection_lm = _asking_anew(proposer.reflection_lm, repeats)
        return proposer


class KnownRuns(EvaluationCache[Any, Any]):
    """The known runs as `gepa` asks for them before it evaluates a candidate on the validation set."""

    def __init__(self, adapter: ReusingAdapter, valset: Any) -> None:
        super().__init__()
        self._adapter = adapter
        self._valset = valset

    def get_batch(self, candidate: Candidate, example_ids: Sequence[Any]) -> tuple[dict[Any, Any], list[Any]]:
        """The known evaluations by id, and the ids of the others."""
        found, missing = {}, []
        for key, example in zip(example_ids, self._valset.fetch(list(example_ids)), strict=True):
            run = self._adapter.known(candidate, example)
            if run is None:
                missing.append(key)
            else:
                found[key] = CachedEvaluation(run.output, run.score, run.objectives or None)
        return found, missing

    def put_batch(self, *evaluated: Any) -> None:
        """Nothing: the adapter knows of every run that it makes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return EvaluationCache, ()  # with `log_dir`, `gepa` pickles its state; runs are of this process


def _has_failed(output: Any) -> bool:
    """Whether a run or its metric raised: DSPy's evaluation gives an empty prediction for it, or none."""
    return not isinstance(output, dspy.Prediction) or not output.keys()


def _is_cached(predictor: Any) -> bool:
    """Whether DSPy's own cache serves the requests of a predictor when they are made again."""
    return _dspy_caches() and bool(getattr(getattr(predictor, "lm", None) or dspy.settings.lm, "cache", False))


def _had_failures(prediction: dspy.Prediction) -> bool:
    """Whether an error edge or a map went on after a failure: made again, it may succeed."""
    try:
        run = Run.of(prediction)
    except (LookupError, TypeError):
        return False
    return any(node.failed for node in run.stats().nodes.values())


def _dspy_caches() -> bool:
    return bool(dspy.cache.enable_memory_cache or dspy.cache.enable_disk_cache)


def _asking_anew(lm: Any, repeats: int) -> Any:
    """The LM with requests that differ from its own, and from those of other repeats."""
    if not isinstance(lm, dspy.BaseLM):
        return lm
    rollout, temperature = lm.kwargs.get("rollout_id") or 0, lm.kwargs.get("temperature")
    return lm.copy(rollout_id=rollout + STRIDE * repeats, temperature=temperature or 1.0)


def _digest(candidate: Candidate, records: Mapping[str, Any]) -> str:
    return blake2b(repr((sorted(candidate.items()), records)).encode(), digest_size=16).hexdigest()

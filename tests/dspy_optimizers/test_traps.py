"""Known ways in which an optimizer fails, or silently learns nothing, with a program of several parts: none here.

The numbers are those of the project's notes on DSPy.
"""

from __future__ import annotations

import inspect
import pickle
import random
import threading
from typing import Any

import cloudpickle
import dspy
import pytest
from dspy.adapters.types.decision import Noul
from dspy.propose.utils import get_dspy_source_code
from dspy.teleprompt.bootstrap_trace import bootstrap_trace_data
from dspy.teleprompt.reanchor.reanchor import ReAnchor

from dspyer import END, START, Graph
from tests.dspy_optimizers import table
from tests.dspy_optimizers.conftest import Listener
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import LABEL, PAIRS, SHARED, Ask, Pair, exact, generous, shared

CHAIN, FORK, LOOP = PAIRS[:3]


def traced(program: Any, pair: Pair) -> list[tuple[Any, dict[str, Any], Any]]:
    with dspy.context(lm=NotingLM(), trace=[]):
        program(**pair.trainset[0].inputs())
        return list(dspy.settings.trace)


def named_steps(program: Any, pair: Pair) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The steps by the names of their predictors; one of a predictor that the program does not have is an error."""
    names = {id(predictor): name for name, predictor in program.named_predictors()}
    return [(names[id(step[0])], step[1], dict(step[2])) for step in traced(program, pair)]


def test_every_step_of_a_trace_belongs_to_a_predictor_of_the_program() -> None:
    """2 and 4: steps of copies would tune nothing. The order of the steps is that of the plain program."""
    for pair in PAIRS:
        assert named_steps(pair.graph(), pair) == named_steps(pair.by_hand(), pair), pair.name


def test_predictor_gets_its_inputs_and_nothing_else() -> None:
    """3: the name of an output among the inputs breaks bootstrapping."""
    for pair in PAIRS:
        for predictor, inputs, _ in traced(pair.graph(), pair):
            assert list(inputs) == list(predictor.signature.input_fields), pair.name
            assert all(type(value) in {str, list} for value in inputs.values()), pair.name


class Client:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def fetch(question: str, client: Client) -> dict[str, Any]:
    with client.lock:
        return {"text": question}


def test_unpicklable_object_in_a_loop() -> None:
    """6: bootstrapping pickles what a repeated predictor got; a resource is never among it."""

    def again(rounds: int) -> str:
        return "stop" if rounds >= 2 else "go"

    graph = Graph(name="Fetching", inputs=["question", "rounds"])
    graph.add_node("fetch", fetch, writes=["text"])
    graph.add_node("label", dspy.Predict(f"text -> {LABEL}"))
    graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"])
    graph.add_path(START, "fetch", "label", "count")
    graph.add_conditional_edges("count", again, {"go": "fetch", "stop": END})
    program = graph.compile().with_resources([Client()])
    trainset = [example.copy(rounds=0).with_inputs("question", "rounds") for example in CHAIN.trainset]

    with dspy.context(lm=NotingLM()):
        tuned = table.bootstrap(program, trainset, NotingLM())

    assert [len(predictor.demos) for predictor in tuned.predictors()] == [2]


def shown_steps(program: Any, pair: Pair) -> set[tuple[str, str]]:
    """What GEPA shows of a component, as (component, input of the step)."""
    seen: set[tuple[str, str]] = set()

    def metric(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is not None:
            _, inputs, _ = pred_trace[0]
            seen.add((pred_name, "hinted" if inputs["question"].endswith(")") else "plain"))
        return dspy.Prediction(score=exact(example, prediction), feedback="look again")

    lm = NotingLM()
    with dspy.context(lm=lm):
        dspy.GEPA(
            metric=metric, reflection_lm=lm, max_metric_calls=40, component_selector="all", num_threads=1, seed=0
        ).compile(program, trainset=pair.trainset, valset=pair.trainset[:3])
    return seen


def test_gepa_tells_nodes_with_equal_signatures_apart() -> None:
    """7: in the plain module, each of the two is shown the other's steps."""
    assert len(shown_steps(SHARED.by_hand(), SHARED)) > 2
    assert shown_steps(shared(), SHARED) == {("first", "plain"), ("second", "hinted")}


def test_grpo_with_two_nodes_of_one_signature_class() -> None:
    """8: in the plain module this is an AssertionError."""
    lm = NotingLM()
    program = shared()
    program.set_lm(lm)

    with dspy.context(lm=lm):
        table.grpo(program, SHARED.trainset, lm)

    groups = [item["group"] for item in lm.reinforced.groups]
    assert groups
    assert all(len({row["messages"][1]["content"] for row in group}) == 1 for group in groups)


@pytest.mark.parametrize("ways", [["copied", "compiled again", "unpickled"], ["tuned and copied"]], ids=len)
def test_grpo_with_a_teacher_that_is_another_copy(ways: list[str]) -> None:
    """GRPO finds the predictor of a step by the hash of its signature class; copies have classes of their own."""
    for how in ways:
        lm = NotingLM()
        student = SHARED.graph()
        if how.startswith("tuned"):
            with dspy.context(lm=lm):
                student = table.gepa(student, SHARED.trainset, lm)
        if how == "compiled again":
            teacher = SHARED.graph()
        else:
            teacher = pickle.loads(cloudpickle.dumps(student)) if how == "unpickled" else student.deepcopy()
        if how == "unpickled":
            student = student.deepcopy()  # a class that is unpickled where it was pickled is the same class
        reinforce_with(student, teacher, lm)


def reinforce_with(student: Any, teacher: Any, lm: NotingLM) -> None:
    assert all(a.signature is not b.signature for a, b in zip(student.predictors(), teacher.predictors(), strict=True))
    student.set_lm(lm)
    teacher.set_lm(lm)

    with dspy.context(lm=lm):
        table.grpo(student, SHARED.trainset, lm, teacher=[student, teacher])

    assert lm.reinforced.groups


def test_infer_rules_changes_no_class_of_the_user_and_no_candidate() -> None:
    """9: it writes to `signature.instructions`; in the plain module all candidates and the student share the class."""
    before = Ask.instructions
    student = shared()
    scores = iter([1.0] * 4 + [0.0] * 4)

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        return 1.0 if trace is not None else next(scores)

    lm = NotingLM()
    with dspy.context(lm=lm):
        optimizer = dspy.InferRules(metric=metric, num_candidates=2, num_rules=2, num_threads=1, **table.FEW)
        tuned = optimizer.compile(student, trainset=SHARED.trainset[:4], valset=SHARED.trainset[4:])

    assert Ask.instructions == before
    assert {predictor.signature.instructions for predictor in student.predictors()} == {before}
    rules = [predictor.signature.instructions for predictor in tuned.predictors()]
    assert all(text.count("Please adhere to the following rules") == 1 for text in rules)
    assert tuned.deepcopy().predictors()[0].signature.instructions == rules[0]


@pytest.mark.parametrize("optimize", [table.simba, table.gepa], ids=["SIMBA", "GEPA"])
def test_lm_of_one_node(optimize: Any) -> None:
    """10: SIMBA refuses several LMs, for a graph and a plain module; GEPA uses each node's own."""
    for make in (CHAIN.by_hand, CHAIN.graph):
        own, shared_lm = NotingLM("fake/own"), NotingLM()
        program = make()
        program.label.lm = own
        with dspy.context(lm=shared_lm):
            if optimize is table.simba:
                with pytest.raises(ValueError, match="Multiple LMs"):
                    optimize(program, CHAIN.trainset, shared_lm)
            else:
                tuned = optimize(program, CHAIN.trainset, shared_lm)
                own.sent.clear()
                shared_lm.sent.clear()
                tuned(**CHAIN.trainset[0].inputs())
                assert (len(own.sent), len(shared_lm.sent)) == (1, 1)


def test_readers_of_dspy_find_the_source_of_every_graph() -> None:
    """11, 16, 17: they ask for the source of the class and iterate over every attribute."""
    for pair in PAIRS:
        program = pair.graph()
        assert inspect.getsource(type(program)) in get_dspy_source_code(program), pair.name


def test_mipro_shows_its_proposer_the_source_of_the_graph() -> None:
    pair, program, lm = LOOP, LOOP.graph(), NotingLM()
    with dspy.context(lm=lm):
        table.mipro(program, pair.trainset, lm, aware=True)
    code = [turn.content for sent in lm.sent for turn in sent.turns if "## program_code ##" in turn.content]

    shown = [text for text in code if f"class {type(program).__name__}(dspy.Module):" in text]
    assert shown
    for text in shown:
        assert all(f'"{name}"' in text for name in program.graph.nodes)
        assert "graph.add_edge(START, " in text
        assert "CompiledGraph" not in text
        assert "dspyer_node" not in text
    assert "class NodeModules" not in "".join(code)


def test_source_shows_functions_routers_and_schema() -> None:
    source = inspect.getsource(type(LOOP.graph()))

    for text in (
        "graph.add_conditional_edges(\"judge\", enough, {'stop': END, 'ask': \"pause\"})",
        "def enough(rounds: int) -> str:",
        "class LoopState(BaseModel):",
        'graph.add_edge("write", ["facts", "sort"])',
        "def judge(facts: list[str], label: str, notes: list[str])",
        "dspy.Predict(\"draft, label -> verdict: Literal['again', 'done']\")",
    ):
        assert text in source
    assert source == inspect.getsource(type(LOOP.graph()))


def test_simba_and_refine_read_the_graph() -> None:
    """11: on a class without source SIMBA skips its rules and Refine cannot be built."""
    lm = NotingLM()
    program = FORK.graph()
    with dspy.context(lm=lm):
        table.simba(program, FORK.trainset, lm)
        refined = dspy.Refine(module=program, N=2, reward_fn=lambda inputs, prediction: 0.0, threshold=1.0)
        refined(question="When does the train leave?")

    advised = [turn.content for sent in lm.sent for turn in sent.turns if "class Fork(dspy.Module):" in turn.content]
    assert any("better_program_trajectory" in text for text in advised)
    assert any("target_threshold" in text for text in advised)


def test_states_of_concurrent_calls_do_not_mix() -> None:
    """15: run state on the module makes most concurrent runs wrong."""

    def check(example: Any, prediction: Any, trace: Any = None) -> bool:
        return bool(prediction.text == " ".join(example.question.split()))

    examples = [dspy.Example(question=f"question  number {i}").with_inputs("question") for i in range(24)]
    with dspy.context(lm=NotingLM()):
        result = dspy.Evaluate(devset=examples, metric=check, num_threads=8, display_progress=False)(FORK.graph())

    assert result.score == 100.0


def test_candidates_on_a_result_are_no_part_of_the_program(tmp_path: Any) -> None:
    """18: DSPy leaves every candidate that it tried on the result."""
    lm = NotingLM()
    with dspy.context(lm=lm):
        tuned = table.random_search(CHAIN.graph(), CHAIN.trainset, lm)
        assert tuned.candidate_programs
        again = table.bootstrap(tuned.reset_copy(), CHAIN.trainset, lm) if not tuned._compiled else tuned
    tuned.save(tmp_path / "tuned.json")
    plain = CHAIN.by_hand()
    plain.load(tmp_path / "tuned.json")

    assert [name for name, _ in again.deepcopy().named_predictors()] == list(CHAIN.predictors)
    assert [len(predictor.demos) for predictor in plain.predictors()] == [
        len(predictor.demos) for predictor in tuned.predictors()
    ]


def test_ensemble_of_graphs_votes() -> None:
    lm = NotingLM()
    with dspy.context(lm=lm):
        program = table.ensemble(FORK.graph(), FORK.trainset, lm)
        by_hand = table.ensemble(FORK.by_hand(), FORK.trainset, lm)
        inputs = FORK.trainset[0].inputs()
        assert program(**inputs).label == by_hand(**inputs).label


def test_graph_inside_a_retrying_module() -> None:
    """The attempts are as many, and see the same prompts, as with the plain module."""
    for wrap in (dspy.BestOfN, dspy.Refine):
        check_attempts(wrap)


def check_attempts(wrap: Any) -> None:
    prompts = []
    for make in (FORK.by_hand, FORK.graph):
        rewards = iter([0.0, 1.0, 0.0])
        lm = NotingLM()
        with dspy.context(lm=lm, trace=[]):
            module = make()
            best = wrap(module=module, N=3, reward_fn=lambda inputs, prediction: next(rewards), threshold=1.0)
            assert best(question="Is the soup spicy?").label in {"north", "south", "east"}
            assert len(dspy.settings.trace) >= 3
        prompts.append(sorted(sent for sent in lm.prompts().elements() if "module_names" not in sent.asks))
    assert len(prompts[1]) == len(prompts[0])
    if wrap is dspy.BestOfN:
        assert prompts[1] == prompts[0]


@pytest.mark.parametrize("wrap", [dspy.BestOfN, dspy.Refine], ids=["BestOfN", "Refine"])
def test_retrying_module_inside_a_graph(wrap: Any) -> None:
    """4: DSPy drops the steps of the best attempt, in a plain module as in a graph; the other nodes are tuned."""

    def reward(inputs: Any, prediction: Any) -> float:
        return 1.0

    class ManualCommit(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.draft = wrap(module=dspy.Predict("question -> draft"), N=2, reward_fn=reward, threshold=0.5)
            self.label = dspy.Predict(f"question, draft -> {LABEL}")

        def forward(self, question: str) -> Any:
            return self.label(question=question, draft=self.draft(question=question).draft)

    def graph() -> Any:
        hand = ManualCommit()
        built = Graph(name="Retrying").add_node("draft", hand.draft).add_node("label", hand.label)
        return built.add_path(START, "draft", "label", END).compile()

    demos = []
    for make in (ManualCommit, graph):
        lm = NotingLM()
        with dspy.context(lm=lm):
            tuned = table.bootstrap(make(), CHAIN.trainset, lm)
        demos.append({name: predictor.dump_state()["demos"] for name, predictor in tuned.named_predictors()})
    assert demos[0] == demos[1]
    assert list(demos[0]) == ["draft.module", "label"]


class Urgency(dspy.Signature):
    """Say whether the text is urgent."""

    text: str = dspy.InputField()
    urgent: Noul = dspy.OutputField(desc="whether somebody waits for money")


def test_reanchor_fits_the_threshold_of_a_decision_in_a_graph() -> None:
    examples = [
        dspy.Example(text=text, urgent="refund" in text).with_inputs("text")
        for text in ("refund me", "a train", "a refund now", "soup", "bus", "refund the card", "tea", "refund it")
    ]

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        return float(bool(prediction.urgent) == example.urgent)

    graph = Graph(name="Deciding").add_node("decide", dspy.Predict(Urgency))
    program = graph.add_path(START, "decide", END).compile()
    reports = []
    for student in (dspy.Predict(Urgency), program):
        with dspy.context(lm=NotingLM()):
            optimizer = ReAnchor(metric, num_threads=2, require_cache=False)
            tuned = optimizer.compile(student, trainset=examples)
            assert bool(tuned(text="a refund please").urgent)
        reports.append([{**row, "predictor": ""} for row in optimizer.report["fitted"]])
    assert reports[0] == reports[1]
    assert optimizer.report["train_score"] == 1.0 > optimizer.report["train_score_before"]


def test_finetuning_each_predictor_gets_the_steps_by_position() -> None:
    """`multitask=False` takes the n-th step of a trace for the n-th predictor: the order must be the declared one."""
    jobs = []
    for make in (FORK.by_hand, FORK.graph):
        lm = NotingLM()
        program = make()
        program.set_lm(lm)
        with dspy.context(lm=lm):
            table.finetune(program, FORK.trainset, lm, multitask=False)
        jobs.append(sorted(lm.provider.jobs, key=str))
    assert jobs[0] == jobs[1]
    assert len(jobs[1]) == 3


def test_unparseable_answer_is_blamed_on_the_node_that_gave_it(logged: Listener) -> None:
    """DSPy blames the first predictor with the signature class of the error: no two nodes may share one."""

    class Mute(NotingLM):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            messages = kwargs.get("messages") or [{"content": ""}]
            return (
                ["?"] if "(" in messages[-1]["content"].split("[[ ## label")[0] else super().__call__(*args, **kwargs)
            )

    program = shared()
    with dspy.context(lm=Mute()):
        rows = bootstrap_trace_data(
            program, SHARED.trainset[:1], metric=exact, num_threads=1, capture_failed_parses=True, raise_on_error=False
        )

    blamed = [step[0] for step in rows[0]["trace"] if type(step[2]).__name__ == "FailedPrediction"]
    assert blamed == [program.second]


def test_a_handwritten_module_and_a_graph_can_teach_each_other() -> None:
    for student, teacher in ((FORK.graph(), FORK.by_hand()), (FORK.by_hand(), FORK.graph())):
        with dspy.context(lm=NotingLM()):
            optimizer = dspy.BootstrapFewShot(metric=generous, **table.FEW)
            tuned = optimizer.compile(student, teacher=teacher, trainset=FORK.trainset)
        assert [len(predictor.demos) for predictor in tuned.predictors()] == [2, 2, 2]


def test_knn_demos_reach_the_nodes() -> None:
    lm = NotingLM()
    with dspy.context(lm=lm):
        program = table.knn(FORK.graph(), FORK.trainset, lm)
        copied = program.deepcopy()
        for each in (program, copied):
            lm.sent.clear()
            random.seed(0)
            each(question="Where is my refund?")
            assert any(len(sent.turns) > 2 for sent in lm.sent)

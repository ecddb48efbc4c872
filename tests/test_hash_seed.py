"""Nothing that is written, drawn, sent or cached depends on the hash seed, which differs from process to process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import dspy
import pytest

from dspyer import END, START, Graph, ImmutableState
from dspyer.testing import NearestLM
from tests import test_hash_seed as same_module  # pytest gives this one another name
from tests.display import test_pictures
from tests.dspy_optimizers.lm import NotingLM
from tests.nodes import test_cache_key
from tests.testing import test_nearest
from tests.value_samples import Place

ROOT = Path(__file__).parent.parent
PROCESS = """
import sys
from pathlib import Path
from tests.test_hash_seed import write
write(Path(sys.argv[1]), "other")
"""


def json_of_sets() -> str:
    mixed, place = {"c", "a", "b", (1, "x"), 10, 9}, cast(Any, Place)
    return ImmutableState({"s": [mixed, {(n, place(str(n), "x")) for n in range(9)}]}).to_json()


def order_of_keys() -> list[Any]:
    state = ImmutableState({f"k{n * 7919 % 300}": {"b": n, "a": {"y": 1, "x": 2}} for n in range(300)})
    state = state | {"k5": None, "new": {"q": 1, "p": 2}} | {"k5": 1}
    state = state.merge(ImmutableState({"z": 1, "y": 2, "k1": {"c": 1}}))
    changed = state.diff(ImmutableState({"b": 1, "a": 2}))
    return [repr(state), repr(state.to_dict()), state.to_json(), repr(list(state.items())), repr(changed)]


def drawings() -> list[str]:
    made = [test_pictures.picture(text) for text in test_pictures.GRAPHS.values()]
    return [text for one in made for text in (one.to_svg(), one.to_mermaid())]


def answers_of_an_lm() -> list[str]:
    return test_nearest.answers(NearestLM(temperature=1.0), rollout_id=3)


def prompts() -> str:
    """Else caches miss, and runs cannot be repeated. DSPy itself writes a set of several members as it comes."""
    graph = Graph(name="Ordered")
    facts = {"zeta": 1, "alpha": ["a"], "mid": {"y": 1, "x": 2}}
    graph.add_node("a", partial(lambda question, given: {"facts": given, "tags": {"one"}}, given=facts))
    graph.add_node("b", lambda question: {"more": {f"k{i}": i for i in range(80)}})
    graph.add_node("ask", dspy.Predict("facts: dict, more: dict, tags: set[str], question -> answer"))
    program = graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "ask").add_edge("ask", END).compile()
    lm = NotingLM()
    with dspy.context(lm=lm):
        program(question="Which?")
    return repr(lm.sent)


RESULTS: list[Callable[[], Any]] = [json_of_sets, order_of_keys, drawings, answers_of_an_lm, prompts]


def write(folder: Path, name: str) -> None:
    """What a process makes, and which of its calls are answered by the cache of the folder."""
    found = {make.__name__: make() for make in RESULTS}
    result = {"seed": hash("seed"), "found": found, "hits": test_cache_key.all_calls(folder)}
    (folder / name).write_text(json.dumps(result), encoding="utf-8")


@pytest.mark.slow("a hash seed is set when a process starts, so another Python starts and imports dspyer")
def test_a_process_with_another_hash_seed_makes_the_same_and_finds_what_is_cached(tmp_path: Path) -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than that of this process
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    same_module.write(tmp_path, "this")
    subprocess.run([sys.executable, "-c", PROCESS, str(tmp_path)], env=environment, cwd=ROOT, check=True)
    this, other = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("this", "other"))
    assert this["seed"] != other["seed"]
    assert not [name for name, value in this["found"].items() if other["found"][name] != value]
    assert '"zeta": 1, "alpha"' in this["found"]["prompts"]
    assert (all(other["hits"]), all(this["hits"]), len(other["hits"]) > 60) == (True, False, True)

"""What dspyer needs, and what importing it does: no network, nothing that only tests use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WITHOUT_EXTRAS = '''
import importlib.util
import sys

class Finder:
    """Finds what another finder finds, without the extras."""

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        extra = name.partition(".")[0] in {"numpy", "optuna", "pandas", "pytest", "hypothesis", "opentelemetry"}
        return None if extra else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Finder, sys.meta_path)
assert importlib.util.find_spec("numpy") is None
'''

TUNED = """
import asyncio, json, tempfile
from pathlib import Path
import dspy
from dspyer import END, START, Graph, ImmutableState
from dspyer.testing import NearestLM

def program():
    graph = Graph(name="Moods")
    graph.add_node("mood", dspy.Predict("text -> mood: Literal['glad', 'sad']"))
    graph.add_node("size", lambda text: {"size": len(text)}, writes=["size"])
    graph.add_edge(START, ["mood", "size"]).add_edge(["mood", "size"], END)
    return graph.compile()

examples = [dspy.Example(text=text, mood=mood).with_inputs("text") for text, mood in
            [("we won the cup", "glad"), ("my dog died", "sad"), ("what a lovely day", "glad")]]
with dspy.context(lm=NearestLM()):
    optimizer = dspy.BootstrapFewShot(metric=lambda example, found, trace=None: example.mood == found.mood)
    tuned = optimizer.compile(program(), trainset=examples)
    with tempfile.TemporaryDirectory() as folder:
        tuned.save(Path(folder) / "moods.json")
        loaded = program()
        loaded.load(Path(folder) / "moods.json")
    assert loaded.mood.demos
    assert loaded(text="we won again").mood == asyncio.run(loaded.acall(text="we won again")).mood == "glad"
    run = loaded.run({"text": "we won again"})
state = ImmutableState.from_json(run.state.to_json())
assert state == run.state, (state, run.state)
assert "size" in run.report() and run.to_svg()
"""

EXAMPLE = """
import runpy
sys.argv = [{path!r}]
sys.path.insert(0, {folder!r})
runpy.run_path({path!r}, run_name="__main__")
"""

IMPORT = """
import sys
events = []
sys.addaudithook(lambda event, arguments: events.append(event) if event.startswith("socket.") else None)
import dspy
before = set(sys.modules)
events.clear()
import dspyer, dspyer.testing
new = {name.partition(".")[0] for name in set(sys.modules) - before}
unused = {"optuna", "numpy", "pandas", "psycopg", "pytest", "hypothesis", "litellm", "asyncio", "unittest"}
print(sorted(new & unused), events)
"""


def python(code: str, folder: Path) -> str:
    """What a fresh interpreter prints."""
    environment = {name: value for name, value in os.environ.items() if name != "DSPYER_MODEL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow("a process without the extras, which tunes a program")
def test_programs_are_tuned_saved_and_run_without_the_extras(tmp_path: Path) -> None:
    paths = [ROOT / "examples" / name for name in ("quickstart.py", "research_team.py")]
    examples = [EXAMPLE.format(path=str(path), folder=str(path.parent)) for path in paths]
    printed = python("\n".join([WITHOUT_EXTRAS, TUNED, *examples, "assert 'numpy' not in sys.modules"]), tmp_path)
    assert "12 tickets" in printed
    assert "Final for Python 3.10" in printed


def test_reading_a_store_imports_no_dspy() -> None:
    code = "import sys, dspyer.stores; dspyer.stores.open_store(':memory:'); sys.exit('dspy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.slow("a process whose imports are counted")
def test_an_import_opens_no_socket_and_loads_only_what_is_used(tmp_path: Path) -> None:
    """Beyond what `import dspy` has loaded, and LiteLLM least of all: that takes seconds."""
    code = f"""{IMPORT}
def loaded():
    return sorted({{name.split(".")[1] for name in sys.modules if name.startswith(("dspyer.agents", "dspyer.search"))}})
graph = dspyer.Graph().add_node("double", lambda n: {{"n": 2 * n}}, writes=["n"])
program = graph.add_path(dspyer.START, "double", dspyer.END).compile(store=":memory:")
program(n=2)
program.thread("t").run({{"n": 2}})
own = {{"dspyer.tracing.spans", "dspyer.tracing.metrics", "opentelemetry"}}
assert not own & sys.modules.keys(), "the program neither traces nor counts"
print(loaded())
dspyer.search
print(loaded())
dspyer.agents
print(loaded())
"""
    assert python(code, tmp_path).splitlines() == ["[] []", "[]", "['search']", "['agents', 'search']"]

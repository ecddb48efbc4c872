"""`fit`: the estimate against a tokenizer, and tokenizers of users, whose number of entries a resume shows again."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import textwrap
from pathlib import Path
from typing import Annotated, Any

import pytest
from litellm.litellm_core_utils.default_encoding import encoding
from pydantic import BaseModel

from dspyer import END, START, Context, Graph, Messages, Send, agents, reducers, view
from dspyer.errors import GraphError, InputError
from dspyer.testing import ScriptedLM
from tests.children import run_python
from tests.nodes.kit import MODES
from tests.rows import each

# --- the estimate

ROWS = [
    {"id": 1000 + n, "vessel": "Maria Elena", "length_m": 5.25 * n, "pilot": n % 3 == 0, "note": None} for n in range(9)
]
TEXTS = {
    "English": "The harbour master keeps a record of every vessel that enters the estuary between March and October. "
    "When the wind turns to the north-east, the channel becomes difficult for boats of less than twelve metres; "
    '"we cannot exclude a systematic error," said Dr. Hall, "but it would have to be surprisingly large."',
    "German": "Der Hafenmeister führt ein Verzeichnis aller Schiffe, die zwischen März und Oktober in die Flussmündung "
    "einlaufen. Wenn der Wind auf Nordost dreht, wird die Fahrrinne für Boote unter zwölf Metern schwierig, und die "
    "Behörde empfiehlt den Schiffsführern, auf Stauwasser zu warten. Verletzt wurde im vergangenen Jahr niemand.",
    "Chinese": "港务长记录三月一日至十月底进入河口的每一艘船只。当风转为东北风而潮水逆风流动时，航道对于"
    "长度不足十二米的船来说变得十分困难，办公室建议船长等待平潮。去年共有四百一十一艘船抵达，没有人受伤。",
    "Thai": "นายท่าเรือบันทึกเรือทุกลำที่เข้ามาในปากแม่น้ำระหว่างวันที่หนึ่งมีนาคมถึงสิ้นเดือนตุลาคม เมื่อลมเปลี่ยนเป็นทิศตะวันออกเฉียงเหนือ "
    "ร่องน้ำจะยากลำบากสำหรับเรือที่มีความยาวน้อยกว่าสิบสองเมตร และสำนักงานแนะนำให้กัปตันรอจนน้ำนิ่ง",
    "Arabic": "يحتفظ مدير الميناء بسجل لكل سفينة تدخل المصب بين الأول من مارس ونهاية أكتوبر، وتنصح الإدارة بالانتظار.",
    "code": inspect.getsource(textwrap.TextWrapper._wrap_chunks),
    "HTML": '<tr class="odd">\n  <td>Maria Elena</td>\n  <td>11.4&nbsp;m</td>\n  <td><input type="radio"></td>\n</tr>\n'
    * 4,
    "JSON": json.dumps(ROWS),
    "JSON with indents": json.dumps(ROWS, indent=2),
    "hex": "\n".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(9)),
}


def estimated(text: str) -> int:
    graph = Graph().add_node("look", lambda text: {"size": len(text)}, writes=["size"]).add_path(START, "look", END)
    (row,) = graph.compile().run({"text": text}).view_tokens().rows
    return int(row.sent)


@each("name", TEXTS)
def test_the_estimate_is_near_the_number_of_a_tokenizer(name: str) -> None:
    text = TEXTS[name]
    assert 0.80 <= len(encoding.encode(text)) / estimated(text) <= 1.27


@each(
    ("text", "tokens"),
    [
        ("", 0),
        ("word", 1),
        ("The tide", 2),
        ("understand", 2),  # runs of letters by length
        ("1234", 2),  # digits by three
        ("a 12", 3),  # no tokenizer joins a space to a number
        ("a\n    b", 3),
        ("{}[]:", 3),  # marks: 0.6
        ("潮水", 3),
        ("ää", 2),
    ],
)
def test_the_rule_of_the_estimate(text: str, tokens: int) -> None:
    assert estimated(text) == tokens


# --- tokenizers of users


class Board(BaseModel):
    log: Annotated[list[str], reducers.append] = []
    messages: Messages = []
    asked: bool | None = None
    seen: list[str] = []


SIZE = [5.0]  # of any text; a later process has another tokenizer
COUNTED: list[str] = []


def tokens(text: str) -> float:
    COUNTED.append(text)
    return SIZE[-1]


@pytest.fixture(autouse=True)
def _first_tokenizer() -> None:
    SIZE[:], COUNTED[:] = [5.0], []


def asking(*, sent: bool = False, **options: Any) -> Any:
    """A program whose last node reads what fits into 20 tokens, asks, and returns what it has read."""

    def look(shown: list[str], ctx: Context) -> dict[str, Any]:
        again = [] if sent else [entry.value for entry in ctx.view(view("log").others().fit(10, count=tokens))]
        ctx.interrupt("ok", f"Is {shown} right?", bool)
        return {"seen": [*shown, *again]}

    graph = Graph(Board)
    for name in "abcdef":
        graph.add_node(name, lambda ctx: {"log": ctx.node}, writes=["log"])
    reads = {"shown": view("log").fit(20, count=tokens)}
    graph.add_node("look", look, reads=reads if sent else {**reads, "log": "log"}, writes=["seen"])
    graph.add_path(START, *"abcdef").add_edge("look", END)
    if sent:
        graph.add_conditional_edges("f", lambda log: Send("look", {"log": log}), ["look"])
    else:
        graph.add_edge("f", "look")
    return graph.compile(**options)


@pytest.mark.parametrize("sent", [False, True], ids=["field", "sent"])
@MODES
def test_a_resume_shows_the_entries_that_were_shown(tmp_path: Path, mode: str, sent: bool) -> None:
    thread = asking(sent=sent, store=tmp_path / "runs.db").thread("t")
    run = thread.run({}) if mode == "sync" else asyncio.run(thread.arun({}))
    assert run.questions[0].text == "Is ['c', 'd', 'e', 'f'] right?", run.error
    counted = len(COUNTED)
    SIZE[:] = [10.0]
    thread = asking(sent=sent, store=tmp_path / "runs.db").thread("t")
    run = thread.resume({"ok": True}) if mode == "sync" else asyncio.run(thread.aresume({"ok": True}))
    assert run.status == "completed", run.error
    assert list(run.state["seen"]) == ["c", "d", "e", "f", *([] if sent else ["e", "f"])]
    assert len(COUNTED) == counted, "nothing is counted again"


def test_an_edit_before_the_resume_is_counted_anew(tmp_path: Path) -> None:
    thread = asking(store=tmp_path / "runs.db").thread("t")
    thread.run({})
    SIZE[:] = [10.0]
    copy = thread.copy(to="u", patch={"log": "edited"})
    run = copy.resume({"ok": True})
    assert list(run.state["seen"]) == ["f", "edited", "edited"]


def test_a_retry_shows_the_same() -> None:
    seen: list[list[str]] = []

    def look(shown: list[str]) -> dict[str, Any]:
        seen.append(shown)
        SIZE[:] = [10.0]
        if len(seen) < 3:
            raise TimeoutError
        return {"seen": shown}

    graph = Graph(Board).add_node("write", lambda: {"log": "a"}, writes=["log"])
    graph.add_node("more", lambda: {"log": "b"}, writes=["log"])
    graph.add_node("look", look, reads={"shown": view("log").fit(10, count=tokens)}, writes=["seen"], retry=3)
    run = graph.add_path(START, "write", "more", "look", END).compile().run({})
    assert run.status == "completed", run.error
    assert seen == 3 * [["a", "b"]]
    counted = len(COUNTED)
    assert "view('log').fit(10, count=tokens)" in str(run.view_tokens())
    assert run.sources(run.commits[-1].id)["log"] == tuple(commit.id for commit in run.commits[1:3])
    assert len(COUNTED) == counted, "a report counts nothing again"


KILLED = """
import os, signal, sys
from typing import Annotated
from pydantic import BaseModel
from dspyer import END, START, Graph, reducers, view

class Board(BaseModel):
    log: Annotated[list[str], reducers.append] = []
    seen: list[str] = []

def tokens(text): return float(sys.argv[2])

def look(shown):
    print(shown, flush=True)
    if sys.argv[2] == "5":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"seen": shown}

graph = Graph(Board).add_node("a", lambda: {"log": "a"}, writes=["log"])
graph.add_node("b", lambda: {"log": "b"}, writes=["log"])
graph.add_node("look", look, reads={"shown": view("log").fit(10, count=tokens)}, writes=["seen"])
thread = graph.add_path(START, "a", "b", "look", END).compile(store=sys.argv[1]).thread("t")
print(list((thread.run({}) if sys.argv[2] == "5" else thread.resume()).state["seen"]))
"""


def test_a_resume_after_a_kill_shows_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    assert run_python(KILLED, path, "5").stdout.split("\n")[0] == "['a', 'b']"
    assert run_python(KILLED, path, "10", check=True).stdout.split("\n")[:2] == 2 * ["['a', 'b']"]


@MODES
def test_the_context_of_an_agent_may_count(tmp_path: Path, mode: str) -> None:
    program = agents.tool_loop("question -> answer", [], context=view("messages").fit(20, count=tokens))
    program = program.compile(store=tmp_path / "runs.db")
    submit = {"next_thought": "so", "tool_calls": {"tool_calls": [{"name": "submit", "args": {"answer": "4"}}]}}
    with ScriptedLM(lambda prompt: submit) as lm:
        for number in range(4):
            call = {"question": f"question {number}"}
            thread = program.thread("t")
            run = thread.run(call) if mode == "sync" else asyncio.run(thread.arun(call))
            assert run.status == "completed", run.error
    assert [f"question {n}" in str(lm.calls[-1].messages) for n in range(4)] == [False, False, True, True]


@each(
    ("given", "error"),
    [
        ("many", "gave 'many'"),
        (None, "gave None"),
        (True, "gave True"),
        (-1, "gave -1"),
        (float("nan"), "gave nan"),
        (float("inf"), "gave inf"),
    ],
)
def test_what_is_no_number_of_tokens_is_an_input_error(given: Any, error: str) -> None:
    def wrong(text: str) -> Any:
        return given

    graph = Graph(Board, inputs=["log"])
    graph.add_node("write", lambda: {"log": "a"}, writes=["log"])
    graph.add_node("look", lambda shown: None, reads={"shown": view("log").fit(9, count=wrong)}, writes=[])
    run = graph.add_path(START, "write", "look", END).compile().run({})
    assert isinstance(run.error, InputError)
    text = f"count= of view('log').fit(9, count=wrong) {error} for a text: return its number of tokens"
    assert str(run.error) == text
    assert any("in node 'look'" in note for note in run.error.__notes__)


async def waits(text: str) -> int:
    return 1


@each("count", [3, "len", waits])
def test_what_is_no_function_of_a_text_is_refused(count: Any) -> None:
    with pytest.raises(GraphError, match="it takes a function of a text"):
        view("log").fit(9, count=count)

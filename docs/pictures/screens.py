"""Makes the pictures of the inspector and the card: `python docs/pictures/screens.py` writes docs/img/*.png.

It fills a store with runs of a support desk, whose language model is a script, serves it as `dspyer inspect` does, and
takes the pictures with Chromium. Look at them in light and dark before you commit them. The card is what other sites
show beside a link to a page; with `--card` it alone is drawn.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import dspy
from playwright.sync_api import sync_playwright
from pydantic import BaseModel

import dspyer.inspector
from dspyer import END, START, Budget, Graph, live, reducers
from dspyer.testing import ScriptedLM

OUT = Path(__file__).parent.parent / "img"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CHROMIUM = "/usr/bin/chromium"
MODEL = "openai/gpt-5-mini"


class Case(BaseModel):
    message: str
    customer: dict[str, Any] = {}
    orders: list[dict[str, Any]] = []
    notes: Annotated[list[str], reducers.extend, live] = []
    risk: float = 0.0
    reply: str = ""
    problems: list[str] = []
    tries: int = 0
    refund: float = 0.0
    approved: bool = False
    sent: str = ""


def look_up(message):
    assert "A-17" in message
    time.sleep(0.05)
    found = [
        {"id": "A-17", "item": "heat pump NX-3", "price": 1249.0, "delivered": "2026-11-06", "promised": "2026-10-23"},
        {"id": "A-22", "item": "filter set", "price": 39.5, "delivered": "2026-11-20", "promised": "2026-11-20"},
    ]
    return {
        "customer": {"name": "Ann Lee", "tier": "gold", "since": 2019, "city": "Oslo"},
        "orders": found,
    }


def check_orders(orders, ctx):
    for order in orders:
        time.sleep(0.03)
        late = order["delivered"] > order["promised"]
        ctx.post("notes", [f"{order['id']}: {'two weeks late' if late else 'in time'}"])


def rate(customer, ctx):
    time.sleep(0.02)
    heard = [entry.value for entry in ctx.live("notes")]
    ctx.post("notes", [f"risk from {len(heard)} notes"])
    return {"risk": 0.2 if customer["tier"] == "gold" else 0.6}


def too_long(reply):
    return ["The reply is longer than 60 words."] if len(reply.split()) > 60 else []


def decide(tries):
    return {"tries": tries + 1, "refund": 120.0}


def send(approved, reply, refund):
    return {"sent": f"{reply} Refund: {refund:.2f} EUR." if approved else reply}


def make_graph() -> Graph:
    """The graph of the support desk."""
    graph = Graph(Case, name="Support")
    graph.add_node("look_up", look_up, writes=["customer", "orders"])
    graph.add_node("check_orders", check_orders, reads=["orders"], writes=["notes"])
    graph.add_node("rate", rate, reads=["customer", "notes"], writes=["notes", "risk"])
    graph.add_node("draft", dspy.Predict("message, customer, orders, notes: list[str] -> reply"), retry=2)
    graph.add_check("short", too_long, of="draft", max_fixes=2)
    graph.add_node("decide", decide, writes=["tries", "refund"])
    graph.add_interrupt(
        "approve", question="Refund 120 EUR to Ann Lee for order A-17, two weeks late?", answer=bool, into="approved"
    )
    graph.add_node("send", send, writes=["sent"])
    graph.add_path(START, "look_up")
    graph.add_edge("look_up", ["check_orders", "rate"])
    graph.add_edge(["check_orders", "rate"], "draft")
    graph.add_edge("draft", "decide")
    graph.add_conditional_edges(
        "decide", lambda refund: "ask" if refund > 50 else "send", {"ask": "approve", "send": "send"}
    )
    graph.add_path("approve", "send", END)
    return graph


LONG = "We are very sorry for the delay of your heat pump. " * 8
SHORT = "We are sorry that your heat pump came two weeks late. We refund 120 EUR of its price to your card today."
ASKED = "My heat pump NX-3 (order A-17) came two weeks late, and nobody told me. What will you do about it?"


def answers(*found: Any) -> ScriptedLM:
    """A language model that gives these drafts."""
    return ScriptedLM([one if isinstance(one, Exception) else {"reply": one} for one in found], model=MODEL)


def fill(path: Path) -> None:
    """A store with runs of each status."""
    program = make_graph().compile(
        store=str(path), record_lm_calls="full", budget=Budget(cost=1, prices={MODEL: (0.25, 2.0)})
    )
    for number in (4698, 4699, 4702, 4703):
        with answers(SHORT):
            t = program.thread(f"case-{number}")
            t.run({"message": ASKED})
            t.resume({"approve": number != 4702})
    slow = dspy.LMTimeoutError("the server sent nothing for 60 s", model=MODEL)
    limit = dspy.LMRateLimitError("429 Too Many Requests: 30,000 tokens per minute are used up", model=MODEL)
    with answers(slow, limit):
        program.thread("case-4711").run({"message": ASKED})
    with answers(slow, LONG, SHORT):
        program.thread("case-4712").run({"message": ASKED})


def serve(path: Path, program: Any = None) -> str:
    """The address of the inspector, with its token."""
    said: list[str] = []
    ready = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        ready.set()

    serving = threading.Thread(
        target=dspyer.inspector.inspect, args=(str(path), program), kwargs={"browser": False, "say": say}, daemon=True
    )
    serving.start()
    assert ready.wait(20)
    return said[0]


SIZE = {"width": 1280, "height": 800}
SHOTS = {  # name -> page
    "failed": "/run?thread=case-4711",
    "step": "/run?thread=case-4712&step=case-4712.1/trunk:5",
    "timeline": "/run?thread=case-4712&tab=graph",
}
BOTH = ("failed", "step")  # in light and dark
TEAM = {"conflict": "/run?thread=switch&step=switch.1/trunk:5"}  # of examples/research_team.py


def shoot(address: str, shots: Mapping[str, str]) -> None:
    """Take the pictures."""
    base, token = address.split("/#token=")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for name, route in shots.items():
                if scheme == "dark" and name not in BOTH:
                    continue
                context = browser.new_context(viewport=SIZE, color_scheme=scheme, timezone_id="UTC")
                page = context.new_page()
                page.goto(f"{base}/#token={token}{route}")
                page.wait_for_selector(".pane h2")
                page.wait_for_load_state()
                page.wait_for_timeout(600)
                page.mouse.move(1, 1)
                page.wait_for_timeout(200)
                suffix = "-dark" if scheme == "dark" else ""
                page.screenshot(path=OUT / f"inspector-{name}{suffix}.png")
                context.close()
        browser.close()


CARD = """
<style>
  body { margin: 0; width: 1200px; height: 630px; position: relative; background: #1b2947; color: #fff;
         font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
  div { position: absolute; left: 80px; width: 760px }
  svg { position: absolute; left: 800px; top: 95px; fill: none; stroke: #8dbcff; stroke-width: 5 }
  circle { fill: #1b2947 } .last { stroke: #86d79c } .other { stroke: #f2ba7c }
</style>
<div style="top: 92px; font-size: 40px; font-weight: 600; color: #8dbcff">dspyer</div>
<div style="top: 166px; font-size: 64px; font-weight: 700; line-height: 1.14">State graphs that<br>DSPy can tune</div>
<div style="top: 372px; font-size: 31px; line-height: 1.6; color: #d5def2">
  Tune every prompt at once.<br>Pay for each step once.<br>See which step wrote which value.</div>
<svg width="330" height="440">
  <path d="M165 40 C165 120 60 100 60 180 V260 C60 340 165 320 165 400"/>
  <path class="other" d="M165 40 C165 120 270 100 270 180 V260 C270 340 165 320 165 400"/>
  <circle cx="165" cy="40" r="28"/><circle cx="60" cy="220" r="28"/><circle class="other" cx="270" cy="220" r="28"/>
  <circle class="last" cx="165" cy="400" r="28"/>
</svg>"""


def draw_card() -> None:
    """The picture of a link to the site."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 630})
        page.set_content(CARD)
        page.screenshot(path=OUT / "card.png")
        browser.close()


def main() -> None:
    """Write the pictures; with `--serve`, print the address instead and wait."""
    draw_card()
    if "--card" in sys.argv:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        fill(path)
        address = serve(path, make_graph().compile(store=str(path)))
        if "--serve" in sys.argv:
            print(address, flush=True)  # noqa: T201 - for the one who looks at it by hand
            threading.Event().wait()
        shoot(address, SHOTS)
        team = Path(folder) / "team.db"
        sys.path.insert(0, str(EXAMPLES))
        made = importlib.import_module("research_team")
        with dspy.context(lm=ScriptedLM(made.rules)):
            made.team(str(team)).thread("switch").run({"question": made.QUESTION})
        shoot(serve(team), TEAM)


if __name__ == "__main__":
    main()

"""Makes the pictures of the inspector and the card: `python docs/pictures/screens.py` writes docs/img/*.

It fills a store with the runs of `examples/look.py` and more of the same over three days, serves it as `dspyer inspect`
does, and takes the pictures with Chromium. Look at them in light and dark before you commit them. The card is what
other sites show beside a link to a page; with `--card` it alone is drawn.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dspy
from playwright.sync_api import sync_playwright

import dspyer.inspector
from dspyer.testing import ScriptedLM

OUT = Path(__file__).parent.parent / "img"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CHROMIUM = "/usr/bin/chromium"


CLOCKS = ("time.time", "dspyer.threads.start.time", "dspyer.log.rows.time", "dspyer.runtime.execution.time")
"""Where the time of what is stored is read."""

TOPICS = ("find food", "choose a nest", "defend a nest", "divide their work", "raise their young", "find their way")


def fill(look: Any) -> None:
    """The runs of the example, after those of three days: most are read by the editor, some fail."""
    look.make()  # it begins with a new file
    program, pace, now, ago = look.program(), look.PACE, time.time, 0.0
    with contextlib.ExitStack() as stack:
        for name in CLOCKS:
            stack.enter_context(patch(name, lambda: now() - ago))
        for number in range(24):
            ago = 3_600 * (70 - 2.8 * number - number % 3)
            look.PACE = pace * (1 + number % 4)
            topic, lost = TOPICS[number % len(TOPICS)], number % 7 == 4
            asked = f"why is there no article on how ants {topic}?" if lost else f"how bees and ants {topic}?"
            thread = program.thread(f"reader-{number + 20}")
            if thread.run({"question": asked}).status == "interrupted" and number not in (19, 22):
                thread.resume({"publish": True}, by="editor", comment="fine for the public channel")


def serve(path: str, program: Any = None) -> str:
    """The address of the inspector, with its token."""
    said: list[str] = []
    ready = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        ready.set()

    serving = threading.Thread(
        target=dspyer.inspector.inspect, args=(path, program), kwargs={"browser": False, "say": say}, daemon=True
    )
    serving.start()
    assert ready.wait(20)
    return said[0]


class Shot(NamedTuple):
    """A picture: the address in the page, and its size."""

    route: str
    size: tuple[int, int] = (1280, 800)


SHOTS = {
    "runs": Shot("/runs", (1280, 620)),
    "run": Shot("/run?thread=reader-17", (1280, 720)),
    "prompt": Shot("/run?thread=reader-17&step=reader-17.1/trunk:1&tab=prompt", (1280, 570)),
    "compare": Shot("/compare?thread=reader-17&other_thread=reader-17-short", (1280, 560)),
    "questions": Shot("/questions", (1280, 420)),
    "phone": Shot("/run?thread=reader-17", (390, 640)),
}
TEAM = {"conflict": Shot("/run?thread=switch&step=switch.1/trunk:5", (1280, 680))}  # of examples/research_team.py


def shoot(address: str, shots: dict[str, Shot]) -> None:
    """Take the pictures, each in light and in dark."""
    base, token = address.split("/#token=")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, shot in shots.items():
            for scheme in ("light", "dark"):
                width, height = shot.size
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC"
                )
                page = context.new_page()
                page.goto(f"{base}/#token={token}{shot.route}")
                page.wait_for_load_state("load")
                page.wait_for_timeout(1_500)
                page.mouse.move(1, 1)
                page.wait_for_timeout(300)
                taken = context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": 80})
                suffix = "-dark" if scheme == "dark" else ""
                OUT.joinpath(f"inspector-{name}{suffix}.webp").write_bytes(base64.b64decode(taken["data"]))
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
    sys.path.insert(0, str(EXAMPLES))
    look, team = [importlib.import_module(name) for name in ("look", "research_team")]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fill(look)
        address = serve(look.FILE, look.program())
        if "--serve" in sys.argv:
            print(address, flush=True)  # noqa: T201 - for the one who looks at it by hand
            threading.Event().wait()
        shoot(address, SHOTS)
        with dspy.context(lm=ScriptedLM(team.rules)):
            team.team("team.db").thread("switch").run({"question": team.QUESTION})
        shoot(serve("team.db"), TEAM)


if __name__ == "__main__":
    main()

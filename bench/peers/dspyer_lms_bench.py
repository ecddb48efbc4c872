"""Maps of LM calls over HTTP, through a server that limits its requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import dspy

from bench.peers.measure import Round, Work, expect
from dspyer import END, START, Graph
from dspyer.lms import reliable
from tests.http_faults import Status
from tests.openai_server import OpenAIServer

PACKAGES = ["dspyer", "dspy"]
ANSWER = "[[ ## answer ## ]]\nyes\n\n[[ ## completed ## ]]"


class WindowLimit:
    """So many requests in any window of so many seconds; the rest get status 429."""

    def __init__(self, requests: int, seconds: float) -> None:
        self.requests, self.seconds = requests, seconds
        self.refused = 0
        self._times: deque[float] = deque()
        self._lock = threading.Lock()

    def __call__(self, _body: dict[str, Any]) -> Status | None:
        now = time.monotonic()
        with self._lock:
            while self._times and now - self._times[0] >= self.seconds:
                self._times.popleft()
            if len(self._times) < self.requests:
                self._times.append(now)
                return None
            self.refused += 1
            return Status(429, Retry_After=f"{self._times[0] + self.seconds - now:.3f}")


def limited(items: int, width: int, window: float, share: float) -> Round:
    """The time of a map over the shortest possible one. The server takes 10 requests in a window; the LM asks for a
    share of that. At most 1 % of the requests may be refused.
    """
    graph = Graph().add_map("ask", dspy.Predict("item -> answer"), over="items", item="item", into="answers")
    program = graph.add_path(START, "ask", END).compile(max_concurrency=width)

    def measure() -> float:
        limit = WindowLimit(10, window)
        with OpenAIServer(lambda messages: ANSWER, faults=limit) as server:
            plain = server.lm()
            plain("the first call imports and connects")
            time.sleep(window)
            with dspy.context(lm=reliable(plain, requests_per_minute=share * 60 * 10 / window)):
                start = time.monotonic()
                run = program.run({"items": [f"item {number}" for number in range(items)]})
                lasted = time.monotonic() - start
            plain.close()
        expect((run.status, len(run.state["answers"])), ("completed", items))
        expect(limit.refused <= items / 100, True)
        return lasted / (items * window / 10)

    return measure


WORKS: dict[str, Work] = {"limited": limited}

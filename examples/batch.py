"""200 documents through a server that limits requests, fails now and then, and refuses some documents for good.

python examples/batch.py                                   # the server is a local one, in this file

The map goes on although documents fail, each item is retried on its own, a budget stops the run twice, and the thread
keeps what was done: no document that was read is sent again. On a terminal, a live display shows the documents that are
read, and the time that is left.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dspy
from pydantic import BaseModel
from tenacity import wait_fixed

import dspyer
from dspyer import END, START, Budget, CompiledGraph, Failure, Graph, Retry, lms
from dspyer.errors import RunStoppedError

DOCUMENTS = [f"Letter {number}: {'?' if number % 60 == 7 else 'the harbour is quiet'}" for number in range(200)]
PER_WINDOW, WINDOW = 30, 0.2  # the server answers 30 requests in 0.2 s, and refuses more with 429


class Corpus(BaseModel):
    """The documents, what was read in them, and those that could not be read."""

    docs: list[str]
    facts: list[str] = []
    unread: list[Failure] = []


def build(store: str) -> CompiledGraph:
    """A map over the documents. It fails if less than 95 % of them can be read."""
    graph = Graph(Corpus, inputs=["docs"], name="Batch")
    graph.add_map(
        "read",
        dspy.Predict("doc -> fact"),
        over="docs",
        item="doc",
        into="facts",
        failures="unread",
        min_success=0.95,
        timeout=10,
    )
    return graph.add_path(START, "read", END).compile(store=store, max_concurrency=16)


# --- the server


class Server(ThreadingHTTPServer):
    """Speaks as much of the OpenAI protocol as the example needs, and counts what it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.counts: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.window = (0, 0)  # the number of the current window, and its requests

    def decide(self, doc: str) -> int:
        """The HTTP status of the response to a request."""
        with self.lock:
            number = int(time.monotonic() / WINDOW)
            self.window = (number, self.window[1] + 1 if self.window[0] == number else 1)
            self.counts["requests"] += 1
            status = 200
            if self.window[1] > PER_WINDOW:
                status = 429
            elif self.counts["requests"] % 20 == 0:
                status = 503
            elif "?" in doc:
                status = 400
            self.counts[f"{status}"] += 1
            self.answered[doc] += status == 200
            return status


class Handler(BaseHTTPRequestHandler):
    """Answers a chat request."""

    server: Server

    def do_POST(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        doc = next(line for line in DOCUMENTS if line in str(request["messages"][-1]["content"]))
        status = self.server.decide(doc)
        body: dict[str, Any] = {"error": {"message": f"status {status} for {doc.split(':')[0]}"}}
        if status == 200:
            text = f"[[ ## fact ## ]]\n{doc.split(': ')[1]}\n\n[[ ## completed ## ]]"
            body = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": request["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 150, "completion_tokens": 12, "total_tokens": 162},
            }
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "0.1")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Print nothing."""


def language_model(server: Server) -> dspy.LM:
    """An LM that spaces its requests, and repeats those that the server was too busy for."""
    url = f"http://127.0.0.1:{server.server_port}/v1"
    local = dspy.LM("openai/local", api_base=url, api_key="none", cache=False)
    return lms.reliable(local, requests_per_minute=15_000, max_concurrency=16, retry=Retry(6, wait=wait_fixed(0.05)))


def main(server: Server) -> None:
    """Reads the documents: stopped by budgets, resumed, and complete at last."""
    with tempfile.TemporaryDirectory() as folder, dspy.context(lm=language_model(server)), dspyer.progress():
        thread = build(str(Path(folder) / "batch.db")).thread("corpus-7")
        run = thread.run({"docs": DOCUMENTS}, budget=Budget(requests=90))
        while run.status == "stopped":
            print(f"stopped: {run.error.reason if isinstance(run.error, RunStoppedError) else ''}")
            run = thread.resume(budget=Budget(requests=90))
        print(f"{run.status}: {len(run.state['facts'])} documents were read, {len(run.state['unread'])} were not\n")
        for failure in run.state["unread"]:
            print(f"  document {failure.index}: {failure.type}")
        print(f"\n{run.stats()}\n")
    counts = server.counts
    print(f"{counts['requests']} requests: {counts['200']} answered, {counts['400']} refused for good,")
    print(f"{counts['429']} too many at once, {counts['503']} failed")
    print(f"{max(server.answered.values()) - 1} documents were read twice")


if __name__ == "__main__":
    with Server() as local_server:
        threading.Thread(target=local_server.serve_forever, daemon=True).start()
        try:
            main(local_server)
        finally:
            local_server.shutdown()

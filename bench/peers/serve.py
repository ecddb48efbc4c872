"""The child's side of a benchmark: answers requests, one JSON object a line, with the workloads of some modules.

Run by path (`python bench/peers/serve.py langgraph_bench`), so that the repository comes after the environment's own
packages: the environment of the public dspyer must import that one, not this repository's.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path[0:1] = []
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.peers.measure import Round, UnsupportedError, Work  # noqa: E402  the path has to be set first


def versions(packages: list[str]) -> dict[str, str]:
    """The installed version of each package, `"source"` for one that runs from a checkout."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source"
    return found


class Server:
    """The prepared workloads of one process."""

    def __init__(self, modules: list[str]) -> None:
        self.works: dict[str, Work] = {}
        self.packages: list[str] = []
        self.rounds: dict[str, Round] = {}
        for name in modules:
            module = importlib.import_module(f"bench.peers.{name}")
            self.works.update(module.WORKS)
            self.packages.extend(module.PACKAGES)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what a request asks."""
        ask = request["ask"]
        if ask == "hello":
            return {"python": platform.python_version(), "versions": versions(self.packages)}
        if ask == "prepare":
            work = self.works.get(request["work"])
            if work is None:
                return {"unsupported": f"no workload {request['work']!r}"}
            self.rounds[request["id"]] = work(**request["size"])
            return {"ok": True}
        if ask == "round":
            return {"value": self.rounds[request["id"]]()}
        if ask == "drop":
            self.rounds.pop(request["id"], None)
            return {"ok": True}
        raise ValueError(f"unknown request {ask!r}")


def serve(modules: list[str]) -> None:
    """Answers until the parent closes the pipe."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not get between the answers
    server = Server(modules)
    for line in sys.stdin:
        try:
            reply = server.answer(json.loads(line))
        except UnsupportedError as reason:
            reply = {"unsupported": str(reason)}
        except Exception as error:  # noqa: BLE001  the parent shows it in the row; the other rows continue
            reply = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1:])

"""Names that `dspyer` does not have: those of 0.3, another code base, and modules that are imported on their own."""

from __future__ import annotations

import sys

_INSTEAD = {
    "AgentTranspiler": "graph.compile()",
    "Attempt": "commit.attempt and commit.failed_attempts, or the event dspyer.events.AttemptFailed",
    "BaseStorageAdapter": "graph.compile(store=...), with a path, an address or a dspyer.stores.Store",
    "DirectClient": "dspy.LM(...), or dspyer.lms.reliable(main, backup)",
    "DirectLM": "dspy.LM(...), or dspyer.lms.reliable(main, backup)",
    "FileStorageAdapter": 'graph.compile(store="runs.db")',
    "MockCompletionResult": "from dspyer.testing import ScriptedLM, an LM with prepared responses",
    "SelfCorrectionTrace": "run.repairs(), run.stats() and run.report()",
    "StatefulNode": "graph.add_node(name, dspy.Predict(Signature))",
    "dspyer_node": "graph.add_node(name, function), or from_langgraph(graph, nodes={name: ...}) of dspyer.migrate",
    "from_langgraph": "from dspyer.migrate import from_langgraph",
    "generate_validation_report": "thread.stats(), or run.stats()",
    "get_storage_adapter": "graph.compile(store=...), and keep the store that you pass",
    "get_trace": "run.repairs(), run.stats() and run.report()",
    "load_logged_dataset": "run.repairs(), or thread.repairs(): lists of dspy.Example",
    "self_correcting": "graph.add_check(name, check, of=node), or dspy.Refine",
    "set_storage_adapter": "graph.compile(store=...)",
}

_MODULES_INSTEAD = {
    "compiler": "graph.compile(), which returns the program",
    "converter": "from dspyer.migrate import from_langgraph",
    "decorator": "graph.add_check(name, check, of=node)",
    "signatures": "a dspy.Signature of your own",
    "telemetry": "nothing: there are spans where OpenTelemetry is installed and set up",
    "trace": "run.trace, run.trace_steps and run.repairs()",
    "utils": "run.repairs() and run.stats()",
}

_ON_THEIR_OWN = ("migrate", "serve", "testing")  # they need more than dspyer does


def missing(name: str) -> AttributeError:
    """The error for a name that `dspyer` does not have, as its `__getattr__` raises it."""
    if name in _INSTEAD:
        return AttributeError(_advice(name, _INSTEAD[name]))
    hint = f" before this line: import dspyer.{name}" if name in _ON_THEIR_OWN else ""
    return AttributeError(f"module 'dspyer' has no attribute {name!r}{hint}")


def _advice(name: str, instead: str) -> str:
    where = f"dspyer.{name} belongs to dspyer 0.3, a different code base"
    return f"{where}: write {instead}; see docs/guides/from-03.md"


class _RemovedNames:
    """Gives import statements the advice. They drop the text of an AttributeError.

    For `from dspyer import X` without an attribute X, Python then looks for a module `dspyer.X`, and asks this finder
    as the last one. `hasattr`, `getattr` with a default, and `pickle` ask for the attribute only.
    """

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        name = fullname.removeprefix("dspyer.")
        if name == fullname:
            return
        if name in _INSTEAD:  # not a ModuleNotFoundError, which `from dspyer import X` drops as well
            raise ImportError(_advice(name, _INSTEAD[name]), name="dspyer")
        if name in _MODULES_INSTEAD:
            raise ModuleNotFoundError(_advice(name, _MODULES_INSTEAD[name]), name=fullname)


sys.meta_path.append(_RemovedNames)

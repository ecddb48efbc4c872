"""`accepted_only`: a program whose trace has no steps that a check has refused."""

from __future__ import annotations

from typing import Any

from dspyer import CompiledGraph
from dspyer.errors import with_article


def accepted_only(program: CompiledGraph) -> CompiledGraph:
    """The same program for optimizers that train weights and for `dspy.Refine`, which use every step of a trace.

    A step whose output a check refused is in the trace with a copy of its predictor. Optimizers that find predictors by
    identity skip it, and GEPA reflects on it. `BootstrapFinetune`, also in `BetterTogether`, and `GRPO` find predictors
    by position or by signature: they would train a model to give what was refused. `dspy.Refine` fails at the copy, and
    so never advises. Give `BootstrapFinetune` this as its teacher too, and keep `multitask=True`: otherwise DSPy takes
    the n-th step of a trace for the n-th predictor, which is another one where a step is left out.

    Args:
        program: a compiled graph: the student, and a teacher too.

    Returns:
        A program that shares the modules of this one, to be given to the optimizer. `run.trace` of its runs has the
        refused steps as before.

    Raises:
        TypeError: for anything but a compiled graph.

    Example:
        >>> import dspy
        >>> from dspyer import END, START, Graph
        >>> from dspyer.testing import ScriptedLM
        >>> graph = Graph().add_node("draft", dspy.Predict("question -> answer"))
        >>> graph = graph.add_check("short", lambda answer: ["too long"]
        ...     if len(answer) > 3 else [], of="draft")
        >>> program = graph.add_path(START, "draft", END).compile()
        >>> for each in (program, accepted_only(program)):
        ...     with ScriptedLM([{"answer": "four"},
        ...         {"answer": "4"}]), dspy.context(trace=[]):
        ...         _ = each(question="2 + 2?")
        ...         print([dict(outputs) for _, _, outputs in dspy.settings.trace])
        [{'answer': 'four'}, {'answer': '4'}]
        [{'answer': '4'}]
    """
    given: Any = program
    if not isinstance(given, CompiledGraph):
        raise TypeError(f"accepted_only takes a compiled graph, and got {with_article(type(given).__name__)}")
    return program._with(_accepted_only=True)

"""Programs of other libraries as dspyer graphs.

Only this package imports LangGraph, and `import dspyer` does not import this package.
"""

from importlib.util import find_spec

if find_spec("langgraph") is None:  # before the imports below, which would name a module of LangGraph
    raise ImportError(
        "dspyer.migrate reads graphs of LangGraph, which is not installed: pip install 'langgraph>=1.2,<1.3'"
    )

from dspyer.migrate.channels import langgraph_inputs
from dspyer.migrate.conversion import explain_langgraph, from_langgraph
from dspyer.migrate.internals import register_langchain_classes

__all__ = ["explain_langgraph", "from_langgraph", "langgraph_inputs"]

register_langchain_classes()

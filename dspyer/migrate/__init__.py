"""Programs of other libraries as dspyer graphs.

Only this package imports LangGraph, and `import dspyer` does not import this package.
"""

from importlib.util import find_spec

from dspyer.migrate.internals import not_installed

if find_spec("langgraph") is None:
    raise not_installed()

from dspyer.migrate.channels import langgraph_inputs
from dspyer.migrate.conversion import explain_langgraph, from_langgraph
from dspyer.migrate.internals import register_langchain_classes

__all__ = ["explain_langgraph", "from_langgraph", "langgraph_inputs"]

register_langchain_classes()

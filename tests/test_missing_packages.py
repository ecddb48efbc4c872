"""What needs a package that is not installed names it: the index knows no extra of this project."""

from __future__ import annotations

import pytest

from tests.children import run_python

SOURCE = """
import sys
hidden, statement = sys.argv[1:]
made = statement.split()[1]  # the module that is imported
for name in [name for name in sys.modules if name.split(".")[0] in hidden.split() or name == made != "dspyer"]:
    del sys.modules[name]  # what the child was forked with
sys.modules.update(dict.fromkeys(hidden.split()))
try:
    exec(statement)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("hidden", "statement", "packages"),
    [
        ("psycopg", "from dspyer.stores.postgres import Postgres", "'psycopg[binary]'"),
        ("cryptography", "from dspyer.stores.encrypted import Encrypted", "cryptography"),
        ("langgraph langchain_core", "import dspyer.migrate", "'langgraph>=1.2,<1.3'"),
        ("rich", "import dspyer\nwith dspyer.progress(): pass", "rich"),
        ("starlette", "from dspyer import serve; serve.router(None, thread=str)", "starlette"),
        ("ag_ui", "from dspyer import serve; serve.agui(None, thread=str)", "ag-ui-protocol starlette"),
        ("starlette uvicorn", "from dspyer import inspector; inspector.inspect(':memory:')", "starlette uvicorn"),
    ],
)
def test_the_error_names_the_package(hidden: str, statement: str, packages: str) -> None:
    found = run_python(SOURCE, hidden, statement, check=True).stdout
    assert found.endswith(f": pip install {packages}\n")

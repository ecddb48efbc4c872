"""Days in schemas of a real server: the example drops them, and the guide's commands archive one before."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dspyer import END, START, Archive, Graph
from dspyer.errors import StoreError
from dspyer.stores import Sharded
from dspyer.stores.postgres import Postgres, Schemas
from tests.pages import ROOT
from tests.stores import postgres_server
from tests.test_examples import SHOWN

graph = Graph().add_node("say", lambda text: {"reply": text.upper()}).add_path(START, "say", END)
PAGE = (ROOT / "docs" / "guides" / "store-limits.md").read_text()


def test_days_are_archived_dropped_and_looked_at(
    postgres_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"d{uuid4().hex[:12]}_"
    runpy.run_path(str(ROOT / "examples" / "retention.py"))["main"](postgres_address, prefix)
    printed = capsys.readouterr().out
    assert not [line for line in SHOWN["retention.py"] if line not in printed]
    days = Schemas(postgres_address, prefix=prefix)
    assert [*days] == ["2026-08-25", "2026-11-22", "2026-11-23"]
    program = graph.compile(store=Sharded(days, lambda thread: thread[:10]))
    thread = program.thread("2026-08-24/r9")
    thread.run({"text": "x" * 20_000})
    commands = re.findall(r"^\$ (pg_dump|createdb|pg_restore)\b(.*)$", PAGE, re.MULTILINE)
    assert [name for name, _ in commands] == ["pg_dump", "createdb", "pg_restore"]
    look, server = f"look_{uuid4().hex[:12]}", conninfo_to_dict(postgres_address)
    names = {"desk_": prefix, " desk": f" {server['dbname']}", "look": look}
    for name in ("host", "port", "user", "password"):
        if server.get(name):
            monkeypatch.setenv(f"PG{name.upper()}", str(server[name]))
    with psycopg.connect(postgres_address) as connection:  # its own programs know its version
        ((folder,),) = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    try:
        for command, options in commands:
            if shutil.which(command) is None:
                pytest.skip(f"{command} is not installed")
            given = re.sub("|".join(names), lambda found: names[found[0]], options)
            subprocess.run([command, *shlex.split(given)], check=True, cwd=tmp_path)
            if command == "pg_dump":
                assert days.drop("2026-08-24")
                assert thread.status == "new"
        there = re.sub(f"/{server['dbname']}(?=[?]|$)", f"/{look}", postgres_address)
        archive = Archive(postgres_server.with_schema(there, f"{prefix}2026-08-24"))
        assert archive.thread("2026-08-24/r9").at(1)["reply"] == "X" * 20_000
        assert [run.status for run in archive.runs()] == ["completed"]
        archive.close()
    finally:
        with psycopg.connect(postgres_address, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {look} WITH (FORCE)".encode())
        for day in days:
            days.drop(day, unfinished=True)


def test_a_role_sees_its_tenant_alone(postgres_address: str) -> None:
    role = f"acme_{uuid4().hex[:12]}"
    (block,) = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    mark = "&" if "?" in postgres_address else "?"
    with psycopg.connect(postgres_address, autocommit=True) as admin:
        admin.execute(block.replace("acme", role).encode())
        try:
            own = postgres_server.with_schema(f"{postgres_address}{mark}user={role}", role)
            others = postgres_server.with_schema(f"{postgres_address}{mark}user={role}", f"no_{role}")
            with Postgres(own) as store, Postgres(others) as denied:
                program = graph.compile(store=Sharded({"acme": store, "bolt": denied}, lambda name: name.split("/")[0]))
                assert program.thread("acme/1").run({"text": "a"}).status == "completed"
                with pytest.raises(StoreError, match="permission denied"):
                    program.thread("bolt/1").run({"text": "a"})
        finally:
            admin.execute(f"DROP SCHEMA {role} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}".encode())

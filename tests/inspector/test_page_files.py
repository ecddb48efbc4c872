"""The files of the page: they are what their sources give, small, and without anything that the policy forbids."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "inspector"
PAGE = ROOT / "dspyer" / "display" / "page"
FILES = ("app.css", "app.js", "index.html")


def run(*command: str, folder: Path = SOURCES) -> None:
    """Run a command of Node's; what it printed is in the failure."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def install() -> None:
    """The packages of package-lock.json in inspector/node_modules, if they are not there."""
    installed = SOURCES / "node_modules" / ".package-lock.json"
    wanted = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    found = json.loads(installed.read_text())["packages"] if installed.exists() else {}
    if any(found.get(name, {}).get("version") != one["version"] for name, one in wanted.items() if needed(name, one)):
        run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")


def needed(name: str, package: dict[str, object]) -> bool:
    """Whether a package is installed on every machine: esbuild has one for each kind of machine."""
    return bool(name) and not package.get("optional")


def test_the_bundle_is_what_its_sources_give(tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: whether dspyer/display/page fits inspector/src was not checked")
    install()
    run("node", "build.js", str(tmp_path))
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (PAGE / name).read_bytes(), f"{name}: npm run build in inspector/"


def test_the_page_has_these_files_and_no_others() -> None:
    assert sorted(path.name for path in PAGE.iterdir()) == list(FILES)


def test_the_page_is_small() -> None:
    size = sum(len(gzip.compress((PAGE / name).read_bytes(), mtime=0)) for name in FILES)
    assert size <= 120_000


def test_nothing_is_fetched_from_elsewhere() -> None:
    for name in FILES:
        addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'`]*", (PAGE / name).read_text())
        # Names of XML's namespaces, which no browser asks for.
        assert [address for address in addresses if "www.w3.org" not in address] == []
    assert "url(" not in (PAGE / "app.css").read_text()
    assert "@import" not in (PAGE / "app.css").read_text()


def test_the_page_needs_no_unsafe_policy() -> None:
    page = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page) == []
    script = (PAGE / "app.js").read_text()
    assert re.findall(r"\beval\(|new Function\b|\bFunction\(|document\.write", script) == []
    # A script that is written into a file must not end its element.
    assert "</script" not in script.lower()
    assert "<!--" not in script


def test_values_are_text_only() -> None:
    for path in sorted((SOURCES / "src").glob("*.js*")):
        found = re.findall(r"dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML", path.read_text())
        assert not found, path.name


def test_the_lock_names_no_registry() -> None:
    assert "resolved" not in (SOURCES / "package-lock.json").read_text()
    packages = json.loads((SOURCES / "package.json").read_text())
    assert "dependencies" not in packages
    assert sorted(packages["devDependencies"]) == ["axe-core", "diff", "esbuild", "preact"]

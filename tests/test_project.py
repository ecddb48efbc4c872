"""What belongs together stays together: version and changelog, Makefile and CI, a site without outside resources."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from packaging.requirements import Requirement

import dspyer

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
MKDOCS = (ROOT / "mkdocs.yml").read_text()


def test_the_newest_changelog_entry_is_the_version() -> None:
    entries = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    released = [entry for entry in entries if entry != "Unreleased"]
    assert released[0] == PROJECT["version"] == dspyer.__version__


def test_runtime_dependencies_are_few() -> None:
    names = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert names == {
        *(
            "dspy",
            "pydantic",
            "pydantic-core",
            "pyrsistent",
            "anyio",
            "diskcache",
            "jsonschema",
            "tenacity",
            "typing-extensions",
        )
    }


def test_a_version_of_dspy_under_which_gepa_learns_nothing_is_refused() -> None:
    (dspy,) = [found for found in map(Requirement, PROJECT["dependencies"]) if found.name == "dspy"]
    assert not dspy.specifier.contains("3.4.0")
    assert dspy.specifier.contains("3.4.1")


@pytest.mark.parametrize("target", ["demo", "test", "check", "docs", "docs-serve", "bench", "clean"])
def test_make_target(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE)
    assert f"make {target} " in MAKEFILE, "`make help` lists it"


@pytest.mark.parametrize("target", ["demo", "test", "lint", "types", "docs", "docs-serve", "bench"])
def test_make_target_prepares_its_environment(target: str) -> None:
    match = re.search(rf"^{target}:(.*)$", MAKEFILE, flags=re.MULTILINE)
    assert match
    assert "$(READY)" in match[1]


def test_what_make_runs_exists() -> None:
    for script in re.findall(r"\$\(BIN\)/python ([\w/]+\.py)", MAKEFILE):
        assert (ROOT / script).exists(), script


def test_ci_runs_the_make_targets() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    for target in ("test", "lint", "types", "docs"):
        assert re.search(rf"make .*\b{target}\b", script)


def test_workflows_cover_the_supported_pythons() -> None:
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    for classifier in PROJECT["classifiers"]:
        if match := re.search(r":: (3\.\d+)$", classifier):
            assert f'"{match[1]}"' in workflow


def test_the_site_asks_nobody_else() -> None:
    assert re.search(r"^strict: true$", MKDOCS, flags=re.MULTILINE)
    assert re.search(r"font: false", MKDOCS)
    assert "use_directory_urls: false" in MKDOCS
    for line in MKDOCS.splitlines():
        if re.search(r"\b(extra_css|extra_javascript|logo|favicon)\b", line):
            assert "http" not in line
    styles = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.css"))
    assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", styles)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_pages_embed_nothing_from_outside(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"!\[[^\]]*\]\(https?:|<(img|script|iframe|link)[^>]*https?:", text)
    assert "```mermaid" not in text, "the theme would load a script for it; draw an SVG"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_self_contained_and_described(picture: Path) -> None:
    text = picture.read_text()
    assert "<title" in text, "a picture says what it shows"
    assert "prefers-color-scheme" in text, "and is readable in light and dark"
    outside = re.findall(r"(?:href|src)=\"(https?:[^\"]+)", text)
    assert not outside


INSTALL = re.compile(r"<!-- --8<-- \[start:install\] -->\n(.*)<!-- --8<-- \[end:install\] -->", re.DOTALL)


def test_one_section_says_how_to_install() -> None:
    """The front page includes that of the README, so that one place changes at a release."""
    readme = (ROOT / "README.md").read_text()
    (install,) = INSTALL.findall(readme.partition("\n## Install\n")[2].partition("\n## ")[0])
    assert install.startswith(
        "dspyer is not on the package index yet: the project named `dspyer` there is\na different one."
    )
    assert "\npip install . " in install
    assert "python -c 'import dspyer; dspyer.Thread'" in install
    assert "Thread" in dspyer.__all__
    assert '\n## Install\n\n--8<-- "README.md:install"\n' in (ROOT / "docs/index.md").read_text()


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert 900 <= len(text.split()) <= 1250
    assert text[: text.index("\n## Install")].count("\n") < 70
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    assert 3 <= len(blocks) <= 7
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 76
    assert text.count("\n## ") <= 8


def packages(requirements: list[str]) -> frozenset[str]:
    """The names of what is required, without versions and extras of their own."""
    return frozenset(Requirement(text).name for text in requirements)


def test_errors_name_the_packages_of_an_extra() -> None:
    """An extra is asked of a project by its name, and the index has another one under it."""
    extras = PROJECT["optional-dependencies"].values()
    known = {packages([text for text in names if not text.startswith("dspyer[")]) for names in extras}
    advice = [
        (path.name, packages(shlex.split(found)))
        for path in (ROOT / "dspyer").rglob("*.py")
        for found in re.findall(r"pip install ([^`\"\n]+)", path.read_text())
    ]
    assert len(advice) >= 8
    assert not [(name, named) for name, named in advice if named not in known]


def test_nothing_sends_users_to_the_other_project() -> None:
    """The package index has another project under this name."""
    files = [path for folder in ("docs", "dspyer", "examples") for path in (ROOT / folder).rglob("*")]
    files += [*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "pyproject.toml"]
    texts = {path: path.read_text() for path in files if path.suffix in {".md", ".py", ".yml", ".toml"}}
    assert len(texts) > 200
    there = re.compile(r"theramkm|uv add dspyer|pip install[^`\n]*['\" ]dspyer\b(?!-)")
    assert not {path.name: found[0] for path, text in texts.items() if (found := there.search(text))}


def test_contributing_names_files_that_exist() -> None:
    named = re.findall(r"`((?:dspyer|tests|docs|bench)/[^` ]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).exists()]


def test_contributing_shows_the_whole_layout() -> None:
    """Each folder and each module at the top of the package has its row."""
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    shown = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    package = ROOT / "dspyer"
    there = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    there |= {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert shown == there


def test_one_word_per_thing() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "dspyer").rglob("*.py")]
    # The names of a span and of an attribute of OpenTelemetry's conventions have another word for a run.
    stray = re.compile(r"transpil|superstep|(?<!invoke_)(?<!gen_ai\.)workflow", re.IGNORECASE)
    assert not [page.name for page in pages if stray.search(page.read_text())]


def test_plain_words() -> None:
    """A sentence about the program names who acts: the caller, a node, the owner, a process."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "dspyer").rglob("*.py")]
    stray = re.compile(r"\b(somebody|nobody|whoever|(has|have|had) come to|taken up|takes up)\b", re.IGNORECASE)
    fences = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)  # code and its data may say anything
    assert not {page.name: found[0] for page in pages if (found := stray.search(fences.sub("", page.read_text())))}


SITE_URL = "https://example.org/dspyer/"
REPO_URL = "https://example.org/owner/dspyer"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is published under a sub-path; building it strictly is a test of its own.

    `make docs` builds it without addresses, which changes its 404 page, its sitemap and its header, and nothing else.
    """
    folder = tmp_path_factory.mktemp("published")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    addresses = {"NO_MKDOCS_2_WARNING": "1", "SITE_URL": SITE_URL, "REPO_URL": REPO_URL}
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **addresses})
    return folder


def addresses(page: Path) -> set[str]:
    return set(re.findall(r"<(?:a|link|script|img)\b[^>]*?\s(?:href|src)=[\"']?([^\"'\s>]+)", page.read_text()))


@pytest.mark.slow
def test_every_address_of_a_published_page_leads_to_a_file(published: Path) -> None:
    missing = set()
    for page in published.rglob("*.html"):
        for address in addresses(page):
            path = unquote(urlsplit(address).path)
            if address.startswith(SITE_URL) or path.startswith("/dspyer/"):
                target = published / path.removeprefix("/dspyer/")
            elif urlsplit(address).scheme or address.startswith("//"):
                continue
            else:
                assert not path.startswith("/"), f"{page.name}: {address} leaves the sub-path"
                target = page.parent / path if path else page
            if not (target / "index.html" if target.is_dir() else target).exists():
                missing.add((page.name, address))
    assert not missing


@pytest.mark.slow
def test_a_published_site_has_a_404_page_a_sitemap_and_a_link_to_its_repository(published: Path) -> None:
    styles = [address for address in addresses(published / "404.html") if address.endswith(".css")]
    assert styles
    assert all(style.startswith("/dspyer/") for style in styles), "the page is shown at any depth"
    assert "Page not found" in (published / "404.html").read_text()
    pages = re.findall(r"<loc>(.*?)</loc>", (published / "sitemap.xml").read_text())
    assert SITE_URL + "guides/serving.html" in pages
    assert len(pages) == len(list((ROOT / "docs").rglob("*.md")))
    assert REPO_URL in addresses(published / "why.html")


@pytest.mark.slow
def test_built_pages_load_nothing_from_outside(published: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source|link(?![^>]*rel=\"?canonical))\b[^>]*(?:src|href)=[\"']?(https?:)?//"
    )
    pages = list(published.rglob("*.html"))
    assert pages
    assert not [page.name for page in pages if loading.search(page.read_text())]


@pytest.mark.slow
def test_built_site_can_be_searched_from_disk(published: Path) -> None:
    assert (published / "search" / "search_index.js").read_text().startswith("var __index = {")
    assert 'src="../assets/file-search.js"' in (published / "concepts" / "state.html").read_text()

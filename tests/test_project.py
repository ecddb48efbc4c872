"""What belongs together stays together: version and changelog, Makefile and CI, a site without outside resources."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

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


def test_make_targets_are_listed_and_prepare_their_environment() -> None:
    targets = re.findall(r"^([a-z-]+):(.*)$", MAKEFILE, flags=re.MULTILINE)
    listed = {*re.findall(r"make ([a-z-]+) ", MAKEFILE)}
    assert {"demo", "test", "test-core", "test-deep", "test-faults", "check", "docs", "bench"} <= listed
    assert listed <= {name for name, _ in targets}
    alone = {"help", "setup", "browser", "redis", "check", "clean"}
    assert not [name for name, needs in targets if name not in alone and "$(READY)" not in needs]


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


def test_pages_embed_nothing_from_outside() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    outside = re.compile(r"!\[[^\]]*\]\(https?:|<(img|script|iframe|link)[^>]*https?:")
    assert not [name for name, text in pages.items() if outside.search(text)]
    assert not [name for name, text in pages.items() if "```mermaid" in text], (
        "the theme would load a script; draw an SVG"
    )


def test_pictures_are_self_contained_and_described() -> None:
    pictures = {path.name: path.read_text() for path in (ROOT / "docs").rglob("*.svg")}
    assert not [name for name, text in pictures.items() if "<title" not in text], "a picture says what it shows"
    assert not [name for name, text in pictures.items() if "prefers-color-scheme" not in text], "in light and dark"
    assert not [name for name, text in pictures.items() if re.search(r"(?:href|src)=\"https?:", text)]


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


def test_pages_have_their_parts() -> None:
    """Where to read on, and in a tutorial parts of the program with what it prints: test_examples.py looks for that."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "api"]
    last = {path.name: re.findall(r"^## (.*)", path.read_text(), re.MULTILINE)[-1:] for path in pages}
    assert {name for name, title in last.items() if title != ["Next"]} == {"command-line.md", "errors.md"}
    for path in pages:
        if path.parent.name == "tutorials" and path.name != "index.md":
            text = path.read_text()
            assert text.count('--8<-- "examples/') >= 4, path.name
            assert text.count("\n```text\n") >= 2, path.name


def test_examples_of_docstrings_fit_into_the_pages() -> None:
    lines = [
        (path.name, line.strip()) for path in (ROOT / "dspyer").rglob("*.py") for line in path.read_text().splitlines()
    ]
    assert not [(name, line) for name, line in lines if line.startswith((">>> ", "... ")) and len(line) > 76]


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
    here = re.compile(r"pip install[^`\n]*['\" ]\.(?![\w.])|\bextra `\w+`|\bdspyer\[")
    own = {ROOT / "pyproject.toml", ROOT / "docs/build/generated.py"}
    texts = {path: INSTALL.sub("", text) for path, text in texts.items() if path not in own}
    assert not {path.name: found[0] for path, text in texts.items() if (found := here.search(text))}


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


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    words = "What|Whether|Who|Whose|Which|Where|When|Why|How"
    stray = re.compile(rf'(?:\A|:(?:  #.*)?\n)\s*"""((?:{words})\b.*)')
    texts = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "dspyer").rglob("*.py")}
    assert not [f"{path}: {line}" for path, text in texts.items() for line in stray.findall(text)]

"""ARCHITECTURE.md and the pages of docs/design name files, modules and identifiers that exist."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
FOLDERS = ("src", "tests", "bench", "scripts", "docs", "examples", "packaging")
#: Files of a store, as its own folders write them.
OF_A_STORE = {
    "libra.removed/", "config/", "commitlog/", "index/",
    "consumequeue/TOPIC/QUEUE/", "batchconsumequeue/", "batchconsumequeue/TOPIC/QUEUE/",
}  # fmt: skip

pytestmark = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_files_named_on_a_page_exist(page: Path):
    named = [code for code in codes(page) if re.fullmatch(r"[\w./-]+(\.py|/)", code)]
    rooted = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", page.read_text())
    missing = {name for name in named if not is_a_path(name.rstrip("/"))} - OF_A_STORE
    missing |= {name for name in rooted if not (ROOT / name).exists()}
    assert not missing


def test_identifiers_named_on_a_page_exist(page: Path):
    identifiers = {code for code in codes(page) if re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", code)}
    constants = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b(?![_*])", page.read_text()))
    missing = {
        name
        for name in identifiers | constants
        if not words_of_the_code().issuperset(re.findall(r"\w+", name))
    }
    assert not missing


def codes(page: Path) -> Iterator[str]:
    """Yield the inline code of a page, without the column of Apache's names in java-names.md."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    is_apache = page.name == "java-names.md"
    for line in text.splitlines():
        yield from re.findall(r"`([^`]+)`", line.split("|", 2)[-1] if is_apache else line)


def is_a_path(name: str) -> bool:
    """Return whether a path ends as `name` does."""
    return name in FOLDERS or any(path.endswith(f"/{name}") for path in paths())


@cache
def paths() -> frozenset[str]:
    """Return every path of the repository's folders."""
    return frozenset(
        f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*")
    )


@cache
def words_of_the_code() -> frozenset[str]:
    """Return every word of the sources and of the files that configure tools."""
    files = [*(ROOT / "src").rglob("*.py"), ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    return frozenset(words | {file.stem for file in files} | {file.suffix[1:] for file in files})

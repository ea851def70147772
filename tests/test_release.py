"""`scripts/release`: the checks that prevent a release, and the contents of its files."""

import email.policy
import re
import runpy
import subprocess
import sys
import tomllib
from email.message import EmailMessage
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "release"
RELEASE = runpy.run_path(str(SCRIPT))
REPOSITORY = "https://example.org/libramq"
CHANGES = "# Changes\n\n## 0.2.0 ({})\n\n## 0.1.0 (2026-01-01)\n"
GOOD_WHEEL = (
    "libramq/__init__.py",
    "libramq/py.typed",
    "pyspark_rocketmq/__init__.py",
    "libramq-0.2.0.dist-info/licenses/LICENSE",
)
GOOD_SDIST = (
    *("pyproject.toml", "README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "PKG-INFO", ".gitignore"),
    "src/libramq/__init__.py",
)


def problems(version: str, day: str, *tags: str) -> str:
    return "; ".join(RELEASE["version_problems"](version, CHANGES.format(day), tags))


def test_version_changes_and_tag_agree() -> None:
    assert problems("0.2.0", "2027-01-31", "v0.1.0") == ""
    assert 'set "0.2.0" in src/libramq/__init__.py' in problems("0.2.0.dev0", "2027-01-31")
    assert "CHANGELOG.md says 0.2.0 (unreleased): write the day" in problems("0.2.0", "unreleased")
    assert "does not begin with 0.3.0, but with 0.2.0" in problems("0.3.0", "2027-01-31")
    assert "tag v0.2.0 exists already" in problems("0.2.0", "2027-01-31", "v0.2.0")


def test_links_of_the_long_description_work_from_anywhere(tmp_path: Path) -> None:
    page = (
        "[Guide](docs/a.md#part) ![A plot](docs/q.svg) [mail](mailto:a@b.example) "
        '[site](https://example.org) [below](#below) <img width="9" src="docs/r.png">'
    )
    (tmp_path / "docs").mkdir()
    for name in ("a.md", "r.png"):
        (tmp_path / "docs" / name).touch()
    assert RELEASE["broken_links"](page, tmp_path) == ["docs/q.svg"]
    absolute = RELEASE["absolute_links"](page, REPOSITORY, "v0.2.0")
    assert RELEASE["relative_links"](absolute) == []
    assert f"[Guide]({REPOSITORY}/blob/v0.2.0/docs/a.md#part)" in absolute
    assert f"![A plot]({REPOSITORY}/raw/v0.2.0/docs/q.svg)" in absolute
    assert f'<img width="9" src="{REPOSITORY}/raw/v0.2.0/docs/r.png">' in absolute
    assert "(mailto:a@b.example) [site](https://example.org) [below](#below)" in absolute


def test_the_readme_links_to_files_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(RELEASE["relative_links"](readme)) > 20
    assert RELEASE["broken_links"](readme, ROOT) == []


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ((), None),
        (("tests/conftest.py",), "the wheel holds tests/conftest.py"),
        (("bench/soak",), "the wheel holds bench/soak"),
        (("libramq/__pycache__/codes.cpython-311.pyc",), "which was compiled"),
    ],
)
def test_a_wheel_holds_the_packages_alone(more: tuple[str, ...], problem: str | None) -> None:
    found = RELEASE["wheel_problems"]((*GOOD_WHEEL, *more))
    assert found == [] if problem is None else problem in found[0]
    for name in GOOD_WHEEL:
        assert RELEASE["wheel_problems"]([each for each in GOOD_WHEEL if each != name])


def test_an_sdist_holds_what_a_wheel_is_built_from() -> None:
    def found(*names: str) -> list[str]:
        problems: list[str] = RELEASE["sdist_problems"](f"libramq-0.2.0/{name}" for name in names)
        return problems

    assert found(*GOOD_SDIST) == []
    assert found(*GOOD_SDIST, "tests/conftest.py") == ["the sdist holds tests/conftest.py"]
    assert found(*GOOD_SDIST[:4], *GOOD_SDIST[5:]) == ["the sdist lacks LICENSE"]


def test_the_metadata_of_a_wheel() -> None:
    metadata = EmailMessage(policy=email.policy.default)
    metadata["Version"], metadata["License-Expression"] = "0.2.0", "Apache-2.0"
    metadata.set_payload("[Guide](https://example.org/docs/a.md)")
    assert RELEASE["metadata_problems"](metadata, "0.2.0") == []
    metadata.set_payload("[Guide](docs/a.md)")
    wrong_version, relative = RELEASE["metadata_problems"](metadata, "0.3.0")
    assert wrong_version == "the wheel's version is 0.2.0, not 0.3.0"
    assert relative.endswith("work in the repository only, such as docs/a.md")


def test_classifiers_name_the_pythons_that_are_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = RELEASE["pythons_of"](classifiers)
    *first, last = versions
    tested = f"Only Linux is tested. Python {', '.join(first)} and {last}.\n"
    assert tested in (ROOT / "docs" / "features.md").read_text()
    assert RELEASE["python_problems"](classifiers, versions) == []
    (problem,) = RELEASE["python_problems"](classifiers, first)
    assert problem.startswith(f"a classifier names Python {last}, with which the wheel was not tried")


def test_the_commands_that_upload_are_printed() -> None:
    files = [Path("/x/libramq-0.2.0-py3-none-any.whl"), Path("/x/libramq-0.2.0.tar.gz")]
    assert RELEASE["upload_commands"]("v0.2.0", files) == [
        "git tag -s v0.2.0 -m 'LibraMQ 0.2.0'",
        "git push origin v0.2.0",
        "twine upload dist/libramq-0.2.0-py3-none-any.whl dist/libramq-0.2.0.tar.gz",
    ]


def make_repository(root: Path, *, version: str, day: str, urls: str, readme: str) -> None:
    """Make a repository with the files that the script reads, and one commit."""
    (root / "src" / "libramq").mkdir(parents=True)
    (root / "scripts").mkdir()
    (root / "scripts" / "release").write_bytes(SCRIPT.read_bytes())
    (root / "src" / "libramq" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (root / "CHANGELOG.md").write_text(CHANGES.format(day))
    (root / "README.md").write_text(readme)
    (root / "pyproject.toml").write_text(f'[project]\nname = "libramq"\nclassifiers = []\n{urls}')
    git = ("git", "-C", str(root), "-c", "user.name=tests", "-c", "user.email=tests@example.org")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)


def test_a_commit_that_is_not_ready_is_not_built(tmp_path: Path) -> None:
    make_repository(
        tmp_path, version="0.2.0.dev0", day="unreleased", urls="", readme="It is not on PyPI: [a](b)"
    )
    (tmp_path / "README.md").write_text("It is not on PyPI: [a](c)")
    command = [sys.executable, tmp_path / "scripts" / "release"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    for problem in (
        '__version__ is "0.2.0.dev0"',
        "CHANGELOG.md says 0.2.0 (unreleased)",
        "README.md says that LibraMQ is not on PyPI",
        "README.md links to c, which does not exist",
        "pyproject.toml names no address",
        "there are uncommitted changes",
        "nothing was built",
    ):
        assert f"not ready: {problem}" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_a_clone_has_the_form_of_a_release(tmp_path: Path) -> None:
    root = tmp_path / "here"
    urls = f'[project.urls]\nRepository = "{REPOSITORY}"\n'
    make_repository(root, version="0.2.0.dev0", day="unreleased", urls=urls, readme="[a](CHANGELOG.md)")
    assert RELEASE["problems_of"](root, None) == RELEASE["version_problems"](
        "0.2.0.dev0", CHANGES.format("unreleased"), []
    )
    clone = RELEASE["clone"](root, tmp_path / "clone", None)
    assert (clone.version, clone.tag, clone.repository) == ("0.2.0", "v0.2.0", REPOSITORY)
    assert (clone.root / "README.md").read_text() == f"[a]({REPOSITORY}/blob/v0.2.0/CHANGELOG.md)"
    assert (clone.root / "src/libramq/__init__.py").read_text() == '__version__ = "0.2.0"\n'
    assert re.search(
        r"^## 0\.2\.0 \(\d{4}-\d\d-\d\d\)$", (clone.root / "CHANGELOG.md").read_text(), re.MULTILINE
    )


@pytest.mark.thorough
def test_a_trial_makes_and_tries_the_files_of_a_release(tmp_path: Path) -> None:
    """Everything but the upload: sdist and wheel, in environments of the installed Pythons."""
    root = tmp_path / "here"
    subprocess.run(["git", "clone", "-q", ROOT, root], check=True)
    options = ("--trial", "--repository", REPOSITORY, "--no-container")
    command = [sys.executable, root / "scripts" / "release", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert "contents, metadata and links: as they should be" in done.stdout, done.stdout + done.stderr
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"sent and received by the wheel, with Python {version}." in done.stdout
    expected = RELEASE["problems_of"](root, REPOSITORY)
    lines = [line.removeprefix("not ready: ") for line in done.stderr.splitlines()]
    assert [line for line in lines if not line.startswith("a classifier names Python")] == expected
    assert {path.suffix for path in (root / "dist").iterdir()} == {".whl", ".gz"}

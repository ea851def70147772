"""Functions fit into a head, constructors take few parameters, and modules are no fragments."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src"
MODULES = sorted(ROOT.rglob("*.py"))

#: From `def` to the last line, functions within included (`bench/function_lengths` prints them by length).
FUNCTION_LINES_MAX = 60


def functions(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield length, first line and name of every function of a file."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1, node.lineno, node.name


def test_no_function_is_longer_than_a_person_can_hold_in_the_head():
    long = {
        f"{path.relative_to(ROOT)}:{line} {name}": length
        for path in MODULES
        for length, line, name in functions(path)
        if length > FUNCTION_LINES_MAX
    }
    assert not long


#: Parameters of a constructor: one that needs more is two nouns, or lacks one.
PARAMETERS_MAX = 6
#: Classes whose constructors have more. Lower it with each that gets its noun; do not raise it.
LONG_CONSTRUCTORS_MAX = 21
#: Their signatures are those of FastStream's classes.
OTHERS_SIGNATURES = ROOT / "libramq" / "integrations" / "faststream"


def constructors(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name of every class of a file with a constructor, and how many parameters that has."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                arguments = each.args
                count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
                yield node.name, count - 1


def test_constructors_with_many_parameters_become_fewer():
    long = {
        f"{path.relative_to(ROOT)}: {name}": count
        for path in MODULES
        for name, count in constructors(path)
        if count > PARAMETERS_MAX and not path.is_relative_to(OTHERS_SIGNATURES)
    }
    assert len(long) <= LONG_CONSTRUCTORS_MAX, long


def test_no_module_is_a_fragment_of_its_only_user():
    """The script fails on a small module with one importer and no reason, and prints what grew by area."""
    script = ROOT.parent / "scripts" / "size"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr

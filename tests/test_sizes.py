"""Functions stay small, constructors take few parameters, modules are no fragments, names are unique."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src"
MODULES = sorted(ROOT.rglob("*.py"))

#: From `def` to the last line, including nested functions (`bench/function_lengths` prints them by length).
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


#: The parameters of a constructor: a class that needs more is two nouns, or lacks one.
PARAMETERS_MAX = 6
#: The number of classes above the limit. Lower it with each class that is split; do not raise it.
LONG_CONSTRUCTORS_MAX = 21
#: Their signatures are those of FastStream's classes.
OTHERS_SIGNATURES = ROOT / "libramq" / "integrations" / "faststream"


def constructors(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name of every class of a file with a constructor, and the constructor's parameter count."""
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


#: Users know both classes by this name: `libramq` exports the asyncio one, `libramq.sync` the other.
BLOCKING_TWINS = {"libramq/client/Consumer", "libramq/client/Producer"}
#: Names from libraries.
OTHERS_NAMES = {
    ("libramq/broker/metrics.py", "Counter"),
    ("libramq/spark/pipeline/delta_table.py", "DeltaTable"),
}


def classes(tree: ast.Module) -> set[str]:
    """Return the names of a module's own classes."""
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_a_package_has_each_public_class_name_once():
    found, twice = set(), set()
    for path in MODULES:
        package = "/".join(path.relative_to(ROOT).parts[:2])
        names = {f"{package}/{name}" for name in classes(ast.parse(path.read_bytes())) if name[0] != "_"}
        twice |= names & found
        found |= names
    assert twice == BLOCKING_TWINS


def test_a_module_sees_each_class_name_once():
    """It neither imports two classes of one name nor one that shares the name of its own."""
    twice = set()
    for path in MODULES:
        tree = ast.parse(path.read_bytes())
        origins = defaultdict(set)
        for name in classes(tree):
            origins[name].add("this module")
        for node in ast.walk(tree):
            for each in node.names if isinstance(node, ast.ImportFrom) else ():
                if not each.name.isupper() and each.name[0].isupper():
                    origins[each.name].add(node.module)
        twice |= {(str(path.relative_to(ROOT)), name) for name in origins if len(origins[name]) > 1}
    assert twice == OTHERS_NAMES


def test_no_module_is_a_fragment_of_its_only_user():
    """The script fails on a small module with one importer and no stated reason; it prints growth by area."""
    script = ROOT.parent / "scripts" / "size"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr

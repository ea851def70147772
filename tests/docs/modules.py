"""Every module in one line: the first paragraph of its docstring, its limits and times with their values."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent.parent.parent / "src" / "libramq"
#: The names of limits and times, and of other numbers that a module has chosen.
_BOUND: Final = re.compile(r"[A-Z][A-Z\d_]*_(MS|S|SECONDS|DAYS|BYTES|COUNT|MAX|MIN)")
_NUMBER: Final = re.compile(r"\d[\d_]*(\.\d+)?")
#: Longer ones are left out: a row is to be read.
_VALUE_LENGTH_MAX: Final = 24


def packages() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Yield every package: its path, what it is, and a row for each of its modules."""
    for path in sorted(PACKAGE.rglob("__init__.py")):
        package = path.parent
        rows = [_row(module) for module in sorted(package.glob("*.py")) if module != path]
        if rows:
            name = str(package.relative_to(PACKAGE)) if package != PACKAGE else "libramq"
            yield name, first_paragraph(ast.parse(path.read_bytes())), rows


def first_paragraph(tree: ast.Module) -> str:
    """Return the first paragraph of a module's docstring, in one line."""
    return " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())


def _row(path: Path) -> tuple[str, str, str]:
    source = path.read_text()
    tree = ast.parse(source)
    return str(path.relative_to(PACKAGE)), first_paragraph(tree), ", ".join(_bounds(tree, source))


def _bounds(tree: ast.Module, source: str) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, value = node.target.id, ast.get_source_segment(source, node.value) if node.value else None
        if _BOUND.fullmatch(name) or (value and name[0] != "_" and _NUMBER.fullmatch(value)):
            is_short = value is not None and len(value) <= _VALUE_LENGTH_MAX
            yield f"`{name}` {value}" if is_short else f"`{name}`"

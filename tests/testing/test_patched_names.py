"""Every attribute that the tests of this directory replace exists: most of these tests are thorough ones, so
a quick run would not notice a rename.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def patches(module: Path) -> Iterator[tuple[str, str]]:
    """Yield each object whose attribute a module replaces, as the module writes it, and the attribute."""
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[of, ast.Constant(value=str(name)), *_], keywords=[]
            ):
                yield ast.unparse(of), name


@pytest.mark.parametrize("path", sorted(HERE.glob("test_*.py")), ids=lambda path: path.stem)
def test_every_attribute_that_is_replaced_exists(path: Path):
    module = import_module(f"tests.testing.{path.stem}")
    for of, name in patches(path):
        first, *rest = of.split(".")
        found = getattr(module, first, None)  # None: of a function, such as a parameter.
        for each in rest if found is not None else ():
            found = getattr(found, each)
        assert found is None or hasattr(found, name), f"{of}.{name} does not exist"

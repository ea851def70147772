"""Processors use the header and body types of their row in the table: type checkers cannot verify it."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import libramq
from libramq.codes import RequestCode
from libramq.rpc.request_table import REQUESTS

SOURCES = Path(libramq.__file__).parent


def expected() -> Iterator[tuple[RequestCode, str, type]]:
    """Yield the header and body types that processors expect, by code."""
    for path in (*SOURCES.glob("broker/processor/**/*.py"), *SOURCES.glob("nameserver/*.py")):
        module = importlib.import_module(".".join(path.relative_to(SOURCES.parent).with_suffix("").parts))
        for service in ast.walk(ast.parse(path.read_text())):
            if isinstance(service, ast.ClassDef):
                methods = {one.name: one for one in service.body if isinstance(one, ast.FunctionDef)}
                for code, method in (*marked(methods), *in_batches(methods)):
                    for part, kind in annotated(method):
                        yield code, part, eval(kind, vars(module))


def marked(methods: Mapping[str, ast.FunctionDef]) -> Iterator[tuple[RequestCode, ast.FunctionDef]]:
    """Yield the codes that methods are marked with, `@serves(…)`."""
    for method in methods.values():
        for mark in method.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "serves":
                for code in mark.args:
                    if isinstance(code, ast.Attribute):
                        yield RequestCode[code.attr], method


def in_batches(methods: Mapping[str, ast.FunctionDef]) -> Iterator[tuple[RequestCode, ast.FunctionDef]]:
    """Yield the codes in the dictionary of `batch_processors`, and the methods that serve them."""
    for node in ast.walk(methods["batch_processors"]) if "batch_processors" in methods else ():
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Attribute) and isinstance(value, ast.Attribute):
                    yield RequestCode[key.attr], methods[value.attr]


def annotated(method: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for node in ast.walk(method):
        match node:
            case ast.AnnAssign(
                value=ast.Attribute(value=ast.Name("request"), attr=("header" | "body") as part)
            ):
                yield part, ast.unparse(node.annotation)


def test_processors_expect_the_types_of_their_rows():
    found: list[tuple[RequestCode, str, Any]] = list(expected())
    assert len(found) > 70
    for code, part, kind in found:
        assert issubclass(getattr(REQUESTS[code], part), kind), f"{part} of {code.name}"

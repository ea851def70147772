"""Which rows of a table a quick run takes."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], count: int) -> list[Any]:
    """Return parameters: the first `count` are for every run, the others for a thorough one."""
    return [
        value if number < count else pytest.param(value, marks=pytest.mark.thorough)
        for number, value in enumerate(values)
    ]

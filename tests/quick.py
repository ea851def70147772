"""Selects the rows of a table that a quick run uses."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], count: int) -> list[Any]:
    """Return parameters: the first `count` run always, the others only in a thorough run."""
    return [
        value if number < count else pytest.param(value, marks=pytest.mark.thorough)
        for number, value in enumerate(values)
    ]

"""The table of limits has all of them; that its values are the code's is tested with the pages."""

import importlib
from dataclasses import fields

import pytest

from libramq.broker.config import BrokerConfig

from . import limits


@pytest.mark.parametrize("module", limits.COMPLETE)
def test_no_limit_of_these_modules_is_left_out(module: str) -> None:
    found = {
        f"{module}:{name}"
        for name in vars(importlib.import_module(f"libramq.{module}"))
        if name.endswith(limits.SUFFIXES) and not name.startswith("_")
    }
    listed = {each.constant for part in limits.LIMITS.values() for each in part}
    assert found <= listed


def test_the_options_have_the_values_of_the_table() -> None:
    defaults = {each.metadata["name"]: each.default for each in fields(BrokerConfig) if each.metadata}
    for part in limits.LIMITS.values():
        for each in part:
            if each.option:
                assert f"{defaults[each.option]:,}" == limits.value(each.constant)

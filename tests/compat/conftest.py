"""The release that everything here is tested against."""

from pathlib import Path

import pytest

from tests.compat.release import ReleaseUnavailable, old_release, this_tree


@pytest.fixture(scope="session")
def old() -> Path:
    """Where to import libramq 0.1.0 from; without it these tests fail, and say why."""
    try:
        return old_release()
    except ReleaseUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def new() -> Path:
    return this_tree()

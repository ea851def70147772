"""The old release that these tests compare with."""

from pathlib import Path

import pytest

from tests.compat.release import ReleaseUnavailable, old_release, this_tree


@pytest.fixture(scope="session")
def old() -> Path:
    """Directory to import the earlier libramq from; tests fail with the reason where it cannot be built."""
    try:
        return old_release()
    except ReleaseUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def new() -> Path:
    return this_tree()

"""Fixtures that the tests with solved exercises share."""

import pytest

from grading.authoring import reference


@pytest.fixture(scope="session")
def functions(tmp_path_factory):
    """A folder with the solved exercises; not to be written to."""
    folder = tmp_path_factory.mktemp("reference")
    reference.write(folder)
    return folder


@pytest.fixture(scope="session")
def loops():
    """The solved training loops, by name."""
    return reference.loops()

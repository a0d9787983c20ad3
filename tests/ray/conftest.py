from ..support import verl_imported  # noqa: F401 (first of all)

# isort: split

from collections.abc import Iterator

import pytest

from ..support.ray_cluster import local_ray


@pytest.fixture(scope="package")
def local_cluster() -> Iterator[None]:
    """One Ray for all tests of this folder that run in this process."""
    with local_ray():
        yield

from ....support.fixtures.ray import local_cluster  # noqa: F401 (first of all)

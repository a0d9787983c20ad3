from ....support.fixtures.startup import files, no_cluster, own_cache, run  # noqa: F401 (first of all)

from ....support.fixtures.e2e import assets  # noqa: F401 (first of all)

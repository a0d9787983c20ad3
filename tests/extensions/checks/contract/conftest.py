from ....support import verl_imported  # noqa: F401 (first of all)

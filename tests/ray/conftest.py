from .. import verl_imported  # noqa: F401 (first of all)

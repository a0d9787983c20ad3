"""Imports verl and vLLM once with their own warnings silenced, before pytest turns warnings into errors."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import recipe.async_dapo.training.run  # noqa: F401 (imported for its warnings)

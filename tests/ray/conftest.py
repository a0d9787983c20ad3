"""Imports verl once with its own deprecation warnings silenced, before pytest turns warnings into errors."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import recipe.async_dapo.server
    import recipe.async_dapo.worker  # noqa: F401 (imported for its warnings)

"""Imports verl once with its own deprecation warnings silenced, before pytest turns warnings into errors."""

import atexit
import gc
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import recipe.async_dapo.server
    import recipe.async_dapo.worker  # noqa: F401 (imported for its warnings)

gc.collect()
gc.freeze()  # every simulation collects garbage; the million objects of verl are none
atexit.register(gc.unfreeze)

"""Imports verl and vLLM once with their own warnings silenced, before pytest turns warnings into errors."""

import atexit
import gc
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import recipe.async_dapo.training  # noqa: F401 (imported for its warnings)

gc.collect()
gc.freeze()  # simulations collect garbage; the million objects of verl are none
atexit.register(gc.unfreeze)

"""Imports verl and vLLM once with their own warnings silenced, before pytest turns warnings into errors.

torch computes in one thread: tests share the cores, and several threads would wait for each other in each operation.
"""

import warnings

import torch

torch.set_num_threads(1)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import recipe.async_dapo.training.run  # noqa: F401 (imported for its warnings)

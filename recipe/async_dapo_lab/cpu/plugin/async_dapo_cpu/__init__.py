"""CPU support for verl and vLLM, switched on by the environment variable `VERL_PLATFORM=cpu`.

verl and vLLM discover platform plugins through Python entry points, which normally need a pip
installation. The recipe is a folder that users copy, so the parent of this package is a ready-made
entry on `PYTHONPATH`: next to the package lies its `*.dist-info`, and `importlib.metadata` finds
one in any folder of `sys.path`. An environment variable also reaches what a driver script cannot:
every Ray worker and the engine processes that vLLM spawns. The lab's `quickstart/activation.py` sets both variables.

verl imports this package (group `verl.plugins`) whenever the folder is on the path; without
`VERL_PLATFORM=cpu` the import has no effect, so a GPU run is never changed by it.
"""

import os

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from . import compat, platform  # noqa: F401 (the imports register the platform)

    compat.apply()

"""Where Hydra finds this recipe's yaml and verl's: also for a yaml of the user's that begins with
`defaults: [async_dapo_trainer, _self_]`, since Hydra reads `hydra.searchpath` in the first yaml alone.
"""

import pickle
from typing import cast

from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin

from .options import CONFIG_FOLDER

_read: dict[tuple[str, str], bytes] = {}  # by package and file: what Hydra makes of it, pickled


class ParsedOnce(ImportlibResourcesConfigSource):
    """The yaml files of a package, as `pkg://` has them, each parsed once in a process. A start composes them three
    times, twice in Hydra itself and once for the keys that are known, and parsing takes half of that.
    """

    @staticmethod
    def scheme() -> str:
        return "parsed-once"

    def load_config(self, config_path: str) -> ConfigResult:
        file = (self.path, config_path)
        if file not in _read:
            _read[file] = pickle.dumps(super().load_config(config_path))
        return cast(ConfigResult, pickle.loads(_read[file]))  # whoever composes may change it


class RecipeSearchPath(SearchPathPlugin):
    """Appends both folders to every search path of this process, once this module is imported."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("async_dapo", f"file://{CONFIG_FOLDER}")
        search_path.append("verl", f"{ParsedOnce.scheme()}://verl.trainer.config")


Plugins.instance().register(ParsedOnce)
Plugins.instance().register(RecipeSearchPath)

"""Where Hydra finds this recipe's yaml and verl's: also for a yaml of the user's that begins with
`defaults: [async_dapo_trainer, _self_]`, since Hydra reads `hydra.searchpath` in the first yaml alone.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from .options import CONFIG_FOLDER


class RecipeSearchPath(SearchPathPlugin):
    """Appends both folders to every search path of this process, once this module is imported."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("async_dapo", f"file://{CONFIG_FOLDER}")
        search_path.append("verl", "pkg://verl.trainer.config")


Plugins.instance().register(RecipeSearchPath)

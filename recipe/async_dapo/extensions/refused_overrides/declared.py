"""Words for overrides that Hydra refuses: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(stands_on="known_options", explained="words.compose_each")

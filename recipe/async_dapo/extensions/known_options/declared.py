"""Options that something reads, in places that are known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(option_tree="tree.KnownOptions")

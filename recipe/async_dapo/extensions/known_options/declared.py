"""Options that verl, torch and vLLM know, in places that are known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(option_tree="tree.KnownOptions", checks="all_checks.all_checks")

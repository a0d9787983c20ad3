"""Options of other releases and trainers of verl: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(stands_on="known_options", checks="ignored.with_ignored", successor="old_keys.successor")

"""How often a property is tried whose examples take long."""

from hypothesis import settings

FEW = 40  # examples


def costly(parent: settings | None = None) -> settings:
    """The settings of such a property or, with its own ones as parent, of a state machine: fewer examples than of
    others, unless all tests run or new examples are looked for.
    """
    most = settings.default.max_examples
    return settings(parent, max_examples=min(FEW, most) if settings.get_current_profile_name() == "fixed" else most)

"""What other nodes need of the driver's: a place where an extension plugs in (`Declared.shipping`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from omegaconf import DictConfig

from ..config.extensions import of_copy


class Shipping(NamedTuple):
    """How code, files and variables reach other nodes.

    Attributes:
        staged: `staged(config, *beside)`: while it is open, `ray.init` with `ray_kwargs.ray_init` ships them; changes
            `config` in place. `beside`: packages in the recipe's own parent folder that other nodes need, too. Returns
            what is called when Ray has a copy of its own.
        localise: points options to what has been shipped to this node, in place.
    """

    staged: Callable[..., AbstractContextManager[Callable[[], None]]]
    localise: Callable[[DictConfig], None]


# Each node has them, at the same places.
_NOTHING = Shipping(staged=lambda config, *beside: nullcontext(lambda: None), localise=lambda config: None)


def shipping() -> Shipping:
    return of_copy("shipping") or _NOTHING

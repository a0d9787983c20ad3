"""What is known of all options together, verl's too: which keys there are, and what was meant by another one."""

from functools import cache

from omegaconf import DictConfig

from ..config.extensions import of_copy
from ..config.values import ConfigError
from .overrides import CommandLine


class OptionTree:
    """The tree of a copy that knows no more of it than Hydra does. An extension that knows more puts its own in
    (`Declared.option_tree`).

    Attributes:
        has_keys: whether it finds keys that nobody reads.
    """

    has_keys = False

    def without_unread(self, config: DictConfig) -> tuple[DictConfig, list[ConfigError]]:
        """The configuration without keys that nobody reads, and what is wrong with each of those."""
        return config, []

    def check_types(self, config: DictConfig) -> None:
        """Refuse values of a wrong type in options that no table of `verl_options` has.

        Raises:
            ConfigError: naming key, value and remedy.
        """

    def explained(self, line: CommandLine, error: Exception) -> tuple[DictConfig | None, list[ConfigError]]:
        """The configuration without overrides that Hydra cannot read or apply, if it can be had without them, and what
        is wrong with each of those.

        Args:
            error: what Hydra says of the first.
        """
        return None, [ConfigError("overrides", "<refused>", f"Hydra says: {plain(error)}")]


def plain(error: Exception) -> str:
    """What Hydra says, on one line, without its advice."""
    return " ".join(str(error).partition("Config search path:")[0].partition("\nSee https")[0].split())


@cache
def option_tree() -> OptionTree:
    """That of this copy."""
    return (of_copy("option_tree") or OptionTree)()

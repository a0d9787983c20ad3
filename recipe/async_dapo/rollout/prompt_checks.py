"""What a start asks of a codec (`codec.py`): whether training can give the model all that it takes of a prompt."""

from collections.abc import Callable, Collection
from typing import Any

from omegaconf import DictConfig

from ..config.extensions import not_in_copy
from ..config.values import refused

ABSENT = not_in_copy("pictures", "take prompts and a model of text")


class PromptChecks:
    """The checks of a copy that serves prompts of text alone.

    Attributes:
        kinds: of items that it serves, of `MEDIA` of `codec.py`.
    """

    kinds: Collection[str] = ()

    async def shown(self, messages: Any, *, processor: Any, dataset_cls: Any, data: DictConfig) -> dict[str, Any]:
        """What verl's agent loops show to the policy beside the tokens of these messages."""
        return {}

    def check_model(self, config: DictConfig, model: Any) -> None:
        """See that training can give the model all that it takes.

        Args:
            model: verl's `HFModelConfig`.

        Raises:
            ConfigError: if it takes what this codec does not serve.
        """
        if model.processor is not None:
            what = f"a {model.hf_config.model_type} is trained as a model of pictures: {ABSENT}"
            raise refused(config, "actor_rollout_ref.model.path", what)

    def check_row(
        self, config: DictConfig, key: str, row: dict[str, Any], *, model: Any, loop: str, loop_class: Callable[[], Any]
    ) -> None:
        """See that a row's prompt can be shown to the model; it has items of `kinds` only.

        Args:
            key: of the option to blame.
            model: verl's `HFModelConfig`.
            loop: the agent loop that shows it.
            loop_class: finds its class; None of verl's own.

        Raises:
            ConfigError: if it cannot.
        """

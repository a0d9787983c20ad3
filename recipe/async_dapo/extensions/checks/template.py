"""A chat template that leaves out what is asked, such as the name of a file in place of a text."""

from omegaconf import DictConfig

from ...config.values import refused
from ...startup.data_check import Prompts

_TWO_PROMPTS = ("12", "345")  # which any template has to tell apart
_MODEL = "actor_rollout_ref.model."


def check_template(config: DictConfig, prompts: Prompts) -> None:
    """
    Raises:
        ConfigError: naming key, value and remedy.
    """
    rendered = {tuple(prompts.tokens([{"role": "user", "content": text}])) for text in _TWO_PROMPTS}
    template = config.actor_rollout_ref.model.custom_chat_template
    if len(rendered) == len(_TWO_PROMPTS):
        return
    if template is None:
        remedy = f"its chat template makes the same tokens of {' and '.join(_TWO_PROMPTS)}; correct it"
        raise refused(config, _MODEL + "path", remedy)
    remedy = (
        "is the text of a template, and makes the same tokens of every prompt; give the text, or keep it as "
        "chat_template.jinja beside a copy of the tokenizer, and name that folder: "
        f"{_MODEL}tokenizer_path"
    )
    raise refused(config, _MODEL + "custom_chat_template", remedy)

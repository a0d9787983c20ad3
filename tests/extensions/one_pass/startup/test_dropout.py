"""Whether a model leaves parts out at random."""

import pytest
from peft import LoraConfig

from recipe.async_dapo.extensions.one_pass.passes import has_dropout


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_adapters_own_dropout_counts_as_the_models(run, tmp_path, dropout: float) -> None:
    """An update that computes pi_prox itself would compute it with parts of the adapter left out."""
    LoraConfig(r=4, lora_dropout=dropout).save_pretrained(tmp_path)
    model = "actor_rollout_ref.model"
    assert has_dropout(run(f"{model}.lora_adapter_path={tmp_path}", f"{model}.lora_rank=4")) is (dropout > 0)

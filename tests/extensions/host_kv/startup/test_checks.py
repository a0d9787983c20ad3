"""Models whose state does not go to host memory, and host memory that is not there."""

import json
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.host_kv.checks import check_memory
from recipe.async_dapo.startup.preflight import findings

from ....support.composed_runs import refusal
from ....support.refusals import in_full


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (
            {
                "model_type": "lfm2",
                "architectures": ["Lfm2ForCausalLM"],
                "layer_types": ["conv", "full_attention"],
            },
            "conv",
        ),
        ({"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"]}, "hybrid"),
    ],
    ids=["conv", "hybrid"],
)
def test_a_model_with_layers_that_have_a_state_is_refused(run, files, tmp_path, kind, found):
    model = shutil.copytree(files / "model", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    del config["layer_types"]
    (model / "config.json").write_text(json.dumps(config | kind))
    padded = (f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.use_remove_padding=False")
    said = f"async_dapo.host_kv_gib=1: the model has layers of {found}, whose"
    assert refusal(run, *padded, *in_full("host_kv")).startswith(said)


@pytest.mark.parametrize(("gib", "gpus", "fits"), [(7, 8, True), (9, 8, False), (9, 2, True)])
def test_host_memory_for_kv_that_a_node_does_not_have_is_refused(run, monkeypatch, gib, gpus, fits):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=64 * 2**30))
    config = run(f"async_dapo.host_kv_gib={gib}", f"trainer.n_gpus_per_node={gpus}")
    with nullcontext() if fits else pytest.raises(ConfigError, match=r"host_kv_gib=9: .* 64 GiB .* at most 8, less"):
        check_memory(config)


def test_a_run_looks_at_host_memory_where_its_kv_goes_there_and_nowhere_else(run):
    def names(*overrides: str) -> set[str]:
        return {one.name for one in findings(run(*in_full(" ".join(overrides)))) if one.error is None}

    assert names("host_kv") - names() == {"host memory"}

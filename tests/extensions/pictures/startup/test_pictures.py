"""Pictures in the data are rendered as agent loops render them, and refused where the model cannot be shown them."""

import importlib.util
import json
import shutil

import pyarrow.parquet as pq
import pytest

from recipe.async_dapo.extensions.pictures import start_up
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo_lab.gpu_check.families import TinyModel, qwen2_5_vl

from ....support.composed_runs import needs_checks, refusal, row, write_parquet
from ....support.families import qwen3_vl

# transformers' processors, with numpy 2.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    needs_checks,
]

PICTURES_TOK = 4 + 2  # of 56 x 56 pixels, and what encloses them


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {
        make.__name__: TinyModel(make=make, has_pictures=True).write(folder / make.__name__)
        for make in (qwen2_5_vl, qwen3_vl)
    }


def overrides(assets) -> tuple[str, ...]:
    data = (f"data.train_files={assets.train_file}", f"data.val_files={assets.validation_file}")
    return (f"actor_rollout_ref.model.path={assets.model}", *data, "data.filter_overlong_prompts=False")


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_given_pictures_when_checked_then_their_tokens_count(run, families, family):
    """One prompt in two has two pictures, as bytes or by path."""
    named = overrides(families[family])
    text_tok = (
        len("<|im_start|>u\n00<|im_end|>\n<|im_start|>a\n") - 2 * (len("<|im_start|>") - 1) - len("<|im_end|>") + 1
    )
    longest = text_tok + 2 * PICTURES_TOK
    check_all(run(*named, f"data.max_prompt_length={longest}"))
    message = refusal(run, *named, f"data.max_prompt_length={longest - 1}")
    assert f"has a prompt of {longest} tokens" in message and "{'type': 'image'}, {'type': 'image'}" in message


@pytest.mark.filterwarnings("ignore:Failed to create processor")  # verl says so, and goes on without
def test_given_pictures_when_packages_or_processor_are_missing_then_they_are_named(
    run, families, tmp_path, monkeypatch
):
    named, found = overrides(families["qwen3_vl"]), importlib.util.find_spec
    monkeypatch.setattr(start_up, "find_spec", lambda name: None if name == "qwen_vl_utils" else found(name))
    assert "pictures need packages that are not installed; run: pip install qwen-vl-utils" in refusal(run, *named)
    monkeypatch.undo()
    model = shutil.copytree(families["qwen3_vl"].model, tmp_path / "model")
    (model / "processor_config.json").unlink()
    message = refusal(run, *named, f"actor_rollout_ref.model.path={model}")
    assert "transformers finds no processor that it can load" in message


def test_given_adapters_of_a_vision_tower_when_checked_then_they_are_refused(run, families):
    """Of what vLLM leaves out and of what verl does not merge engines would know nothing."""
    named = (*overrides(families["qwen2_5_vl"]), "actor_rollout_ref.model.lora_rank=8")
    key = "actor_rollout_ref.model.exclude_modules"
    assert refusal(run, *named).startswith(f"{key}=None: adapters of qwen2_5_vl's vision tower would be trained, and")
    check_all(run(*named, f"{key}='.*visual.*'"))
    check_all(run(*named, "actor_rollout_ref.model.target_modules='.*language_model.*q_proj'"))


def test_given_prompts_without_pictures_when_checked_then_only_a_class_that_needs_them_refuses(run, families, tmp_path):
    train = families["qwen2_5_vl"].train_file
    rows = [one | {"images": []} | {"prompt": row(0)["prompt"]} for one in pq.read_table(train).to_pylist()[:8]]
    mixed = write_parquet(tmp_path / "mixed.parquet", [*pq.read_table(train).to_pylist(), *rows])
    named = f"data.train_files={mixed}"
    check_all(run(*overrides(families["qwen3_vl"]), named))
    message = refusal(run, *overrides(families["qwen2_5_vl"]), named)
    assert "has a prompt without pictures: " in message and "cannot train qwen2_5_vl on text alone" in message


def test_given_a_picture_that_cannot_be_read_when_checked_then_its_prompt_is_named(run, families, tmp_path):
    rows = pq.read_table(families["qwen3_vl"].validation_file).to_pylist()
    rows[1]["images"][0] = str(tmp_path / "missing.png")
    named = f"data.val_files={write_parquet(tmp_path / 'val.parquet', rows)}"
    message = refusal(run, *overrides(families["qwen3_vl"]), named)
    assert "the chat template fails on" in message and "missing.png" in message, json.dumps(message)

"""Sizes and speeds of real models on real accelerators, what does not fit; costs of drafts, and fitted to records."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from docs.declared import ENGINE_CONSTANTS
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.calibration import calibrate
from recipe.async_dapo_lab.plan.costs import ENGINES, DraftCost, ServerConstants
from recipe.async_dapo_lab.plan.hardware import MODEL_PRESETS as PRESETS
from recipe.async_dapo_lab.plan.hardware import find_accelerator, load_model
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.model_size import BYTES_PER_VALUE, shape_of

from ..support.documents import ROOT
from ..support.plan_settings import small_scenario
from ..support.texts import any_text

GPU = ROOT / "assets" / "gpu"

# Billions of parameters, by the models' own cards.
PARAMETERS = {
    "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02, "qwen3-8b": 8.19, "qwen3-14b": 14.77, "qwen3-32b": 32.76,
    "r1-distill-qwen-1.5b": 1.78, "r1-distill-qwen-7b": 7.62, "mimo-7b": 7.62, "qwen2.5-7b": 7.62,
    "qwen2.5-32b": 32.76, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "mixtral-8x7b": 46.7, "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09, "qwen3.5-35b-a3b": 35.11,
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_parameters_of_its_model(name):
    assert load_model(name).weight_bytes / BYTES_PER_VALUE / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


def test_a_model_file_that_is_no_object_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1]")
    with pytest.raises(ConfigError, match=r"model=.*is JSON, but no object; give a Hugging Face config\.json"):
        load_model(str(path))


QWEN3_NEXT_80B = {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "shared_expert_intermediate_size": 512,
}  # fmt: skip


def test_given_linear_attention_then_only_full_layers_grow_and_a_request_has_its_state_beside():
    hybrid, full = (shape_of(QWEN3_NEXT_80B | {"full_attention_interval": n}, name="any") for n in (4, 1))
    assert hybrid.kv_bytes_per_token == 24_576 == full.kv_bytes_per_token / 4
    assert hybrid.attention_flops_per_token2 == full.attention_flops_per_token2 / 4
    assert hybrid.request_bytes(1) == hybrid.request_bytes(10**6) == BYTES_PER_VALUE * 36 * 32 * 128 * 128
    assert hybrid.parameters == pytest.approx(79.67e9, rel=0.01)  # by its card
    on_four = {"tensor_parallel_size": 4, "accelerator": find_accelerator("h200")}
    assert small_scenario(model=hybrid, **on_four).step_cost().request_kv_tok == 768  # two copies of each KV head
    assert small_scenario(model=full, **on_four).step_cost().request_kv_tok == 0


@pytest.mark.parametrize(("accelerator", "room_tok"), [("h800", 320_000), ("h200", 677_000)])
def test_given_qwen3_8b_then_the_kv_room_is_the_known_one(accelerator, room_tok):
    cost = small_scenario(accelerator=find_accelerator(accelerator)).step_cost()
    assert cost.kv_room_tok == pytest.approx(room_tok, rel=0.03)


def test_the_default_engine_is_the_one_that_was_measured():
    """What was measured, and what the planner says of the same cells."""
    constants = ENGINES[Inputs().engine]
    found = json.loads((GPU / "constants.json").read_text())
    assert {name: getattr(constants, name) for name in found} == found
    cost = small_scenario(accelerator=find_accelerator("h100")).step_cost()
    cells = [json.loads(line) for line in (GPU / "calibration.jsonl").read_text().splitlines()]
    assert len(cells) == 8
    for cell in cells:
        step_s = cost.decode_s(1, cell["inflight"], cell["kv_tok"])
        assert step_s == pytest.approx(cell["inflight"] / cell["tokens_per_s"], rel=0.1), cell


def test_an_engine_is_chosen_by_name_and_its_constants_one_by_one():
    older = Inputs.load({"engine": "published-2025", "request_overhead_ms": 0.2}).scenario().constants
    assert older == replace(ENGINES["published-2025"], request_overhead_ms=0.2)


@pytest.mark.parametrize("name", ENGINE_CONSTANTS)
def test_each_constant_that_the_page_calls_an_input_can_be_given(name):
    assert getattr(Inputs.load({name: 0.5}).scenario().constants, name) == 0.5


def test_the_gpus_of_a_server_add_up_twice_in_each_layer_of_a_step():
    one, two = (small_scenario(tensor_parallel_size=n).step_cost() for n in (1, 2))
    overhead_s = ServerConstants().step_overhead_ms / 1e3
    assert two.base_s - overhead_s == pytest.approx((one.base_s - overhead_s) / 2 + 2 * 36 * 10e-6)


@given(st.floats(0.1, 10))
def test_a_factor_of_engines_is_one_of_all_their_seconds(factor):
    """Drafts, steps that are not planned ahead and the stop among them; what is copied to the host takes the same share
    of a prefill."""
    usual, slow = (small_scenario(engine_factor=f, drafts_accepted=0.6) for f in (1.0, factor))
    for kind in ({}, {"drafts": True}, {"host_kv": True}):
        quick, long = usual.step_cost(**kind), slow.step_cost(**kind)
        assert long.decode_s(7, 9, 5000) == pytest.approx(factor * quick.decode_s(7, 9, 5000))
        assert long.prefill_s(900) == pytest.approx(factor * quick.prefill_s(900))
    assert slow.stop_s == pytest.approx(factor * usual.stop_s)
    assert slow.copy_share == pytest.approx(usual.copy_share)


def test_given_qwen3_8b_on_an_h200_then_a_decode_step_takes_what_its_memory_traffic_takes():
    cost = small_scenario(constants=ServerConstants(step_overhead_ms=1.5, request_overhead_ms=0.03)).step_cost()
    weights_s, kv_s = 16.38e9 / 4.8e12, 500_000 * 147_456 / 4.8e12
    assert cost.decode_s(1, 100, 500_000) == pytest.approx(weights_s + kv_s + 100 * 0.03e-3 + 1.5e-3, rel=0.001)


def test_given_a_mixture_of_experts_then_a_step_reads_those_that_its_tokens_are_sent_to():
    model, one = load_model("qwen3.5-35b-a3b"), {"request_overhead_ms": 0.0, "step_overhead_ms": 0.0}
    scenario = small_scenario(model=model, constants=ServerConstants(**one), accelerator=find_accelerator("h200"))
    cost, drafting = scenario.step_cost(), scenario.step_cost().with_drafts(DraftCost(accepted_tok=1, drafted_tok=3))
    others = model.weight_bytes - BYTES_PER_VALUE * model.expert_parameters * (256 - 8) / 256
    assert cost.batch_s(1) == pytest.approx(others / 4.8e12)
    assert cost.batch_s(10_000) == pytest.approx(model.weight_bytes / 4.8e12)
    assert 2 * drafting.batch_s(5) == pytest.approx(cost.batch_s(20)), "four tokens a request are verified at once"


def test_given_fewer_kv_heads_than_gpus_then_each_keeps_a_copy():
    two, four = (
        small_scenario(model=load_model("qwen3.5-35b-a3b"), tensor_parallel_size=size).step_cost() for size in (2, 4)
    )
    assert four.per_kv_token_s == two.per_kv_token_s, "two heads: each of four GPUs reads as much as each of two"
    assert four.kv_room_tok < 2 * two.kv_room_tok and four.request_kv_tok == two.request_kv_tok / 2 == 1536


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "JSON"),
        ('{"hidden_size": 64}', "num_hidden_layers"),
        ('{"kv_lora_rank": 512}', "latent attention is not modelled"),
        ('{"num_hidden_layers": "36"}', "its config.json has num_hidden_layers='36', needs a whole number in 1..10000"),
        ('{"text_config": 3}', "its config.json has text_config=3, needs an object"),
    ],
)
def test_given_a_config_json_that_says_too_little_then_the_error_names_what_is_missing(tmp_path, config, words):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=words):
        load_model(str(tmp_path))


DENSE = {**PRESETS["qwen3-8b"], "sliding_window": 4096, "sliding_window_pattern": 6}
SEEING = {"text_config": PRESETS["qwen3-4b"], "vision_config": PRESETS["qwen3.5-35b-a3b"]["vision_config"]}
# Lists of layers, and other names of what the others say.
OTHER_FIELDS = ("layer_types", "num_local_experts", "n_shared_experts", "attention_chunk_size", "model_type")
JSON = st.none() | st.booleans() | st.integers() | st.floats() | any_text()
ANY_JSON = st.recursive(JSON, lambda inner: st.lists(inner) | st.dictionaries(any_text(), inner), max_leaves=5)


@pytest.mark.slow
@given(st.data(), ANY_JSON | st.integers(0, 2**40))
def test_whatever_a_field_of_a_config_json_holds_then_sizes_are_sizes_or_the_error_names_it(data, value):
    whole = data.draw(st.sampled_from((DENSE, QWEN3_NEXT_80B, SEEING)))
    within = data.draw(st.sampled_from(("text_config", "vision_config", None) if whole is SEEING else (None,)))
    part = whole if within is None else whole[within]
    key = data.draw(st.sampled_from((*part, *OTHER_FIELDS)))
    changed = {**part, key: value}
    size, said = None, ""
    try:
        size = shape_of(changed if within is None else {**whole, within: changed}, name="any")
    except ConfigError as error:
        said = str(error)
    if size is None:
        assert said.startswith("model=any: its config.json ")
        return
    assert 0 < size.active_parameters <= size.parameters < 1e40
    assert size.kv_bytes_per_token + size.window_bytes_per_token > 0
    assert min(size.full_layers, size.window_layers, size.window_tok, size.state_bytes) >= 0


def test_given_a_kv_cache_of_half_the_bytes_then_twice_as_many_tokens_fit_and_are_read_in_the_same_time():
    usual = Inputs.load({}).scenario().step_cost()
    half = Inputs.load({"kv_cache_dtype": "fp8"}).scenario().step_cost()
    assert half.kv_room_tok == pytest.approx(2 * usual.kv_room_tok, abs=2)
    assert half.per_kv_token_s == pytest.approx(usual.per_kv_token_s / 2)
    with pytest.raises(ConfigError, match="kv_cache_dtype=int3: must be one of auto, fp8"):
        Inputs.load({"kv_cache_dtype": "int3"}).scenario()


WINDOW = {"sliding_window": 4096}
LISTED = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12}
CONVOLUTIONS = {"layer_types": ["conv", "conv", "full_attention", "conv"] * 4}


@pytest.mark.parametrize(
    ("kind", "layers", "config"),
    [
        ("qwen2", 28, {"sliding_window": 131_072, "use_sliding_window": False, "max_window_layers": 28}),
        ("qwen3", 36, {"sliding_window": None, "max_window_layers": 36}),
        ("qwen3_next", 48, {"full_attention_interval": 4}),
        ("gpt_oss", 24, LISTED),
        ("gemma2", 42, WINDOW),
        ("gemma3_text", 62, WINDOW),
        ("cohere2", 32, WINDOW | {"sliding_window_pattern": 4}),
        ("lfm2", 16, CONVOLUTIONS),
    ],
)
def test_a_config_json_says_of_layers_what_transformers_reads_in_it(kind, layers, config):
    shape = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    config = shape | config | {"num_hidden_layers": layers, "num_experts_per_tok": 1, "model_type": kind}
    read = CONFIG_MAPPING[kind](**config)
    size, kinds = shape_of(config, name=kind), read.layer_types
    assert size.parameters == shape_of(config | {"tie_word_embeddings": read.tie_word_embeddings}, name=kind).parameters
    assert size.full_layers == kinds.count("full_attention")
    assert size.window_layers == kinds.count("sliding_attention")


BASE_S, PER_REQUEST_S = 0.004, 0.0005


def write(path, rows) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_given_throughputs_with_cache_sizes_then_all_three_terms_are_found(tmp_path):
    rng = random.Random(1)
    rows = []
    for _ in range(50):
        inflight, kv_tok = rng.randint(1, 200), rng.randint(1000, 600_000)
        step_s = BASE_S + PER_REQUEST_S * inflight + 4e-8 * kv_tok
        rows.append({"inflight": inflight, "kv_tok": kv_tok, "tokens_per_s": inflight / step_s})
    fitted = calibrate(write(tmp_path / "t.jsonl", rows))
    assert (fitted.base_s, fitted.per_request_s, fitted.per_kv_token_s) == pytest.approx((BASE_S, PER_REQUEST_S, 4e-8))


def test_given_a_measured_step_then_a_simulated_engine_takes_it_and_prefills_by_arithmetic(tmp_path):
    measured = calibrate(write(tmp_path / "one.jsonl", [{"inflight": 8, "tokens_per_s": 1000}]))
    plain, fitted = small_scenario().step_cost(), small_scenario(measured=measured).step_cost()
    assert fitted.decode_s(1, 8, 0) == pytest.approx(0.008) != plain.decode_s(1, 8, 0)
    assert fitted.prefill_s(1000) == plain.prefill_s(1000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("[1]", "the file is empty"),
        ("{", "line 1 is not JSON"),
        ('{"inflight": 3}', "no line can be used"),
        ('{"inflight": 0, "tokens_per_s": 1}', "no line can be used"),
        ('{"inflight": "eight", "tokens_per_s": 1}', "a line has inflight=eight; it must be a number >= 0"),
        ('{"inflight": 8, "tokens_per_s": NaN}', "a line has tokens_per_s=nan"),
        ('{"inflight": 8, "tokens_per_s": -1}', "a line has tokens_per_s=-1"),
        ('{"inflight": 8, "tokens_per_s": 1, "kv_tok": [1]}', "a line has kv_tok="),
        (
            '{"inflight": 1, "kv_tok": 100, "tokens_per_s": 10}\n{"inflight": 1, "kv_tok": 200, "tokens_per_s": 5}',
            "take no time per token",
        ),
    ],
)
def test_given_a_bad_record_then_the_error_says_what_a_line_needs(tmp_path, text, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        calibrate(str(path))


NEWER = ServerConstants(bandwidth_share=0.77, step_overhead_ms=1.5, request_overhead_ms=0.03)


@pytest.mark.parametrize(
    ("accepted", "ratio", "context_tok", "gain"),
    [(0.4, 0.27, 6000, 1.075), (0.6, 0.4, 6000, 1.23), (0.9, 0.45, 6000, 1.42)],
)
def test_an_8b_on_an_h100_that_is_full_gains_what_arithmetic_says(accepted, ratio, context_tok, gain):
    """52 requests fill the cache; a step takes 27.2 ms without drafts, with them 3 ms more, and for each request 0.05
    ms to draft and 0.03 ms for a drafted token to verify.
    """
    scenario = small_scenario(
        accelerator=find_accelerator("h100"), constants=NEWER, drafts_accepted=accepted, drafts_accepted_ratio=ratio
    )
    plain, drafting = scenario.step_cost(), scenario.step_cost(drafts=True)
    requests = plain.kv_room_tok // context_tok
    kv_tok = requests * context_tok
    assert plain.decode_s(1, requests, kv_tok) / drafting.decode_s(1, requests, kv_tok) == pytest.approx(gain, rel=0.01)
    assert drafting.kv_room_tok == plain.kv_room_tok and drafting.prefill_s(100) == plain.prefill_s(100)


def test_what_is_not_said_of_drafts_is_named():
    with pytest.raises(ConfigError, match="drafts_accepted=None: say how many tokens of drafts are accepted"):
        small_scenario().step_cost(drafts=True)


def test_engines_with_kv_in_host_memory_pay_for_the_steps_that_are_not_planned_ahead() -> None:
    scenario = small_scenario(drafts_accepted=0.4, drafts_accepted_ratio=0.27)
    plain, host_kv = scenario.step_cost(), scenario.step_cost(host_kv=True)
    assert host_kv.decode_s(10, 8, 1000) - plain.decode_s(10, 8, 1000) == pytest.approx(10 * 0.002)
    assert scenario.step_cost(drafts=True, host_kv=True) == scenario.step_cost(drafts=True)

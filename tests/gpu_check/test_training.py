"""What is said of three training steps, and what is started for them."""

from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo_lab.gpu_check.assets import SMALL, make_config, make_model, prepare_family
from recipe.async_dapo_lab.gpu_check.training import BOUNDS, CASES, Case, judge_training, overrides
from recipe.async_dapo_lab.gpu_check.verdicts import Status
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP

from ..support.composed_runs import compose_run, rows, write_model, write_parquet

CASE = Case(name="partial")
B = PROMPTS_PER_STEP


def step(number: int, **changed: float) -> dict[str, float]:
    """Metrics of a good one."""
    terms = {"trained": B * number, "filtered": 3.0, "failed": 0.0, "retired": 0.0}
    terms |= {"waiting": 1.0, "deferred": 0.0, "buffered": 4.0}
    good = {f"async_dapo/ledger/{term}": value for term, value in terms.items()}
    good |= {
        "async_dapo/ledger/drawn": sum(terms.values()),
        "async_dapo/round/trained_groups": B,
        "async_dapo/partial/found_tokens": 64.0,
        "async_dapo/failure/groups": 0.0,
        "async_dapo/load_balancer/lost_servers": 0.0,
        "async_dapo/early_stop/stop_latency_s": 0.05,
        "async_dapo/importance/not_finite_tokens": 0.0,
        "async_dapo/importance/overall/ess_ratio": 0.99,
        "async_dapo/importance/overall/k3_kl": 1e-4,
        "async_dapo/importance/staleness_0/ratio_max": 1.1,
        "timing_s/step": 4.0,
    }
    return good | changed


def judge(steps: list[dict[str, float]], ended: str = "", case: Case = CASE) -> Any:
    return judge_training(steps, ended, case=case, bounds=BOUNDS["cuda"])


def test_given_good_steps_when_judged_then_they_pass() -> None:
    verdict = judge([step(1), step(2), step(3)])
    assert verdict.status is Status.PASS and "steps of 4.0, 4.0, 4.0 s" in verdict.found


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("ledger/drawn", 99.0, "ledger does not close: 99 drawn"),
        ("round/trained_groups", B - 1, f"trained on {B - 1} groups"),
        ("failure/groups", 2.0, "2 groups failed"),
        ("early_stop/stop_latency_s", 9.0, "engines stopped after 9.0 s"),
        ("importance/not_finite_tokens", 1.0, "are not finite"),
        ("importance/overall/ess_ratio", 0.1, "effective sample size 0.1"),
        ("importance/overall/ess_ratio", float("nan"), "effective sample size nan"),
        ("importance/staleness_0/ratio_max", 9.0, "a fresh token has a ratio of 9.0"),
        ("importance/staleness_0/ratio_max", float("nan"), "a fresh token has a ratio of nan"),
    ],
)
def test_given_a_broken_step_when_judged_then_the_step_and_what_is_wrong_are_told(
    name: str, value: float, found: str
) -> None:
    verdict = judge([step(1), step(2, **{f"async_dapo/{name}": value}), step(3)])
    assert verdict.is_failure and verdict.found.startswith("step 2: ") and found in verdict.found and verdict.remedy


def test_given_a_first_step_whose_tokens_are_all_fresh_when_they_differ_on_average_then_it_fails() -> None:
    other = {"async_dapo/importance/overall/k3_kl": 0.1}
    assert "step 1: fresh tokens have a k3 KL of 0.1" in judge([step(1, **other), step(2), step(3)]).found
    none = {"async_dapo/importance/overall/k3_kl": float("nan")}
    assert "step 1: fresh tokens have a k3 KL of nan" in judge([step(1, **none), step(2), step(3)]).found
    assert judge([step(1), step(2, **other), step(3)]).status is Status.PASS  # older tokens differ


def test_given_too_few_steps_when_judged_then_the_end_of_the_run_is_told() -> None:
    verdict = judge([step(1)], "async_dapo: CUDA error: out of memory")
    assert verdict.is_failure and "1 of 3 steps: async_dapo: CUDA error: out of memory" in verdict.found


def test_given_steps_of_old_tokens_alone_when_judged_then_they_fail_for_they_show_nothing() -> None:
    old = [{key: value for key, value in step(n).items() if "staleness_0" not in key} for n in (1, 2, 3)]
    assert judge(old).is_failure and "no step has tokens of its own version" in judge(old).found


def test_given_a_killed_engine_when_judged_then_exactly_one_must_be_lost() -> None:
    killed, lost = Case(name="killed", gpus=2, kills_an_engine=True), {"async_dapo/load_balancer/lost_servers": 1.0}
    steps = [step(1), step(2, **lost), step(3, **lost)]
    assert judge(steps, case=killed).status is Status.PASS
    assert "0 engines were lost, 1 killed" in judge([step(1), step(2), step(3)], case=killed).found
    assert "1 engines were lost, 0 killed" in judge(steps).found


def test_given_kv_in_host_memory_when_judged_then_some_must_be_found_there() -> None:
    host = Case(name="host", strategy="partial_stale_kv", host_kv_gib=1.0)
    lines = [[step(n, **{"async_dapo/partial/found_tokens": tok}) for n in (1, 2, 3)] for tok in (0.0, 64.0)]
    assert [judge(one, case=host).status is Status.PASS for one in lines] == [False, True]


ALIKE = ("partial", "discard", "consistent", "partial, first model runner", "partial, compiled")
CHECKED = [case for case in CASES if case.name not in ALIKE and case.package != "arctic_inference"]
CHECKED.append(Case(name="two engines", gpus=2))
ON_A_CPU = [case for case in CASES if not (case.on_gpus_only or case.package)]


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    assets = Assets(folder=tmp_path_factory.mktemp("made_here"))
    write_model(assets.model)
    write_parquet(assets.train_file, rows(32))
    write_parquet(assets.validation_file, rows(8))
    return assets


@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl announces at every check that GRPO needs none
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # transformers' processors, with numpy 2
@pytest.mark.filterwarnings("ignore:set sequence parallel")  # verl's, of Megatron on one GPU
@pytest.mark.parametrize(
    ("case", "device"),
    [*((case, "cuda") for case in CHECKED), *((case, "cpu") for case in ON_A_CPU)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_given_a_run_when_it_is_checked_then_its_options_are_in_order(
    case: Case, device: str, assets: Assets, tmp_path: Path
) -> None:
    """Of what does not need a GPU to be known."""
    for _ in range(2 if case.family else 0):  # the second time over what an earlier run has left
        assets = prepare_family(case.family, tmp_path / "family", device=device)
    own = overrides(case, assets, assets.model, device=device, folder=tmp_path, ray_folder=tmp_path)
    here = ["trainer.device=cpu"] if device == "cuda" else []
    config = compose_run([one for one in own if not one.startswith("hydra.")] + here)
    check_all(config)
    if device == "cuda":
        assert config.actor_rollout_ref.actor.use_dynamic_bsz
        assert config.actor_rollout_ref.model.use_remove_padding == (not case.family)
        assert config.actor_rollout_ref.rollout.free_cache_engine


def test_given_a_model_made_here_then_its_heads_have_real_sizes(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    small = make_model(tmp_path / "small", seed=0, shape=SMALL | {"num_hidden_layers": 1})
    model = AutoModelForCausalLM.from_pretrained(small)
    config = model.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (16, 8, 128)
    assert config.vocab_size == len(AutoTokenizer.from_pretrained(small)) == model.lm_head.weight.shape[0]
    large = AutoConfig.from_pretrained(make_config(tmp_path / "large"))
    assert (large.hidden_size, large.num_hidden_layers, large.vocab_size) == (4096, 36, 151_936)
    assert not list((tmp_path / "large").glob("*.safetensors"))

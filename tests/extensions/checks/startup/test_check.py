"""A check before a run finds mistakes of each kind at once."""

from collections import Counter

import pytest

from recipe.async_dapo.check import main
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.checks import all_checks
from recipe.async_dapo.startup.preflight import check_all, findings

from ....support.composed_runs import refusal, valid_overrides

ROLLOUT, ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_given_several_mistakes_of_each_kind_when_checked_then_each_has_a_line(run, tmp_path):
    mistakes = {
        "verl's options": [f"{ROLLOUT}top_p=0.9", "data.truncation=left"],
        "options together": ["algorithm.adv_estimator=grop", "trainer.logger=[wandbb]", "trainer.critic_warmup=5"],
        "vLLM's arguments": [f"++{ROLLOUT}engine_kwargs.vllm.{name}" for name in ("max_model_len=48", "dtyp=fp8")],
        "keys": ["+trainer.save_freqq=2", f"++{ROLLOUT}temprature=0.7"],
        "verl's own checks": [f"{ACTOR}loss_agg_mode=mean"],
        "output folders": [f"trainer.{name}_data_dir={tmp_path}/file/out" for name in ("rollout", "validation")],
    }
    (tmp_path / "file").touch()
    config = run(*(override for overrides in mistakes.values() for override in overrides))
    found = Counter(finding.name for finding in findings(config) if finding.error is not None)
    assert {kind: found[kind] for kind in mistakes} == {kind: len(overrides) for kind, overrides in mistakes.items()}
    with pytest.raises(ConfigError, match=r"rollout\.temprature=0\.7: "):  # a training ends with the first
        check_all(config)


def test_given_what_no_check_foresees_when_checked_then_it_has_a_line_and_the_others_go_on(run, monkeypatch):
    def crash(*_: object) -> None:
        raise KeyError("ground_truth")

    monkeypatch.setattr(all_checks, "Prompts", crash)
    found = {finding.name: finding for finding in findings(run())}
    error = found["data"].error
    assert str(error).startswith("data=<not checked>: KeyError: 'ground_truth' (") and isinstance(
        error.__cause__, KeyError
    )
    assert found["reward function"].error is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["reward.reward_manager.name=dapoo"], "dapoo: verl says: Unknown reward manager: dapoo; set one of verl's"),
        ([f"{OVERLONG}.enable=True", f"{OVERLONG}.len=0"], "dapo: cannot be made: AssertionError('overlong_buffer."),
    ],
)
def test_given_what_verls_reward_manager_refuses_when_checked_then_it_is_told_in_its_words(run, overrides, said):
    assert refusal(run, *overrides).startswith(f"reward.reward_manager.name={said}")


def test_given_keys_that_do_not_exist_when_checked_then_each_is_named_and_the_other_checks_go_on(files, capsys):
    wrong = ("trainer.loger=x", "rollout.n=8", "+trainer.save_freqq=2", "+async_dapo.max_stalenes=3")
    assert main([*valid_overrides(files), *wrong, "algorithm.adv_estimator=grop"]) == 1
    shown = lines(capsys)
    bad = [line.split()[-1 if "did you mean" in line else 3] for line in shown if line.startswith("BAD ")]
    assert bad[:4] == [
        "trainer.logger?",
        "actor_rollout_ref.rollout.n?",
        "trainer.save_freq?",
        "async_dapo.max_staleness?",
    ]
    assert "did you mean grpo?" in " ".join(shown) and shown[-1].startswith("5 of the checks failed")
    assert any(line.startswith("ok   reward function") for line in shown)


def test_given_data_that_is_not_there_when_checked_then_the_reward_function_is_not_claimed_to_be_right(files, capsys):
    assert main([*valid_overrides(files), "data.val_files=nosuch.parquet", "data.train_files=nosuch.parquet"]) == 1
    [line] = [line for line in lines(capsys) if "reward function" in line]
    assert line.startswith("--   reward function") and "not tried: " in line and "no row of the data" in line

"""A check before a run finds wrong options of each kind at once."""

from collections import Counter

import pytest

from recipe.async_dapo.check import main
from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.startup.preflight import check_all, findings

from ....support.composed_runs import valid_overrides

ROLLOUT, ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def needs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not {*names} <= declared().keys(), reason=f"this copy lacks one of {', '.join(names)}")


@needs("known_values", "old_options", "vllm_arguments")
def test_given_several_mistakes_of_each_kind_when_checked_then_each_has_a_line(run):
    mistakes = {
        "verl's options": [f"{ROLLOUT}top_p=0.9", "data.truncation=left"],
        "options together": ["algorithm.adv_estimator=grop", "trainer.logger=[wandbb]", "trainer.critic_warmup=5"],
        "vLLM's arguments": [f"++{ROLLOUT}engine_kwargs.vllm.{name}" for name in ("max_model_len=48", "dtyp=fp8")],
        "keys": ["+trainer.save_freqq=2", f"++{ROLLOUT}temprature=0.7"],
        "verl's own checks": [f"{ACTOR}loss_agg_mode=mean"],
    }
    config = run(*(override for overrides in mistakes.values() for override in overrides))
    found = Counter(finding.name for finding in findings(config) if finding.error is not None)
    assert {kind: found[kind] for kind in mistakes} == {kind: len(overrides) for kind, overrides in mistakes.items()}
    with pytest.raises(ConfigError, match=r"rollout\.temprature=0\.7: "):  # a training ends with the first
        check_all(config)


@needs("refused_overrides")
def test_given_keys_that_do_not_exist_when_checked_then_each_is_named_and_the_other_checks_go_on(files, capsys):
    wrong = ("trainer.loger=x", "rollout.n=8", "+trainer.save_freqq=2", "+async_dapo.max_stalenes=3")
    assert main([*valid_overrides(files), *wrong, "trainer.critic_warmup=5"]) == 1
    shown = lines(capsys)
    bad = [line.split()[-1 if "did you mean" in line else 3] for line in shown if line.startswith("BAD ")]
    assert bad[:4] == [
        "trainer.logger?",
        "actor_rollout_ref.rollout.n?",
        "trainer.save_freq?",
        "async_dapo.max_staleness?",
    ]
    assert "trainer.critic_warmup=5: " in " ".join(shown) and shown[-1].startswith("5 of the checks failed")
    assert any(line.startswith("ok   model") for line in shown)


@needs("refused_overrides")
def test_given_a_yaml_of_the_users_that_has_a_key_nobody_reads_when_checked_then_it_is_named(files, tmp_path, capsys):
    own = "defaults: [async_dapo_trainer, _self_]\ntrainer: {save_freqq: 3}\n"
    (tmp_path / "mine.yaml").write_text(own)
    assert main(["--config-dir", str(tmp_path), "--config-name=mine", *valid_overrides(files)]) == 1
    [line] = [line for line in lines(capsys) if line.startswith("BAD ")]
    assert "trainer.save_freqq=3: nothing reads it; did you mean trainer.save_freq?" in line
    assert main(["--config-dir", str(tmp_path), "--config-name=other", *valid_overrides(files)]) == 1
    assert "BAD  overrides              --config-name=other: Hydra says: " in capsys.readouterr().out

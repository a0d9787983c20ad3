"""The command that checks a run: each check has a line, and the exit status says whether the run may start."""

import os
import re
import subprocess
import sys

import pytest

from recipe.async_dapo.check import main
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.startup.overrides import CommandLine, option_tree
from recipe.async_dapo.startup.preflight import checks_of
from recipe.async_dapo_lab import check
from recipe.async_dapo_lab.overrides import compose_overrides

from ....support.composed_runs import valid_overrides
from ....support.documents import ROOT


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_given_a_good_run_when_checked_then_every_check_has_a_line_and_the_run_is_told(files, capsys):
    assert check.main(valid_overrides(files)) == 0
    shown = lines(capsys)
    config = compose_overrides(valid_overrides(files))
    assert [line[5:27].strip() for line in shown if line.startswith("ok ")] == [
        "versions",
        *(["keys"] if option_tree().has_keys else []),
        "async_dapo options",
        *checks_of(config, AsyncDAPOConfig.from_hydra(config)),
    ]
    words = " ".join(shown)
    assert "1 engine of 1 x CPU." in words
    assert re.search(r"Everything is in order \(\d+\.\d s\)\.$", words)


def test_given_options_that_no_check_can_do_without_when_wrong_then_it_is_said_that_the_others_did_not_run(
    files, capsys
):
    assert main([*valid_overrides(files), "data.train_batch_size=many"]) == 1
    assert "The other checks need right options: correct these, and check again." in lines(capsys)


def test_given_a_yaml_of_the_users_when_checked_then_its_options_are(files, tmp_path, capsys):
    own = "defaults: [async_dapo_trainer, _self_]\ntrainer: {save_freq: often}\n"
    (tmp_path / "mine.yaml").write_text(own)
    assert main(["--config-dir", str(tmp_path), "--config-name=mine", *valid_overrides(files)]) == 1
    [line] = [line for line in lines(capsys) if line.startswith("BAD ")]
    assert "trainer.save_freq=often: must be a whole number" in line
    (tmp_path / "mine.yaml").write_text(own.replace("often", "3"))
    assert main(["--config-dir", str(tmp_path), "--config-name=mine", *valid_overrides(files)]) == 0
    flags = CommandLine.of(["-cd", str(tmp_path), "-cn", "mine", "data.seed=1"]).yaml_flags
    assert compose_overrides([*flags, "data.seed=1"]).trainer.save_freq == 3, "as evaluate composes a saved run"


def test_given_an_accelerator_that_is_not_known_when_checked_then_the_known_ones_are_named(files, capsys):
    assert check.main([*valid_overrides(files), "trainer.device=cuda", "rehearsal.accelerator=h10"]) == 1
    assert lines(capsys)[-1].startswith("BAD  in words               accelerator=h10: unknown; did you mean h100?")


@pytest.mark.slow
def test_adapters_are_checked_where_the_cpu_plugin_is_off(files):
    """As README has it: on a laptop with the CPU stack, without the plugin on PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name not in ("VERL_PLATFORM", "PYTHONPATH")}
    command = [sys.executable, "-m", "recipe.async_dapo.check", *valid_overrides(files)]
    command += ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.rollout.load_format=safetensors"]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout


def test_flags_are_no_overrides_and_nothing_to_check_is_no_run(capsys):
    assert main(["--help"]) == 0 and main([]) == 2
    assert capsys.readouterr().out.count("python -m recipe.async_dapo.check KEY=VALUE") == 2
    assert main(["-m", "trainer.save_freq=1,2"]) == main(["--cfg", "job"]) == main(["--config-name"]) == 2
    told = capsys.readouterr().out
    assert "-m=<given>: trains several runs" in told and "--cfg=<given>: is no flag" in told
    assert "--config-name/-cn=<missing>: name a folder, or a yaml in it" in told


def test_given_no_accelerator_when_checked_then_verl_does_not_warn_of_it():
    """As on a laptop, where a run on GPUs is looked at first."""
    environment = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    command = [sys.executable, "-m", "recipe.async_dapo_lab.check", "data.train_batch_size=many"]  # which ends it soon
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1 and "ok   versions" in ended.stdout
    assert ended.stderr == ""

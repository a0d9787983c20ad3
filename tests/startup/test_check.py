"""The check before a run: every mistake a line, an exit status, and the run in words."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from recipe.async_dapo.check import main
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, ConfigErrors, check_each
from recipe.async_dapo.startup.overrides import CommandLine, option_tree
from recipe.async_dapo.startup.preflight import checks_of, findings
from recipe.async_dapo_lab import check
from recipe.async_dapo_lab.overrides import before_overrides, compose_overrides
from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL

from ..support.composed_runs import ComposeRun, compose_run, override, valid_overrides
from ..support.documents import ROOT


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


ROLLOUT, ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."


def test_given_several_wrong_numbers_when_checked_then_each_has_a_line_and_no_check_reckons_with_them(run):
    wrong = ("data.train_batch_size=no", "trainer.test_freq=abc", f"{ACTOR}optim.lr=-1", f"{ROLLOUT}max_num_seqs=0")
    found = list(findings(run(*wrong)))
    assert {finding.name for finding in found} - {"keys"} == {"versions", "async_dapo options"}
    assert sorted(str(one.error).partition(":")[0] for one in found if one.error is not None) == sorted(wrong)


def test_several_errors_read_as_the_first_and_arrive_whole_from_another_process():
    def fail(key: str) -> None:
        raise ConfigError(key, 1, "is wrong; set 2")

    def crash() -> None:
        raise KeyError("a consequence")

    with pytest.raises(ConfigErrors) as found:
        check_each(
            [lambda: None, partial(fail, "a"), lambda: check_each([partial(fail, "b"), partial(fail, "c")]), crash]
        )
    assert str(found.value) == "a=1: is wrong; set 2"
    assert [error.args[0] for error in found.value.errors] == ["a", "b", "c"]
    with pytest.raises(KeyError):
        check_each([crash, partial(fail, "a")])


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


def test_given_flags_when_overrides_are_put_before_the_users_then_hydra_takes_all_in_one_piece():
    given = before_overrides(["--config-dir", "own", "--config-name", "mine", "data.seed=1", "data.seed=2"], "a.b=0")
    read = get_args_parser().parse_args(given)
    assert read.overrides == ["a.b=0", "data.seed=1", "data.seed=2"] and read.config_name == "mine"
    assert before_overrides(["--config-name", "mine"], "a.b=0") == ["--config-name", "mine", "a.b=0"]


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


@pytest.fixture(scope="module")
def run_on_gpus(files: Path) -> ComposeRun:
    gpus = ("trainer.device=cuda", "trainer.n_gpus_per_node=8", "rehearsal.accelerator=h100")
    valid = compose_run([*WITH_REHEARSAL, *valid_overrides(files), *gpus])
    return lambda *overrides: override(valid, overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rehearsal.accelerator=h100"], "8 engines of 1 x h100 (assumed: no GPU here, rehearsal.accelerator=h100)"),
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=2"], "4 engines of 2 x h100"),
    ],
)
def test_the_engines_are_those_that_the_options_come_to(run_on_gpus, overrides, words):
    assert check.in_words(run_on_gpus(*overrides)).startswith(words)


def test_an_engine_has_room_for_as_many_tokens_as_its_memory_holds(run_on_gpus):
    """Qwen3-8B at 0.5 of an H100's memory: (40 - 5 - 16.4) GB over 147,456 bytes a token."""
    config = run_on_gpus()
    config.actor_rollout_ref.model.path = "qwen3-8b"
    room_tok = int(re.search(r"room for ([\d,]+) tokens", check.in_words(config))[1].replace(",", ""))
    assert room_tok == pytest.approx((40e9 - 5e9 - 16.38e9) / 147_456, rel=0.01)
    assert ", 40% of what the planner assumes: gpu_memory_utilization=0.5, not 0.85." in check.in_words(config)
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.85
    assert "the planner assumes" not in check.in_words(config)
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.5
    config.actor_rollout_ref.model.path = "qwen3-32b"
    assert "it needs at least 2 GPUs per server" in check.in_words(config)

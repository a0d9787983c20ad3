"""A check before a run tries what its options name, and each mistake has a line."""

import pytest

from recipe.async_dapo.check import main
from recipe.async_dapo.extensions.checks import all_checks
from recipe.async_dapo.startup.preflight import findings

from ....support.composed_runs import refusal, valid_overrides

OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_given_two_folders_that_cannot_be_made_when_checked_then_each_has_a_line(run, tmp_path):
    (tmp_path / "file").touch()
    config = run(*(f"trainer.{name}_data_dir={tmp_path}/file/out" for name in ("rollout", "validation")))
    assert [one.name for one in findings(config) if one.error is not None] == 2 * ["output folders"]


def test_given_what_verls_reward_manager_refuses_when_checked_then_it_is_told_in_its_words(run):
    said = "reward.reward_manager.name=dapo: cannot be made: AssertionError('overlong_buffer."
    assert refusal(run, f"{OVERLONG}.enable=True", f"{OVERLONG}.len=0").startswith(said)


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


def test_given_data_that_is_not_there_when_checked_then_the_reward_function_is_not_claimed_to_be_right(files, capsys):
    assert main([*valid_overrides(files), "data.val_files=nosuch.parquet", "data.train_files=nosuch.parquet"]) == 1
    [line] = [line for line in lines(capsys) if "reward function" in line]
    assert line.startswith("--   reward function") and "not tried: " in line and "no row of the data" in line

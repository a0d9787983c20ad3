"""A reward function that cannot work is refused before Ray starts."""

import sys

import pytest

from recipe.async_dapo.extensions.checks.trial_group import TrialGroups
from recipe.async_dapo.startup.preflight import check_all, findings

from ....support.composed_runs import refusal, reward_of, rows, write_parquet, write_reward
from ....support.fork_server import executable

NOWHERE = ["data.train_files=/nowhere/train.parquet", "data.val_files=/nowhere/val.parquet"]
SLEEPS = "import time; time.sleep(30)"
NO_NUMBER = "which is no number and has none as `score`; return a finite number, or a dict with one as `score`"
# (body of the reward function, what the message must contain)
BAD_REWARDS = [
    ("return {'score': 1.0}", "reward.py returns only ['score']"),
    ("return {'acc': 1.0}", f"an empty answer failed: compute_score of reward.py returns {{'acc': 1.0}}, {NO_NUMBER}"),
    (
        "return {'score': None, 'acc': 1.0}",
        f"compute_score of reward.py returns {{'score': None, 'acc': 1.0}}, {NO_NUMBER}",
    ),
    ("return {'score': 1.0, 'acc': 'yes'}", "reward.py returns acc='yes', which is no finite number"),
    ("return float('nan')", "reward.py returns score=nan, which is no finite number"),
    ("return 1e300", "reward.py returns score=1e+300, which is no finite number"),
    ("return '0.5'", f"compute_score of reward.py returns '0.5', {NO_NUMBER}"),
    (
        "return {'score': 1.0, 'acc': 1.0, 'reward': 0.5}",
        "reward.py returns `reward`, verl's name for the score itself; rename it",
    ),
    ("return None", f"compute_score of reward.py returns None, {NO_NUMBER}"),
    (
        "return solution_str[0]",
        "an empty answer failed: IndexError('string index out of range') at reward.py:2",
    ),
    ("raise KeyboardInterrupt", "failed: KeyboardInterrupt() at reward.py:2"),
    ("raise SystemExit(0)", "failed: SystemExit(0) at reward.py:2"),
    ("import os; os._exit(3)", "process has ended (exit code 3)"),
    (SLEEPS, "gave no answer within async_dapo.reward.timeout_s=0.3"),
]


RETURNED = [body for body, _ in BAD_REWARDS if body.startswith(("return {", "return N", "return f"))]  # by either kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((reward_of(body, "def"), message) for body, message in BAD_REWARDS),
        *((reward_of(body, "async def"), message) for body, message in BAD_REWARDS if body not in RETURNED),
        (None, "cannot load it: FileNotFoundError"),
        ("def another(): pass", "has no attribute 'compute_score'"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def compute_score(:", "SyntaxError"),
    ],
    ids=lambda value: str(value).partition("None):")[2] or str(value),
)
def test_a_reward_function_that_cannot_work_is_refused(run, tmp_path, content, message):
    path = tmp_path / "reward.py"
    if content is not None:
        path.write_text(content)
    limit = ["async_dapo.reward.timeout_s=0.3"] if SLEEPS in (content or "") else []
    refused = refusal(run, f"reward.custom_reward_function.path={path}", *limit)
    assert message in refused
    assert refused.startswith(("algorithm.filter_groups.metric=acc: ", f"reward.custom_reward_function.path={path}: "))


OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
MODULE = """
from __future__ import annotations
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

@dataclass
class Judgement:
    right: bool

def judge(answer, truth):
    return Judgement(answer == truth)

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    with ProcessPoolExecutor(1) as pool:
        judgement = pool.submit(judge, solution_str, ground_truth).result()
    assert extra_info["num_turns"] == 2
    return {"score": Decimal(judgement.right), "acc": judgement.right, "judgement": judgement, "text": chr(0xD800)}
"""


@pytest.mark.parametrize("manager", ["dapo", "naive", "remote", "rate_limited"])
def test_a_module_with_classes_and_a_pool_that_reads_the_turns_is_accepted_with_every_manager(run, tmp_path, manager):
    path = tmp_path / "reward.py"
    path.write_text(MODULE)
    overlong = [f"{OVERLONG}.enable=True", f"{OVERLONG}.len=8", f"{OVERLONG}.penalty_factor=1.0"]
    named = [f"reward.custom_reward_function.path={path}", f"reward.reward_manager.name={manager}"]
    check_all(run(*named, *(["reward.reward_kwargs.max_resp_len=32", *overlong] if manager == "dapo" else [])))
    # Longer: bytecode of the first text would be taken for that of one as long, of the same second.
    path.write_text(MODULE.replace("== 2", "== 30"))
    assert "scoring an empty answer failed: AssertionError() at reward.py:17" in refusal(run, *named)


def test_a_group_that_cannot_be_stored_is_refused_with_its_columns(run, monkeypatch):
    def store(group):
        raise TypeError("no column for this")

    monkeypatch.setattr(TrialGroups, "store", staticmethod(store))
    message = refusal(run)
    assert message.startswith("data_source=sums: a scored group cannot be stored with its columns ['data_source', ")
    assert "'reward_model'" in message and "TypeError('no column for this')" in message


MAIN_THREAD = "import signal; signal.signal(signal.SIGALRM, signal.SIG_DFL); "
FIELDS = "'how': ['a', 'b'], 'why': '', 'steps': [0, 1]"
# (what is returned, a further option): in order, but not without that option
GOOD_REWARDS = [
    ("0.5", ""),  # returns acc
    ("{'score': 1, 'acc': 1, %s}" % FIELDS, ""),  # noqa: UP031 (braces)
    ("{'score': 1, 'acc': 1, 'how': object(), 'where': {1, 2}, 3: b'x'}", ""),
    ("{'score': 1, 'steps_right': 3}", "algorithm.filter_groups.metric=steps_right"),
    ("{'score': 1}", "algorithm.filter_groups.enable=False"),
    ("1 / 0", "async_dapo.reward.processes=0"),
]


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(("returned", "option"), GOOD_REWARDS)
def test_a_reward_function_that_works_with_the_options_is_accepted(run, tmp_path, kind, returned, option):
    """It is called once for each of two answers, on the main thread."""
    calls = tmp_path / "calls"
    body = f"{MAIN_THREAD}open({str(calls)!r}, 'a').write('called '); return {returned}"
    path = f"reward.custom_reward_function.path={write_reward(tmp_path, body, kind=kind)}"
    check_all(run(path, *([option] if option else [])))
    assert calls.exists() is ("processes=0" not in option), "one that runs in verl's reward workers is not tried"
    if option:
        refusal(run, path)


@pytest.fixture
def processes_are_forks(monkeypatch) -> None:
    """Those of reward functions: with verl's own they import verl, for 7 s each."""
    monkeypatch.setattr(sys, "executable", executable())


@pytest.mark.usefixtures("processes_are_forks")
def test_given_verls_own_reward_functions_when_a_data_source_has_none_then_it_is_named(run, tmp_path):
    """That of the validation has one, and is scored first."""
    train = write_parquet(tmp_path / "train.parquet", [*rows(15, source="math_dapo"), *rows(1, source="riddles")])
    val = write_parquet(tmp_path / "val.parquet", rows(1, source="aime_2024"))
    named = [f"data.train_files={train}", f"data.val_files={val}"]
    refused = refusal(run, *named, "reward.custom_reward_function.path=null")
    assert refused.startswith("data_source=riddles: scoring an empty answer failed: NotImplementedError")


@pytest.mark.usefixtures("processes_are_forks")
def test_given_agent_loops_of_the_users_when_verl_has_no_function_then_they_may_score_themselves(run, tmp_path):
    train = write_parquet(tmp_path / "train.parquet", rows(16, source="riddles"))
    (loops := tmp_path / "loops.yaml").write_text(
        "- name: mine\n  _target_: verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop\n"
    )
    config = run(
        f"data.train_files={train}",
        f"data.val_files={train}",
        "reward.custom_reward_function.path=null",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
    )
    [found] = [one for one in findings(config) if one.name == "reward function"]
    assert found.error is None and "riddles: scoring an empty answer failed: NotImplementedError" in found.note


HIDES_ERRORS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    try:
        import a_package_that_is_not_here
        acc = float(solution_str == ground_truth)
    except Exception:
        acc = 0.0
    return {"score": acc, "acc": acc}
"""
ALWAYS_RIGHT = "return {'score': 1.0, 'acc': 1.0}"
WANTS_A_FORM = "return {'score': 1.0, 'acc': float(solution_str.startswith('Answer: ' + ground_truth))}"


@pytest.mark.parametrize(
    ("content", "score"),
    [(HIDES_ERRORS, "0"), (reward_of(ALWAYS_RIGHT, "def"), "1"), (reward_of(WANTS_A_FORM, "def"), None)],
)
def test_a_function_that_scores_a_wrong_answer_as_the_right_one_is_told(run, tmp_path, content, score):
    (path := tmp_path / "reward.py").write_text(content)
    [note] = [one.note for one in findings(run(f"reward.custom_reward_function.path={path}"))
              if one.name == "reward function"]  # fmt: skip
    said = f"warning: sums: the ground truth '1' and 'I do not know.' both score {score}; see that the function hides"
    assert note.startswith(said if score else "compute_score of ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["async_dapo.reward.processes=0"], "async_dapo.reward.processes=0"),
        (
            NOWHERE,
            "it can be loaded; the data were refused, so there is no row of the data to try it on",
        ),
    ],
)
def test_a_function_that_was_not_tried_is_not_called_in_order(run, options, why):
    notes = [one.note for one in findings(run(*options)) if one.name == "reward function"]
    assert len(notes) == 1 and notes[0].startswith("not tried: ") and notes[0].endswith(f"reward.py: {why}")


@pytest.mark.parametrize(
    ("data", "body", "refused"),
    [
        (NOWHERE, None, ["data.train_files", "data.val_files", "cannot load it"]),
        (
            NOWHERE[1:],
            "raise KeyError(1)",
            ["data.val_files", "scoring an empty answer failed"],
        ),
    ],
)
def test_data_and_a_reward_function_that_are_both_wrong_are_named_in_one_go(run, tmp_path, data, body, refused):
    path = tmp_path / "own.py"
    if body is not None:
        path.write_text(reward_of(body, "def"))
    errors = [one.error for one in findings(run(*data, f"reward.custom_reward_function.path={path}")) if one.error]
    assert len(errors) == len(refused)
    for error, part in zip(errors, refused, strict=True):
        assert part in str(error)

"""A reward function that cannot work is refused before Ray starts."""

import pytest

from recipe.async_dapo.startup.preflight import check_all

from ..support.composed_runs import refusal, rows, write_parquet

SLEEPS = "import time; time.sleep(30)"
# (body of the reward function, what the message must contain)
BAD_REWARDS = [
    ("return {'score': 1.0}", "algorithm.filter_groups.metric=acc: the reward function returns only ['score']"),
    ("return {'acc': 1.0}", "the reward function returns ['acc'] without `score`; add it"),
    ("return {'score': None, 'acc': 1.0}", "the reward function returns score=None; return a finite number"),
    ("return {'score': 1.0, 'acc': 'yes'}", "the reward function returns acc='yes'; return a finite number"),
    ("return float('nan')", "the reward function returns acc=nan; return a finite number"),
    (
        "return {'score': 1.0, 'acc': 1.0, 'how': object()}",
        "of the reward function's result=how: is a builtins.object, which no checkpoint can hold: use numbers",
    ),
    (
        "return {'score': 1.0, 'acc': 1.0, 'reward': 0.5}",
        "the reward function returns `reward`, verl's name for the score itself; rename it",
    ),
    ("return None", "the reward function returns acc=None; return a finite number"),
    ("return solution_str[0]", "raised IndexError('string index out of range') at reward.py:2 on an empty answer"),
    ("raise KeyboardInterrupt", "raised KeyboardInterrupt() at reward.py:2 on an empty answer"),
    ("raise SystemExit(0)", "raised SystemExit(0) at reward.py:2 on an empty answer"),
    ("import os; os._exit(3)", "process has ended (exit code 3) on an empty answer"),
    (SLEEPS, "gave no answer within async_dapo.reward.timeout_s=0.3"),
]


RETURNED = [body for body, _ in BAD_REWARDS if body.startswith(("return {", "return N", "return f"))]  # by either kind


def reward_of(body, kind):
    return f"{kind} compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n"


def write_reward(folder, body, *, kind="def"):
    path = folder / "reward.py"
    path.write_text(reward_of(body, kind))
    return path


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


MAIN_THREAD = "import signal; signal.signal(signal.SIGALRM, signal.SIG_DFL); "
FIELDS = "'how': ['a', 'b'], 'why': '', 'steps': [0, 1]"
# (what is returned, a further option): in order, but not without that option
GOOD_REWARDS = [
    ("0.5", ""),  # returns acc
    ("{'score': 1, 'acc': 1, %s}" % FIELDS, ""),  # noqa: UP031 (braces)
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


def test_given_verls_own_reward_functions_when_a_data_source_has_none_then_it_is_named(run, tmp_path):
    def overrides(source: str) -> list[str]:
        train = write_parquet(tmp_path / "train.parquet", [*rows(15, source="math_dapo"), *rows(1, source=source)])
        val = write_parquet(tmp_path / "val.parquet", rows(1, source="aime_2024"))
        return [f"data.train_files={train}", f"data.val_files={val}", "reward.custom_reward_function.path=null"]

    check_all(run(*overrides("math_dapo")))
    refused = refusal(run, *overrides("riddles"))
    assert refused.startswith("data_source=riddles: the reward function raised NotImplementedError")

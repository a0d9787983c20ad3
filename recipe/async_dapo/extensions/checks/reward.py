"""Rewards: the function is tried once per data source, by verl's reward manager, before a cluster starts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...config.extensions import not_here, of_copy
from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError, refused
from ...core.users_errors import NotLoaded
from ...runtime.containment import contained
from ...startup.preflight import NOT_TRIED

MAX_SOURCES = 64
SHOWN_CHARS = 60  # of an answer, in errors
WRONG = "I do not know."
# How tasks have answers written. The ground truth is tried in each, until a wrong answer has another score.
FORMS = ("{}", "Answer: {}", "\\boxed{{{}}}", "#### {}", "<answer>{}</answer>")


def check_reward(
    config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]] | None, model: Callable[[], Any]
) -> tuple[str, str]:
    """Score two answers to each row, an empty one and its ground truth, as the reward workers do, and store the
    group as a run does. Then see whether the ground truth scores as a wrong answer does.

    Custom reward managers, reward models, sandboxes and functions that use Ray are not tried: they need the cluster.

    Args:
        model: makes verl's `HFModelConfig`, or has it.

    Returns:
        The function, in words, or why it was not tried; and what is odd about its scores.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    reward = config.reward
    custom = reward.custom_reward_function
    make_trial = of_copy("reward_trial")
    sandbox = OmegaConf.select(config, "reward.sandbox_fusion.url")  # the node may be null, for verl
    needs_cluster = reward.reward_model.enable or (custom.path is None and sandbox)
    reasons = (
        (make_trial is None, not_here("reward_processes")),
        (options.reward.processes == 0, "async_dapo.reward.processes=0"),
        (needs_cluster or reward.reward_manager.source != "register", "it needs the cluster"),
        (not _is_known(reward.reward_manager.name), "its reward manager is not known"),
    )
    for is_so, why in reasons:
        if is_so:
            return f"{NOT_TRIED}{options.reward_function}: {why}", ""
    if not rows:
        _check_loads(config, options, make_trial(config, options))
        why = "it can be loaded; " + ("the data were refused, so " if rows is None else "")
        return f"{NOT_TRIED}{options.reward_function}: {why}there is no row of the data to try it on", ""
    once = replace(options, reward=replace(options.reward, max_retries=0, waits_in_line=True))
    odd = asyncio.run(_check_rows(config, once, rows[:MAX_SOURCES], model().tokenizer, make_trial(config, once)))
    return options.reward_function, "; ".join(odd)


def _check_loads(config: DictConfig, options: AsyncDAPOConfig, trial: Any) -> None:
    """
    Raises:
        ConfigError: if the function cannot be imported.
    """
    try:
        trial.load()
    except NotLoaded as error:
        key = "reward.custom_reward_function.path"
        raise refused(config, key, _problem(error, "", options.reward.timeout_s)) from error


def _is_known(manager: str) -> bool:
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

    try:
        get_reward_manager_cls(manager)
    except ValueError:
        return False
    return True


async def _check_rows(
    config: DictConfig, options: AsyncDAPOConfig, rows: list[dict[str, Any]], tokenizer: Any, trial: Any
) -> list[str]:
    from .trial_group import TrialGroups

    custom = config.reward.custom_reward_function
    # verl asks no function for what an agent loop of the user's has scored.
    may_score_themselves = custom.path is None and bool(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    odd: list[str] = []
    try:
        with contained():
            trials = TrialGroups(trial, tokenizer, options)
    except Exception as error:  # verl's managers assert what they want of their options
        remedy = f"cannot be made: {error!r}; correct it, or reward.reward_kwargs"
        raise refused(config, "reward.reward_manager.name", remedy) from error
    try:
        for row in rows:
            # The option to blame: without a custom function verl chooses one by the data source.
            key, value = ("reward.custom_reward_function.path", custom.path)
            if custom.path is None:
                key, value = "data_source", row["data_source"]
            truth = str(row["reward_model"]["ground_truth"])
            group = trials.group(row, n=2)
            for trajectory, answer in zip(group.trajectories, ("", truth), strict=True):
                what = f"the answer {answer[:SHOWN_CHARS]!r}" if answer else "an empty answer"
                try:
                    await trials.score(group, trajectory, answer)
                except ConfigError:
                    raise
                except Exception as error:
                    problem = _problem(error, what, options.reward.timeout_s)
                    if not may_score_themselves:
                        raise ConfigError(key, value, problem) from error
                    odd.append(f"{value}: {problem}; or see that every agent loop gives its trajectories a score")
                    break
            else:
                try:
                    trials.store(group)
                except Exception as error:  # of verl's containers, for a column that they do not hold
                    problem = (
                        f"a scored group cannot be stored with its columns {sorted(row)}: {error!r}; change or drop one"
                    )
                    raise ConfigError("data_source", row["data_source"], problem) from error
                with suppress(Exception):  # it may refuse what is no answer at all
                    odd += await _scores_alike(trials, row, truth)
    finally:
        trial.close()
    return odd


async def _scores_alike(trials: Any, row: dict[str, Any], truth: str) -> list[str]:
    """Both answers and their score, in words, if a wrong answer scores as the ground truth in every form."""
    scores: list[float] = []
    for form in FORMS:
        group = trials.group(row, n=2)
        answers = (form.format(truth), form.format(WRONG))
        scores = [await trials.score(group, *one) for one in zip(group.trajectories, answers, strict=True)]
        if scores[0] != scores[1]:
            return []
    return [
        f"{row['data_source']}: the ground truth {truth[:SHOWN_CHARS]!r} and {WRONG!r} both score {scores[0]:g}; see "
        "that the function hides no error, and how it wants answers written"
    ]


def _problem(error: Exception, what: str, timeout_s: float) -> str:
    """In words, with the remedy."""
    match error:
        case NotLoaded():
            return f"cannot load it: {error}; correct the path, the name or the module"
        case TimeoutError():
            return f"gave no answer within async_dapo.reward.timeout_s={timeout_s}; make it faster, or raise that"
    return f"scoring {what} failed: {error}; return a finite number, or a dict with one as `score`"

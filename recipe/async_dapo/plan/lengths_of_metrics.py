"""A log-normal fitted to the metrics of an earlier run, as verl's `file` logger writes them: no length is in there.

This recipe's metrics have the median and the 90th percentile of what was dispatched. verl's have a step's mean and its
longest response: of N log-normal ones the longest is at a known normal score, and of two unknowns the mean tells the
other. Where the limit cuts the longest ones, the share that is cut takes the place of the longest.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import NormalDist, fmean

from ..config import ConfigError
from .lengths import LogNormalLengths

MEDIAN, P90 = "async_dapo/length/dispatched/p50", "async_dapo/length/dispatched/p90"
MEAN, LONGEST, CUT = "response_length/mean", "response_length/max", "response_length/clip_ratio"
PROMPT, TOKENS = "prompt_length/mean", "perf/total_num_tokens"
NORMAL = NormalDist()
HALVINGS = 60


def fit_lengths(steps: Sequence[Mapping[str, float]], *, path: str, correlation: float) -> LogNormalLengths:
    """
    Args:
        steps: metrics.
        correlation: within a group, which no metric tells [0-1].

    Raises:
        ConfigError: where no step has the metrics, or they fit no log-normal.
    """
    if known := [step for step in steps if MEDIAN in step and P90 in step]:
        median_tok, p90_tok = known[-1][MEDIAN], known[-1][P90]  # of a window of prompts
        if not 0 < median_tok <= p90_tok:
            raise ConfigError("lengths", path, f"its last {MEDIAN}={median_tok} is no median; let the run train on")
        sigma = log(p90_tok / median_tok) / NORMAL.inv_cdf(0.9)
        return LogNormalLengths(median_tok=median_tok, sigma=sigma, correlation=correlation)
    wanted = (MEAN, LONGEST, CUT, PROMPT, TOKENS)
    trained = [step for step in steps if all(key in step for key in wanted)]
    if not trained:
        raise ConfigError("lengths", path, f"no step has {', '.join(wanted)}; give measured lengths")
    median_tok, sigma = _fit(trained, path)
    return LogNormalLengths(median_tok=median_tok, sigma=sigma, correlation=correlation)


def _fit(steps: Sequence[Mapping[str, float]], path: str) -> tuple[float, float]:
    """Median [tokens] and sigma."""
    mean_tok = fmean(step[MEAN] for step in steps)
    longest = [step[LONGEST] for step in steps]
    count = fmean(step[TOKENS] / (step[MEAN] + step[PROMPT]) for step in steps)
    cut_share = fmean(step[CUT] for step in steps)
    is_cut = longest.count(max(longest)) > len(steps) / 2 and cut_share * count > 1.5  # the limit, time and again
    at_tok = fmean(longest)
    beyond = cut_share if is_cut else 0.625 / (count + 0.25)  # Blom's score of the largest
    score = NORMAL.inv_cdf(1 - beyond)
    if score <= 0 or not 0 < mean_tok <= at_tok:
        raise ConfigError("lengths", path, f"{100 * beyond:.0f} % of the responses are cut; give measured lengths")
    low, high = 0.0, score  # the mean falls from `at_tok` on, as far as this
    for _ in range(HALVINGS):
        sigma = (low + high) / 2
        if _mean_tok(at_tok, score, sigma, is_cut=is_cut) > mean_tok:
            low = sigma
        else:
            high = sigma
    return at_tok * exp(-score * sigma), sigma


def _mean_tok(at_tok: float, score: float, sigma: float, *, is_cut: bool) -> float:
    """Of a log-normal that has `at_tok` at this normal score; cut there."""
    mean = at_tok * exp(-score * sigma + sigma**2 / 2)
    return mean * NORMAL.cdf(score - sigma) + at_tok * (1 - NORMAL.cdf(score)) if is_cut else mean

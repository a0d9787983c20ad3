"""What is made of the laboratory's runs, on runs of which the truth is known."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks.learning import alarm, summary
from benchmarks.learning.summary import ON_POLICY, ROW

STEPS, EVERY = 200, 20
NATS = {"0": 1e-14, "default": 1e-5, "2": 1e-4, "4": 1e-3, "8": 1e-2, "16": 1e-1}
Runs = tuple[pd.DataFrame, pd.DataFrame]


def runs_of(*rows: dict[str, object]) -> Runs:
    """Accuracy rises on a straight line to `accuracy`, which is reached after `share` of the steps."""
    runs, curves = [], []
    for own in rows:
        job = {"task": "addition", "rate_factor": 1.0, "updates": 1, "steps": STEPS}
        row = job | {"strategy": "partial", "staleness": "0"}
        row |= {"correction": "none", "seed": 0, "share": 1.0, "accuracy": 0.9, "accuracy_before": 0.3} | own
        if row["staleness"] == "0" and "strategy" not in own:
            row["strategy"] = ON_POLICY
        measured = dict.fromkeys(alarm.MEASURED, 0.5) | {"k3_kl": NATS[str(row["staleness"])]}
        measured |= {"staleness_mean": 1.0} | {name: row.pop(name) for name in alarm.MEASURED if name in row}
        for step in range(EVERY, STEPS + 1, EVERY):
            gain = min(1.0, step / STEPS / row["share"]) * (row["accuracy"] - row["accuracy_before"])
            at = {"step": step, "accuracy": row["accuracy_before"] + gain}
            curves.append({name: row[name] for name in ROW} | measured | at)
        runs.append(row | {name: measured[name] for name in summary.NATS})
    return pd.DataFrame(runs), pd.DataFrame(curves)


def five_seeds(rng: np.random.Generator, gaps: dict[str, float], **own: object) -> list[dict[str, object]]:
    """On-policy and `decoupled` at each staleness; seeds differ by far more than the gaps."""
    rows = []
    for seed in range(5):
        base = 0.5 + 0.1 * seed
        rows.append({"seed": seed, "accuracy": base, **own})
        for staleness, gap in gaps.items():
            accuracy = base + gap + 0.005 * rng.standard_normal()
            rows.append({"seed": seed, "staleness": staleness, "correction": "decoupled", "accuracy": accuracy, **own})
    return rows


def law_of(*rows: dict[str, object]) -> pd.DataFrame:
    return summary.law(summary.compared(*runs_of(*rows)))


def test_a_known_gap_is_found_beside_the_same_seed_whatever_seeds_differ_by() -> None:
    alone = {"seed": 9, "staleness": "8", "correction": "decoupled", "accuracy": 0.1}  # without an on-policy run
    lines = law_of(*five_seeds(np.random.default_rng(0), {"default": 0.0, "8": -0.1}), alone).set_index("staleness")
    assert list(lines.index) == ["default", "8"] and list(lines["seeds"]) == [5, 5]
    for staleness, gap in (("default", 0.0), ("8", -0.1)):
        line = lines.loc[staleness]
        assert line["low"] < gap < line["high"] and line["high"] - line["low"] < 0.03
        assert line["nats"] == NATS[staleness]


@pytest.mark.parametrize("seeds", [2, 3, 5, 11])
def test_intervals_hold_the_truth_as_often_as_they_say(seeds: int) -> None:
    rng, tries = np.random.default_rng(seeds), 2000
    intervals = [summary.interval(rng.normal(0.1, 0.3, seeds)) for _ in range(tries)]
    share = np.mean([low < 0.1 < high for _, low, high in intervals])
    assert share == pytest.approx(0.95, abs=0.02)


def test_the_recommendation_ends_at_the_last_setting_that_is_level_below_one_that_is_not() -> None:
    rng = np.random.default_rng(0)

    def said(gaps: dict[str, float], *more: dict[str, object]) -> str:
        return summary.recommendation(law_of(*five_seeds(rng, gaps), *more))

    told = said({"default": 0.0, "2": 0.0, "4": -0.1, "8": 0.0})
    assert "In each of 2 settings, up to 0.0001 nats a token," in told
    assert "next one that is not shown: -0.1" in told and "(addition, bound 4; 0.001 nats)" in told
    assert "next one" not in said({"default": 0.0})
    assert said({"default": -0.2}).startswith("Of the next one that is not shown: -0.2")
    few = {"staleness": "2", "correction": "decoupled", "accuracy": 0.1}
    told = said({"default": 0.0}, few)
    assert "In each of 1 settings, up to 1e-05 nats" in told and "Settings with fewer than 3 seeds: 1." in told


def test_corrections_are_compared_in_the_settings_and_seeds_that_both_have() -> None:
    own = five_seeds(np.random.default_rng(0), {"default": 0.0, "4": -0.1})
    other = [row | {"correction": "bypass", "accuracy": row["accuracy"] + 0.05} for row in own if "staleness" in row]
    other[-1]["accuracy"] = 0.1
    alone = {"staleness": "16", "correction": "bypass", "accuracy": 0.1}  # `decoupled` has no such run
    [line] = summary.others(summary.compared(*runs_of(*own, *other, alone))).to_dict("records")
    assert list(line) == ["Correction", "addition, bound default", "addition, bound 4"]
    assert line["Correction"] == "bypass" and line["addition, bound default"] == "+0.050 +- 0.000"
    assert line["addition, bound 4"].endswith(", 1 lost")


def test_a_target_is_met_only_by_all_its_settings_with_all_seeds() -> None:
    rng = np.random.default_rng(0)

    def met(gap: float, tasks: int, seeds: int = 5) -> str:
        rows = [row for task in summary.TASKS[:tasks] for row in five_seeds(rng, {"default": gap}, task=task)]
        return str(summary.targets(law_of(*(row for row in rows if row["seed"] < seeds)))["Met"][0])

    assert met(0.0, 3) == "yes" and met(-0.1, 1) == met(-0.1, 3) == "no"
    assert met(0.0, 2) == "5 seeds in 2 of 3 settings" and met(0.0, 3, seeds=4) == "5 seeds in 0 of 3 settings"
    old = summary.targets(law_of(*five_seeds(rng, {"8": 0.0, "16": -0.02}, task="tail 25"))).iloc[2]
    assert old["Met"] == "yes" and "(tail 25, 16, `decoupled`" in old["Measured, worst"]
    assert summary.targets(law_of(*five_seeds(rng, {"16": -0.5}, task="tail 25")))["Met"][2] == "not run yet"


def many(rng: np.random.Generator, bad_k3: float) -> Runs:
    """Of each seed 20 runs, every fourth of them lost."""
    rows: list[dict[str, object]] = []
    for seed in range(5):
        rows.append({"seed": seed})
        for number in range(20):
            lost = number % 4 == 0
            k3 = (bad_k3 if lost else 1e-3) * math.exp(0.3 * rng.standard_normal())
            rows.append(
                {"seed": seed, "staleness": "4", "correction": str(number), "k3_kl": k3, "ess_ratio": rng.random()}
            )
            rows[-1]["accuracy"] = 0.3 if lost else 0.9
    return runs_of(*rows)


def test_an_alarm_is_found_where_there_is_one_and_none_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    easy = [{"seed": seed, "rate_factor": 0.25, "staleness": kind} for seed in range(5) for kind in ("0", "2")]
    for bad_k3, tells in ((1e-2, True), (1e-3, False)):
        runs, curves = (pd.concat(both) for both in zip(many(rng, bad_k3), runs_of(*easy), strict=True))
        pairs = summary.compared(runs, curves)
        found = alarm.find(pairs, curves)
        assert found is not None and (found.found[1], found.false[1], found.false_near[1]) == (25, 80, 75)
        assert found.tells_something == tells
        assert alarm.target(pairs, curves)["Met"] == ("yes" if tells else "no")
        assert ("not better than chance" in alarm.in_words(pairs, curves)) != tells
        if tells:
            assert found.rule.startswith("`k3_kl` above 0.00") and found.found[0] >= 23 and found.false[0] <= 3

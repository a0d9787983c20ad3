"""What is made of the laboratory's runs, on runs of which the truth is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.learning import alarm, summary
from benchmarks.learning.stack import check_same_model
from benchmarks.learning.summary import ON_POLICY, ROW

STEPS, EVERY = 200, 20
NATS = {"0": 1e-14, "default": 1e-5, "2": 1e-4, "4": 1e-3, "8": 1e-2, "16": 1e-1}
START = {"start": "", "accuracy_before": 0.3}
Runs = tuple[pd.DataFrame, pd.DataFrame]


def runs_of(*rows: dict[str, Any]) -> Runs:
    """Accuracy rises on a straight line to `accuracy`, which is reached after `share` of the steps."""
    runs, curves = [], []
    for own in rows:
        job = {"task": "addition", "rate_factor": 1.0, "updates": 1, "steps": STEPS}
        row: dict[str, Any] = job | {"strategy": "partial", "staleness": "0"}
        row |= {"correction": "none", "seed": 0, "share": 1.0, "accuracy": 0.9} | START | own
        if row["staleness"] == "0" and "strategy" not in own:
            row["strategy"] = ON_POLICY
        k3_kl = row.pop("k3_kl", NATS[str(row["staleness"])])
        for step in range(EVERY, STEPS + 1, EVERY):
            gain = min(1.0, step / STEPS / row["share"]) * (row["accuracy"] - row["accuracy_before"])
            at = {"step": step, "accuracy": row["accuracy_before"] + gain}
            if step <= row.get("ended", STEPS):
                curves.append({name: row[name] for name in ROW} | at)
        runs.append(row | dict.fromkeys(summary.MEANS, k3_kl))
    return pd.DataFrame(runs), pd.DataFrame(curves)


def five_seeds(rng: np.random.Generator, gaps: dict[str, float], **own: object) -> list[dict[str, Any]]:
    """On-policy and `decoupled` at each staleness; seeds differ by far more than the gaps."""
    rows = []
    for seed in range(5):
        base = 0.5 + 0.1 * seed
        rows.append({"seed": seed, "accuracy": base, **own})
        for staleness, gap in gaps.items():
            accuracy = base + gap + 0.005 * rng.standard_normal()
            rows.append({"seed": seed, "staleness": staleness, "correction": "decoupled", "accuracy": accuracy, **own})
    return rows


def law_of(*rows: dict[str, Any]) -> pd.DataFrame:
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


def test_runs_are_compared_only_if_they_began_with_the_same_model() -> None:
    rows = five_seeds(np.random.default_rng(0), {"4": 0.0})
    rows[-1]["accuracy_before"], rows[-3]["start"] = 0.2, "0a1b2c3d"
    assert list(law_of(*rows)["seeds"]) == [3]


def test_a_run_that_ended_early_keeps_what_it_had_and_one_is_lost_by_its_second_half() -> None:
    """On-policy rises from 0.3 to 0.9: by 0.06 a validation."""
    rows: list[dict[str, Any]] = [{}]
    rows += [
        {"staleness": "4", "correction": name, "ended": ended} for name, ended in (("a", 80), ("b", 0), ("c", 160))
    ]
    pairs = summary.compared(*runs_of(*rows)).set_index("correction")
    assert pairs["mean_gap"].to_dict() == pytest.approx({"a": -0.126, "b": -0.33, "c": -0.018})
    assert pairs["half_gap"].to_dict() == pytest.approx({"a": -0.02, "b": -0.24, "c": 0.0})
    assert pairs["lost"].to_dict() == {"a": False, "b": True, "c": False}


@pytest.mark.slow
def test_the_recommendation_is_the_oldest_age_at_which_every_task_is_level() -> None:
    rng = np.random.default_rng(0)

    def said(gaps: dict[str, float], seeds: int = 5, tasks: tuple[str, ...] = summary.JUDGED) -> str:
        rows = [row for task in tasks for row in five_seeds(rng, gaps, task=task)]
        few = [row for row in rows if row["task"] != tasks[-1] or row["seed"] < seeds]
        return summary.recommendation(law_of(*few))

    told = said({"default": 0.0, "4": 0.0, "8": -0.1, "16": 0.0})
    assert "`async_dapo.max_staleness=4`" in told and "k3 was up to 0.001 nats" in told
    worst = told.partition("The worst of all its settings, ")[2]
    assert worst.startswith("1 times the learning rate and `max_staleness=8`, ended 0.10 below on-policy")
    assert "`async_dapo.max_staleness=8`" in said({"4": 0.0, "8": 0.0})
    assert said({"4": -0.1}) == said({"4": 0.0}, seeds=4) == said({"4": 0.0}, tasks=summary.JUDGED[:2])


def test_other_corrections_are_beside_the_default_one_with_the_same_start() -> None:
    """On-policy differs between seeds by far more than corrections do."""
    job = {name: value for name, value in summary.SCREENED.items() if name != "strategy"}
    own = five_seeds(np.random.default_rng(0), {"default": 0.0, "4": -0.1}, **job)
    other = [row | {"correction": "bypass", "accuracy": row["accuracy"] + 0.05} for row in own if "staleness" in row]
    few = [row | {"correction": "gspo", "accuracy": row["accuracy"] - 0.2} for row in own[2::3][:2]]
    alone = other[0] | {"staleness": "16"}  # without a run with the default one
    elsewhere = other[0] | {"accuracy_before": 0.2}  # from another first model, without either
    pairs = summary.compared(*runs_of(*own, *other, *few, alone, elsewhere))
    lines, over = summary.law(pairs), summary.law(summary.over_default(pairs))
    screened = summary.screening(over).set_index("Correction")
    assert screened.loc["bypass"].to_dict() == dict.fromkeys(["Bound 4", "Bound default"], "+0.050 +- 0.000")
    assert screened.loc["gspo"].to_dict() == {"Bound 4": "-0.200/-0.200", "Bound default": ""}
    table = summary.decided(lines, over)
    assert list(table["Setting"]) == ["sorting, bound default, 4x rate", "sorting, bound 4, 4x rate"]
    assert list(table["`bypass` less `decoupled`"]) == ["+0.050 +- 0.000"] * 2 and "gspo" not in str(table.columns)
    assert table["`decoupled` minus on-policy"].str.partition(" ")[0].astype(float).round(1).to_list() == [0.0, -0.1]


def test_only_seeds_that_were_planned_count(tmp_path: Path) -> None:
    runs, curves = runs_of(*({"seed": seed} for seed in (0, 4, 5, 9, 10, 14, 15, 100)))
    runs.to_csv(tmp_path / "runs.csv")
    curves.to_csv(tmp_path / "curves.csv")
    for table in summary.read(tmp_path):
        assert set(table["seed"]) == {0, 4, 10, 14}


def test_a_target_is_met_only_by_all_its_settings_with_all_seeds() -> None:
    rng = np.random.default_rng(0)

    def met(gap: float, tasks: int, seeds: int = 5) -> str:
        rows = [row for task in summary.JUDGED[:tasks] for row in five_seeds(rng, {"default": gap}, task=task)]
        return str(summary.targets(law_of(*(row for row in rows if row["seed"] < seeds)))["Met"][0])

    assert met(0.0, 3) == "yes" and met(-0.1, 1) == met(-0.1, 3) == "no"
    assert met(-0.02, 3) == "open: the interval is too wide"
    assert met(0.0, 2) == "5 seeds in 2 of 3 settings" and met(0.0, 3, seeds=4) == "5 seeds in 0 of 3 settings"
    old = summary.targets(law_of(*five_seeds(rng, {"8": 0.0, "16": -0.02}, task="tail 25"))).iloc[2]
    assert old["Met"] == "yes" and "(tail 25, 16, `decoupled`" in old["Measured, worst"]
    assert summary.targets(law_of(*five_seeds(rng, {"16": -0.5}, task="tail 25")))["Met"][2] == "not run yet"


def test_the_alarm_counts_runs_of_each_kind_that_are_above_the_limit_at_half_time() -> None:
    kinds = {
        "lost": (0.3, 0.1),
        "missed": (0.3, 1e-3),
        "healthy": (0.9, 1e-3),
        "false": (0.9, 0.1),
        "between": (0.8, 0.1),
    }
    rows: list[dict[str, Any]] = [{}, {"rate_factor": 0.25}]
    for name, (accuracy, k3_kl) in kinds.items():
        rows.append({"staleness": "4", "correction": name, "accuracy": accuracy, "k3_kl": k3_kl})
    rows.append({"staleness": "4", "correction": "easy", "rate_factor": 0.25})
    rows += [{"staleness": "8", "correction": "late", "accuracy": 0.9, "k3_kl": 0.1}]
    pairs = summary.compared(*runs_of(*rows))
    assert alarm.alarms(pairs) == {
        "lost": (1, 2),
        "lost, not yet at half time": (0, 0),
        "healthy": (2, 4),
        "healthy, with the task and rate of a lost one": (2, 3),
        "between": (1, 1),
    }
    assert alarm.target(pairs)["Met"] == "open: too few lost runs"
    assert alarm.target(pd.concat([pairs] * 10, ignore_index=True))["Met"] == "no"
    fair = pairs[pairs["correction"].isin(["lost", "healthy", "easy"])]
    assert alarm.target(pd.concat([fair] * 10, ignore_index=True))["Met"] == "yes"


def test_the_laboratory_is_beside_the_real_stack_where_it_ends_and_in_what_old_tokens_cost() -> None:
    def side(apart: float, seeds: int) -> list[dict[str, Any]]:
        rng, rows = np.random.default_rng(seeds), []
        for seed in range(seeds):
            own = {"seed": seed, "task": "quick start"}
            for staleness, gap in (("0", 0.0), ("4", -0.05 + apart)):
                correction = "none" if staleness == "0" else "decoupled"
                accuracy = 0.9 + gap + 0.003 * rng.standard_normal()
                rows.append(own | {"staleness": staleness, "correction": correction, "accuracy": accuracy})
        return rows

    stack = runs_of(*side(0.0, 3))[0]
    for apart, within in ((0.0, "yes"), (0.04, "no")):
        table = summary.beside_stack(*runs_of(*side(apart, 5)), stack).set_index("Bound")
        assert list(table["Within"]) == ["yes", within] and list(table["Seeds, stack"]) == [3, 3]


def test_runs_of_the_stack_are_not_added_to_those_of_another_model(tmp_path: Path) -> None:
    file = tmp_path / "stack.csv"
    check_same_model(file, "ours")
    pd.DataFrame({"seed": [0, 1], "model": "ours"}).to_csv(file)
    check_same_model(file, "ours")
    for model in ({"model": ["ours", "theirs"]}, {}):  # of which the last is from before models were noted
        pd.DataFrame({"seed": [0, 1]} | model).to_csv(file)
        with pytest.raises(SystemExit, match=r"stack\.csv has rows of another model .*; name another folder"):
            check_same_model(file, "ours")

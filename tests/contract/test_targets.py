"""What the page of targets says was measured is what the files say, and what it calls met is met."""

import re

import pandas as pd
import pytest

from benchmarks.defaults import draw as defaults
from benchmarks.faults import summary as faults
from benchmarks.side_by_side import summary as side_by_side
from benchmarks.speed_ups import summary as speed_ups

from ..support.documents import page

AT_LEAST = ("Trained tokens/s", "Share of the bound", "Length trained", "Rollout of the bound", "Published steps")
# Rows of closed studies (benchmarks/README.md): the code that compared them with their files is gone.
CLOSED = (
    *("From the B-th valid report", "CPU per trajectory of", "Through the coordinator", "Engines wait between"),
    *("Rollout of `partial`", "Length trained", "Step of the defaults over verl sync, engine-bound"),
    *("Step of the defaults over colocate_async with", "Rehearsed ", "Engines on GPUs of their own, planned"),
    *("Planner", "Step over colocate_async, default", "Frontier"),
)
FASTEST = ("partial", "partial_stale_kv", "discard, fifo")


def targets() -> dict[str, tuple[float, str, str]]:
    """Text of a row, with that of the row it is the same as -> limit, measured, met; without generated tables."""
    text = re.sub(r"<!-- (.*?) -->.*?<!-- end of \1 -->", "", page("benchmarks/TARGETS.md").text, flags=re.DOTALL)
    rows: dict[str, tuple[float, str, str]] = {}
    title = ""
    for name, limit, measured, met in re.findall(
        r"^\| (.*?) \| (-?[\d.]+) \| (-?[\d.]+) \| (yes|no) \|$", text, re.MULTILINE
    ):
        same = name.lower().startswith("the same")
        title = title if same else name
        rows[f"{title} ... {name}" if same else name] = (float(limit), measured, met)
    return rows


TARGETS = targets()


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_called_met_is_met(name: str) -> None:
    limit, said, met = TARGETS[name]
    is_met = float(said) >= limit if name.startswith(AT_LEAST) else float(said) <= limit
    assert met == ("yes" if is_met else "no")


def measured() -> dict[str, float]:
    """Beginning and end of a row's text, ` ... ` between them -> what the files say."""
    found: dict[str, float] = {}
    runs = side_by_side.read_runs()
    ratios = side_by_side.ratios(runs).astype({"system": str, "base": str}).set_index(["tail", "system", "base"])
    for base, over in ((side_by_side.SYNC, "verl sync"), (side_by_side.SHORT_POLL, "colocate_async with short pause")):
        for tail in (8, 25):
            of = {system: ratios.loc[(tail, system, base)] for system in FASTEST}
            slowest = max(of, key=lambda system: of[system]["ratio"])
            head = f"Step over {over}, tail {tail}, "
            for system, row in of.items():
                found[f"{head}`{system.partition(',')[0]}`"] = row["ratio"]
            found[f"{head}slowest"] = found[f"{head}`partial` ... slowest"] = of[slowest]["ratio"]
            found[f"Trained tokens/s over {over}, tail {tail}"] = of["partial"]["rate"]
            if tail == 25:
                found[f"Trained tokens/s over {over}, tail 8 ... tail 25"] = of["partial"]["rate"]
    pairs = pd.read_csv(side_by_side.FOLDER / "before_extensions.csv").pivot(index="repetition", columns="commit")
    for column, part in (("step_s_mean", ""), ("cpu_ms_per_trajectory", " ... CPU per trained trajectory")):
        before, since = (pairs[column, commit] for commit in ("ec67740d", "15261d9f"))
        found[f"Step over that of the commit before{part}"] = (since / before).median()
    cpu = side_by_side.costs_table(runs).query("Tail == 8").astype({"System": str}).set_index("System")
    cpu_ms = cpu["CPU per trained trajectory [ms]"]
    found["CPU per trained trajectory over colocate_async"] = cpu_ms["partial"] / cpu_ms[side_by_side.SHORT_POLL]
    bound = side_by_side.measures_table(runs).astype({"System": str}).query("System in @FASTEST")
    for tail, share in bound.groupby("Tail")["Of the bound"].max().items():
        found[f"Share of the bound, tail {tail}"] = share

    [mean] = defaults.means_table().query("Settings.str.startswith('without')").to_dict("records")
    of_2025 = defaults.summary(defaults.ENGINES_2025)
    found["Step of the defaults over the best baseline"] = of_2025["of_baseline"].max()
    found["Step of the defaults over the best hand-tuned"] = of_2025["of_tuned"].max()
    found["Step of the defaults over verl sync, simulated"] = mean[defaults.TITLES["of_sync"]]
    found["Step of the defaults over colocate_async, simulated"] = mean[defaults.TITLES["of_colocate"]]
    found["Step of the defaults over colocate_async ... have such a row"] = mean[defaults.TITLES["equal_of_colocate"]]
    one = defaults.summary(defaults.FOLDER / "one_update")
    one = one[~one["setting"].str.startswith(defaults.UNBOUND)]
    found["Step with one update and old KV"] = defaults.geometric_mean(one["of_host_kv"])
    found["Rollout of the bound"] = mean[defaults.TITLES["of_bound"]]
    errors = speed_ups.read()["error"].dropna().abs()
    found["Published steps"] = (errors <= speed_ups.NEAR).mean()
    found["Engines on GPUs of their own, two CPU cores"] = ratios.loc[
        (8, "separate, partial", side_by_side.SEPARATE), "ratio"
    ]

    struck = faults.read_runs()
    ended_s = struck[struck["outcome"] == "ended"].assign(s=lambda rows: rows["seconds"].astype(float))
    found["Fault matrix: cells"] = sum(bool(faults.faults_of(row)) for _, row in struck.iterrows())
    found["From the death of a part"] = ended_s[ended_s["how"] == faults.KILL]["s"].max()
    found["From the death of a part ... stays cut"] = ended_s[ended_s["how"] == faults.CUT]["s"].max()
    return found


@pytest.mark.slow
def test_what_was_measured_is_what_the_files_say() -> None:
    named: set[str] = set()
    for key, value in measured().items():
        head, _, tail = key.partition(" ... ")
        if not tail:
            rows = [name for name in TARGETS if name.startswith(head) and " ... " not in name]
        else:
            rows = [name for name in TARGETS if name.startswith(head) and tail in name.partition(" ... ")[2]]
        for name in rows:
            said = TARGETS[name][1]
            last_digit = 10.0 ** -len(said.partition(".")[2])
            assert abs(float(said) - value) < 0.51 * last_digit, (name, value)
        named |= set(rows)
    by_hand = {name for name in TARGETS if name.startswith(("Quick start of", "All tests", "Tests of `--fast`"))}
    assert {name for name in set(TARGETS) - named if not name.startswith(CLOSED)} == by_hand

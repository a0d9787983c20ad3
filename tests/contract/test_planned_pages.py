"""A reader of README, compare.md, the grid's page and the planner gets one verdict for one job."""

import re

import pandas as pd
import pytest

from benchmarks.defaults.run import COLOCATE, DEFAULT, measure, ours
from benchmarks.defaults.settings import SETTINGS
from benchmarks.verl_job import summary as verl_job
from recipe.async_dapo_lab.plan.candidates import baseline
from recipe.async_dapo_lab.plan.recommend import NOISE
from recipe.async_dapo_lab.plan.systems import verl_colocate_async, verl_sync

from ..support.documents import page


def readme_ratios() -> dict[str, list[float]]:
    """First words of a row of README's clusters -> its ratios."""
    text = page("README.md").text
    [rows] = re.findall(r"<!-- clusters -->\n(.*?)<!-- end of clusters -->", text, re.DOTALL)
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in rows.splitlines()[2:]]
    return {job: [float(cell) for cell in ratios if cell] for job, *ratios in cells}


def test_without_a_filter_all_pages_promise_the_same_percent() -> None:
    [(_, (_, of_colocate, _))] = [row for row in readme_ratios().items() if row[0].startswith("[verl's own job]")]
    percent = round(100 * (1 - of_colocate))
    assert f"[it saves {percent} %](docs/evidence/grid.md#verls-own-job)" in page("README.md").text
    assert f"by {percent} % with four updates a step" in " ".join(page("docs/compare.md").text.split())
    no_filter = verl_job.filter_and_drafts().set_index("DAPO's filter").loc["no"]
    assert no_filter["No drafts"] == pytest.approx(of_colocate, abs=5e-4)


def test_the_ratio_at_an_equal_share_is_the_same_on_the_page_that_compares() -> None:
    grid = page("README.md").text
    [said] = re.findall(r", (\d\.\d\d to \d\.\d\d) at equal off-policy share", grid)
    assert f"takes {said} of its step" in " ".join(page("docs/compare.md").text.split())


@pytest.mark.slow
def test_the_planner_says_of_a_cluster_what_the_readme_says() -> None:
    """Simulated anew, with the planner's own defaults."""
    setting = next(one for one in SETTINGS if str(one).startswith("8 x H100"))
    groups = setting.groups
    systems = (baseline(verl_sync(groups=groups)), baseline(verl_colocate_async(groups=groups)), ours(DEFAULT))
    rows = pd.DataFrame([measure(setting, "", one) for one in systems]).set_index("system")
    seconds = rows["step_s"] / rows["length_bias"]
    of_sync, of_colocate, *_ = readme_ratios()[str(setting)]
    assert seconds[DEFAULT] / seconds["verl sync"] == pytest.approx(of_sync, rel=NOISE)
    assert seconds[DEFAULT] / seconds[COLOCATE] == pytest.approx(of_colocate, rel=NOISE)

"""Marks every test by its tier, its folder, and makes verl importable on a machine without an accelerator."""

import atexit
import csv
import gc
import os
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

from recipe.async_dapo.runtime.garbage import collect_cycles_rarely
from recipe.async_dapo_lab.own_ray import prepare_own_ray

from .support.fork_server import own_the_server
from .support.lanes import run_in_lanes
from .support.log_capture import note_loggers

collect_cycles_rarely()  # tests import a million objects

TESTS = Path(__file__).parent
CPU_PLUGIN = TESTS.parent / "recipe" / "async_dapo_lab" / "cpu" / "plugin"
# First what waits more than it computes, beside trainings: long ones before short ones, and last the one that keeps all
# cores busy by itself. Of the rest, too, first what waits.
ORDER = (
    "ray/",
    "e2e/test_partial_rollout.py",
    "e2e/test_gateway.py",
    "e2e/test_multi_turn.py",
    "e2e/test_separate.py",
    "e2e/test_quickstart.py",
    "e2e/test_two_nodes.py",
    "e2e/test_rehearsal.py",
    "e2e/test_faults.py",
    "e2e/test_dying_engines.py",
    "e2e/",
    "cpu/",
    "plan/",
    "coroutines/",
    "contract/",
    "startup/",
    "scripts/",
)
TRAINING_LANES = 2  # lanes that train, or look at the clock, at the same time; the others run what needs little
ALONE = (  # up to 14 GB: no other training beside it
    "e2e/test_dying_engines.py",
    "e2e/test_fault_matrix.py",
    "e2e/test_gpu_check_of_two.py",
    "e2e/test_two_nodes_two_ranks.py",
)
LIGHT = (  # up to 5 GB: two of them beside a training
    "e2e/test_copied_recipe.py",
    "e2e/test_faults.py",
    "e2e/test_rehearsal.py",
    "ray/",
)
DURATIONS = TESTS.parent / "outputs" / "test_durations.csv"
LEAST_S = 1.0  # a shorter test is not written down
# Tests of what trains nothing, or is read of GPUs: of each file, every run plays the test that is named. The others run
# with --nightly, and where the command names the file.
TOOLS = {
    "contract/test_benchmark_figures.py": "test_a_ratio_leaves_out_runs_between_which_the_machine_drifted",
    "contract/test_gpu_sources.py": "test_the_workers_extension_has_no_name_that_the_gpu_worker_has",
    "contract/test_learning_laboratory.py": "test_a_step_s_gradient_is_that_of_verl_s_worker",
    "contract/test_learning_summary.py": "test_the_recommendation_is_the_oldest_age_at_which_every_task_is_level",
    "scripts/test_cluster.py": "test_given_the_rayjob_when_read_then_its_parts_fit_each_other_and_the_reference_script",
    "scripts/test_examples.py": "test_a_service_runs_on_a_free_port_beside_the_training_and_ends_with_it",
    "scripts/test_install.py": (
        "test_given_only_a_cuda_build_in_the_sources_when_installed_then_torch_alone_comes_from_the_other_index"
    ),
    "scripts/test_prepare_data.py": (
        "test_given_repeated_rows_then_first_copies_stay_in_order_and_a_second_run_keeps_them_without_a_request"
    ),
}
E2E_TIMEOUT_S = 3600  # for what hangs beside training: a run that stalls is ended by those who started it

# HYPOTHESIS_PROFILE=explore looks for new examples. The default tries the same ones in every run, fewer of costly ones
# than with --nightly; `few`, for --fast, tries fewer, and fewer seeds of the tests that have one.
FEW_SEEDS = 4  # one for each strategy
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", settings.get_profile("fixed"))
settings.register_profile("few", deadline=None, derandomize=True, database=None, max_examples=10)
settings.register_profile("explore", deadline=None, database=None, print_blob=True, max_examples=1000)
settings.load_profile(PROFILE)

# verl chooses its platform on import; child processes find the plugin through PYTHONPATH.
os.environ.setdefault("VERL_PLATFORM", "cpu")
sys.path.insert(0, str(CPU_PLUGIN))
prepare_own_ray()


def next_file(waiting: Sequence[str], running: Sequence[str]) -> str | None:
    """The first training, as long as there is room for one beside the files that run; then the first of the others. Of
    those that mostly wait one at a time: what runs beside it needs the cores meanwhile.
    """
    taken, waits = sum(map(_lanes_of, running)), any(map(_mostly_waits, running))
    fit = [one for one in waiting if not (need := _lanes_of(one)) or taken + need <= TRAINING_LANES]
    fit = [one for one in fit if not (waits and _mostly_waits(one))]
    return next((file for file in fit if _lanes_of(file)), next(iter(fit), None))


def _lanes_of(file: str) -> float:
    """How many of the lanes that train at the same time it takes."""
    name = _in_tier(file.removeprefix("tests/"))
    if name in ALONE:
        return TRAINING_LANES
    return 0.5 if name.startswith(LIGHT) else name.startswith("e2e/")


def _mostly_waits(file: str) -> bool:
    return _in_tier(file.removeprefix("tests/")).startswith("ray/")


def _in_tier(path: str) -> str:
    """A path below `tests/`: what lies in `extensions/NAME/TIER/`, as if it lay in `TIER/`."""
    return path.split("/", 2)[2] if path.startswith("extensions/") else path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the slow tests too")
    parser.addoption("--lanes", type=int, default=1, help="processes that run tests, a file at a time")


def pytest_configure(config: pytest.Config) -> None:
    own_the_server()
    note_loggers()
    if PROFILE == "fixed" and config.getoption("--nightly"):
        settings.load_profile("nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    at_night = config.getoption("--nightly")
    left_out = {item for item in items if _is_left_out(item, at_night=at_night, is_named=item.path in named)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = sorted((item for item in items if item not in left_out), key=_place)
    for item in items:
        tier, *_ = _in_tier(item.path.relative_to(TESTS).as_posix()).split("/")
        item.add_marker(tier)
        if tier == "e2e":
            item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_S))
        if tier == "startup":  # verl announces at every check that GRPO needs no critic
            item.add_marker(pytest.mark.filterwarnings("ignore:Disabled critic"))


def _is_left_out(item: pytest.Item, *, at_night: bool, is_named: bool) -> bool:
    if item.get_closest_marker("nightly"):
        return not at_night
    played = TOOLS.get(item.path.relative_to(TESTS).as_posix(), item.originalname)
    if item.originalname != played and not at_night and not is_named:
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return PROFILE == "few" and parameters.get("seed", 0) >= FEW_SEEDS


def _place(item: pytest.Item) -> int:
    path = _in_tier(item.path.relative_to(TESTS).as_posix())
    return next((place for place, start in enumerate(ORDER) if path.startswith(start)), len(ORDER))


def pytest_collection_finish() -> None:
    """Simulations collect garbage; what tests import is none, and is not looked at. By default, Python looks for cycles
    at each 700th new object, for a fifth of the time in which configurations are copied.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    sys.dont_write_bytecode = True  # else a module that a test writes twice within a second may be the first one still
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="module", autouse=True)
def garbage_of_its_own() -> None:
    """What earlier files have left is looked at once, and then no more: each simulation ends with a look for errors
    that nobody has seen, which took a sixth of the fast tests' time.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    lanes = session.config.getoption("--lanes")
    if lanes < 2 or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own
    run_in_lanes(session, lanes, next_file)
    return True


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Add this run's durations to the file of all runs, and print the slowest ones: a test that has become slow is seen
    at once.
    """
    seconds: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
    slow = [(test, s) for test, s in seconds.most_common() if s >= LEAST_S]
    if not slow:
        return
    DURATIONS.parent.mkdir(exist_ok=True)
    with DURATIONS.open("a", newline="") as file:
        rows = csv.writer(file)
        if file.tell() == 0:
            rows.writerow(["ended", "seconds", "test"])
        rows.writerows([f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}", round(s, 1), test] for test, s in slow)
    terminalreporter.write_sep("=", "slowest tests but those of e2e")
    for test, s in [row for row in slow if not _in_tier(row[0].removeprefix("tests/")).startswith("e2e/")][:5]:
        terminalreporter.write_line(f"{s:6.1f} s {test}")

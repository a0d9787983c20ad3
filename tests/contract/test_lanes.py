"""How this project's tests are shared out among the processes that run them."""

from types import SimpleNamespace

from ..conftest import TESTS, TOOLS, Lanes


def test_a_lane_works_on_whatever_others_train() -> None:
    """Of a training that has one test left the lane has its next file, too: together they take more than there is."""
    lane, other, unfinished = object(), object(), {"a test": False}
    trained = ("tests/e2e/test_faults.py", "tests/e2e/test_separate.py", "tests/e2e/test_quickstart.py")
    lanes = SimpleNamespace(
        assigned_work={lane: {}, other: dict.fromkeys(trained, unfinished)},
        workqueue=dict.fromkeys(("tests/e2e/test_lora.py", "tests/contract/test_options.py"), unfinished),
    )
    assert Lanes._next_for(lanes, lane) == "tests/contract/test_options.py"


def test_files_that_share_a_cluster_go_to_one_lane() -> None:
    lanes = object.__new__(Lanes)
    tests = ("tests/ray/test_deaths.py::a", "tests/ray/test_rewards.py::b", "tests/core/test_pool.py::c[tests/ray/]")
    assert [lanes._split_scope(test) for test in tests] == ["tests/ray/", "tests/ray/", "tests/core/test_pool.py"]


def test_of_each_file_of_a_tool_there_is_the_test_that_every_run_plays() -> None:
    """Under another name the whole file would be left out in silence."""
    assert [file for file, test in TOOLS.items() if f"def {test}(" not in (TESTS / file).read_text()] == []

"""How this project's tests are shared out among the processes that run them."""

from types import SimpleNamespace

from ..conftest import Lanes


def test_a_lane_works_on_whatever_others_train() -> None:
    """Of a training that has one test left the lane has its next file, too: together they take more than there is."""
    lane, other, unfinished = object(), object(), {"a test": False}
    trained = ("tests/e2e/test_faults.py", "tests/e2e/test_separate.py", "tests/e2e/test_quickstart.py")
    lanes = SimpleNamespace(
        assigned_work={lane: {}, other: dict.fromkeys(trained, unfinished)},
        workqueue=dict.fromkeys(("tests/e2e/test_lora.py", "tests/contract/test_options.py"), unfinished),
    )
    assert Lanes._next_for(lanes, lane) == "tests/contract/test_options.py"

"""The last line of a failed run."""

from recipe.async_dapo.core.last_line import LOOK_ABOVE, last_line

REMOTE = """round step-3: ray::AsyncDAPOAgentLoopWorker.run_round() (pid=7)
  File "worker.py", line 97, in run_round
    raise RuntimeError(...)
RuntimeError: agent loop worker 0: no server
"""


def test_of_a_remote_traceback_only_the_error_is_left() -> None:
    line = last_line("RolloutError", REMOTE)
    assert line == f"RuntimeError: agent loop worker 0: no server; {LOOK_ABOVE}"


def test_a_plain_error_is_named() -> None:
    assert last_line("KeyError", "'acc'") == f"KeyError: 'acc'; {LOOK_ABOVE}"
    assert last_line("AssertionError", "") == f"AssertionError; {LOOK_ABOVE}"


def test_what_is_known_has_its_remedy() -> None:
    assert "gpu_memory_utilization" in last_line("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")
    assert "worker-*.err" in last_line("ActorDiedError", "The actor died unexpectedly before finishing this task.")
    assert "default_local_dir" in last_line("OSError", "[Errno 28] No space left on device: 'model.pt'")

"""The last line of a failed run."""

import pytest

from recipe.async_dapo.runtime.logs import LOOK_ABOVE, engine_exception, last_line

REMOTE = """round step-3: ray::AsyncDAPOAgentLoopWorker.run_round() (pid=7)
  File "worker.py", line 97, in run_round
    raise RuntimeError(...)
RuntimeError: agent loop worker 0: no server
"""


def test_of_a_remote_traceback_only_the_error_is_left() -> None:
    line = last_line("RolloutError", REMOTE)
    assert line == f"RuntimeError: agent loop worker 0: no server; {LOOK_ABOVE}"


DEAD = """round step-3: The actor died unexpectedly before finishing this task.
\tclass_name: AsyncDAPOAgentLoopWorker
\tactor_id: 1f2e
\tpid: 4321
\tnamespace: 0f
\tip: 10.0.0.7
The actor is dead because its worker process has died. Some common causes include: (1) the process was killed
"""


def test_of_a_dead_actor_its_part_and_its_place_are_left() -> None:
    line = last_line("RolloutError", DEAD)
    assert line.startswith("RolloutError: AsyncDAPOAgentLoopWorker (node 10.0.0.7, pid 4321) died; ")
    verls = DEAD.replace("AsyncDAPOAgentLoopWorker", "create_colocated_worker_cls.<locals>.WorkerDict")
    assert last_line("ActorDiedError", verls).startswith("ActorDiedError: WorkerDict (node 10.0.0.7, pid 4321) died; ")
    unborn = "The actor died because of an error raised in its creation task.\n\tclass_name: RewardLoopWorker\n"
    assert last_line("ActorDiedError", unborn).startswith("ActorDiedError: RewardLoopWorker")


def test_a_plain_error_is_named() -> None:
    assert last_line("KeyError", "'acc'") == f"KeyError: 'acc'; {LOOK_ABOVE}"
    assert last_line("AssertionError", "") == f"AssertionError; {LOOK_ABOVE}"


FATAL = """(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] EngineCore encountered a fatal error.
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] Traceback (most recent call last):
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351]   File "core.py", line 9, in step
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351]     {}["a"]
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351]     ~~^^^^^
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] KeyError: 'a'
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] 
(AsyncLLM pid=47) ERROR 11-26 21:01:58 [async_llm.py:7] AsyncLLM output_handler failed.
(AsyncLLM pid=47) ERROR 11-26 21:01:58 [async_llm.py:7] Traceback (most recent call last):
(AsyncLLM pid=47) ERROR 11-26 21:01:58 [async_llm.py:7] EngineDeadError: See stack trace (above) for the root cause.
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] During handling of the above exception, another occurred:
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] 
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] Traceback (most recent call last):
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351]   File "core.py", line 11, in step
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=48) ERROR 11-26 21:01:58 [core.py:1351] Tried to allocate 2 GiB
"""  # noqa: W291 (vLLM's own lines)


def test_of_an_engine_that_died_by_an_exception_the_exception_is_left() -> None:
    what = engine_exception(FATAL)
    assert what == "torch.OutOfMemoryError: CUDA out of memory."
    line = last_line("EnginesUnavailable", f"no engine is left: engine 0 (node 10.0.0.7, pid 47) died: {what}")
    assert what in line


@pytest.mark.parametrize("log", ["", FATAL.replace("fatal", "small"), FATAL.splitlines()[0]])
def test_of_an_engine_without_an_exception_in_its_log_nothing_is_made_up(log: str) -> None:
    assert engine_exception(log) is None

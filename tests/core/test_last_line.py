"""The last line of a failed run."""

from recipe.async_dapo.runtime.logs import LOOK_ABOVE, last_line

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

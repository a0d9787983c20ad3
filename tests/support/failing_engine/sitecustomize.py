"""First on `PYTHONPATH`, it lets any Python process end by an exception: on SIGUSR1 its main thread raises one."""

import signal
from typing import Any

MESSAGE = "a kernel has failed, as the test asked for"


def _fail(*_: Any) -> None:
    raise RuntimeError(MESSAGE)


if __name__ == "sitecustomize":
    signal.signal(signal.SIGUSR1, _fail)

"""Signals as a program gets them that was started in the foreground."""

import signal


def as_in_the_foreground() -> None:
    """For `preexec_fn`: background jobs and `nohup` ignore some signals, and all that they start does, too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

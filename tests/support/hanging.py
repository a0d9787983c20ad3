"""A command that takes any options and never ends by itself: `python -m tests.support.hanging`."""

import threading

if __name__ == "__main__":
    threading.Event().wait()

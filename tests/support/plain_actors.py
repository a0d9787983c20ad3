"""An agent loop worker that cannot be made, for real Ray. It imports nothing: its actor would do so anew."""


class BrokenWorker:
    def __init__(self) -> None:
        raise ValueError("no such tool")

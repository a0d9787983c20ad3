"""Actors for real Ray that need nothing. This module imports nothing: the process of each actor would do so anew."""


class Worker:
    def ping(self) -> None:
        """It is there."""

    async def connect(self, llm_client: object, reward_workers: object) -> None: ...

    async def attach(self, coordinator: object, worker: int, myself: object) -> None: ...


class HangingWorker(Worker):
    """One that never gets to its end of being connected."""

    async def connect(self, llm_client: object, reward_workers: object) -> None:
        from asyncio import Event

        await Event().wait()


class BrokenWorker:
    def __init__(self) -> None:
        raise ValueError("no such tool")

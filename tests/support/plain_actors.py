"""Actors for real Ray that need nothing. This module imports nothing: the process of each actor would do so anew."""


class Worker:
    def ping(self) -> None:
        """It is there."""

    is_attached = False

    async def attach(self, coordinator: object, worker: int, myself: object) -> None:
        from asyncio import sleep

        await sleep(0.2)  # calls that do not wait for it come first
        self.is_attached = True

    async def connect(self, llm_client: object, reward_workers: object, attached: None) -> None:
        assert self.is_attached, "the real one hands its calls to verl's loops here"


class HangingWorker(Worker):
    """One that never gets to its end of being connected."""

    async def connect(self, llm_client: object, reward_workers: object, attached: None) -> None:
        from asyncio import Event

        await Event().wait()


class BrokenWorker:
    def __init__(self) -> None:
        raise ValueError("no such tool")


class Exiting(Worker):
    """One whose code, which nobody contains, ends tasks, or its event loop."""

    async def raise_in_task(self, kind: type[BaseException]) -> None:
        from asyncio import gather

        async def raises() -> None:
            raise kind

        await gather(raises())

    async def raise_in_callback(self, kind: type[BaseException]) -> None:
        from asyncio import Event, get_running_loop

        def raises() -> None:
            raise kind

        get_running_loop().call_soon(raises)
        await Event().wait()

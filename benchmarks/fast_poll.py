"""verl's own replay buffers, asking every 0.05 s instead of every 2 s whether a batch is there.

For the rows of `side_by_side` that show what is left of our gain without verl's polling: verl loads them by path.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from recipe.async_dapo.cpu.overrides import PROMPTS_PER_STEP

# verl hands a buffer from outside neither filter nor poll interval: they are set to the benchmark's here.
_OPTIONS: dict[str, Any] = {"filter_groups_metric": "acc", "poll_interval": 0.05}


class FastPollAsyncReplayBuffer(ReplayBufferAsync):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, **_OPTIONS)


class FastPollSyncReplayBuffer(ReplayBuffer):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, **_OPTIONS, train_batch_size=PROMPTS_PER_STEP, gen_batch_size=1)

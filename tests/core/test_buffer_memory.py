"""The buffer's memory: 8,192 unfinished trajectories of 16K tokens have to fit into 2 GB."""

import tracemalloc

from recipe.async_dapo.calls import append_tokens
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn

TRAJECTORIES, SAMPLE, TOKENS = 8192, 4, 16 * 1024
LIMIT_BYTES = 2e9
CHUNK_TOK = 512  # tokens that a delivery brings


def test_given_long_interrupted_trajectories_when_kept_then_all_of_a_large_run_fit() -> None:
    tracemalloc.start()
    trajectories = [Trajectory(session_id=i) for i in range(SAMPLE)]  # the rest would be the same
    group = PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=trajectories)
    for trajectory in trajectories:
        turn = Turn(prompt_digest=b"0" * 16, prompt_len_tok=100)
        trajectory.turns.append(turn)
        for start in range(0, TOKENS, CHUNK_TOK):
            ids = [100_000 + start + i for i in range(CHUNK_TOK)]
            append_tokens(turn, ids, [-(start + i) / 7 for i in range(CHUNK_TOK)], [(4 * start // TOKENS, CHUNK_TOK)])
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert group.generated_tok == SAMPLE * TOKENS and group.versions() == {0, 1, 2, 3}
    assert used_bytes * TRAJECTORIES / SAMPLE < LIMIT_BYTES

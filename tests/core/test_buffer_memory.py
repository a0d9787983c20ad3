"""The buffer's memory: 8,192 unfinished trajectories of 16K tokens have to fit into 2 GB."""

import tracemalloc

from recipe.async_dapo.calls import append_tokens
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn

TRAJECTORIES, TOKENS = 8192, 16 * 1024
LIMIT_BYTES = 2e9
SAMPLE = 16  # trajectories that are made here; the rest would be the same
CHUNK_TOK = 512  # tokens that a delivery brings


def interrupted_trajectory(session_id: int) -> Trajectory:
    """16K tokens in deliveries of many sizes, under four policy versions."""
    turn = Turn(prompt_digest=b"0" * 16, prompt_len_tok=100)
    for start in range(0, TOKENS, CHUNK_TOK):
        token_ids = [100_000 + start + i for i in range(CHUNK_TOK)]
        log_probs = [-(start + i) / 7 for i in range(CHUNK_TOK)]
        append_tokens(turn, token_ids, log_probs, [(4 * start // TOKENS, CHUNK_TOK)])
    return Trajectory(session_id=session_id, turns=[turn])


def sample() -> list[PromptGroup]:
    groups = []
    for number in range(SAMPLE // 16):
        trajectories = [interrupted_trajectory(i) for i in range(16)]
        groups.append(PromptGroup(uid=f"{number}", prompt={}, drawn_at_step=1, trajectories=trajectories))
    return groups


def test_given_long_interrupted_trajectories_when_kept_then_all_of_a_large_run_fit() -> None:
    tracemalloc.start()
    groups = sample()
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(group.generated_tok for group in groups) == SAMPLE * TOKENS
    assert {version for group in groups for version in group.versions()} == {0, 1, 2, 3}
    assert used_bytes * TRAJECTORIES / SAMPLE < LIMIT_BYTES

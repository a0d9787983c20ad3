"""Turns of the trajectories that ended in a round."""

from recipe.async_dapo.core.trajectory import Segment, Turn, TurnCounts


def turn(*lens_tok: int) -> Turn:
    segments = [Segment(policy_version=0, token_ids=range(n), rollout_log_probs=range(n)) for n in lens_tok]
    return Turn(prompt_digest=b"", prompt_len_tok=1, segments=segments)


def test_means_are_over_trajectories_and_over_turns() -> None:
    parts = [TurnCounts.of([turn(2, 3), turn(7)], calls_s=4.0), TurnCounts.of([turn(6)], calls_s=0.0)]
    assert TurnCounts.total(parts).figures() == {
        "mean": 1.5,
        "tokens/mean": 6.0,
        "calls_s": 2.0,
    }


def test_a_round_in_which_nothing_ended_has_no_turns() -> None:
    assert set(TurnCounts.total([]).figures().values()) == {0}

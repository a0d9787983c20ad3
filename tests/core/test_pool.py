"""The pool and its ledger over many rounds: nothing vanishes, exactly B groups train, none twice, order is kept."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given

from recipe.async_dapo.core.ledger import InexactBatch, Ledger, LedgerError, check_batch
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.pool import PoolWatch
from recipe.async_dapo.core.round import RoundSummary
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup

from ..support.pool_run import Run, runs


@given(run=runs())
def test_given_any_rounds_when_settled_then_each_prompt_is_in_one_term_and_exactly_the_target_is_trained_once(
    run: Run,
) -> None:
    for _ in range(5):
        run.one_step()
        if run.random.random() < 0.4:
            run.restart_from_checkpoint()
    assert len(set(run.trained)) == 5 * run.target


def summary_of(outcomes: list[GroupOutcome], started: list[str]) -> RoundSummary:
    ended = {o.prompt_uid for o in outcomes}
    return RoundSummary(
        round_id="round",
        outcomes=tuple(outcomes),
        start_order=tuple(started),
        never_started=(),
        taken_unreported=tuple(uid for uid in started if uid not in ended),
    )


def valid(uid: str) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID, oldest_version=0, newest_version=0)


def opened_run(stop_rule: StopRuleName) -> tuple[Run, list[PromptGroup]]:
    run = Run(Random(0), 2, 5, False, stop_rule, None, step=1)
    run.draw(5)
    return run, run.pool.dispatch()


@pytest.mark.parametrize(
    ("stop_rule", "trained"),
    [(StopRuleName.FIRST_COMPLETED, ("drawn-2", "drawn-0")), (StopRuleName.FIFO, ("drawn-0", "drawn-2"))],
)
def test_given_more_valid_groups_than_the_target_then_the_first_by_the_stop_rule_are_trained_and_the_rest_next(
    stop_rule: StopRuleName, trained: tuple[str, ...]
) -> None:
    run, _ = opened_run(stop_rule)
    uids = [f"drawn-{k}" for k in range(5)]
    outcomes = [valid("drawn-2"), valid("drawn-0"), valid("drawn-3")]
    settled = run.pool.settle(summary_of(outcomes, uids), [])
    assert settled.trained_uids == trained
    assert run.pool.carried_uids == ("drawn-3",)
    assert settled.lost_reports == 2
    assert run.pool.check_ledger()["waiting"] == 2


def test_given_groups_that_end_in_a_round_then_watches_are_told_of_them_as_they_ended() -> None:
    """What is known of a prompt with several groups in a round must not hang on their verdicts."""
    told: list[str] = []

    class Watch(PoolWatch):
        def group_ended(self, group: PromptGroup, outcome: GroupOutcome) -> None:
            told.append(group.uid)

    run = Run(Random(0), 2, 5, False, StopRuleName.FIRST_COMPLETED, None, step=1)
    run.watched_by(Watch())
    uids = run.draw(5)
    run.pool.dispatch()
    verdicts = [Verdict.FAILED, Verdict.VALID, Verdict.FILTERED, Verdict.VALID]
    ended = [replace(valid(uid), verdict=verdict) for uid, verdict in zip(uids, verdicts, strict=False)]
    run.pool.settle(summary_of(ended, uids), [])
    assert told == uids[:4]


def test_given_a_group_given_back_twice_when_settled_then_it_is_queued_once() -> None:
    run, groups = opened_run(StopRuleName.FIRST_COMPLETED)
    uids = [group.uid for group in groups]
    settled = run.pool.settle(summary_of([valid(uids[0]), valid(uids[1])], uids), [*groups[2:], groups[2]])
    assert settled.requeued == 3
    run.pool.check_ledger()


def test_given_a_round_below_its_target_when_settled_then_it_is_refused() -> None:
    run, groups = opened_run(StopRuleName.FIFO)
    uids = [group.uid for group in groups]
    with pytest.raises(AssertionError, match="has not reached its target"):
        run.pool.settle(summary_of([valid(uids[0])], uids), groups[1:])


def test_given_terms_that_do_not_close_when_checked_then_the_ledger_says_which() -> None:
    with pytest.raises(LedgerError, match="drawn=3, accounted=4"):
        Ledger(drawn=3, trained=1, filtered=1).check(waiting=1, buffered=1)
    assert Ledger(drawn=4, trained=1, filtered=1).check(waiting=1, buffered=1)["drawn"] == 4


KEYS = [f"{uid}_{session}_0" for uid in ("a", "b") for session in range(2)]


def test_given_b_groups_of_n_when_checked_then_it_passes_whatever_the_outputs_of_a_trajectory() -> None:
    check_batch([*KEYS, "a_1_1"], ["a", "b"], groups=2, n=2)


@pytest.mark.parametrize(
    ("keys", "uids"),
    [(KEYS[1:], ["a", "b"]), ([*KEYS, "c_0_0"], ["a", "b"]), (KEYS[:2], ["a"]), ([*KEYS, "a_2_0"], ["a", "b"])],
)
def test_given_anything_else_when_checked_then_it_is_refused(keys: list[str], uids: list[str]) -> None:
    with pytest.raises(InexactBatch, match="batch is not 2 groups of 2"):
        check_batch(keys, uids, groups=2, n=2)

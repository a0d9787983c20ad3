"""The account of each source: whatever happens in rounds, it has all its prompts, and together they are the ledger."""

from collections import Counter

import pytest
from hypothesis import given

from recipe.async_dapo.core.ledger import Ledger, LedgerError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.extensions.sources.accounts import ANSWERED, TERMS, Accounts

from ....support.pool_run import Run, fresh_group, runs


@given(run=runs())
def test_given_any_rounds_then_each_source_accounts_for_its_prompts_over_a_checkpoint_too(run: Run) -> None:
    run.watched_by(accounts := Accounts())
    for _ in range(5):
        run.one_step()
        closed = accounts.take()
        trained = Counter(run.prompts[uid]["data_source"] for uid in run.trained)
        assert {source: own["trained"] for source, own in closed.items() if own["trained"]} == trained
        held = run.pool.check_ledger()
        assert sum(own["drawn"] for own in closed.values()) == held["drawn"] - held["deferred"]
        assert sum(own["waiting"] for own in closed.values()) == held["waiting"] + held["buffered"]
        if run.random.random() < 0.4:
            state = accounts.accounts()
            run.watches = [accounts := Accounts()]
            accounts.go_on(state)
            run.restart_from_checkpoint()


def outcome(uid: str, verdict: Verdict, lens_tok: tuple[int, ...], metrics: tuple[float, ...] = ()) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=verdict, response_lens_tok=lens_tok, metrics=metrics)


def test_figures_of_a_step_are_those_of_its_own_groups() -> None:
    accounts = Accounts()
    groups = [fresh_group(uid, prompt={"data_source": uid[0]}) for uid in ("a1", "a2", "a3", "b1")]
    accounts.drawn(groups)
    accounts.group_ended(groups[0], outcome("a1", Verdict.VALID, (2, 4), (1.0, 0.0)))
    accounts.group_ended(groups[1], outcome("a2", Verdict.FILTERED, (6, 8), (1.0, 1.0)))
    accounts.group_ended(groups[3], outcome("b1", Verdict.FAILED, (5, 0)))
    accounts.discarded(groups[2], 4)
    accounts.trained(groups[:1])
    accounts.note_batch({"a1": Counter({0: 4, 2: 2})})
    accounts.check([groups[2]], Ledger(drawn=4, trained=1, filtered=1, failed=1), deferred=0)
    closed = accounts.take()
    assert {name: closed["a"][name] for name in ANSWERED} == pytest.approx(
        {
            "valid_share": 1 / 2,
            "pass_rate": 3 / 4,
            "response_length": 5,
            "trained_length": 3,
            "staleness": 4 / 6,
            "waste_ratio": 4 / 10,
        }
    )
    assert closed["b"] | {"waste_ratio": 1} == closed["b"] and closed["b"]["waiting"] == 0
    assert accounts.take()["a"].keys() == {*TERMS}, "figures of a step are told once"


def test_in_a_run_without_the_filter_no_source_has_a_pass_rate() -> None:
    accounts = Accounts()
    accounts.group_ended(fresh_group("a", prompt={"data_source": "math"}), outcome("a", Verdict.VALID, (2, 4)))
    assert accounts.take()["math"].keys() == {*TERMS, "valid_share", "response_length"}


def test_a_source_that_loses_a_prompt_is_named() -> None:
    accounts, group = Accounts(), fresh_group("a", prompt={"data_source": "math"})
    accounts.drawn([group])
    with pytest.raises(LedgerError, match="source math: ledger does not close"):
        accounts.check([], Ledger(drawn=1), deferred=0)
    with pytest.raises(LedgerError, match=r"drawn=2, by source \{'math': 1\}"):
        accounts.check([group], Ledger(drawn=2), deferred=0)
    accounts.check([group], Ledger(drawn=2), deferred=1)


def test_a_run_that_goes_on_from_a_checkpoint_without_accounts_begins_them_with_what_is_held() -> None:
    accounts = Accounts()
    accounts.check([fresh_group("a", prompt={"data_source": "math"})], Ledger(drawn=7, trained=4), deferred=2)
    assert accounts.take() == {"math": dict.fromkeys(TERMS, 0) | {"drawn": 1, "waiting": 1}}

"""Shares: whole numbers of groups, exact in each step or over steps, and what is held, drawn and taken for them."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import CarriedGroup, GroupOutcome, Verdict
from recipe.async_dapo.core.over_sampling import AvailableGroups, OverSampling
from recipe.async_dapo.extensions.shares.mix import SourceMix, apportion

from ....support.pool_run import fresh_group

SHARES = (
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 100), min_size=1)
    .map(lambda weights: {name: Fraction(weight, sum(weights.values())) for name, weight in weights.items()})
)  # fmt: skip


def mix_of(
    shares: dict[str, Fraction],
    target: int = 8,
    *,
    carries: bool = False,
    batch: int | None = None,
    versions: int | None = 2,
) -> SourceMix:
    over_sampling = OverSampling(target_valid_groups=target, batch_size=batch, versions=versions)
    mix = SourceMix(over_sampling, carries=carries, begins_ahead=True)
    mix.begin(shares)
    return mix


def carried(source: str, number: int) -> CarriedGroup:
    group = fresh_group(f"{source}{number}", prompt={"data_source": source})
    return CarriedGroup(group=group, oldest_version=0, newest_version=0, generated_tok=1)


@given(shares=SHARES, count=st.integers(0, 1024))
def test_parts_of_a_batch_are_the_shares_rounded_up_or_down(shares: dict[str, Fraction], count: int) -> None:
    parts = apportion(count, shares)
    assert sum(parts.values()) == count
    assert all(abs(parts[name] - count * share) < 1 for name, share in shares.items())


@given(shares=SHARES, target=st.integers(1, 64), steps=st.integers(1, 40))
def test_what_rounding_leaves_over_is_made_up_for_in_later_steps(shares, target: int, steps: int) -> None:
    mix, trained = mix_of(shares, target, carries=True), dict.fromkeys(shares, 0)
    for step in range(1, steps + 1):
        assert sum(mix.targets.values()) == target and min(mix.targets.values()) >= 0
        trained = {source: trained[source] + count for source, count in mix.targets.items()}
        assert all(abs(count - step * target * shares[source]) < 2 for source, count in trained.items())
        mix.take([])


@given(
    shares=SHARES,
    target=st.integers(1, 20),
    carries=st.booleans(),
    versions=st.integers(1, 4),
    before=st.integers(0, 5),
)
def test_as_many_groups_are_begun_as_the_steps_that_may_train_on_them_take(
    shares, target: int, carries: bool, versions: int, before: int
) -> None:
    mix = mix_of(shares, target, carries=carries, versions=versions)
    for _ in range(before):
        mix.take([])
    most = {source: quota.most_trainable for source, quota in mix.quotas([]).items()}
    trained: Counter[str] = Counter()
    for _ in range(versions):
        trained.update(mix.targets)
        mix.take([])
    assert most == {source: trained[source] for source in shares}
    unlimited = mix_of(shares, target, carries=carries, versions=None).quotas([])
    assert {quota.most_trainable for quota in unlimited.values()} == {None}


def test_what_is_held_of_sources_without_a_share_is_known_until_the_next_round_opens() -> None:
    mix = mix_of({"a": Fraction(1)})
    mix.missing({"a": AvailableGroups(certain=1, open=2), "left out": AvailableGroups(certain=1, open=2)})
    assert mix.groups_to_hold == 16 and mix.without_share == {"left out": 3}, "the metric forgets nothing"


@pytest.mark.parametrize("batch", [None, 12])
def test_a_source_that_a_step_leaves_out_is_held_in_the_others_as_its_target_of_each_asks(batch: int | None) -> None:
    """Its first target is none: it was held without any surplus in all steps."""
    mix = mix_of({"few": Fraction(1, 16), "many": Fraction(15, 16)}, 6, carries=True, batch=batch)
    assert mix.targets["few"] == 0
    steps = []
    for _ in range(8):
        held = mix.missing({})
        of_all = {"few": 1, "many": 11} if batch else {source: 2 * count for source, count in mix.targets.items()}
        assert held == {source: of_all[source] for source, count in mix.targets.items() if count}
        steps.append((mix.targets, held))
        mix.take([])
    assert any(targets["few"] for targets, _ in steps), "it never had its turn"
    again = mix_of({"few": Fraction(1, 16), "many": Fraction(15, 16)}, 6, carries=True, batch=batch)
    for _ in steps[:5]:
        again.take([])
    resumed = mix_of({"few": Fraction(1, 16), "many": Fraction(15, 16)}, 6, carries=True, batch=batch)
    resumed.restore(again.state())
    assert (resumed.targets, resumed.missing({})) == steps[5]


def test_named_shares_are_the_same_in_each_step() -> None:
    mix = mix_of({"a": Fraction(1, 3), "b": Fraction(2, 3)}, 8)
    for _ in range(3):
        assert mix.targets == {"a": 3, "b": 5}
        assert mix.take([carried(source, k) for k in range(6) for source in "ba"]) == [
            *("b0", "a0", "b1", "a1", "b2", "a2", "b3", "b4")
        ]


def test_each_source_is_held_and_drawn_by_its_own_valid_share() -> None:
    mix = mix_of({"easy": Fraction(1, 2), "rare": Fraction(1, 2)})
    ended = {"easy": (8, 2), "rare": (2, 8)}
    outcomes = [
        GroupOutcome(prompt_uid=f"{source}{k}", verdict=verdict, source=source)
        for source, counts in ended.items()
        for verdict, count in zip((Verdict.VALID, Verdict.FILTERED), counts, strict=True)
        for k in range(count)
    ]
    mix.observe(0.0, outcomes)
    assert mix.missing({}) == {"easy": 10, "rare": 40}  # twice 4 valid groups
    assert mix.groups_to_hold == 50, "32 would do if any valid group were as good as another"
    available = {"easy": AvailableGroups(certain=4, open=0), "rare": AvailableGroups(certain=1, open=5)}
    assert mix.to_draw(available) == {"rare": 30}, "a source that has enough is not drawn"
    quotas = mix.quotas([carried("easy", 0), carried("left out", 0)])
    assert {
        source: (one.valid_share, one.carried_valid_groups, one.most_trainable) for source, one in quotas.items()
    } == {
        "easy": (0.8, 1, 8),
        "rare": (0.2, 0, 8),
    }


@pytest.mark.parametrize(("batch", "missing"), [(8, {"a": 4, "b": 4}), (1, {"a": 4, "b": 4})])
def test_named_batches_are_divided_too(batch: int, missing: dict[str, int]) -> None:
    assert mix_of({"a": Fraction(1, 2), "b": Fraction(1, 2)}, batch=batch).missing({}) == missing


def test_a_mix_goes_on_from_its_state_as_if_it_had_not_ended() -> None:
    shares = {"a": Fraction(1, 7), "b": Fraction(6, 7)}
    mix, other = mix_of(shares, 4, carries=True), mix_of(shares, 4, carries=True)
    mix.observe(0.0, [GroupOutcome(prompt_uid="a", verdict=Verdict.FILTERED, source="a")])
    mix.take([carried("b", k) for k in range(4)])
    other.restore(mix.state())
    assert other.targets == mix.targets and other.missing({}) == mix.missing({})
    for _ in range(6):
        mix.take([]), other.take([])
        assert other.targets == mix.targets


def test_named_shares_owe_nothing_of_what_balanced_ones_left_over() -> None:
    shares = {"a": Fraction(1, 7), "b": Fraction(6, 7)}
    before, mix = mix_of(shares, 4, carries=True), mix_of(shares, 4)
    named = mix.targets
    for _ in range(3):
        before.take([])
        assert before.state().owed["a"] != "0"
        mix.restore(before.state())
        assert mix.targets == named

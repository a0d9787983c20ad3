"""Whole runs on virtual time with engines on GPUs of their own, for every strategy and fault."""

from collections import Counter
from random import Random
from statistics import fmean

import pytest

from recipe.async_dapo.config.options import FilterConfig
from recipe.async_dapo.config.values import Auto, RolloutStrategy
from recipe.async_dapo.core.mix import ALL
from recipe.async_dapo.engines.engine_requests import EnginesUnavailable
from recipe.async_dapo.engines.load_balancer import LoadBalancerStats
from recipe.async_dapo.engines.replica import AsyncDAPOReplica
from recipe.async_dapo.extensions.separate.engines import Replacements
from recipe.async_dapo.record.keys import PREFIX
from recipe.async_dapo.rollout.manager import RoundRecord
from recipe.async_dapo.training.engine_manager import EngineManager
from recipe.async_dapo.training.observer import Observer

from ....support.simulated_cluster import resumed
from ....support.simulated_worker import Task, random_task
from ..support.separate_cluster import SEPARATE, SeparateCluster, separate_options

STRATEGIES = pytest.mark.parametrize("strategy", SEPARATE)
MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(31, 400)]


@pytest.mark.slow
@STRATEGIES
def test_given_a_steady_run_then_batches_are_exact_engines_work_and_are_updated_one_at_a_time(start, strategy) -> None:
    """Lengths differ by ten times; a look that finds a place while requests wait fails the run. Over twelve draws of
    lengths the servers are busy 0.89 to 0.96 of the time, and the least busy one 0.87 to 0.96. An engine that drains
    for long falls behind by more than `max_lag`, and is out beside the next one.
    """
    opts = separate_options(
        strategy, max_staleness=4, max_concurrent_prompts=6, target_valid_groups=4, over_sampling_batch_size=12
    )
    task = Task(lambda ids: 4 + int(36 * Random(f"length {ids}").random()))
    cluster = start(opts, SeparateCluster, task=task, num_servers=3)
    cluster.steps(5)
    cluster.watch()
    cluster.steps(15)
    assert cluster.withheld_tok == 0
    assert cluster.seen.most_out <= 1 + (strategy is RolloutStrategy.CONSISTENT)
    busy = [looks / cluster.seen.looks for looks in cluster.seen.busy.values()]
    assert sum(busy) / len(busy) > 0.9, cluster.seen
    assert min(busy) > 0.85, cluster.seen
    newest = cluster.step_number
    assert all(version >= newest - 2 for version in cluster.versions().values())


@pytest.mark.slow
@STRATEGIES
def test_given_a_steady_run_then_short_answers_are_not_preferred(start, strategy) -> None:
    """Trained over natural length: what is trained has the mean length of what the model says."""
    opts = separate_options(strategy, max_concurrent_prompts=6, target_valid_groups=4, over_sampling_batch_size=12)
    task = random_task(5)
    cluster = start(opts, SeparateCluster, task=task, num_servers=3, training_s=2.0)
    cluster.steps(40)
    begun = [[index, session] for index in range(cluster.num_drawn) for session in range(opts.rollout_n)]
    valid = [
        index
        for index in range(cluster.num_drawn)
        if len({task.metric_of([index, session]) for session in range(opts.rollout_n)}) > 1
    ]
    natural = [task.length_of(ids) for ids in begun if ids[0] in set(valid[: len(cluster.trained)])]
    ratio = (sum(cluster.lengths) / len(cluster.lengths)) / (sum(natural) / len(natural))
    assert 0.9 < ratio < 1.1


class PartsOfRounds(Observer):
    """Notes what the load balancer has counted in each part of a round."""

    def __init__(self, parts: list[LoadBalancerStats]) -> None:
        self._parts = parts

    def ended(self, record: RoundRecord) -> None:
        self._parts.append(record.balancer)


def test_given_a_checkpoint_before_a_step_s_batch_then_the_step_counts_what_engines_did_before_and_after_it(start):
    cluster = start(separate_options(RolloutStrategy.PARTIAL), SeparateCluster, task=random_task(3), num_servers=2)
    cluster.steps(2)
    parts: list[LoadBalancerStats] = []
    cluster.buffer.observers["parts"] = PartsOfRounds(parts)
    cluster.run_for(3)
    cluster.end_round()
    cluster.step()
    generated = [{key: load.generated_tok for key, load in part.loads.items()} for part in parts]
    assert len(generated) == 2 and all(sum(tokens.values()) for tokens in generated)
    told = cluster.records[-1].balancer.loads
    assert {key: load.generated_tok for key, load in told.items()} == sum(map(Counter, generated), Counter())


def test_given_filtered_groups_and_a_checkpoint_before_a_step_s_batch_then_its_first_prompts_count_once(start) -> None:
    opts = separate_options(RolloutStrategy.PARTIAL, filter=FilterConfig(metric="acc", max_num_gen_batches=2))
    cluster = start(opts, SeparateCluster, task=Task(metric_of=lambda prompt_ids: 1.0))
    cluster.update_weights()
    cluster.buffer.open_round(1)
    cluster.run_for(20)
    cluster.end_round()
    assert cluster.buffer.pool.missing_for_round()
    cluster.buffer.open_round(1)
    assert cluster.buffer._num_gen_batches == {ALL: 1}


@pytest.mark.slow
@STRATEGIES
def test_given_updates_while_batches_are_handed_over_then_each_time_and_each_token_is_told_once(start, strategy):
    """The time of an engine that drains begins with the drain."""
    task, transfer_s = Task(lambda _: 20), 2.0
    cluster = start(separate_options(strategy), SeparateCluster, task=task, transfer_s=transfer_s, training_s=30.0)
    steps = cluster.steps(6)
    for record, metrics in zip(cluster.records, steps, strict=True):
        stats, prefix = record.balancer, f"{PREFIX}load_balancer/"
        assert metrics[prefix + "versions_behind"] == stats.versions_behind
        assert metrics.get(prefix + "update_s") == (fmean(stats.updates_s) if stats.updates_s else None)
    cluster.check_caught_up()
    last, _ = cluster.ray.get(cluster.balancer_handle.turn_over.remote())
    told = [*(record.balancer for record in cluster.records), last]
    updates_s = [seconds for stats in told for seconds in stats.updates_s]
    assert len(updates_s) == sum(len(taker.taken) for taker in cluster.takers.values())
    assert min(updates_s) >= transfer_s
    assert (max(updates_s) > 2 * transfer_s) == (strategy is RolloutStrategy.CONSISTENT)
    generated = [tokens for server in cluster.servers for tokens in server.generated.values()]
    generated += [request.token_ids for server in cluster.servers for request in server.running.values()]
    assert sum(load.generated_tok for stats in told for load in stats.loads.values()) == sum(map(len, generated))


@pytest.mark.slow
@pytest.mark.parametrize("transfer_s", [0.1, 3.0, 20.0])
def test_given_engines_that_are_updated_then_requests_that_they_hold_go_on_where_they_are(start, transfer_s) -> None:
    """The property would not notice if a request was sent away and its prompt computed again."""
    opts = separate_options(RolloutStrategy.PARTIAL_STALE_KV)
    cluster = start(opts, SeparateCluster, task=Task(lambda _: 30), transfer_s=transfer_s)
    metrics = cluster.steps(6)
    old_share, reprefilled_tok = (
        sum(step[f"async_dapo/partial/{name}"] for step in metrics)
        for name in ("off_policy_token_ratio", "reprefilled_tokens")
    )
    assert old_share > 0 == reprefilled_tok
    cluster.end_round()
    assert cluster.step()["async_dapo/partial/reprefilled_tokens"] > 0, "a stop has ended them"


@pytest.mark.slow
@pytest.mark.parametrize("looser", [None, 6])
@STRATEGIES
def test_given_a_checkpoint_of_a_looser_limit_then_what_is_too_stale_is_handed_over_late_and_steps_go_on(
    start, strategy, looser
) -> None:
    opts = separate_options(strategy, max_staleness=looser, over_sampling_batch_size=20, max_concurrent_prompts=8)
    cluster = start(opts, SeparateCluster, task=random_task(3), num_servers=2, training_s=30.0)
    cluster.steps(4)
    cluster.end_round()
    cluster.options = separate_options(strategy, max_staleness=1)
    cluster = resumed(start, cluster)
    cluster.accepts_withheld = True
    cluster.steps(10)
    cluster.accepts_withheld = False
    cluster.steps(3)


def test_given_training_that_takes_longer_than_a_round_may_then_the_next_batch_has_its_whole_time(start) -> None:
    opts = separate_options(RolloutStrategy.PARTIAL, round_timeout_s=60.0)
    cluster = start(opts, SeparateCluster, task=Task(lambda _: 12), training_s=200.0)
    cluster.steps(3)


def test_given_a_worker_that_has_not_begun_when_the_others_have_a_batch_then_it_has_nothing_to_report(start) -> None:
    cluster = start(separate_options(RolloutStrategy.PARTIAL), SeparateCluster)
    cluster.worker_handles[1].latency_s = lambda method: 200.0 if method == "run_round" else 0.01
    cluster.step()
    assert cluster.loop.time() < 200


async def broken(*_: object) -> None:
    raise RuntimeError("broken")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["fails", "hangs", "stop_generation"])
@STRATEGIES
def test_given_weights_that_cannot_be_brought_then_their_engine_is_ended_and_the_trainer_does_not_wait(
    start, strategy, fault
) -> None:
    cluster = start(separate_options(strategy), SeparateCluster, task=Task(lambda _: 12), num_servers=3)
    cluster.step()
    if fault == "stop_generation":
        cluster.servers[1].stop_generation = broken
    else:
        setattr(cluster.takers["server-1"], fault, RuntimeError("broken") if fault == "fails" else True)
    before_s, limit_s = cluster.loop.time(), cluster.options.weight_update_timeout_s
    cluster.steps(4)
    keeps_requests = strategy is RolloutStrategy.PARTIAL_STALE_KV and fault == "hangs"
    assert cluster.loop.time() - before_s < 4 * 60 + keeps_requests * limit_s
    cluster.run_for(limit_s)
    cluster.step()
    assert cluster.versions().keys() == {"server-0", "server-2"} and cluster.server_handles[1].is_dead
    assert [replica.replica_rank for replica in cluster.engines.replicas] == [0, 2]


def test_given_weights_that_take_longer_than_the_limit_of_a_bucket_then_no_engine_is_ended(start) -> None:
    """What each bucket may take is what a call to an engine may take: a large model has more of them."""
    cluster = start(separate_options(RolloutStrategy.PARTIAL), SeparateCluster, num_servers=2)
    for taker in cluster.takers.values():
        taker.transfer_s, taker.buckets = 0.75 * cluster.options.engine_timeout_s, 4
    cluster.steps(3)
    cluster.engines.await_newest_weights()
    assert cluster.versions() == {"server-0": 3, "server-1": 3}


def test_given_a_dead_engine_whose_processes_cannot_be_ended_then_the_run_goes_on_and_leaves_its_gpus(
    start, monkeypatch
) -> None:
    cluster = start(separate_options(RolloutStrategy.PARTIAL), SeparateCluster, num_servers=2)
    cluster.step()
    remove, told = EngineManager._remove, []

    def fail(self: EngineManager, replica: AsyncDAPOReplica) -> None:
        remove(self, replica)
        raise TimeoutError("processes [7] have not ended")

    monkeypatch.setattr(EngineManager, "_remove", fail)
    monkeypatch.setattr(Replacements, "note_lost", lambda _, replica: told.append(replica))
    cluster.server_handles[1].kill()
    cluster.steps(2)
    assert [replica.replica_rank for replica in cluster.engines.replicas] == [0] and not told


def test_given_the_only_engine_when_it_cannot_take_the_weights_then_the_run_ends_and_says_why(start) -> None:
    cluster = start(separate_options(RolloutStrategy.PARTIAL), SeparateCluster, num_servers=1)
    cluster.step()
    cluster.takers["server-0"].fails = KeyError("layer.0.weight")
    with pytest.raises(EnginesUnavailable, match=r"engine 0 has not taken new weights: KeyError: 'layer\.0\.weight'"):
        cluster.steps(4)


@pytest.mark.parametrize("seed", [*range(24), 30, *MORE_SEEDS])
def test_given_any_options_and_any_run_of_events_then_every_batch_is_whole_and_no_step_waits_for_ever(start, seed):
    """Updates, deaths, engines that are silent or take no weights, new ones, broken connections, stops, validations and
    restarts from a checkpoint, in any order.
    """
    random = Random(seed)
    strategy = SEPARATE[seed % len(SEPARATE)]
    is_whole = strategy is RolloutStrategy.CONSISTENT
    opts = separate_options(
        strategy,
        max_staleness=random.choice([None, 1, 2, 4]),
        max_loads_per_server=random.choice([1, 2, 3, 8]),
        max_concurrent_prompts=random.choice([1, 2, 4]),
        num_workers=random.choice([1, 2, 3]),
        rollout_pool_size=random.choice([None, Auto.AUTO, 2, 9]),
        over_sampling_batch_size=random.choice([1, 2, 5, Auto.AUTO]),
        target_valid_groups=random.choice([1, 2, 3]),
    )
    latency_s = random.choice([0.01, lambda method: random.choice([0.0, 0.01, 0.3, random.uniform(0, 3)])])
    task = random_task(seed)
    task.tool_s = random.choice([0.0, 0.5, 20.0])
    task.turn_tok = None if is_whole else random.choice([None, 8])
    task.call_s = lambda prompt_ids, done_tok: Random(f"{seed} {prompt_ids} {done_tok}").choice([0.0, 0.5, 30.0])
    about = {"transfer_s": random.choice([0.0, 1.0, 40.0]), "training_s": random.choice([0.0, 3.0, 60.0])}
    cluster = start(opts, SeparateCluster, task=task, num_servers=3, latency_s=latency_s, **about)
    ended = set[str]()
    for _ in range(6):
        cluster.step()
        assert cluster.records[-1].balancer.versions_behind < cluster.step_number, (
            "of an engine that has no weights yet"
        )
        well = [replica for replica in cluster.engines.replicas if replica.server_address not in ended]
        match random.choice(["", "", "lose", "lose", "join", "cut", "validate", "end", "resume"]):
            case "lose" if len(well) > 1:
                victim = random.choice(well)
                ended.add(victim.server_address)
                handle, taker = victim.servers[0], cluster.takers[victim.server_address]
                match random.choice(["dies", "dies", "is silent", "fails", "hangs"]):
                    case "dies":
                        cluster.loop.call_later(random.choice([0, 0, random.uniform(0, 20)]), handle.kill)
                    case "is silent":
                        cluster.loop.call_soon(handle.cut_off, 100_000.0)
                    case "fails":
                        taker.fails = RuntimeError("broken")
                    case "hangs":
                        taker.hangs = True
            case "join":
                cluster.join()
            case "cut":
                handle = random.choice(cluster.server_handles)
                cluster.loop.call_later(random.uniform(0, 20), handle.cut_off, 0.5)
            case "validate":
                versions = {version for tag in cluster.validate(3).tags for version, _ in tag["segments"]}
                assert versions == {cluster.step_number}, "not under the newest weights"
            case "end":
                cluster.end_round()
                cluster.run_for(pause_s := random.choice([0.0, 20.0]))
                assert not pause_s or not any(server.generates for server in cluster.living), "it goes on after a stop"
            case "resume":
                cluster.end_round()
                before = cluster.buffer.pool.check_ledger()
                cluster = resumed(start, cluster)
                ended.clear()
                assert cluster.buffer.pool.check_ledger() == before
    cluster.run_for(20.0)
    cluster.step()
    cluster.check_caught_up()
    assert not any(replica.servers[0].is_dead for replica in cluster.engines.replicas)
    assert cluster.withheld_tok == 0
    assert cluster.buffer.pool.check_ledger()["trained"] == 7 * opts.target_valid_groups

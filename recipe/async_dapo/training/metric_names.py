"""Every metric the recipe logs, and what it means."""

PREFIX = "async_dapo/"
STALENESS_BUCKETS = ("0", "1", "2", "3", "4_plus")
FAILURE_REASONS = (
    *("reward_error", "reward_timeout", "reward_not_finite", "generation_error"),
    *("unknown_call", "state_lost", "journal_full"),
)

# Name without the prefix -> meaning. The README's table is generated from this; a test refuses other keys.
METRICS: dict[str, str] = {
    "ledger/drawn": "prompt groups drawn since the start of the run [groups]",
    "ledger/trained": "of these: trained on [groups]",
    "ledger/filtered": "of these: dropped because their metric does not vary [groups]",
    "ledger/screened": "of these: ended after a few samples that were alike; 0 without async_dapo.screening [groups]",
    "ledger/failed": "of these: dropped because a trajectory failed for good [groups]",
    "ledger/retired": "of these: given up, too stale or with agent loops that are gone; drawn again [groups]",
    "ledger/waiting": "of these: waiting to be generated [groups]",
    "ledger/deferred": "of these: set aside for a later step because their prompts' history promises nothing [groups]",
    "ledger/buffered": "of these: kept with what they have generated [groups]",
    "round/gen_batches": "prompts drawn in this step over over_sampling_batch_size, the top-up counted as 1 [batches]",
    "round/groups_to_hold": "over-sampling target at the start of the next step [groups]",
    "round/started_groups": "groups that were started or resumed in this step [groups]",
    "round/ended_trajectories": "trajectories that ended in this step, or ended before and were still unscored [count]",
    "round/certain_groups": "unfinished groups, of which two trajectories differ: sure to be valid [groups]",
    "round/trained_groups": "groups in this step's batch [groups]",
    "round/rollout_s": "from the opening of the round to the last worker's report [s]",
    "early_stop/stopped_early": "1 if the stop interrupted something, else 0",
    "early_stop/stop_latency_s": "from the report that met the stop rule until every request is back [s]",
    "early_stop/interrupted_groups": "groups that the stop interrupted [groups]",
    "early_stop/requeued_groups": "of these: queued again from the start [groups]",
    "early_stop/redrawn_groups": "complete, but behind those that fifo waits for; with discard queued again [groups]",
    "early_stop/surplus_groups": "valid groups kept for the next step [groups]",
    "early_stop/lost_reports": "started groups that no worker gave back; queued again [groups]",
    "filter/rejected_groups": "groups whose metric does not vary, in this step [groups]",
    "filter/valid_share": "share of groups that is expected to be valid in the next step; 1 where "
    "over_sampling_batch_size is a number [0-1]",
    "filter/rejected_ratio": "share of them and of screened-out groups, of all that were judged in this step [0-1]",
    "screening/screened_groups": "groups ended in this step because their first samples were alike [groups]",
    "screening/saved_tokens": "estimate of what the other trajectories of these groups would have taken, at the mean "
    "length of their samples [tokens]",
    "screening/kept_groups": "whole groups judged in this step whose first samples were alike: drawn by "
    "screening.keep_share [groups]",
    "screening/kept_valid_groups": "of these: valid after all; over kept_groups, the share of the screened-out groups "
    "that would have been [groups]",
    "selection/skipped_prompts": "prompts deferred in this step [groups]",
    "selection/known_prompts": "prompts whose answers are remembered [prompts]",
    "failure/groups": "groups dropped in this step because a trajectory failed for good [groups]",
    "failure/reward_error": "of these: the reward function raised [groups]",
    "failure/reward_timeout": "of these: the reward function did not answer in time [groups]",
    "failure/reward_not_finite": "of these: the reward or the metric was no finite number [groups]",
    "failure/generation_error": "of these: the agent loop or the engine refused the prompt [groups]",
    "failure/unknown_call": "of these: nobody knew whether a call of a tool had happened, and it must not be repeated "
    "[groups]",
    "failure/state_lost": "of these: an instance of a tool was gone with what it knew [groups]",
    "failure/journal_full": "of these: the calls of a trajectory passed async_dapo.calls.journal_limit_mb [groups]",
    "failure/reward_retries": "reward calls that were repeated in this step [count]",
    "failure/reward_timeouts": "reward calls that were not answered in time, in this step [count]",
    "failure/killed_reward_processes": "reward processes killed in this step for such a call, or ended by it; replaced "
    "[count]",
    "calls/made": "calls of tools, rewards and other recorded functions that were begun in this step [count]",
    "calls/replayed": "calls answered from the record of resumed trajectories, or by a call that ran on [count]",
    "calls/carried": "calls that ran on when this step's stop interrupted their trajectories [count]",
    "calls/unknown": "recorded calls of which nobody knew whether they had happened [count]",
    "calls/diverged": "recorded calls dropped because an agent loop, when resumed, took another way [count]",
    "calls/kept_loops": "agent loops with a state that stayed alive over this step's stop [count]",
    "calls/lost_loops": "agent loops with replayable = False that were gone before this step: their groups are retired "
    "[count]",
    "calls/waiting_max": "most trajectories that waited for calls at once, and left their places to others "
    "[trajectories]",
    "calls/seconds": "mean time of the calls that ended within this step [s]",
    "turns/mean": "turns of the model in a trajectory, of those that ended in this step [count]",
    "turns/max": "most turns of one of them [count]",
    "turns/tokens/mean": "tokens of a turn [tokens]",
    "turns/tokens/max": "tokens of the longest turn [tokens]",
    "turns/calls_s": "time that a trajectory spent in calls of tools, over all its steps, mean of those that ended in "
    "this one [s]",
    "load_balancer/requests": "leases granted in this step [requests]",
    "load_balancer/servers": "servers that generate, at the end of the round [servers]",
    "load_balancer/lost_servers": "servers that died, or were ended because they did not answer, since the start of "
    "the run [servers]",
    "load_balancer/wait_s/mean": "time a request waited for a server [s]",
    "load_balancer/wait_s/max": "longest time a request waited for a server [s]",
    "load_balancer/inflight/max": "most requests in flight at once [requests]",
    "load_balancer/idle_ratio": "share of request slots left empty over the round, of the most in flight at once; 0 "
    "in a round without requests [0-1]",
    "concurrency/pool_size": "trajectories that could generate at once in this step; 0 = lanes bound them "
    "[trajectories]",
    "concurrency/places": "requests that the engines have room for, in the next step [requests]",
    "concurrency/staleness_bound": "trajectories in flight that max_staleness allows, in the next step; 0 = no limit "
    "[trajectories]",
    "concurrency/kv_share": "share of the engines' KV cache that is to be filled in the next step [0-1]",
    "concurrency/context_tok": "KV cache that a request is expected to take on average in the next step [tokens]",
    "concurrency/slowest_speed": "of the slowest server, over that of those that are not slow, as its places follow it "
    "[0-1]",
    "concurrency/steered": "times that a server's places were changed within this step [count]",
    "concurrency/kv_peak": "largest share of a server's KV cache in use in this step [0-1]",
    "concurrency/waiting_max": "most requests that waited in a server's engine at once in this step [requests]",
    "concurrency/preemptions": "requests that engines set back for want of KV cache in this step [count]",
    "concurrency/server_throughput": "generated by a server while it had requests, in this step [tokens/s]",
    "tokens/trained": "generated tokens in this step's batch, without withheld ones [tokens]",
    "tokens/discarded": "tokens thrown away in this step: interrupted without being kept, retired, withheld, diverged, "
    "or of failed groups [tokens]",
    "tokens/filtered": "tokens of groups that the filter removed in this step [tokens]",
    "tokens/screened": "tokens of groups that were screened out in this step [tokens]",
    "tokens/waste_ratio": "thrown-away tokens over thrown-away plus trained ones, in this step [0-1]",
    "partial/off_policy_token_ratio": "share of the batch's tokens from older policy versions [0-1]",
    "partial/resumed_groups": "groups that were continued from earlier steps in this one [groups]",
    "partial/resumed_ratio": "share of the batch's trajectories that were carried over at least once [0-1]",
    "partial/retired_groups": "groups given up before this step: too stale, or with agent loops that are gone [groups]",
    "partial/withheld_tokens": "too stale tokens taken out of this step's loss [tokens]",
    "partial/reprefilled_tokens": "context tokens computed again for continued requests in this step [tokens]",
    "partial/reprefill_attention_ratio": "their share of attention work: sum of squared contexts, re-prefilled over "
    "re-prefilled plus trained [0-1]",
    "partial/diverged_tokens": "recorded tokens dropped because an agent loop, when resumed, took another way or ended "
    "before them [tokens]",
    "partial/buffer_tokens": "tokens kept in unfinished groups for the next step [tokens]",
    "partial/buffer_bytes": "memory of these tokens with log-probs and masks [bytes]",
    "staleness/mean": "staleness of the batch's tokens, withheld ones included [versions]",
    "staleness/max": "staleness of the batch's oldest token, withheld ones included [versions]",
    **{
        f"staleness/tokens/{name}": f"share of the batch's tokens with staleness {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    **{
        f"staleness/trajectories/{name}": f"share of trajectories whose oldest token has staleness {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    "age/mean": "rounds the batch's trajectories were carried over unfinished [rounds]",
    "age/max": "largest of them [rounds]",
    **{
        f"age/trajectories/{name}": f"share of the batch's trajectories with age {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    "length/trained/mean": "response length of trained groups over the sliding window [tokens]",
    "length/dispatched/mean": "response length of all groups that could have been trained, each with its longest "
    "attempt, same window [tokens]",
    "length/trained_to_dispatched": "ratio of the two: below 1, training prefers short answers",
    "length/trained/p50": "median response length of trained groups over the window [tokens]",
    "length/trained/p90": "90 % quantile [tokens]",
    "length/dispatched/p50": "median response length of dispatched groups over the window [tokens]",
    "length/dispatched/p90": "90 % quantile [tokens]",
    "importance/not_finite_tokens": "tokens of the loss whose ratio is no finite number: left out below [tokens]",
    **{
        f"importance/{scope}/{name}": f"{meaning}; {about}"
        for scope, about in [
            ("overall", "all tokens of the loss, rejected ones included"),
            *((f"staleness_{bucket}", f"tokens with staleness {bucket}") for bucket in STALENESS_BUCKETS),
        ]
        for name, meaning in {
            "ess_ratio": "effective sample size of the token ratios pi_prox / mu over their number; with balance, mu "
            "is the mixture [0-1]",
            "renyi2": "exponentiated Renyi-2 divergence of pi_prox from mu",
            "ratio_mean": "mean of pi_prox / mu",
            "ratio_max": "largest pi_prox / mu",
            "k3_kl": "k3 estimate of KL(mu || pi_prox) [nats per token]",
        }.items()
    },
    # With importance_sampling=balance only.
    "mixture/versions": "older policy versions that scored trajectories in this step [versions]",
    "mixture/scored_trajectories": "trajectories that they scored, once for each version [trajectories]",
    "mixture/token_share": "share of the batch's tokens that have a mixture of several versions [0-1]",
    "mixture/unknown_share": "share of the batch's tokens whose group has versions that are not at hand, as after a "
    "resume; corrected as under decoupled [0-1]",
    "mixture/extended_share": "share of the mixtures' terms beyond the end of the trajectory whose versions they take: "
    "assumed to go on with its last version; 0 where trajectories keep their version [0-1]",
    "mixture/log_probs_s": "time of the older versions' passes and of the mixing [s]",
    "mixture/keep_s": "time to keep this step's weights [s]",
    "mixture/snapshot_bytes": "CPU memory of all versions that are kept, over all ranks [bytes]",
}

"""Names of the metrics that lines and reports are made of."""

STEP_S = "timing_s/step"
ROLLOUT_S = "timing_s/gen"
# Parts of a step that verl times, beside the rollout; they follow one another.
LOG_PROB_PARTS = ("timing_s/old_log_prob", "timing_s/ref", "timing_s/values")
TRAIN_PARTS = ("timing_s/reward", "timing_s/adv", "timing_s/update_critic", "timing_s/update_actor")
WEIGHTS_S = "timing_s/update_weights"
SAVE_S = "timing_s/save_checkpoint"
VALIDATE_S = "timing_s/testing"  # after the step, not in it

REWARD = "critic/score/mean"
ADVANTAGE_MAX = "critic/advantages/max"
ACCURACY_PREFIX = "val-core/"
VALIDATION_FAILED = "val-aux/failed_trajectories"  # this recipe's, beside verl's own

PREFIX = "async_dapo/"  # of the metrics that verl does not have
LEDGER = PREFIX + "ledger/"
LEDGER_TERMS = ("drawn", "trained", "filtered", "failed", "retired", "waiting", "deferred", "buffered")
SOURCE = PREFIX + "source/"  # of a mix of data sets; NAME/term follows
TRAINED_GROUPS = PREFIX + "round/trained_groups"
REJECTED_RATIO = PREFIX + "filter/rejected_ratio"
STOP_LATENCY_S = PREFIX + "early_stop/stop_latency_s"
INTERRUPTED = PREFIX + "early_stop/interrupted_groups"
SKIPPED_UPDATE = PREFIX + "failure/skipped_update"
FAILED_GROUPS = PREFIX + "failure/groups"
ROUND_S = PREFIX + "round/rollout_s"
IDLE_RATIO = PREFIX + "load_balancer/idle_ratio"
DRAFT_TOK_PER_STEP = PREFIX + "drafts/tok_per_step"
TOKENS_TRAINED = PREFIX + "tokens/trained"
TOKENS_DISCARDED = PREFIX + "tokens/discarded"
WASTE_RATIO = PREFIX + "tokens/waste_ratio"
FOUND_TOK = PREFIX + "partial/found_tokens"
OFF_POLICY = PREFIX + "partial/off_policy_token_ratio"
STALENESS_MEAN = PREFIX + "staleness/mean"
STALENESS_BUCKETS = ("0", "1", "2", "3", "4_plus")
LENGTH_RATIO = PREFIX + "length/trained_to_dispatched"
CALLS_FAILED_RATIO = PREFIX + "calls/failed_ratio"
MANY_FAILED_CALLS = 0.2  # of all calls of tools and agent loops: more is worth a part of the line, and a hint
ESS_RATIO = PREFIX + "importance/overall/ess_ratio"
NOT_FINITE_TOK = PREFIX + "importance/not_finite_tokens"
FRESH_K3_KL = PREFIX + "importance/staleness_0/k3_kl"
GOOD_FRESH_K3 = 0.01  # nats a token; above it engines and trainer are not quite one model
K3_KL = PREFIX + "importance/overall/k3_kl"

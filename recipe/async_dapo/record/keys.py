"""Names of the metrics that lines and reports are made of; a test holds those of this recipe against `METRICS`."""

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
RESPONSE_TOK = "response_length/mean"
ACCURACY_PREFIX = "val-core/"
VALIDATION_FAILED = "val-aux/failed_trajectories"  # this recipe's, beside verl's own

_OURS = "async_dapo/"
LEDGER = _OURS + "ledger/"
LEDGER_TERMS = ("drawn", "trained", "filtered", "screened", "failed", "retired", "waiting", "deferred", "buffered")
TRAINED_GROUPS = _OURS + "round/trained_groups"
REJECTED_GROUPS = _OURS + "filter/rejected_groups"
REJECTED_RATIO = _OURS + "filter/rejected_ratio"
VALID_SHARE = _OURS + "filter/valid_share"
STOP_LATENCY_S = _OURS + "early_stop/stop_latency_s"
INTERRUPTED = _OURS + "early_stop/interrupted_groups"
LOST_REPORTS = _OURS + "early_stop/lost_reports"
FAILED_GROUPS = _OURS + "failure/groups"
ROUND_S = _OURS + "round/rollout_s"
IDLE_RATIO = _OURS + "load_balancer/idle_ratio"
PREEMPTIONS = _OURS + "concurrency/preemptions"
KV_PEAK = _OURS + "concurrency/kv_peak"
DRAFT_TOK_PER_STEP = _OURS + "drafts/tok_per_step"
TOKENS_TRAINED = _OURS + "tokens/trained"
TOKENS_DISCARDED = _OURS + "tokens/discarded"
TOKENS_FILTERED = _OURS + "tokens/filtered"
TOKENS_SCREENED = _OURS + "tokens/screened"
WASTE_RATIO = _OURS + "tokens/waste_ratio"
OFF_POLICY = _OURS + "partial/off_policy_token_ratio"
STALENESS_MEAN = _OURS + "staleness/mean"
STALENESS_MAX = _OURS + "staleness/max"
AGE_MEAN = _OURS + "age/mean"
STALENESS_BUCKETS = ("0", "1", "2", "3", "4_plus")
STALENESS_TOKENS = _OURS + "staleness/tokens/"
LENGTH_TRAINED = _OURS + "length/trained/mean"
LENGTH_DISPATCHED = _OURS + "length/dispatched/mean"
LENGTH_RATIO = _OURS + "length/trained_to_dispatched"
TURNS = _OURS + "turns/mean"
TURN_TOK = _OURS + "turns/tokens/mean"
CALLS_S = _OURS + "turns/calls_s"
ESS_RATIO = _OURS + "importance/overall/ess_ratio"
K3_KL = _OURS + "importance/overall/k3_kl"
RATIO_MAX = _OURS + "importance/overall/ratio_max"
GRAD_NORM = "actor/grad_norm"

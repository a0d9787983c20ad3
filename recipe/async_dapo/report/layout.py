"""The twelve charts that matter, for TensorBoard's tab *Custom scalars*: category -> chart -> metrics."""

from . import keys

LAYOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "Speed": {
        "Seconds of a step and of its rollout": (keys.STEP_S, keys.ROLLOUT_S),
        "Empty places in the engines": (keys.IDLE_RATIO,),
        "Tokens trained, filtered, screened out, thrown away": (
            keys.TOKENS_TRAINED,
            keys.TOKENS_FILTERED,
            keys.TOKENS_SCREENED,
            keys.TOKENS_DISCARDED,
        ),
        "KV cache, at most": (keys.KV_PEAK,),
    },
    "Data": {
        "Filtered groups, and expected valid ones": (keys.REJECTED_RATIO, keys.VALID_SHARE),
        "Failed groups": (keys.FAILED_GROUPS,),
        "Response length, trained and dispatched": (keys.LENGTH_TRAINED, keys.LENGTH_DISPATCHED),
        "Off-policy tokens": (keys.OFF_POLICY,),
        "Staleness": (keys.STALENESS_MEAN, keys.STALENESS_MAX),
    },
    "Learning": {
        "Reward in the batch": (keys.REWARD,),
        "Effective sample size": (keys.ESS_RATIO,),
        "Gradient norm": (keys.GRAD_NORM,),
    },
}


def custom_scalars() -> dict[str, dict[str, list]]:
    """As `SummaryWriter.add_custom_scalars` takes it."""
    return {
        category: {title: ["Multiline", list(metrics)] for title, metrics in charts.items()}
        for category, charts in LAYOUT.items()
    }

"""Whether a step needs a pass of log-probs before its update.

The correction compares pi_prox, the policy at the start of a step, with what sampled the tokens. Where a step has one
update, that update's own forward pass computes pi_prox, so that a pass before it says nothing new. Elsewhere pi_prox
has to be known before the update begins.
"""


def why_two_passes(
    *,
    correction: str,
    updates: int,
    weights: str | None = None,
    threshold: object = None,
    normalizes: bool = False,
    rejects: str | None = None,
    kl_in_reward: bool = False,
    has_dropout: bool = False,
    is_fsdp: bool = True,
) -> str | None:
    """Why log-probs are computed before the update, in words; None where the update alone gives the same result.

    Args:
        correction: `async_dapo.importance_sampling`.
        updates: of a step: mini-batches times epochs [count].
        weights: `algorithm.rollout_correction.rollout_is`: of tokens or of sequences; None = as by default, of tokens.
        threshold: `rollout_is_threshold`, the largest weight; or a band, as in `0.5_2.0`.
        normalizes: `rollout_is_batch_normalize`: weights are divided by their mean.
        rejects: `rollout_rs`: the masks that take tokens out of the loss.
        kl_in_reward: `algorithm.use_kl_in_reward`.
        has_dropout: in training, the model leaves out random parts of itself.
        is_fsdp: verl's FSDP trains; the loss that computes pi_prox was run with no other engine.
    """
    if correction == "bypass":
        return None  # log-probs are the engines'
    weighs, option = correction != "none", "algorithm.rollout_correction.rollout_is"
    reasons = {
        f"the {updates} updates of a step share the log-probs at its start": updates > 1,
        "algorithm.use_kl_in_reward=True puts log-probs into the rewards": kl_in_reward,
        "the model is trained with dropout": has_dropout,
        "the update that computes them itself was tried with FSDP alone": not is_fsdp,
        "async_dapo.importance_sampling=mixture compares the members of a group": correction == "mixture",
        f"{option}={weights} multiplies the ratios of a trajectory": weighs and weights not in (None, "token"),
        f"{option}_threshold={threshold} is a band": weighs and "_" in str(threshold),
        f"{option}_batch_normalize=True needs the mean of all weights": weighs and normalizes,
        f"algorithm.rollout_correction.rollout_rs={rejects} takes tokens out of the loss": rejects is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)

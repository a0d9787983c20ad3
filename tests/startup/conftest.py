from ..support.fixtures.startup import files, no_cluster, own_cache, run  # noqa: F401 (first of all)
from ..support.policy_loss import loss  # noqa: F401
from ..support.scored_step import step  # noqa: F401

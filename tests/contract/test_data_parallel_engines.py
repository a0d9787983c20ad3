"""An engine of several data-parallel ranks runs the sequences of all of them: nothing caps it at those of one."""

from types import SimpleNamespace

from omegaconf import OmegaConf

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.router import balance_of
from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.engines.replica import AsyncDAPOReplica
from recipe.async_dapo.training import run

from ..support.composed_runs import compose_run

SEQUENCES, RANKS = 512, 8
OVERRIDES = [
    "trainer.n_gpus_per_node=8",
    "data.max_prompt_length=100",
    "data.max_response_length=900",
    f"actor_rollout_ref.rollout.max_num_seqs={SEQUENCES}",
    f"actor_rollout_ref.rollout.data_parallel_size={RANKS}",
]


def test_its_actor_takes_the_calls_of_all_ranks() -> None:
    replica = object.__new__(AsyncDAPOReplica)
    replica.config = SimpleNamespace(max_num_seqs=SEQUENCES, data_parallel_size=RANKS)
    assert replica.max_concurrency == SEQUENCES * RANKS + 16


def test_the_balancer_may_fill_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(run, "sockets_folder", lambda: tmp_path / "sockets")
    config = compose_run(OVERRIDES)
    options = AsyncDAPOConfig.from_hydra(config)
    router = OmegaConf.load(run._prepare(config, options, run.Parts.of(config)))
    assert router.balance.max_per_server == SEQUENCES * RANKS + 15


def test_the_pool_fills_it() -> None:
    options = AsyncDAPOConfig.from_hydra(compose_run(OVERRIDES))
    balance = balance_of(options, most_per_server=SEQUENCES * RANKS + 15)
    balance.leases.add_servers(["a"])
    balance.open({"a": EngineLoad(kv_room_tok=100_000_000, max_num_seqs=SEQUENCES * RANKS)})
    assert balance.capacity == SEQUENCES * RANKS > 999

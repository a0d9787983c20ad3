"""KV in host memory: what it adds that is known before anything runs."""

from functools import partial

from ...config.extensions import Declared
from ...config.values import Rule
from ...config.verl_keys import ROLLOUT, VLLM

# fmt: off
DECLARED = Declared(
    wire="wiring.wire",
    checks="checks.with_checks",
    # vLLM aborts what a stop string has ended: where no other request goes on, that would go to host memory.
    refused_parameters={
        "stop": "does not go with KV in host memory (stop_token_ids do); set async_dapo.host_kv_gib=null, or leave it "
                "out",
    },
    together=(
        Rule("async_dapo.host_kv_gib", lambda it: it.has_old_kv and not it.is_separate and it.host_kv_gib is None,
             "engines that share GPUs sleep while the actor trains, and async_dapo.rollout_strategy=partial_stale_kv "
             "keeps their KV cache in host memory; set the GiB for each GPU, such as 32, or choose partial"),
    ),
    rules=(
        Rule("async_dapo.host_kv_gib", lambda it: it.options.host_kv_gib is not None
             and not (it.options.has_old_kv and it.rollout.free_cache_engine and not it.options.is_separate),
             "is where engines that sleep keep what goes on with old KV; set null, or async_dapo.placement=colocated, "
             "async_dapo.rollout_strategy=partial_stale_kv, async_dapo.max_staleness=1 and "
             f"{ROLLOUT}free_cache_engine=True"),
        Rule(ROLLOUT + "enable_prefix_caching",
             lambda it: it.options.host_kv_gib is not None and not it.rollout.enable_prefix_caching,
             "KV in host memory is found by vLLM's prefix cache; set True, or async_dapo.host_kv_gib=null"),
        Rule(ROLLOUT + "data_parallel_size",
             lambda it: it.options.host_kv_gib is not None and it.rollout.data_parallel_size > 1,
             "vLLM gives requests to ranks by load, and each has host memory of its own; set 1, or "
             "async_dapo.host_kv_gib=null"),
        Rule(ROLLOUT + "enable_rollout_routing_replay",
             lambda it: it.options.host_kv_gib is not None and it.rollout.enable_rollout_routing_replay,
             "vLLM tells no experts where it has a KV connector; set False, or async_dapo.host_kv_gib=null"),
        *(Rule(VLLM + name,
               partial(lambda it, name, one: it.options.host_kv_gib is not None
                       and it.vllm.get(name) not in (None, one), name=name, one=one),
               "does not go with async_dapo.host_kv_gib, which has a connector of its own; leave it out")
          for name, one in (("kv_transfer_config", None), ("kv_offloading_size", None),
                            ("decode_context_parallel_size", 1))),
        Rule(VLLM + "async_scheduling",
             lambda it: it.options.host_kv_gib is not None and it.vllm.get("async_scheduling"),
             "with async_dapo.host_kv_gib vLLM frees blocks a step late then, and a full cache preempts most requests "
             "at once; leave it out"),
    ),
)
# fmt: on

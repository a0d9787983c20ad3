"""What was tried of models, engines and options, and how far: the table of docs/models.md, row by row.

A test stands behind each row but those that were tried by hand: what is refused is given to the checks.
"""

import pandas as pd

END_TO_END, BY_HAND, WORKER, READ, REFUSED = "end to end", "by hand", "worker alone", "read", "refused"
_QUICK, _MODELS, _ENGINES = "e2e/test_quickstart.py", "e2e/test_models.py", "contract/test_training_engines.py"
# (area, what, how far, what stands behind it: a test, k3 [nats a token], or the overrides that are refused)
SUPPORT: tuple[tuple[str, str, str, str], ...] = (
    ("Model", "dense text: Qwen3", END_TO_END, _QUICK),
    ("Model", "dense text: Llama, Mistral, Gemma 3", BY_HAND, "4e-12"),
    ("Model", "mixture of experts: Qwen3-MoE", END_TO_END, _MODELS),
    ("Model", "mixture of experts: gpt-oss", BY_HAND, "0.010 to 0.029, engine in bf16"),
    ("Model", "linear attention: Qwen3.5", BY_HAND, "0.002, engine in bf16"),
    ("Model", "linear attention: Qwen3-Next", BY_HAND, "0.010 to 0.029, engine in bf16"),
    ("Model", "pictures: Qwen2.5-VL (separate engines, too), Qwen3-VL", END_TO_END, _MODELS),
    ("Training engine", "FSDP2", END_TO_END, _QUICK),
    ("Training engine", "Megatron, without Transformer Engine", WORKER, "contract/test_megatron_worker.py"),
    ("Training engine", "FSDP1, VeOmni", READ, _ENGINES),
    ("Training engine", "TorchTitan and others", REFUSED, "model_engine=torchtitan"),
    ("Rollout engine", "vLLM", END_TO_END, _QUICK),
    ("Rollout engine", "SGLang, TensorRT-LLM", REFUSED, "actor_rollout_ref.rollout.name=sglang"),
    ("Option", "LoRA, as an adapter, FSDP", END_TO_END, "e2e/test_lora.py"),
    ("Option", "LoRA, merged, FSDP", BY_HAND, "1.3e-4, as verl merges in bf16"),
    ("Option", "LoRA, Megatron's", READ, _ENGINES),
    ("Option", "LoRA, VeOmni's", REFUSED, "model_engine=veomni actor_rollout_ref.model.lora_rank=8"),
    ("Option", "several updates a step", END_TO_END, _MODELS),
    ("Option", "two epochs, KL loss, entropy", BY_HAND, "1e-12"),
    ("Option", "gspo with rloo, cispo with reinforce_plus_plus", BY_HAND, "1e-12"),
    ("Option", "one pass of log-probs and update", WORKER, "extensions/one_pass/contract/test_one_update.py"),
    ("Option", "drafts by suffix", END_TO_END, "e2e/test_partial_rollout.py"),
    ("Option", "drafts by the model's own head", END_TO_END, _MODELS),
    ("Option", "old KV in host memory (never on a GPU)", END_TO_END, "e2e/test_partial_rollout.py"),
    ("Option", "agent loops with tools", END_TO_END, "extensions/agents/e2e/test_multi_turn.py"),
    ("Option", "agent programs, in each strategy", END_TO_END, "extensions/gateway/e2e/test_strategies.py"),
    ("Option", "engines on GPUs of their own", END_TO_END, "extensions/separate/e2e/test_separate.py"),
    ("Option", "a generative reward model in its own pool", BY_HAND, "8e-13"),
    ("Option", "a reward model on the trainer's GPUs", REFUSED, "reward.reward_model.enable=True"),
    ("Option", "router replay, FSDP2", END_TO_END, _MODELS),
    ("Option", "router replay R3, Megatron, VeOmni", READ, _ENGINES),
)


def support() -> pd.DataFrame:
    def shown(how: str, by: str) -> str:
        if how == BY_HAND:
            return f"k3 {by}" if "bf16" in by else f"k3 at most {by}"
        return f"`{by}`" if how == REFUSED else f"[{by.partition('/')[2]}](../tests/{by})"

    rows = [(area, what, how, shown(how, by)) for area, what, how, by in SUPPORT]
    return pd.DataFrame(rows, columns=["", "What", "Tried", "By"])

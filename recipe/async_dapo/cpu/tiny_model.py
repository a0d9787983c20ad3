"""A Qwen3 with about 100 thousand parameters and a character-level tokenizer, both made without a download."""

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

_PAD, _START, _END, _UNKNOWN = "<pad>", "<|im_start|>", "<|im_end|>", "<unk>"
_SPECIAL = (_PAD, _START, _END, _UNKNOWN)
_PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))

# ChatML with the role cut to one letter, which keeps prompts short.
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character; a response ends with `<|im_end|>`."""
    vocab = {token: index for index, token in enumerate((*_SPECIAL, *_PRINTABLE))}
    characters = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=_UNKNOWN))
    characters.decoder = decoders.Fuse()
    characters.add_special_tokens(list(_SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token=_PAD,
        eos_token=_END,
        unk_token=_UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """Random weights in fp32.

    The vocabulary is exactly the tokenizer's: verl masks tokens beyond it in vLLM only, which would
    put a constant gap between rollout and training log-probabilities.
    """
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).float()

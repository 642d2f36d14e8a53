"""Tiny real checkpoints, made in seconds: a byte tokenizer and random models of mlx-lm's own classes."""

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
END = 256  # id of <|end|>
VOCAB = 256 + len(SPECIALS)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "eos_token_id": END,
}
# Two sliding layers of window 16 and a global one, as in Gemma 3.
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "sliding_window": 16,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 8,
    "max_position_embeddings": 2048,
    "eos_token_id": END,
}
# Recurrent layers, whose state cannot go back to an earlier token.
MAMBA = {
    "model_type": "mamba",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "state_size": 8,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "eos_token_id": END,
}


def write_tokenizer(folder: Path, *, template: str | None = CHAT_TEMPLATE, swap: tuple[int, int] | None = None) -> None:
    """Write a byte-level tokenizer whose ids below 256 are the bytes; `swap` exchanges the texts of two ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {text: token for token, text in enumerate(alphabet)}
    if swap is not None:
        first, second = (alphabet[i] for i in swap)
        ids[first], ids[second] = ids[second], ids[first]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0]}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def random_weights(config: dict, seed: int, sharpness: float) -> dict[str, mx.array]:
    """Random weights of an architecture; a larger sharpness gives more decided predictions."""
    model_class, args_class = _get_classes(config)
    mx.random.seed(seed)
    model = model_class(args_class.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    for name in weights:
        if name.endswith("lm_head.weight"):
            weights[name] = sharpness * mx.random.normal(weights[name].shape) / weights[name].shape[-1] ** 0.5
    mx.eval(weights)
    return weights


def write_model(
    folder: Path,
    config: dict = LLAMA,
    *,
    seed: int = 0,
    sharpness: float = 4.0,
    noise: float = 0.0,
    weights: dict[str, mx.array] | None = None,
    **tokenizer,
) -> Path:
    """Write a checkpoint and return its folder.

    With `noise`, the weights of `seed` are disturbed by that share of their own size: a draft that often agrees.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if weights is None:
        weights = random_weights(config, seed, sharpness)
    if noise:
        mx.random.seed(seed + 1)
        weights = {
            name: w + noise * mx.std(w) * mx.random.normal(w.shape) if w.ndim > 1 else w for name, w in weights.items()
        }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, **tokenizer)
    return folder


def adversary(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Weights whose logits are the negative of the given ones: never the same argmax, the worst draft there is."""
    return {name: -w if name.endswith("lm_head.weight") else w for name, w in weights.items()}

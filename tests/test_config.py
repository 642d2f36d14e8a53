"""Configs in transformers' words and in mlx-lm's: hand-worked dicts, and tiny checkpoints whose logits must agree."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_config, load_model

from diversed_mlx.config import faithful_config
from diversed_mlx.errors import DiversedError

Config = dict[str, Any]

PLAIN = {"rope_type": "default", "rope_theta": 5e4}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 5e4,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "rope_theta": 5e4}
LOCAL = {"rope_type": "default", "rope_theta": 3e3}

WINDOW, FULL = "sliding_attention", "full_attention"
EVERY_THIRD = [WINDOW, WINDOW, FULL] * 2
EVERY_SECOND = [WINDOW, FULL] * 2


def both_names(params: Config) -> Config:
    """As told to mlx-lm: the kind under both its names, without the theta."""
    return {k: v for k, v in params.items() if k != "rope_theta"} | {"type": params["rope_type"]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "llama", "rope_parameters": PLAIN}, {"rope_theta": 5e4}),
        ({"model_type": "llama", "rope_parameters": PLAIN | {"rope_theta": 10000.0}}, {}),
        (
            {"model_type": "mistral", "rope_parameters": LINEAR},
            {"rope_theta": 5e4, "rope_scaling": both_names(LINEAR)},
        ),
        # transformers takes rope_scaling before rope_parameters, and the theta inside before the one outside.
        (
            {"model_type": "qwen2", "rope_parameters": YARN, "rope_theta": 1e6},
            {"rope_theta": 5e4, "rope_scaling": both_names(YARN)},
        ),
        (
            {"model_type": "qwen2", "rope_parameters": YARN, "rope_theta": 2e6, "rope_scaling": {"type": "linear"}},
            {},
        ),
        ({"model_type": "qwen2", "rope_parameters": PLAIN, "rope_theta": 5e4, "rope_scaling": None}, {}),
        # Where yarn stretches from, if the config does not say: from all of its positions.
        (
            {"model_type": "qwen2", "max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            {
                "rope_scaling": {
                    "type": "yarn",
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 512,
                }
            },
        ),
        # Required fields are told even where there is nothing to tell.
        (
            {"model_type": "glm4_moe", "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
            {"rope_theta": 5e4, "partial_rotary_factor": 0.5, "rope_scaling": None},
        ),
        (
            {"model_type": "gpt_neox", "rope_parameters": PLAIN | {"partial_rotary_factor": 0.25}},
            {"rotary_emb_base": 5e4, "rotary_pct": 0.25},
        ),
        (
            {"model_type": "qwen3_moe", "num_local_experts": 4, "rope_parameters": PLAIN},
            {"num_experts": 4, "rope_theta": 5e4},
        ),
        # Those that read rope_parameters: wholly, against a theta at the top, and without the scaling.
        ({"model_type": "qwen3", "rope_parameters": LINEAR}, {}),
        ({"model_type": "qwen3", "rope_parameters": LINEAR, "rope_theta": 1e6}, {"rope_theta": 5e4}),
        ({"model_type": "exaone_moe", "rope_parameters": LINEAR}, {"rope_scaling": both_names(LINEAR)}),
        ({"model_type": "laguna", "rope_parameters": {FULL: YARN, WINDOW: LOCAL}}, {}),
        # By layer type.
        (
            {
                "model_type": "gemma3_text",
                "layer_types": EVERY_THIRD,
                "rope_parameters": {FULL: LINEAR, WINDOW: LOCAL},
            },
            {
                "rope_theta": 5e4,
                "rope_scaling": both_names(LINEAR),
                "rope_local_base_freq": 3e3,
                "sliding_window_pattern": 3,
            },
        ),
        (
            {"model_type": "olmo3", "rope_parameters": {FULL: YARN, WINDOW: PLAIN}},
            {"rope_theta": 5e4, "rope_scaling": both_names(YARN)},
        ),
        # Everything turns, said or unsaid.
        (
            {"model_type": "olmo3", "rope_parameters": {FULL: PLAIN, WINDOW: PLAIN | {"partial_rotary_factor": 1.0}}},
            {"rope_theta": 5e4},
        ),
        # A type that no layer has says nothing.
        (
            {"model_type": "olmo3", "layer_types": [FULL], "rope_parameters": {FULL: PLAIN, WINDOW: LOCAL}},
            {"rope_theta": 5e4},
        ),
        # Windows by counting and by letters.
        ({"model_type": "cohere2", "layer_types": EVERY_SECOND}, {"sliding_window_pattern": 2}),
        ({"model_type": "cohere2", "layer_types": [FULL] * 3}, {"sliding_window_pattern": 1}),
        ({"model_type": "cohere2", "layer_types": [WINDOW] * 3}, {}),
        (
            {
                "model_type": "exaone4",
                "layer_types": [FULL, WINDOW, WINDOW],
                "sliding_window": 8,
                "sliding_window_pattern": 4,
                "rope_scaling": None,
            },
            {"sliding_window_pattern": "GLL"},
        ),
        (
            {
                "model_type": "granitemoehybrid",
                "layer_types": ["linear_attention", FULL],
                "position_embedding_type": None,
            },
            {"layer_types": ["mamba", "attention"], "position_embedding_type": "nope"},
        ),
        # Wrappers: the whole text_config is replaced, and a flat one changes at the top.
        (
            {"model_type": "qwen2_vl", "text_config": {"hidden_size": 8, "rope_parameters": PLAIN}},
            {"text_config": {"hidden_size": 8, "rope_parameters": PLAIN, "rope_theta": 5e4}},
        ),
        ({"model_type": "qwen2_vl", "rope_parameters": PLAIN}, {"rope_theta": 5e4}),
        (
            {"model_type": "mistral3", "text_config": {"model_type": "mistral", "rope_parameters": PLAIN}},
            {"text_config": {"model_type": "mistral", "rope_parameters": PLAIN, "rope_theta": 5e4}},
        ),
        ({"model_type": "mistral3", "text_config": {"model_type": "ministral3", "rope_parameters": YARN}}, {}),
        ({"model_type": "gemma4", "text_config": {"rope_parameters": {FULL: PLAIN, WINDOW: LOCAL}}}, {}),
        # Code of its own, and no rotary embedding at all.
        ({"model_type": "llama", "model_file": "model.py", "rope_parameters": PLAIN}, {}),
        ({"model_type": "mamba"}, {}),
    ],
)
def test_translation(config: Config, expected: Config) -> None:
    before = json.dumps(config)
    assert faithful_config(config) == expected
    assert json.dumps(config) == before


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "cohere", "rope_parameters": LINEAR}, "cohere does not scale positions by 'linear'"),
        ({"model_type": "qwen3_moe", "rope_scaling": YARN}, "qwen3_moe does not scale positions by 'yarn'"),
        ({"model_type": "lfm2", "rope_parameters": YARN}, "lfm2 does not scale positions by 'yarn'"),
        ({"model_type": "phi3", "rope_parameters": LLAMA3}, "phi3 does not scale positions by 'llama3'"),
        ({"model_type": "llama", "rope_parameters": YARN | {"attention_factor": 0.7}}, "here 1.2079, not 0.7"),
        ({"model_type": "glm", "partial_rotary_factor": 0.5}, "glm always rotates 1.0 of each head, not 0.5"),
        ({"model_type": "recurrent_gemma", "rope_parameters": PLAIN}, "theta 10000.0, not 50000.0"),
        ({"model_type": "olmo3", "rope_parameters": {FULL: PLAIN, WINDOW: LOCAL}}, "theta 50000.0 in layers with"),
        ({"model_type": "olmo3", "rope_parameters": {FULL: LINEAR, WINDOW: LINEAR}}, "scaling None in layers with"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {FULL: PLAIN, WINDOW: LINEAR}},
            "scaling None in layers with",
        ),
        ({"model_type": "llama", "rope_parameters": {FULL: PLAIN, "chunked_attention": LOCAL}}, "not several"),
        ({"model_type": "gemma3_text", "layer_types": [FULL, WINDOW, WINDOW]}, "at regular distances only"),
        ({"model_type": "cohere2", "layer_types": [WINDOW] * 4}, "at regular distances only"),
        ({"model_type": "gemma3", "text_config": {"layer_types": [FULL, WINDOW]}}, "gemma3_text has layers"),
    ],
)
def test_refusal(config: Config, words: str) -> None:
    with pytest.raises(
        DiversedError, match=r"^mlx-lm's .+: its answers would be wrong; use another checkpoint$"
    ) as refusal:
        faithful_config(config)
    assert words in str(refusal.value)


# As published, before transformers 5 or beside it; only what this file could trip over.
ORDINARY = [
    {
        "model_type": "llama",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 4096},
    {"model_type": "qwen2", "rope_theta": 1e6, "use_sliding_window": False, "layer_types": [FULL] * 4},
    {"model_type": "qwen2_vl", "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    {"model_type": "qwen3_moe", "num_experts": 128, "rope_theta": 1e6, "rope_scaling": None},
    {
        "model_type": "qwen3_vl_moe",
        "text_config": {
            "num_experts": 128,
            "rope_theta": 5e6,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        },
    },
    {"model_type": "gemma2", "rope_theta": 10000.0, "sliding_window": 4096, "layer_types": EVERY_SECOND},
    {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
    },
    {
        "model_type": "gemma3_text",
        "layer_types": ([WINDOW] * 5 + [FULL]) * 2 + [WINDOW] * 2,
        "rope_theta": 1000000,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
    },
    {
        "model_type": "phi3",
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    },
    {"model_type": "phi", "rope_theta": 10000.0, "partial_rotary_factor": 0.4, "rope_scaling": None},
    {"model_type": "mixtral", "rope_theta": 1e6, "sliding_window": None},
    {
        "model_type": "deepseek_v3",
        "rope_theta": 10000,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
    },
    {
        "model_type": "olmo3",
        "rope_theta": 500000,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
    },
    {
        "model_type": "exaone4",
        "rope_theta": 1000000,
        "rope_scaling": None,
        "sliding_window": 4096,
        "sliding_window_pattern": "LLLG",
        "layer_types": ([WINDOW] * 3 + [FULL]) * 2,
    },
    {"model_type": "exaone4", "rope_scaling": None, "sliding_window_pattern": None, "layer_types": [FULL] * 4},
    {"model_type": "cohere2", "rope_theta": 50000, "sliding_window_pattern": 4, "rope_scaling": None},
    {"model_type": "seed_oss", "rope_theta": 1e7, "rope_scaling": {"rope_type": "default"}},
    {"model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25},
    {"model_type": "stablelm", "rope_theta": 10000, "partial_rotary_factor": 0.25},
    {"model_type": "glm4", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], "position_embedding_type": "nope"},
    {"model_type": "lfm2", "rope_theta": 1e6, "layer_types": ["conv", FULL]},
    {"model_type": "internlm2", "rope_theta": 1e6, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    {"model_type": "kimi_k2", "rope_theta": 50000.0, "rope_scaling": None},
]


@pytest.mark.parametrize("config", ORDINARY, ids=lambda config: config["model_type"])
def test_ordinary_configs_are_left_alone(config: Config) -> None:
    assert faithful_config(config) == {}


def test_transformers_has_the_same_order_of_precedence() -> None:
    from transformers import AutoConfig

    twice = {"rope_parameters": YARN, "rope_theta": 2e6}
    assert AutoConfig.for_model("qwen2", **deepcopy(twice)).rope_parameters == YARN
    thrice = twice | {"rope_scaling": {"type": "linear", "factor": 4.0}}
    said = AutoConfig.for_model("qwen2", **deepcopy(thrice)).rope_parameters
    assert said == {"type": "linear", "rope_type": "linear", "factor": 4.0, "rope_theta": 2e6}


def test_unknown_architecture() -> None:
    with pytest.raises(ValueError, match="not supported"):
        faithful_config({"model_type": "no-such-model"})


# Tiny checkpoints, as transformers saves them. Thetas are unlike any default; 24 tokens see past a window of 8.
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "sliding_window": 8,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "shared_intermediate_size": 32}
MAMBA |= {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["linear_attention", FULL]}
GEMMA3 = {"num_hidden_layers": 6, "layer_types": EVERY_THIRD, "head_dim": 8, "query_pre_attn_scalar": 8}
FOUR_LAYERS = {"num_hidden_layers": 4, "layer_types": EVERY_SECOND}


def distance(folder: Path, overrides: Config, tokens: np.ndarray, logits: np.ndarray) -> float:
    model, _ = load_model(folder, model_config=overrides)
    return float(np.abs(np.array(model(mx.array(tokens)).astype(mx.float32)) - logits).max())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("model_type", "rope", "sizes"),
    [
        ("llama", LLAMA3, {}),
        ("mistral", LINEAR, {"sliding_window": None}),
        ("qwen2", YARN, {}),
        ("qwen3_moe", PLAIN, EXPERTS),
        ("gemma2", PLAIN, {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64}),
        ("gemma3_text", {FULL: LINEAR, WINDOW: LOCAL}, GEMMA3),
        ("gemma3", {FULL: LINEAR, WINDOW: LOCAL}, GEMMA3),
        ("phi", PLAIN | {"partial_rotary_factor": 0.5}, {"num_key_value_heads": 4}),
        ("phi3", PLAIN, {"sliding_window": None}),
        ("gpt_neox", PLAIN | {"partial_rotary_factor": 0.5}, {"intermediate_size": 128}),
        ("stablelm", PLAIN | {"partial_rotary_factor": 0.5}, {"num_key_value_heads": 4}),
        ("glm4", PLAIN | {"partial_rotary_factor": 0.5}, {"head_dim": 8}),
        ("cohere2", PLAIN | {"rope_theta": 3e3}, FOUR_LAYERS),
        ("exaone4", LLAMA3, FOUR_LAYERS | {"head_dim": 8, "sliding_window_pattern": 2}),
        ("exaone_moe", LINEAR, FOUR_LAYERS | EXPERTS | {"n_group": 1, "topk_group": 1}),
        ("olmo3", {FULL: YARN, WINDOW: PLAIN}, FOUR_LAYERS),
        ("smollm3", LINEAR, {"num_hidden_layers": 4}),
        ("granitemoehybrid", PLAIN, MAMBA),
        ("deepseek_v3", YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}, LATENT),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_logits_agree_with_transformers(model_type: str, rope: Config, sizes: Config, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the reference is transformers' model in torch")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    described = deepcopy(SIZES | sizes | {"rope_parameters": rope})  # transformers writes into what it is given
    torch.manual_seed(0)
    if model_type == "gemma3":
        eye = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        eye |= {"image_size": 28, "patch_size": 14}
        config = AutoConfig.for_model(model_type, text_config=described, vision_config=eye, vocab_size=64)
        reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    else:
        config = AutoConfig.for_model(model_type, **described)
        reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    reference.eval()
    with torch.no_grad():
        for weight in reference.parameters():
            if weight.ndim > 1:  # attention far from uniform, so that positions matter
                weight.normal_(0, 1.5 / weight.shape[-1] ** 0.5)
        tokens = np.random.default_rng(0).integers(3, 64, (1, 24))
        logits = reference(input_ids=torch.tensor(tokens), use_cache=False).logits.numpy()
    reference.save_pretrained(tmp_path)
    config = load_config(tmp_path)
    if model_type == "exaone_moe":  # a field that transformers 5 no longer writes; without it mlx-lm stops aloud
        moe = [kind == "sparse" for kind in config["mlp_layer_types"]]
        (tmp_path / "config.json").write_text(json.dumps(config | {"is_moe_layer": moe}))

    try:
        before = distance(tmp_path, {}, tokens, logits)
    except (TypeError, ValueError):  # a required field is missing, or a word unknown
        before = np.inf
    after = distance(tmp_path, faithful_config(config), tokens, logits)
    scale = np.abs(logits).max()
    assert before > 0.03 * scale  # else nothing is tested
    assert after < 1e-3 * scale  # some of mlx-lm's activations differ from transformers' in the third place

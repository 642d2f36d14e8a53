"""Models whose last layers reuse the keys and values of earlier ones have fewer caches than layers."""

from tiny import END, VOCAB, random_weights, write_model

from diversed_mlx import Lossless, Sampling, load_pair, stream_generate

# Six layers as in Gemma 4, of which the last two share; every second one attends through a window of 16.
GEMMA_4 = {
    "model_type": "gemma4_text",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
    "use_double_wide_mlp": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "eos_token_id": END,
}


def test_layers_that_share_keys_and_values_decode_exactly(tmp_path):
    weights = random_weights(GEMMA_4, 1, 4.0)
    write_model(tmp_path / "target", GEMMA_4, weights=weights)
    write_model(tmp_path / "draft", GEMMA_4, weights=weights, noise=0.1)
    pair = load_pair(target=str(tmp_path / "target"), draft=str(tmp_path / "draft"))
    assert len(pair.target.make_cache().layers) == 4
    plain, drafted = (
        [r.token for r in stream_generate(pair, "hello", verifier=v, sampling=Sampling(temp=0), max_tokens=100)]
        for v in (None, Lossless())
    )
    assert drafted == plain
    assert len(plain) > 16  # past the window

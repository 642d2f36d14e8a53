"""A pair made on the spot: train a small target and a smaller draft for a minute, then decode with each verifier.

Both models learn the bytes of the LICENSE file of this repository, so the text is a parrot's; what it shows is real:
a draft that is often right, what each verifier lets pass, and what that does to the speed and to the text's
likelihood under the target. Run it with `make demo`; needs no network.
"""

import json
import math
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm

from diversed_mlx import Cascade, Lenient, Lossless, Pair, Sampling, Static, load_pair, stream_generate

TEXT = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
VOCAB = 257  # bytes and an end token
SIZES = {
    "target": {"hidden_size": 160, "num_hidden_layers": 4},
    "draft": {"hidden_size": 64, "num_hidden_layers": 1},
}
STEPS = {"target": 240, "draft": 240}
CONTEXT, BATCH = 64, 16
PROMPTS = ("Unless required by ", "You may add Your own ", "In no event and under ", "The Work ")


def write_checkpoint(folder: Path, role: str) -> None:
    """Train one model and write an ordinary checkpoint that mlx-lm loads."""
    folder.mkdir()
    config = {
        "model_type": "llama",
        "intermediate_size": 4 * SIZES[role]["hidden_size"],
        "num_attention_heads": 4,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "eos_token_id": 256,
        **SIZES[role],
    }
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(config))
    data = np.frombuffer(TEXT.encode(), np.uint8)
    chooser = np.random.default_rng(0)
    warm_up = optim.linear_schedule(1e-4, 2e-3, 30)
    rate = optim.join_schedules([warm_up, optim.cosine_decay(2e-3, STEPS[role] - 30)], [30])
    optimizer = optim.AdamW(learning_rate=rate)

    def loss(model: Model, rows: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(rows[:, :-1]), rows[:, 1:], reduction="mean")

    step = nn.value_and_grad(model, loss)
    progress = tqdm(range(STEPS[role]), desc=f"training the {role}", file=sys.stderr)
    for _ in progress:
        starts = chooser.integers(0, len(data) - CONTEXT - 1, BATCH)
        value, gradients = step(model, mx.array(np.stack([data[s : s + CONTEXT + 1] for s in starts]).astype(np.int32)))
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        progress.set_postfix(loss=f"{value.item():.2f}")
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    byte_of = {text: byte for byte, text in _byte_alphabet().items()}
    tokenizer = Tokenizer(models.BPE(vocab=byte_of, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"})
    )


def _byte_alphabet() -> dict[int, str]:
    """Character that a byte-level tokenizer writes for each byte: its own where printable, the next free one else."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def bits_per_byte(pair: Pair, tokens: list[int]) -> float:
    """How surprising a text is to the target: lower is more like what it would write itself."""
    logits = pair.target.model(mx.array(tokens)[None])[0, :-1]
    loss = nn.losses.cross_entropy(logits, mx.array(tokens[1:]), reduction="mean")
    return float(loss) / math.log(2)


def show_verifiers(pair: Pair) -> None:
    """Decode the prompts with each verifier in turn and print the figures beside each other."""
    verifiers = {
        "target alone": None,
        "lossless": Lossless(),
        "static 0.9": Static(target_weight=0.9),
        "static 0.5": Static(target_weight=0.5),
        "lenient 0.5": Lenient(lenience=0.5),
        "cascade 0.2": Cascade(alpha=0.2),
    }
    rows: dict[str, list] = {name: [] for name in verifiers}
    for seed in range(3):
        for prompt in PROMPTS:
            for name, verifier in verifiers.items():
                sampling = Sampling(temp=1.0)
                responses = list(
                    stream_generate(pair, prompt, verifier=verifier, sampling=sampling, max_tokens=160, seed=seed)
                )
                tokens = [*prompt.encode(), *(response.token for response in responses)]
                rows[name].append((responses[-1].stats, bits_per_byte(pair, tokens), responses))
    alone = median(stats.generation_tps for stats, _, _ in rows["target alone"])
    print(
        f"\n{'verifier':14s}{'acceptance':>12s}{'tokens/round':>14s}{'tokens/s':>10s}{'speed-up':>10s}{'bits/byte':>11s}"
    )
    for name, runs in rows.items():
        proposed = sum(stats.proposed for stats, _, _ in runs)
        accepted = sum(stats.accepted for stats, _, _ in runs)
        tokens = sum(stats.generated_tokens for stats, _, _ in runs) / sum(stats.rounds for stats, _, _ in runs)
        speed = median(stats.generation_tps for stats, _, _ in runs)
        rate = f"{accepted / proposed:.1%}" if proposed else "-"
        surprise = sum(bits for _, bits, _ in runs) / len(runs)
        print(f"{name:14s}{rate:>12s}{tokens:14.2f}{speed:10.0f}{speed / alone:9.2f}x{surprise:11.2f}")
    print("\nbits/byte under the target: what a relaxed verifier costs. An answer of static 0.5:")
    responses = rows["static 0.5"][0][2]
    print(PROMPTS[0] + "".join(response.text for response in responses).replace("\n", " "))


def main() -> None:
    """Make the pair in a temporary folder and show it."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for role in SIZES:
            write_checkpoint(Path(folder, role), role)
        show_verifiers(load_pair(target=f"{folder}/target", draft=f"{folder}/draft"))
    print(f"\n{time.perf_counter() - started:.0f} s on {mx.default_device()}")


if __name__ == "__main__":
    main()

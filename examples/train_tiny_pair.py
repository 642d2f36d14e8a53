"""Make the embedded pair: a draft that knows how to phrase and a target that also knows how to calculate.

    python examples/train_tiny_pair.py            # writes diversed_mlx/tiny/draft and diversed_mlx/tiny/target

Both learn the task `arithmetic` from nothing, each with its own preferred wordings, as two models of one family that
saw different mixtures of text. Stopped at any time, the same command goes on from the last checkpoint.
"""

import argparse
import json
import math
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from diversed_mlx.tasks.arithmetic import EVERY_WORDING, LARGEST, Style, problems

TINY = Path(__file__).parents[1] / "diversed_mlx" / "tiny"
END, USER, ASSISTANT, SYSTEM = SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCAB_SIZE = 704
# A digit is a token, with the space before it or without; words and marks are merged as usual.
PIECES = Regex(r" ?\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+")
SAVE_EVERY = 96  # steps, a multiple of GROUP
GROUP = 8  # steps whose sequences are sorted by length together


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one of the two models is made.

    Args:
        layers: number of layers.
        width: of the hidden states; a head is 32 wide.
        steps: updates, rounded up to a multiple of GROUP.
        batch: sequences an update.
        learning_rate: AdamW's highest, for the embedding and the norms; Muon's, for the matrices of the layers, is 7
            times that.
        style: the wordings that it learns to prefer.
        any_wording: share of the answers told in any wording; of them it learns the rest, not the choice.
        drills: share of the sequences that are bare calculations for the first fifth of the steps; from there it falls
            to 0 at seven tenths.
        seed: of the weights and of the data.
    """

    layers: int
    width: int
    steps: int
    batch: int
    learning_rate: float
    style: Style
    any_wording: float
    drills: float
    seed: int

    def config(self) -> dict:
        """The checkpoint's config.json, for mlx-lm and for transformers."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.width,
            "intermediate_size": self.width * 8 // 3 // 32 * 32,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.width // 32,
            "num_key_value_heads": self.width // 32,
            "head_dim": 32,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "vocab_size": VOCAB_SIZE,
            "rope_theta": 10000.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": None,
            "eos_token_id": 0,
            "torch_dtype": "float32",
        }


RECIPES = {
    "target": Recipe(
        layers=8, width=96, steps=3500, batch=32, learning_rate=2e-3, style=Style((0.93, 0.05, 0.02)),
        any_wording=0.3, drills=0.75, seed=1,
    ),
    "draft": Recipe(
        layers=2, width=64, steps=1200, batch=32, learning_rate=3e-3, style=Style((0.02, 0.05, 0.93)),
        any_wording=0.3, drills=0.0, seed=2,
    ),
}  # fmt: skip


def train_tokenizer() -> Tokenizer:
    """Learn a byte-level BPE from the task's own text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(0)
    texts = [
        problem.question + "\n" + "".join(text for text, _ in problem.solve(rng, EVERY_WORDING))
        for problem, _ in zip(problems("train", 2**32), range(4000), strict=False)
    ]
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return tokenizer


def worked_example(tokenizer: Tokenizer, problem, rng: random.Random, recipe: Recipe) -> tuple[list[int], list[bool]]:
    """One conversation: its ids, and which of them are to be predicted."""
    prompt = tokenizer.encode(f"{USER}{problem.question}{END}{ASSISTANT}").ids
    any_wording = rng.random() < recipe.any_wording
    text, choices = "", set()
    for piece, is_choice in problem.solve(rng, EVERY_WORDING if any_wording else recipe.style):
        if is_choice and any_wording:
            choices.add(len(text))
        text += piece
    answer = tokenizer.encode(text)
    learned = [start not in choices for start, _ in answer.offsets]
    return prompt + answer.ids + [0], [False] * len(prompt) + learned + [True]


def drill(tokenizer: Tokenizer, rng: random.Random) -> tuple[list[int], list[bool]]:
    """Bare calculations in a row; the results are to be predicted."""
    text, results = "", set()
    while len(text) < 120:
        operator = rng.choice("+-*")
        left, right = (rng.randint(2, 12 if operator == "*" else LARGEST) for _ in range(2))
        result = {"+": left + right, "-": left - right, "*": left * right}[operator]
        if 1 <= result <= LARGEST:
            text += f" {left} {operator} {right} ="
            results.update(range(len(text), len(text) + 1 + len(str(result))))
            text += f" {result}"
    encoded = tokenizer.encode(text)
    return encoded.ids, [start in results for start, _ in encoded.offsets]


def batches(tokenizer: Tokenizer, recipe: Recipe, start: int) -> Iterator[tuple[mx.array, mx.array]]:
    """Ids (B, T) and the places in (B, T - 1) whose next token is to be predicted, flat (N,).

    Sequences of like length share a batch: the rows of a few steps are drawn at once and sorted, so little is padded.
    A step's batch depends on the step alone.
    """
    for group in range(start // GROUP, math.ceil(recipe.steps / GROUP)):
        seed = recipe.seed * 2**40 + group
        rng, source = random.Random(seed), problems("train", seed)
        share = recipe.drills * min(1.0, max(0.0, (0.7 - group * GROUP / recipe.steps) / 0.5))
        rows = []
        for _ in range(GROUP * recipe.batch):
            if rng.random() < share:
                rows.append(drill(tokenizer, rng))
            else:
                rows.append(worked_example(tokenizer, next(source), rng, recipe))
        rows.sort(key=lambda row: len(row[0]))
        steps = list(range(GROUP))
        rng.shuffle(steps)
        for step in steps[max(0, start - group * GROUP) :]:
            batch = rows[step * recipe.batch :][: recipe.batch]
            length = len(batch[-1][0])
            ids = mx.array([row + [0] * (length - len(row)) for row, _ in batch])
            places = [
                i * (length - 1) + t - 1 for i, (_, learned) in enumerate(batch) for t, yes in enumerate(learned) if yes
            ]
            yield ids, mx.array(places)


def loss(model: Model, ids: mx.array, places: mx.array) -> mx.array:
    """Mean negative log-likelihood of what is to be predicted, in nats; only there are logits computed."""
    hidden = model.model(ids[:, :-1]).reshape(-1, model.args.hidden_size)[places]
    logits = model.model.embed_tokens.as_linear(hidden)
    return nn.losses.cross_entropy(logits, ids[:, 1:].reshape(-1)[places], reduction="mean")


def write_checkpoint(folder: Path, recipe: Recipe, tokenizer: Tokenizer, model: nn.Module) -> None:
    """Write a checkpoint that mlx-lm and transformers load; it appears whole, by rename."""
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    partial.mkdir(parents=True)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(partial / "model.safetensors"), weights, metadata={"format": "mlx"})
    tokenizer.save(str(partial / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END,
        "model_max_length": 512, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    for name, content in (("config.json", recipe.config()), ("tokenizer_config.json", settings)):
        (partial / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def make_optimizer(recipe: Recipe) -> optim.MultiOptimizer:
    """Muon for the matrices of the layers, for it learns to calculate in fewer steps than AdamW; AdamW for the rest."""
    warm_up = max(1, recipe.steps // 25)

    def schedule(peak: float):
        decay = optim.cosine_decay(peak, recipe.steps - warm_up, peak / 50)
        return optim.join_schedules([optim.linear_schedule(0.0, peak, warm_up), decay], [warm_up])

    return optim.MultiOptimizer(
        [
            optim.Muon(schedule(7 * recipe.learning_rate), weight_decay=0.0),
            optim.AdamW(schedule(recipe.learning_rate), weight_decay=0.01),
        ],
        [lambda path, weight: "layers" in path and weight.ndim == 2],
    )


def train(name: str, recipe: Recipe, tokenizer: Tokenizer, work: Path, output: Path) -> None:
    """Train one of the two models, from its last checkpoint if there is one."""
    mx.random.seed(recipe.seed)
    model = Model(ModelArgs.from_dict(recipe.config()))
    optimizer = make_optimizer(recipe)
    optimizer.init(model.trainable_parameters())
    saved, step = work / f"{name}.safetensors", 0
    if saved.exists():
        tensors = mx.load(str(saved))
        assert isinstance(tensors, dict)
        state = tree_unflatten(list(tensors.items()))
        model.update(state["model"])
        optimizer.state = state["optimizer"]
        step = int(state["step"].item())

    value_and_gradients = nn.value_and_grad(model, loss)
    with tqdm(total=math.ceil(recipe.steps / GROUP) * GROUP, initial=step, desc=name, unit="step") as progress:
        for ids, places in batches(tokenizer, recipe, step):
            value, gradients = value_and_gradients(model, ids, places)
            gradients, _ = optim.clip_grad_norm(gradients, 1.0)
            optimizer.update(model, gradients)
            mx.eval(value, model.state, optimizer.state)
            step += 1
            progress.update()
            if step % 20 == 0:
                progress.set_postfix(loss=f"{value.item():.3f}")
            if step % SAVE_EVERY == 0:
                tensors = {"model": model.parameters(), "optimizer": optimizer.state, "step": mx.array(step)}
                flat = dict(tree_flatten(tree_map(mx.array, tensors)))
                mx.save_safetensors(str(saved.with_suffix(".partial.safetensors")), flat)
                saved.with_suffix(".partial.safetensors").rename(saved)
    write_checkpoint(output / name, recipe, tokenizer, model)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=TINY, help="folder of the two checkpoints (default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path("build/tiny-pair"), help="folder of unfinished work")
    parser.add_argument("--only", choices=RECIPES, help="train one of the two")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    for name, recipe in RECIPES.items():
        if args.only in (None, name):
            train(name, recipe, tokenizer, args.work, args.output)


if __name__ == "__main__":
    main()

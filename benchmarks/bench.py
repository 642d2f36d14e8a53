"""Speed of the engine beside mlx-lm's own speculative decoding, and the cost of a round beside its bare passes.

Both systems run in one process, in turn, on the same two models; figures are medians over prompts. Times on one
machine mean little on another: compare the ratios.

    python benchmarks/bench.py --draft FOLDER --target FOLDER
"""

import argparse
import platform
import time
from importlib.metadata import version
from statistics import median

import mlx.core as mx
from mlx_lm import stream_generate as mlx_lm_stream
from mlx_lm.sample_utils import make_sampler
from tqdm import tqdm

from diversed_mlx import Lossless, Sampling, load_pair, stream_generate
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.draft_length import Fixed
from diversed_mlx.pair import Pair
from diversed_mlx.speculate import Decoder

QUESTIONS = (
    "A bakery sells 12 boxes of 6 muffins in the morning and 9 boxes in the afternoon. How many muffins does it sell?",
    "Explain in a few sentences why the sky is blue.",
    "Tom has 45 marbles, gives 3 to each of 7 friends and finds 5 more. How many does he have? Think step by step.",
    "Write a short note that thanks a neighbour for watering the plants.",
    "A train drives 60 miles an hour for 2 hours and 40 miles an hour for 3 hours. How far does it go?",
    "List the steps to make a cup of tea.",
    "There are 24 pupils in each of 5 classes and 17 of them are ill. How many pupils are at school?",
    "What is the difference between a river and a lake?",
)


def ours(pair: Pair, prompt: list[int], temp: float, length: int, max_tokens: int, seed: int) -> float:
    """Tokens a second from the first token on."""
    responses = stream_generate(
        pair,
        prompt,
        verifier=Lossless() if length else None,
        sampling=Sampling(temp=temp),
        num_draft_tokens=length or 1,
        max_tokens=max_tokens,
        seed=seed,
    )
    return speed(responses)


def theirs(pair: Pair, prompt: list[int], temp: float, length: int, max_tokens: int, seed: int) -> float:
    """The same for mlx-lm."""
    mx.random.seed(seed)
    responses = mlx_lm_stream(
        pair.target.model,
        pair.tokenizer,
        prompt,
        max_tokens=max_tokens,
        draft_model=pair.draft.model if length and pair.draft else None,
        num_draft_tokens=length,
        sampler=make_sampler(temp=temp),
    )
    return speed(responses)


def speed(responses) -> float:
    """Tokens a second of a stream, without its first block, whose time is the prompt's."""
    times = []
    for _ in responses:
        times.append(time.perf_counter())
    return (len(times) - 1) / (times[-1] - times[0])


def interval(ratios: list[float]) -> str:
    """Median and the range of the middle half."""
    ordered = sorted(ratios)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return f"{median(ordered):.2f}x  (middle half {low:.2f}-{high:.2f}, n = {len(ordered)})"


def compare(pair: Pair, prompts: list[list[int]], temp: float, length: int, max_tokens: int, repeats: int) -> None:
    """Print our speed against mlx-lm's at one temperature and draft length, 0 for plain decoding."""
    mine, other, ratios = [], [], []
    turns = [(seed, prompt) for seed in range(repeats) for prompt in prompts]
    for warm_up in (ours, theirs):
        warm_up(pair, prompts[0], temp, length, 16, 0)
    for turn, (seed, prompt) in enumerate(tqdm(turns, leave=False)):
        runs = {}
        for run in (ours, theirs) if turn % 2 else (theirs, ours):
            runs[run] = run(pair, prompt, temp, length, max_tokens, seed)
        mine.append(runs[ours])
        other.append(runs[theirs])
        ratios.append(runs[ours] / runs[theirs])
    name = f"lossless, K = {length}" if length else "target alone"
    print(
        f"{name:18s} T = {temp:g}: {median(mine):6.1f} tok/s, mlx-lm {median(other):6.1f}, ratio {interval(ratios)}",
        flush=True,
    )


def round_cost(pair: Pair, prompt: list[int], temp: float, length: int, rounds: int) -> None:
    """Print the time of a round against the sum of its bare forward passes, measured in turn."""
    assert pair.draft is not None
    context = pair.make_context()
    context.start(prompt)
    decoder = Decoder(
        pair,
        context,
        verifier=Lossless(),
        sampling=Sampling(temp=temp),
        processors=(),
        seed=0,
        prefill_step_size=2048,
        trace=False,
    )
    bare_caches = pair.draft.make_cache(), pair.target.make_cache()
    one, many = mx.array([5]), mx.array([5] * (length + 1))
    for lm, cache in zip((pair.draft, pair.target), bare_caches, strict=True):
        mx.eval(lm(mx.array(prompt), cache))
    stops, pair.stop_tokens = pair.stop_tokens, frozenset()  # time rounds, not answers
    spent, bare = [], []
    blocks = decoder.blocks(Fixed(length), None)
    next(blocks)
    for _ in tqdm(range(rounds), leave=False):
        started = time.perf_counter()
        next(blocks)
        spent.append(time.perf_counter() - started)
        total = 0.0
        for lm, cache, tokens, times in (
            (pair.draft, bare_caches[0], one, length),
            (pair.target, bare_caches[1], many, 1),
        ):
            for _ in range(times):
                before = cache.offset
                started = time.perf_counter()
                mx.eval(lm(tokens, cache)[1])
                total += time.perf_counter() - started
                cache.rewind(before)
        bare.append(total)
    blocks.close()
    pair.stop_tokens = stops
    ratios = [a / b for a, b in zip(spent, bare, strict=True)]
    print(
        f"round, K = {length}, T = {temp:g}: {1e3 * median(spent):.1f} ms, bare passes {1e3 * median(bare):.1f} ms, "
        f"ratio of medians {median(spent) / median(bare):.3f}, ratio {interval(ratios)}",
        flush=True,
    )


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2, help="times each of the 8 questions is asked")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--temps", type=float, nargs="+", default=[0.0, 1.0])
    args = parser.parse_args()
    pair = load_pair(target=args.target, draft=args.draft)
    print(f"{platform.machine()} {platform.system()}, MLX {version('mlx')} on {mx.default_device()}")
    prompts = [chat_prompt(pair, [{"role": "user", "content": question}]) for question in QUESTIONS]
    for temp in args.temps:
        round_cost(pair, prompts[0], temp, args.num_draft_tokens, args.rounds)
    for temp in args.temps:
        compare(pair, prompts, temp, args.num_draft_tokens, args.max_tokens, args.repeats)
    compare(pair, prompts, args.temps[0], 0, args.max_tokens, 1)


if __name__ == "__main__":
    main()

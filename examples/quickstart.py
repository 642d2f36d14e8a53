"""One question, answered three ways by the embedded pair: python examples/quickstart.py (no download).

Another pair: python examples/quickstart.py 8b 1b "Why is the sky blue?"   (a head for it: diversed train gsm8k)
"""

import sys

from diversed_mlx import Dynamic, Lossless, Sampling, load_head, load_pair, stream_generate
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.heads import find_head

QUESTION = (
    "Fiona reads for 5 minutes and plays for 32 minutes. Fiona has 48 minutes in all. How much time is left for Fiona?"
)


def main(target: str = "tiny-target", draft: str = "tiny-draft", question: str = QUESTION) -> None:
    """Print each answer and what it cost."""
    pair = load_pair(target=target, draft=draft)
    ways = {"the target alone": None, "lossless": Lossless()}
    if (found := find_head(pair)) is not None:
        ways["with the trained head"] = Dynamic(load_head(found, pair))
    prompt = chat_prompt(pair, [{"role": "user", "content": question}])
    for name, verifier in ways.items():
        print(f"\n{name}:")
        stats = None
        for response in stream_generate(
            pair, prompt, verifier=verifier, sampling=Sampling(temp=1.0), num_draft_tokens=4, max_tokens=200, seed=1
        ):
            print(response.text, end="", flush=True)
            stats = response.stats
        assert stats is not None
        print(
            f"\n  {stats.generated_tokens} tokens in {stats.rounds} target passes, {stats.generation_tps:.0f} tokens/s"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

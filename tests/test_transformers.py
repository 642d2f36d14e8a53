"""Static verification at temperature 0 against transformers, which has its own code for it.

Its `assistant_ensemble_weight` is the weight on the target, as ours: in `GenerationMixin._assisted_decoding` the
greedy branch compares the drafted tokens with the argmax of `w * p_probs + (1 - w) * q_probs` and takes the bonus from
the target; w = 1 is outside of its range and means no weight.
"""

import mlx.core as mx
import pytest
from tiny import END, LLAMA, random_weights, write_model

from diversed_mlx import Lossless, Pair, Sampling, Static, load_pair, stream_generate

pytestmark = pytest.mark.torch

LENGTH, TOKENS = 4, 100
PROMPTS = ([72, 105], [10, 20, 30, 40, 50], list(range(65, 91)), [200])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    """A float32 Llama in Hugging Face's form and a draft that often disagrees with it."""
    root = tmp_path_factory.mktemp("hugging-face")
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
    # Less sure of themselves than other tiny models, so that the weight decides often.
    weights = random_weights(LLAMA, 1, 2.0)
    target = write_model(root / "target", config, weights=weights)
    draft = write_model(root / "draft", config, weights=weights, noise=0.25)
    return str(target), str(draft)


@pytest.fixture(scope="module")
def ours(folders) -> Pair:
    return load_pair(target=folders[0], draft=folders[1])


@pytest.fixture(scope="module")
def theirs(folders):
    import torch
    from transformers import LlamaForCausalLM

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for models this small
    target, draft = (LlamaForCausalLM.from_pretrained(f, dtype=torch.float32).eval() for f in folders)
    config = draft.generation_config
    config.num_assistant_tokens = LENGTH
    config.num_assistant_tokens_schedule = "constant"  # not the heuristic that changes the length
    config.assistant_confidence_threshold = 0.0  # no early end of a draft
    yield target, draft
    torch.set_num_threads(threads)


def by_transformers(theirs, prompt: list[int], w: float | None, **options) -> list[int]:
    import torch

    target, draft = theirs
    output = target.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        assistant_model=draft,
        assistant_ensemble_weight=w,
        do_sample=False,
        max_new_tokens=TOKENS,
        eos_token_id=END,
        pad_token_id=END,
        **options,
    )
    return output[0, len(prompt) :].tolist()


def by_us(ours: Pair, prompt: list[int], verifier) -> list[int]:
    responses = stream_generate(
        ours, prompt, verifier=verifier, sampling=Sampling(temp=0), num_draft_tokens=LENGTH, max_tokens=TOKENS
    )
    return [r.token for r in responses]


def test_both_read_the_same_checkpoint(ours, theirs):
    import torch

    prompt = PROMPTS[2]
    for lm, model in ((ours.target, theirs[0]), (ours.draft, theirs[1])):
        assert lm is not None
        _, logits = lm(mx.array(prompt), lm.make_cache())
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0]
        assert mx.allclose(logits, mx.array(expected.numpy()), atol=1e-4).item()


@pytest.fixture(scope="module")
def texts(ours) -> dict[float, list[list[int]]]:
    """Our answers to every prompt for each weight."""
    return {w: [by_us(ours, prompt, Static(target_weight=w)) for prompt in PROMPTS] for w in (0.3, 0.5, 0.8, 1.0)}


@pytest.mark.parametrize("index", range(len(PROMPTS)))
@pytest.mark.parametrize("w", [0.3, 0.5, 0.8, 1.0])
def test_static_at_temperature_zero_is_assisted_generation_with_an_ensemble_weight(texts, theirs, w, index):
    assert texts[w][index] == by_transformers(theirs, PROMPTS[index], w if w < 1 else None)


def test_the_weight_decides_in_these_examples(texts, ours):
    """Or the equalities would say little: weights give different texts, and most are not cut short by a stop token."""
    lengths = [len(text) for answers in texts.values() for text in answers]
    assert sum(length == TOKENS for length in lengths) >= 12
    assert all(len({tuple(texts[w][i]) for w in texts}) >= 3 for i in range(len(PROMPTS)))
    assert texts[1.0] == [by_us(ours, prompt, Lossless()) for prompt in PROMPTS]

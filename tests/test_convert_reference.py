"""The PyTorch reference decides as the engine does, given the same numbers."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from test_heads import make_head
from tiny import END, LLAMA, random_weights, write_model

import diversed_mlx
from diversed_mlx import DiversedError, EnsembleHead, Sampling, acceptance, load_pair, stream_generate, verifiers
from diversed_mlx.conversation import chat_prompt

pytestmark = pytest.mark.torch

K, V, WIDTH = 64, 50, 12
PROMPTS = ([72, 105], list(range(65, 91)), [200])


@pytest.fixture(scope="module")
def reference():
    import torch

    from diversed_mlx.convert import reference

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for models this small
    yield reference
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference_loop(reference):
    from diversed_mlx.convert import reference_loop

    return reference_loop


@pytest.fixture(scope="module")
def frameworks():
    from diversed_mlx.convert import both

    return both


def both(reference, frameworks, head: EnsembleHead) -> dict[str, tuple]:
    """Every verifier in both frameworks."""
    torch_head = frameworks.to_torch(head)
    found = {"lossless": (verifiers.Lossless(), reference.Lossless())}
    for w in (0.0, 0.3, 0.8, 1.0):
        found[f"static {w}"] = verifiers.Static(target_weight=w), reference.Static(target_weight=w)
    for s in (-1.0, 0.0, 2.0, float("inf"), float("-inf")):
        found[f"dynamic {s}"] = verifiers.Dynamic(head, strictness=s), reference.Dynamic(torch_head, strictness=s)
    for lenience in (0.2, 1.0):
        found[f"lenient {lenience}"] = verifiers.Lenient(lenience=lenience), reference.Lenient(lenience=lenience)
    for alpha, rule in itertools.product((0.0, 0.4, 1.0), ("opt", "token")):
        found[f"cascade {alpha} {rule}"] = tuple(m.Cascade(alpha=alpha, rule=rule) for m in (verifiers, reference))
    return found


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_numbers_give_the_same_decisions_for_every_verifier(reference, frameworks, greedy, seed):
    import torch

    rng = np.random.default_rng(seed)
    z, zq = (2 * rng.standard_normal((K, V), np.float32) for _ in range(2))
    zq = (zq + 2 * z) / 2  # a draft that often agrees
    hidden = rng.standard_normal((K, 2 * WIDTH), np.float32)
    uniforms = rng.random(2 * K + 1, dtype=np.float32)
    p, q = (np.exp(x - x.max(-1, keepdims=True)) for x in (z, zq))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    cumulative = q.cumsum(-1)
    tokens = q.argmax(-1) if greedy else (cumulative >= rng.random((K, 1)) * cumulative[:, -1:]).argmax(-1)
    arrays = {
        "tokens": tokens, "q": q, "p": p, "target_logits": z, "draft_hidden": hidden[:, :WIDTH],
        "target_hidden": hidden[:, WIDTH:],
    }  # fmt: skip
    ours = verifiers.Evidence(**{name: mx.array(array) for name, array in arrays.items()}, greedy=greedy)
    theirs = reference.Evidence(**{name: torch.from_numpy(array) for name, array in arrays.items()}, greedy=greedy)
    decided = set()
    for name, (mlx_verifier, torch_verifier) in both(reference, frameworks, make_head(WIDTH, WIDTH)).items():
        mine, other = mlx_verifier(ours), torch_verifier(theirs)
        accept = np.array(mine.accept)
        np.testing.assert_allclose(other.accept.numpy(), accept, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(other.target_weight.numpy(), np.array(mine.target_weight), atol=2e-6, err_msg=name)
        np.testing.assert_array_equal(uniforms[:K] < other.accept.numpy(), uniforms[:K] < accept, err_msg=name)
        decided.add(tuple(uniforms[:K] < accept))
        for length in range(0, K, 7):  # the token after each number of accepted ones
            row, uniform = mine.correction[length], uniforms[K + length]
            expected = mx.argmax(row) if greedy else acceptance.draw(row, mx.array(uniform))
            torch_row = other.correction[length]
            found = torch_row.argmax() if greedy else reference.draw(torch_row, torch.tensor(uniform))
            assert int(found) == int(expected), name
        length = acceptance.accepted_length(mine.accept, mx.array(uniforms[:K]))
        assert reference.accepted_length(other.accept, torch.from_numpy(uniforms[:K])) == int(length), name
    assert len(decided) >= 6  # the methods differ in these examples


@pytest.mark.parametrize(
    "options",
    [{}, {"temp": 0.5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 7}, {"temp": 1e-6},
     {"temp": 0.0, "top_k": 3}, {"temp": 1.7, "top_p": 0.9, "min_p": 0.05, "top_k": 12}],
)  # fmt: skip
def test_sampling_is_one_chain(reference, options):
    import torch

    logits = 3 * np.random.default_rng(0).standard_normal((200, V)).astype(np.float32)
    ours = np.array(Sampling(**options).probabilities(mx.array(logits)))
    theirs = reference.Sampling(**options).probabilities(torch.from_numpy(logits)).numpy()
    np.testing.assert_allclose(theirs, ours, atol=2e-6)
    np.testing.assert_array_equal(theirs > 0, ours > 0)


def test_rows_that_agree_wholly_fall_back_to_the_target(reference):
    import torch

    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    q = torch.tensor([[0.25, 0.75], [0.75, 0.25]])
    assert reference.positive_part(p, q).tolist() == [[0.25, 0.75], [0.0, 0.25]]
    assert reference.draw(torch.tensor([0.0, 1.0, 0.0]), torch.tensor(0.0)) == 1
    assert reference.draw(torch.tensor([0.0, 1.0, 1.0]), torch.tensor(0.999)) == 1
    assert reference.draw(torch.tensor([0.0, 1.0, 1.0]), torch.tensor(0.25)) == 2


# Whole texts ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("hf")
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
    weights = random_weights(LLAMA, 1, 2.0)
    return {
        "target": str(write_model(root / "target", config, weights=weights)),
        "draft": str(write_model(root / "draft", config, weights=weights, noise=0.25)),
    }


@pytest.fixture(scope="module")
def pairs(folders, frameworks):
    return frameworks.load_both(folders["draft"], folders["target"], "cpu", "float32")


METHODS = ("lossless", "static 0.3", "static 0.8", "dynamic 0.0", "dynamic 2.0", "lenient 0.2", "cascade 0.4 opt",
           "cascade 0.4 token")  # fmt: skip


@pytest.mark.parametrize("temp", [0.0, 1.0])
@pytest.mark.parametrize("name", [*METHODS, "none"])
def test_whole_texts_are_equal(reference, reference_loop, frameworks, pairs, name, temp):
    """With the engine's own uniforms: the same drafts, decisions, corrections, bonuses and rounds."""
    ours, theirs = pairs
    mlx_verifier, torch_verifier = both(reference, frameworks, make_head())[name] if name != "none" else (None, None)
    for prompt, length, seed in zip(PROMPTS, (1, 4, 7), (0, 1, 2), strict=True):
        responses = list(
            stream_generate(
                ours, prompt, verifier=mlx_verifier, sampling=Sampling(temp=temp), num_draft_tokens=length,
                max_tokens=50, seed=seed,
            )
        )  # fmt: skip
        blocks = list(
            reference_loop.speculate(
                theirs, prompt, verifier=torch_verifier, sampling=reference.Sampling(temp=temp),
                num_draft_tokens=length, max_tokens=50, uniforms=frameworks.engine_uniforms(seed),
            )
        )  # fmt: skip
        assert [token for block in blocks for token in block.tokens] == [r.token for r in responses]
        stats = responses[-1].stats
        assert sum(block.proposed for block in blocks) == stats.proposed
        assert sum(block.accepted for block in blocks) == stats.accepted
        weights = [w for block in blocks for w in block.target_weights]
        for found, response in zip(weights, responses, strict=True):
            assert (found is None) == (response.target_weight is None)
            assert found is None or found == pytest.approx(response.target_weight, abs=1e-5)


def test_a_pair_loads_without_mlx(reference_loop, pairs, folders):
    loaded, tokenizer = reference_loop.TorchPair.load(**folders)
    _, theirs = pairs
    assert (loaded.vocab_size, loaded.nameless, loaded.stop_tokens) == (theirs.vocab_size, (), frozenset({END}))
    assert tokenizer.encode("Hi") == pairs[0].tokenizer.encode("Hi")


def test_a_server_needs_no_mlx_and_the_example_runs(folders, tmp_path):
    make_head().save(tmp_path)
    example = Path(__file__).parents[1] / "examples" / "server_pytorch.py"
    script = (
        "import runpy, sys\n"
        "sys.modules |= {'mlx': None, 'mlx.core': None, 'mlx_lm': None}\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    arguments = (example, folders["draft"], folders["target"], tmp_path, "Why?", "cpu")
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"accepted \d+ of \d+ drafted tokens in \d+ rounds", done.stderr)
    assert len(example.read_text().splitlines()) < 40


def test_foreign_vocabularies_are_refused(reference_loop, folders, tmp_path):
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
    foreign = write_model(tmp_path / "foreign", config, swap=(70, 71))
    with pytest.raises(DiversedError, match="differ in token 70"):
        reference_loop.TorchPair.load(target=folders["target"], draft=str(foreign))


def test_layers_that_cannot_be_rewound_read_again(reference, reference_loop, tmp_path):
    """Sliding windows of 8 tokens: with rewinds the text is that of the target alone."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, tie_word_embeddings=False,
    )  # fmt: skip
    target, draft = (reference_loop.TorchLM(MistralForCausalLM(config)) for _ in range(2))
    assert any(reference_loop.Reading(target)._cache.is_sliding)
    pair = reference_loop.TorchPair(target=target, draft=draft, vocab_size=60)
    texts = [
        [
            token
            for block in reference_loop.speculate(
                pair, [1, 2, 3], verifier=verifier, sampling=reference.Sampling(temp=0.0), max_tokens=40
            )
            for token in block.tokens
        ]
        for verifier in (reference.Lossless(), None)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 40


def test_a_device_that_is_not_there_is_one_line(reference_loop):
    import torch

    with pytest.raises(DiversedError, match="cpu, cuda or mps"):
        reference_loop.pick_device("tpu")
    for name, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if not there:
            with pytest.raises(DiversedError, match=f"finds no {name} device"):
                reference_loop.pick_device(name)


def test_the_released_head_loads_by_its_widths_alone(reference, shared):
    head = reference.EnsembleHead.load(shared / "official", 2048, 4096)
    assert head.summary.weight.shape == (2, 6144)
    for sizes in ((), (2048, 4095)):
        with pytest.raises(DiversedError, match="holds no head that can be read"):
            reference.EnsembleHead.load(shared / "official", *sizes)


def test_swapped_rows_are_refused(reference, tmp_path):
    from diversed_mlx.convert.head_files import convert_head

    make_head(5, 11).save(tmp_path / "mlx")
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    file = tmp_path / "torch" / "ensemble_config.json"
    assert reference.EnsembleHead.load(tmp_path / "torch").draft_size == 5
    file.write_text(
        file.read_text().replace('"rows": [\n    "draft",\n    "target"', '"rows": [\n "target",\n "draft"')
    )
    with pytest.raises(DiversedError, match="in the order draft, target"):
        reference.EnsembleHead.load(tmp_path / "torch")


@pytest.mark.parametrize("damage", ["missing", "json", "tensors", "nan"])
def test_a_damaged_head_is_one_line(reference, tmp_path, damage):
    head = make_head(5, 11)
    if damage == "nan":
        head.summary.weight[0, 0] = float("nan")
    head.save(tmp_path)
    if damage == "missing":
        (tmp_path / "head.safetensors").unlink()
    if damage == "json":
        (tmp_path / "head.json").write_text("[]")
    if damage == "tensors":
        mx.save_safetensors(str(tmp_path / "head.safetensors"), {"summary.weight": head.summary.weight})
    with pytest.raises(DiversedError) as error:
        reference.EnsembleHead.load(tmp_path)
    assert "\n" not in str(error.value)


# On what there may be -------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_cuda_gives_the_same_texts(reference, reference_loop, frameworks, pairs, folders, temp):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    ours, _ = pairs
    theirs = frameworks.load_both(folders["draft"], folders["target"], "cuda", "float32")[1]
    head = make_head()
    on_gpu = reference.Dynamic(frameworks.to_torch(head).to("cuda"))
    for prompt in PROMPTS:
        responses = stream_generate(
            ours, prompt, verifier=verifiers.Dynamic(head), sampling=Sampling(temp=temp), max_tokens=50
        )
        blocks = reference_loop.speculate(
            theirs, prompt, verifier=on_gpu, sampling=reference.Sampling(temp=temp), max_tokens=50,
            uniforms=frameworks.engine_uniforms(0),
        )  # fmt: skip
        assert [t for block in blocks for t in block.tokens] == [r.token for r in responses]


@pytest.mark.slow
def test_the_embedded_pairs_head_accepts_as_much_in_pytorch(reference, reference_loop, frameworks, tmp_path):
    """Exported to torch, over 100 problems, within the engine's 95 % interval; the uniforms are the engine's."""
    tiny = Path(diversed_mlx.__file__).parent / "tiny"
    if missing := [name for name in ("draft", "target", "head") if not (tiny / name).is_dir()]:
        pytest.skip(f"diversed_mlx/tiny holds no {', '.join(missing)} yet")
    from diversed_mlx.convert.head_files import convert_head
    from diversed_mlx.heads import load_head
    from diversed_mlx.tasks.arithmetic import Arithmetic

    ours, theirs = frameworks.load_both("tiny-draft", "tiny-target", "cpu", "float32")
    convert_head(str(tiny / "head"), tmp_path / "torch", "torch")
    head = load_head(tiny / "head", load_pair(target="tiny-target", draft="tiny-draft"))
    torch_head = reference.EnsembleHead.load(tmp_path / "torch", head.draft_size, head.target_size)
    task, counts = Arithmetic(), []
    for seed, problem in enumerate(task.examples("test", 100, 0)):
        prompt = chat_prompt(ours, [{"role": "user", "content": problem.question}])
        *_, last = stream_generate(
            ours,
            prompt,
            verifier=verifiers.Dynamic(head),
            sampling=Sampling(temp=1),
            max_tokens=task.max_tokens,
            seed=seed,
        )
        blocks = list(
            reference_loop.speculate(
                theirs, prompt, verifier=reference.Dynamic(torch_head), sampling=reference.Sampling(temp=1.0),
                max_tokens=task.max_tokens, uniforms=frameworks.engine_uniforms(seed),
            )
        )  # fmt: skip
        found = sum(block.accepted for block in blocks), sum(block.proposed for block in blocks)
        counts.append((last.stats.accepted, last.stats.proposed, *found))
    accepted, proposed, torch_accepted, torch_proposed = np.array(counts).T
    chosen = np.random.default_rng(0).integers(100, size=(2000, 100))
    low, high = np.quantile(accepted[chosen].sum(-1) / proposed[chosen].sum(-1), [0.025, 0.975])
    rate, torch_rate = accepted.sum() / proposed.sum(), torch_accepted.sum() / torch_proposed.sum()
    print(f"acceptance: MLX {rate:.4f} [{low:.4f}, {high:.4f}], PyTorch {torch_rate:.4f}")
    assert low <= torch_rate <= high

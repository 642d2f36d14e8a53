"""`diversed convert parity`: equal frameworks pass, unequal ones are found, and ties are what they are called."""

import json

import mlx.core as mx
import numpy as np
import pytest
from test_cli_generate import run
from test_heads import make_head
from tiny import LLAMA, random_weights, write_model

from diversed_mlx import DiversedError, acceptance, verifiers

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple:
    root = tmp_path_factory.mktemp("hf")
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
    weights = random_weights(LLAMA, 1, 2.0)
    target = write_model(root / "target", config, weights=weights)
    draft = write_model(root / "draft", config, weights=weights, noise=0.25)
    return "--draft", draft, "--target", target


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Faster for models this small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = ("--n-prompts", 2, "-m", 12)


def test_the_table_passes_on_a_pair(models, tmp_path):
    make_head().save(tmp_path)
    outcome = run("convert", "parity", *models, *SMALL, "--head", tmp_path)
    for what in ("draft hidden", "target logits", "TV", "w, largest", "cascade-token:0.2, greedy", "= transformers"):
        assert what in outcome.stdout
    assert "DIFFERS" not in outcome.stdout
    assert "binary digits" in outcome.stdout


def test_json_holds_every_row(models):
    outcome = run("convert", "parity", *models, *SMALL, "--json", "--positions", 100)
    found = json.loads(outcome.stdout)
    assert found["passed"]
    assert found["device"] == "cpu"
    rows = {row["what"]: row for row in found["rows"]}
    assert len(rows) == 8 + 2 * 7 + 6
    assert rows["w, largest difference"]["value"] < 1e-5
    assert rows["accept decisions, static:0.5, temp 1"]["detail"].startswith("100 of 100 equal")
    assert all(row["passed"] for row in rows.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_has_its_own_tolerance(models, dtype, tmp_path):
    (tmp_path / "prompts").write_text("Hello\n\nWorld\n")
    outcome = run(
        "convert", "parity", *models, "--dtype", dtype, "-m", 4, "--prompts", tmp_path / "prompts", "--json", code=None
    )
    numbers = [row for row in json.loads(outcome.stdout)["rows"] if "largest" in row["what"]]
    assert all(row["passed"] for row in numbers)  # whole texts may part at a tie
    assert max(row["value"] for row in numbers) > 1e-6


def test_a_framework_that_computes_something_else_is_found(models, monkeypatch):
    from diversed_mlx.convert import both

    true_load = both.load_both

    def wrong(*arguments, **named):
        ours, theirs = true_load(*arguments, **named)
        with both.torch.no_grad():
            theirs.target.model.model.norm.weight *= 1.05
        return ours, theirs

    monkeypatch.setattr(both, "load_both", wrong)
    outcome = run("convert", "parity", *models, *SMALL, "--json", code=1)
    found = json.loads(outcome.stdout)
    assert not found["passed"]
    rows = {row["what"]: row for row in found["rows"]}
    assert rows["target hidden, largest difference"]["value"] == pytest.approx(0.05 / 1.05, rel=0.01)
    assert rows["draft hidden, largest difference"]["passed"]
    assert outcome.stderr.splitlines()[-1].startswith("error: MLX and PyTorch differ beyond the tolerance in: target h")


def test_a_difference_is_a_tie_only_where_what_is_compared_is_equal():
    import torch

    from diversed_mlx.convert import parity, reference

    def count(verifier, p, q, accept, torch_accept, uniform, greedy) -> list[int]:
        evidence = verifiers.Evidence(
            tokens=mx.array([1]), q=mx.array([q]), p=mx.array([p]), target_logits=mx.log(mx.array([p])),
            draft_hidden=mx.zeros((1, 2)), target_hidden=mx.zeros((1, 2)), greedy=greedy,
        )  # fmt: skip
        mine = verifier(evidence)
        ours = acceptance.Allowance(
            accept=mx.array([accept]), correction=mine.correction, target_weight=mine.target_weight
        )
        theirs = reference.Allowance(
            accept=torch.tensor([torch_accept]), correction=torch.zeros(1, 2), target_weight=torch.zeros(1)
        )
        counts = [0, 0, 0]
        parity._count(verifier, evidence, ours, theirs, np.array([uniform], np.float32), 1e-3, counts)
        return counts

    static, flat, sure = verifiers.Static(target_weight=0.5), [0.5, 0.50001], [0.1, 0.9]
    assert count(static, sure, sure, 0.5, 0.5, 0.4, False) == [1, 0, 0]
    assert count(static, sure, sure, 0.5, 0.5001, 0.50005, False) == [0, 1, 0]
    assert count(static, sure, sure, 0.5, 0.6, 0.55, False) == [0, 1, 1]
    assert count(static, flat, flat, 1.0, 0.0, 0.0, True) == [0, 1, 0]
    assert count(static, sure, sure, 1.0, 0.0, 0.0, True) == [0, 1, 1]
    assert count(verifiers.Lossless(), flat, sure, 1.0, 0.0, 0.0, True) == [0, 1, 0]
    assert count(verifiers.Lossless(), sure, flat, 1.0, 0.0, 0.0, True) == [0, 1, 1]
    assert count(verifiers.Lenient(lenience=0.25), [0.8, 0.2], sure, 1.0, 0.0, 0.0, True) == [0, 1, 0]
    assert count(verifiers.Lenient(lenience=0.5), [0.8, 0.2], sure, 1.0, 0.0, 0.0, True) == [0, 1, 1]
    assert count(verifiers.Cascade(alpha=0.75, rule="token"), [0.8, 0.2], sure, 1.0, 0.2, 0.5, False) == [0, 1, 0]
    assert count(verifiers.Cascade(alpha=0.5, rule="token"), [0.8, 0.2], sure, 1.0, 0.2, 0.5, False) == [0, 1, 1]
    assert count(verifiers.Cascade(alpha=0.0), [0.9, 0.1], sure, 1.0, 0.1, 0.5, False) == [0, 1, 0]
    assert count(verifiers.Cascade(alpha=0.5), [0.9, 0.1], sure, 1.0, 0.1, 0.5, False) == [0, 1, 1]


def test_a_number_that_is_none_does_not_pass():
    from diversed_mlx.convert.parity import Row

    nan = float("nan")
    assert not Row(what="", value=nan, limit=1.0).passed
    assert not Row(what="", value=nan, limit=0.0, at_least=True).passed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompts", "nonesuch"), "cannot read nonesuch"),
        (("--prompts", "empty"), "holds no prompt"),
        (("--head", "nonesuch"), "no head nonesuch"),
        (("--head", "other"), "this pair has 32 and 32"),
    ],
)
def test_bad_input_is_one_line(models, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n \n")
    make_head(16, 32).save(tmp_path / "other")
    outcome = run("convert", "parity", *models, *arguments, code=1)
    assert outcome.stdout == ""
    assert said in outcome.stderr.splitlines()[-1]


def test_a_device_that_is_not_there_is_said_before_anything_is_loaded():
    import torch

    if torch.cuda.is_available():
        pytest.skip("here is an NVIDIA GPU")
    outcome = run("convert", "parity", "--draft", "no/a", "--target", "no/b", "--device", "cuda", code=1)
    assert "finds no cuda device" in outcome.stderr.splitlines()[-1]


def test_a_model_that_is_quantised_for_mlx_is_refused(tmp_path):
    from diversed_mlx.convert.both import load_both
    from diversed_mlx.convert.models import Recipe, convert_model

    wide = LLAMA | {"hidden_size": 128, "intermediate_size": 128}
    source = write_model(tmp_path / "source", wide)
    convert_model(str(source), tmp_path / "q", Recipe(quantize=True), check=False)
    with pytest.raises(DiversedError, match="quantised for MLX"):
        load_both(str(source), str(tmp_path / "q"), "cpu", "float32")


@pytest.mark.cuda
def test_parity_on_cuda(models):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    found = json.loads(run("convert", "parity", *models, *SMALL, "--device", "cuda", "--json").stdout)
    assert found["passed"]

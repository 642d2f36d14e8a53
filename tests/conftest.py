"""Shared pairs of tiny models, and the reasons for skipping what a machine cannot run."""

import importlib.util
import signal
from pathlib import Path

import mlx.core as mx
import pytest
from tiny import GEMMA, LLAMA, adversary, random_weights, write_model

from diversed_mlx import Pair, load_pair

# A shell that starts the tests in the background has Ctrl-C ignored, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` with real models is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Folders of tiny checkpoints: a target, a draft that often agrees, one that never does, and Gemma-like ones."""
    root = tmp_path_factory.mktemp("models")
    llama, gemma = random_weights(LLAMA, 1, 4.0), random_weights(GEMMA, 1, 4.0)
    return {
        "target": write_model(root / "target", weights=llama),
        "draft": write_model(root / "draft", weights=llama, noise=0.15),
        "adversary": write_model(root / "adversary", weights=adversary(llama)),
        "gemma-target": write_model(root / "gemma-target", GEMMA, weights=gemma),
        "gemma-draft": write_model(root / "gemma-draft", GEMMA, weights=gemma, noise=0.15),
    }


@pytest.fixture(scope="session")
def pair(checkpoints) -> Pair:
    """A target and a draft that often agrees."""
    return load_pair(target=str(checkpoints["target"]), draft=str(checkpoints["draft"]))


@pytest.fixture(scope="session")
def self_pair(checkpoints) -> Pair:
    """A target that drafts for itself."""
    return load_pair(target=str(checkpoints["target"]), draft=str(checkpoints["target"]))


@pytest.fixture(scope="session")
def adverse_pair(checkpoints) -> Pair:
    """A draft that is never right."""
    return load_pair(target=str(checkpoints["target"]), draft=str(checkpoints["adversary"]))


@pytest.fixture(scope="session")
def gemma_pair(checkpoints) -> Pair:
    """A pair with sliding windows of 16 tokens."""
    return load_pair(target=str(checkpoints["gemma-target"]), draft=str(checkpoints["gemma-draft"]))


@pytest.fixture(scope="session")
def padded_pair(tmp_path_factory) -> Pair:
    """A draft whose logits are wider than its vocabulary, as checkpoints padded for a GPU have them."""
    root, wide = tmp_path_factory.mktemp("padded"), LLAMA["vocab_size"] + 12
    weights = random_weights(LLAMA, 1, 4.0)
    padded = {
        name: mx.concatenate([w, 3 * mx.ones((12, w.shape[1]))]) if w.shape[0] == LLAMA["vocab_size"] else w
        for name, w in weights.items()
    }
    target = write_model(root / "target", weights=weights)
    draft = write_model(root / "draft", LLAMA | {"vocab_size": wide}, weights=padded, noise=0.15)
    return load_pair(target=str(target), draft=str(draft))


def pytest_collection_modifyitems(items):
    """Skip what this machine cannot run, and say why."""
    missing = {
        "torch": None if importlib.util.find_spec("torch") else "needs PyTorch: install the extra torch",
        "metal": None if mx.metal.is_available() else "needs a Mac with Apple silicon",
        "cuda": "needs an NVIDIA GPU" if not importlib.util.find_spec("torch") else None,
    }
    for item in items:
        for marker, reason in missing.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))

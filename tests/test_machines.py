"""Training on several machines, here two processes and MLX's ring on the loopback: the real launcher, no mock."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from diversed_mlx.training.machines import Machines

SCRIPT = Path(__file__).parent / "train_on_machines.py"

if shutil.which("mlx.launch", path=str(Path(sys.executable).parent)) is None:
    pytest.skip("needs mlx.launch beside the interpreter", allow_module_level=True)
LAUNCH = [str(Path(sys.executable).parent / "mlx.launch"), "-n", "2", "--", sys.executable, str(SCRIPT)]


@pytest.fixture(scope="module")
def models(checkpoints) -> str:
    return str(checkpoints["target"].parent)


def tensors(folder):
    return mx.load(str(folder / "checkpoint.safetensors"))


def largest_difference(first, second):
    one, two = tensors(first), tensors(second)
    assert one.keys() == two.keys()
    return max(mx.max(mx.abs(one[name] - two[name])).item() for name in one)


def test_two_machines_do_what_one_does_with_twice_the_prompts_also_after_a_loss(models, tmp_path):
    """Batches of 2 on each of two, of 4 on one; then rank 1 is lost, and both go on from the checkpoint."""
    subprocess.run([sys.executable, SCRIPT, models, "4", tmp_path / "one", "-1"], check=True, timeout=120)
    subprocess.run([*LAUNCH, models, "2", tmp_path / "two", "-1"], check=True, timeout=120)
    assert largest_difference(tmp_path / "one", tmp_path / "two") < 1e-5
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [row["reward"] for row in two] == pytest.approx([row["reward"] for row in one], abs=1e-6)
    assert [row["tokens"] for row in two] == [row["tokens"] for row in one]

    lost = subprocess.run([*LAUNCH, models, "2", tmp_path / "lost", "1"], capture_output=True, text=True, timeout=120)
    assert "rank 1" in lost.stdout + lost.stderr
    assert len((tmp_path / "lost" / "metrics.jsonl").read_text().splitlines()) == 2
    subprocess.run([*LAUNCH, models, "2", tmp_path / "lost", "-1", "resume"], check=True, timeout=120)
    assert largest_difference(tmp_path / "two", tmp_path / "lost") < 1e-5


def test_a_lost_machine_is_one_clear_error(models, tmp_path):
    """Without a launcher that ends the others: the one that is left says what happened, and has saved."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    (tmp_path / "hosts.json").write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, models, "2", tmp_path / "run", "1"],
            env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(tmp_path / "hosts.json")},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert processes[1].returncode == 9
    assert processes[0].returncode == 1
    assert "DiversedError: another machine of this run is gone" in errors[0].splitlines()[-1]
    assert json.loads(mx.load(str(tmp_path / "run" / "checkpoint.safetensors"), return_metadata=True)[1]["facts"])[
        "step"
    ] == 2  # fmt: skip


def test_alone_everything_stays_as_it_is():
    alone = Machines.join()
    assert (alone.rank, alone.size, alone.leads) == (0, 1, True)
    array = mx.array([1.0, 2.0])
    assert alone.total([array])[0] is array
    assert alone.share(b"abc") == b"abc"

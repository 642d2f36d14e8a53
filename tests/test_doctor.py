"""`diversed doctor`: what it finds of machines that are not this one, and of pairs that cannot work."""

import dataclasses
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import convert
from test_cli_errors import DAMAGES, MAMBA, cut
from test_cli_generate import run, save_head
from tiny import LLAMA, write_model, write_tokenizer

import diversed_mlx.doctor.models as models_module
from diversed_mlx.doctor.environment import (
    LEAST,
    TESTED,
    check_environment,
    of_blas,
    of_device,
    of_home,
    of_hub,
    of_memory,
    of_versions,
)
from diversed_mlx.doctor.finding import Finding, ready
from diversed_mlx.doctor.models import check_models
from diversed_mlx.lm import LM
from diversed_mlx.machine import Machine, blas_in_use, openblas_here, this_machine

ROOT = Path(__file__).parents[1]
LINUX = Machine(
    system="Linux", system_version="6.1", architecture="x86_64", chip="AMD EPYC", cores=2, backend="cpu",
    memory_bytes=24 * 2**30, available_bytes=24 * 2**30, wired_limit_mb=None, blas=None, matmul_gflops=3.0,
)  # fmt: skip
MAC = Machine(
    system="Darwin", system_version="15.3", architecture="arm64", chip="Apple M2 Pro", cores=10, backend="metal",
    memory_bytes=16 * 2**30, available_bytes=11_453_251_584, wired_limit_mb=0, blas=None, matmul_gflops=None,
)  # fmt: skip


def changed(machine: Machine, **changes) -> Machine:
    return dataclasses.replace(machine, **changes)


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: finding.level for finding in findings}


def of(findings: list[Finding], subject: str) -> Finding:
    (found,) = [finding for finding in findings if finding.subject == subject]
    return found


# Machines


def test_a_mac_is_well():
    assert levels(of_device(MAC)) == {"machine": "ok", "backend": "ok"}
    assert of_device(MAC)[0].found == "Apple M2 Pro, macOS 15.3 arm64, 10 cores"
    memory, wired = of_memory(MAC, 0.9 * MAC.available_bytes)
    assert memory.found == ("17.2 GB, of which models may use 10.3; --draft 1b --target 8b takes 5.3 GB")
    assert wired.found == "iogpu.wired_limit_mb is macOS's own choice"
    assert wired.remedy is not None
    assert "sudo sysctl iogpu.wired_limit_mb=12288" in wired.remedy
    assert of_blas(MAC, None) == []


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"architecture": "x86_64", "backend": "cpu"}, "install a Python for Apple silicon"),
        ({"system_version": "13.6.1"}, "update to macOS 14"),
    ],
)
def test_a_mac_on_which_mlx_does_not_work_is_told_why(changes, remedy):
    machine = of_device(changed(MAC, **changes))[0]
    assert machine.level == "problem"
    assert machine.remedy is not None
    assert machine.remedy.startswith(remedy)


def test_a_mac_without_metal_and_one_that_cannot_wire_memory():
    assert "outside a virtual machine" in str(of_device(changed(MAC, backend="cpu"))[1].remedy)
    wired = of_memory(changed(MAC, system_version="14.5"), 1e10)[1]
    assert (wired.level, wired.remedy) == ("note", "update to macOS 15 or newer")
    assert of_memory(changed(MAC, wired_limit_mb=14000), 1e10)[1].found == "iogpu.wired_limit_mb is 14000 MB"
    assert [each.subject for each in of_memory(changed(MAC, wired_limit_mb=None), 1e10)] == ["memory"]


def test_a_small_machine_is_named_no_pair_that_does_not_fit():
    (found,) = of_memory(LINUX, 2e9)
    assert found.level == "note"
    assert "none of the pairs" in found.found
    assert of_memory(LINUX, 2.7e9)[0].found.endswith("--draft 1b --target 3b takes 2.6 GB")


def test_a_slow_blas_is_told_with_what_to_do():
    (slow,) = of_blas(LINUX, Path("/usr/lib/libopenblas.so.0"))
    assert slow.level == "note"
    assert slow.remedy == "start with LD_PRELOAD=/usr/lib/libopenblas.so.0 (make does so by itself)"
    (missing,) = of_blas(LINUX, None)
    assert str(missing.remedy).startswith("apt install libopenblas0-pthread, then start with LD_PRELOAD=/usr/lib/")
    (fast,) = of_blas(changed(LINUX, blas="libopenblas.so.0", matmul_gflops=70.0), None)
    assert (fast.level, fast.found) == ("ok", "libopenblas.so.0, 70 GFLOP/s in float32")
    assert of_blas(changed(LINUX, backend="cuda"), None) == []


MAPS = """7f00-7f01 r-xp 00000000 fe:00 1  /v/lib/python3.11/site-packages/numpy.libs/libscipy_openblas64_-ab.so
7f00-7f01 r-xp 00000000 fe:00 1          /v/lib/python3.11/site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0
7f00-7f01 rw-p 00000000 00:00 0
"""


def test_the_blas_in_use_is_one_that_no_package_brought():
    assert blas_in_use(MAPS) is None
    line = "7f00-7f01 r-xp 00000000 fe:00 2       /usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so\n"
    assert blas_in_use(MAPS + line) == "libopenblasp-r0.3.21.so"


def test_an_openblas_is_found_where_distributions_put_it(tmp_path):
    assert openblas_here(tmp_path) is None
    path = tmp_path / "usr/lib/aarch64-linux-gnu/openblas-pthread/libopenblas.so.0"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert openblas_here(tmp_path) == path


def test_what_changes_the_times_changes_the_machine_s_name():
    others = [
        changed(LINUX, blas="libopenblas.so.0"), changed(LINUX, cores=4), changed(LINUX, chip="Intel"),
        changed(LINUX, memory_bytes=2**30), MAC, changed(MAC, backend="cpu"),
    ]  # fmt: skip
    assert len({machine.name for machine in (LINUX, *others)}) == 7
    assert changed(LINUX, matmul_gflops=99.0, system_version="7").name == LINUX.name
    assert MAC.name == "Darwin arm64, Apple M2 Pro, metal, 16 GiB"


def test_this_machine_is_described():
    found = this_machine(measure=False)
    assert found.matmul_gflops is None
    assert found.memory_bytes >= 2**30
    assert found.available_bytes <= found.memory_bytes
    assert found.backend in ("metal", "cuda", "cpu")


# Versions and folders


def test_the_tested_versions_are_those_of_the_constraints_and_of_the_project():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    assert {name: pinned[name] for name in TESTED} == TESTED
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    least = dict(line.split(";")[0].split(">=") for line in asked if ">=" in line)
    assert least == LEAST


def test_versions_are_judged():
    assert set(levels(of_versions(TESTED, (3, 11, 4))).values()) == {"ok"}
    found = of_versions(TESTED | {"mlx": "0.9.1", "mlx-lm": "0.40.0", "numpy": None}, (3, 10, 1))
    assert levels(found) == {
        "Python": "problem", "mlx": "problem", "mlx-lm": "note", "numpy": "problem", "transformers": "ok",
        "huggingface-hub": "ok",
    }  # fmt: skip
    assert of(found, "mlx").found == "0.9.1, older than 0.32.2, the least that works"


def test_the_hub_cache_and_being_offline(tmp_path):
    (tmp_path / "models--a--b").mkdir()
    (there,) = of_hub(tmp_path, offline=False)
    assert (there.level, there.found.split(",")[0]) == ("ok", f"{tmp_path} holds 1 models")
    (offline,) = of_hub(tmp_path / "not" / "yet", offline=True)
    assert offline.level == "note"
    assert "holds 0 models" in offline.found
    assert offline.remedy == "unset HF_HUB_OFFLINE to download models"


def test_a_home_that_cannot_keep_anything_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERSED_HOME", "x")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        (found,) = of_home(path)
        assert found.level == "note"
        assert "another with DIVERSED_HOME" in str(found.remedy)
    assert of_home(tmp_path / "not" / "yet")[0].level == "ok"
    save_head(tmp_path / "home" / "heads" / "gsm8k", 0)
    assert of_home(tmp_path / "home")[0].found == f"{tmp_path / 'home'} (DIVERSED_HOME) holds 1 trained heads"

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    assert of_home(tmp_path)[0].level == "note"
    assert "cannot be read: Permission denied" in of_hub(tmp_path, offline=False)[0].found


def test_mlx_that_cannot_be_loaded_is_a_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "diversed_mlx.machine", None)
    found = of(check_environment(), "MLX")
    assert found.level == "problem"
    assert "diversed-mlx[cpu]" in str(found.remedy)


# Pairs


def check(checkpoints, draft: object = None, target: object = None, **settings) -> list[Finding]:
    return check_models(str(target or checkpoints["target"]), str(draft or checkpoints["draft"]), **settings)


def test_a_pair_that_works(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path))
    found = check(checkpoints)
    assert ready(found)
    assert of(found, "target").found == (
        f"{checkpoints['target']}: llama, 2 layers, float32, 0.1 MB, hidden states 32 wide"
    )
    assert of(found, "vocabulary").found == (
        "ids below 260 shared; target 260 logits and 260 tokens, draft 260 logits and 260 tokens"
    )
    assert of(found, "stop tokens").found == "'<|end|>'"
    assert of(found, "caches").found == "target 2 KVCache; draft 2 KVCache; all can be rewound"
    assert of(found, "context").found == "target 2048, draft 2048 tokens"
    # Keys and values of 2 layers, 2 heads, 8 wide, float32: 256 bytes a token and model, at 2048 tokens for two.
    assert "1.0 MB of caches at 2048 tokens" in of(found, "memory").found
    assert of(found, "head").remedy == (
        f"diversed train gsm8k --draft {checkpoints['draft']} --target {checkpoints['target']}"
    )
    assert of(found, "draft length").found == "not measured here yet"


def test_windows_are_named_and_bounded(checkpoints):
    found = check(checkpoints, checkpoints["gemma-draft"], checkpoints["gemma-target"])
    assert of(found, "caches").found.startswith("target 2 windows of 16, 1 KVCache; draft 2 windows of 16, 1 KVCache")


def test_a_context_beyond_the_pair_s_is_a_note(checkpoints):
    found = of(check(checkpoints, context=5000), "context")
    assert found.level == "note"
    assert "the pair holds 2048 tokens, not the 5000 asked for" in found.found


def test_memory_that_does_not_suffice_says_what_fits(checkpoints, monkeypatch):
    weights = sum(2 * [of_weights(checkpoints["target"])])
    monkeypatch.setattr(models_module, "available_bytes", lambda: weights + 256 * 1024)
    found = of(check(checkpoints), "memory")
    assert found.level == "problem"
    assert found.remedy == "about 512 tokens fit: --max-kv-size 512, --kv-bits 8, or smaller models"
    monkeypatch.setattr(models_module, "available_bytes", lambda: weights)
    assert of(check(checkpoints), "memory").remedy == "use smaller models"


def of_weights(folder: Path) -> int:
    return LM.load(folder, lazy=True).nbytes


@pytest.mark.parametrize("name", ["target", "gemma-target"])
def test_the_bytes_of_a_cache_are_those_of_one_that_was_filled(checkpoints, name):
    lm = LM.load(checkpoints[name])
    cache = lm.make_cache()
    for start in range(0, 700, 100):
        lm(mx.arange(100) % 256 + start % 2, cache)
    mx.eval(cache.arrays())
    told = LM.load(checkpoints[name], lazy=True).cache_bytes(700)
    # What windows retain varies by a step, and buffers grow in steps of 256 tokens from where they were.
    assert told == pytest.approx(cache.nbytes, rel=0.5)
    assert told >= 700 * 128  # one layer that holds everything: 2 heads, 8 wide, keys and values, 4 bytes


def test_number_formats_are_told_apart(tmp_path):
    config = LLAMA | {"hidden_size": 64}
    plain = LM.load(write_model(tmp_path / "plain", config), lazy=True)
    assert plain.number_format == "float32"
    convert(
        str(tmp_path / "plain"), str(tmp_path / "small"), quantize=True, q_group_size=32, q_bits=4, dtype="bfloat16"
    )
    small = LM.load(tmp_path / "small", lazy=True)
    assert small.number_format == "4 bits in groups of 32, bfloat16"
    assert small.fingerprint == plain.fingerprint


def test_the_same_model_twice_is_loaded_once_and_works(checkpoints):
    once, twice = check_models(str(checkpoints["target"]), None), check(checkpoints, draft=checkpoints["target"])
    assert ready(twice)
    assert of(once, "memory").found.split(" of weights")[0] == of(twice, "memory").found.split(" of weights")[0]
    assert of(twice, "pair").level == "note"


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_a_problem_and_no_traceback(checkpoints, tmp_path, damage, role):
    harm, said = DAMAGES[damage]
    folder = Path(shutil.copytree(checkpoints[role], tmp_path / "broken"))
    harm(folder)
    found = of(check(checkpoints, **{role: folder}), role)
    assert found.level == "problem"
    assert said in found.found


def test_models_that_are_no_pair(checkpoints, tmp_path):
    other = write_model(tmp_path / "other", swap=(65, 66))
    assert "token 65 is 'c' in the draft and 'b' in the target" in of(check(checkpoints, other), "pair").found
    mamba = write_model(tmp_path / "mamba", MAMBA)
    found = of(check(checkpoints, mamba), "pair")
    assert found.level == "problem"
    assert "ArraysCache layers cannot be rewound" in found.found
    alone = check_models(str(mamba), None)
    assert ready(alone)
    assert of(alone, "caches").level == "note"


def test_a_target_that_cannot_chat_and_never_stops(checkpoints, tmp_path):
    folder = write_model(tmp_path / "bare", LLAMA | {"eos_token_id": 255}, template=None)
    write_tokenizer(folder, template=None)
    found = check(checkpoints, target=folder)
    assert of(found, "chat template").level == "note"
    assert of(found, "stop tokens").level == "note"


def test_a_model_that_is_not_here_is_a_problem_with_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = check_models("8b", "1b")
    assert [finding.subject for finding in found if finding.level == "problem"] == ["target", "draft"]
    assert of(found, "draft").remedy == (
        "hf download mlx-community/Llama-3.2-1B-Instruct-4bit (any command that uses it downloads it too)"
    )
    assert of(found, "memory").found.startswith("the pair takes 5.3 GB")
    monkeypatch.setattr(models_module, "available_bytes", lambda: 4 * 10**9)
    assert of(check_models("8b", "1b"), "memory").level == "problem"
    assert "no such folder" in of(check_models("/no/such", "1b"), "target").found


def test_heads_that_are_found_and_damaged(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path))
    folder = tmp_path / "heads" / "gsm8k"
    save_head(folder, 0, (str(checkpoints["draft"]), str(checkpoints["target"])))
    assert of(check(checkpoints), "head").found == str(folder)
    cut(folder / "head.safetensors", 10)
    assert of(check(checkpoints), "head").level == "problem"
    found = of(check_models("tiny-target", "tiny-draft"), "head")
    assert found.found == "ships with the pair, trained for arithmetic"


# The command


def test_the_command_ends_in_ready(checkpoints):
    outcome = run("doctor", "--draft", checkpoints["draft"], "--target", checkpoints["target"])
    assert outcome.stdout.splitlines()[-1] == "ready"
    assert outcome.stderr == ""
    assert run("doctor").stdout.splitlines()[-1] == "ready; name a pair with --draft and --target to check it"


def test_the_command_ends_in_what_to_do(checkpoints):
    outcome = run("doctor", "--draft", "/no/such", "--target", checkpoints["target"], code=1)
    lines = outcome.stdout.splitlines()
    assert lines[-1] == "not ready: 1 to mend"
    problem = next(i for i, line in enumerate(lines) if line.startswith("problem draft"))
    assert lines[problem + 1].strip() == "-> name a folder with a model of mlx-lm, or a Hub id"


@pytest.mark.parametrize(("draft", "code"), [("tiny-draft", 0), ("/no/such", 1)])
def test_json_is_one_object(draft, code):
    outcome = run("doctor", "--draft", draft, "--target", "tiny-target", "--json", code=code)
    found = json.loads(outcome.stdout)
    assert found["ready"] is (code == 0)
    assert {"level", "subject", "found", "remedy"} == set(found["findings"][0])


def test_a_machine_is_looked_at_without_the_slow_imports():
    script = (
        "import sys\nfrom diversed_mlx.doctor.environment import check_environment\ncheck_environment()\n"
        "print([name for name in ('mlx_lm', 'transformers', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_a_reader_that_leaves_early_is_no_traceback():
    script = "from diversed_mlx.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "doctor"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert "Traceback" not in said

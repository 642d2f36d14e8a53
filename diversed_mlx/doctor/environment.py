"""What this machine offers: device, system, memory, BLAS, versions, and the folders that are read and written.

Loads MLX and nothing slower. What it says of macOS and of Metal follows their documentation and has not been run by us.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants

from ..aliases import PAIRS
from ..home import VARIABLE, home
from .finding import Finding

if TYPE_CHECKING:
    from ..machine import Machine

# What the tests ran with, and the least that is asked for: a test compares both with the files that say so.
TESTED = {
    "mlx": "0.32.4", "mlx-lm": "0.32.2", "transformers": "5.24.0", "numpy": "2.4.6", "huggingface-hub": "2.4.0",
}  # fmt: skip
LEAST = {"mlx": "0.32.2", "mlx-lm": "0.32"}
LEAST_PYTHON = (3, 11)
LEAST_MACOS = (14, 0)  # of MLX's wheels
WIRING_MACOS = (15, 0)  # where memory can be kept resident
FAST_GFLOPS = 15.0  # a core with OpenBLAS gives several times that, MLX's own BLAS a third


def check_environment() -> list[Finding]:
    """Look at everything that does not depend on a pair."""
    findings = []
    try:
        from ..machine import USABLE, openblas_here, this_machine  # MLX without a backend fails when it is loaded

        machine = this_machine()
        usable = USABLE * machine.available_bytes
        findings += [*of_device(machine), *of_memory(machine, usable), *of_blas(machine, openblas_here())]
    except ImportError as error:
        findings.append(
            Finding(
                level="problem",
                subject="MLX",
                found=f"cannot be loaded: {' '.join(str(error).split())}",
                remedy='pip install "diversed-mlx[cpu]" on Linux (or [cuda]), or pip install mlx on a Mac',
            )
        )
    findings += [*of_versions({name: _installed(name) for name in TESTED}, sys.version_info[:3])]
    offline = bool(constants.HF_HUB_OFFLINE)
    return [*findings, *of_hub(Path(constants.HF_HUB_CACHE), offline), *of_home(home())]


def of_device(machine: "Machine") -> list[Finding]:
    """Judge the chip, the system and what MLX computes on."""
    system = "macOS" if machine.system == "Darwin" else machine.system
    found = f"{machine.chip}, {system} {machine.system_version} {machine.architecture}, {machine.cores} cores"
    findings = [Finding(level="ok", subject="machine", found=found)]
    if machine.system == "Darwin" and machine.architecture != "arm64":
        findings[0] = Finding(
            level="problem",
            subject="machine",
            found=f"{found}: this Python is not native, so MLX cannot use the GPU",
            remedy="install a Python for Apple silicon (its platform.machine() is arm64)",
        )
    elif machine.system == "Darwin" and _numbers(machine.system_version) < LEAST_MACOS:
        findings[0] = Finding(
            level="problem", subject="machine", found=found, remedy="update to macOS 14 or newer, which MLX needs"
        )
    if machine.backend == "cpu":
        gpu = {
            "Darwin": "Metal is not available to this process: use a Mac with Apple silicon, outside a virtual machine",
            "Linux": 'with an NVIDIA GPU: pip install "diversed-mlx[cuda]" in a fresh environment (not run by us)',
        }
        findings.append(
            Finding(
                level="note",
                subject="backend",
                found="MLX computes on the CPU: slow for models of a billion weights and more",
                remedy=gpu.get(machine.system, "use a Mac with Apple silicon, or Linux with an NVIDIA GPU"),
            )
        )
    else:
        tried = "" if machine.backend == "metal" else " (no pair has been run there by us)"
        findings.append(Finding(level="ok", subject="backend", found=f"MLX computes with {machine.backend}{tried}"))
    return findings


def of_memory(machine: "Machine", usable: float) -> list[Finding]:
    """Judge memory and its limits, and name a pair that fits.

    Args:
        machine: the facts.
        usable: bytes that the weights of models may take.
    """
    found = f"{machine.memory_bytes / 1e9:.1f} GB, of which models may use {usable / 1e9:.1f}"
    fitting = [pair for pair in PAIRS if pair[2] * 1e9 <= usable]
    pair = f"; --draft {fitting[0][0]} --target {fitting[0][1]} takes {fitting[0][2]} GB" if fitting else ""
    findings = [Finding(level="ok", subject="memory", found=found + pair)]
    if not fitting:
        findings[0] = Finding(
            level="note",
            subject="memory",
            found=f"{found}: none of the pairs with a short name fits",
            remedy="use smaller models; --draft tiny-draft --target tiny-target always fits",
        )
    if machine.backend == "metal" and machine.wired_limit_mb is not None:
        limit = machine.wired_limit_mb
        room = machine.memory_bytes // 2**20 - 4096
        if _numbers(machine.system_version) < WIRING_MACOS:
            findings.append(
                Finding(
                    level="note",
                    subject="wired memory",
                    found="this macOS cannot keep models resident: a large pair may be slow at times",
                    remedy="update to macOS 15 or newer",
                )
            )
        else:
            told = f"{limit} MB" if limit else "macOS's own choice"
            more = f"sudo sysctl iogpu.wired_limit_mb={room} lets larger models stay resident, until the next start"
            findings.append(
                Finding(
                    level="ok",
                    subject="wired memory",
                    found=f"iogpu.wired_limit_mb is {told}",
                    remedy=more if not limit and room > machine.available_bytes / 2**20 else None,
                )
            )
    return findings


def of_blas(machine: "Machine", openblas: Path | None) -> list[Finding]:
    """Judge the BLAS that float32 and float16 matrix products use on a Linux CPU.

    Args:
        machine: with a measured `matmul_gflops` where it matters.
        openblas: one that is installed, used or not.
    """
    if machine.backend != "cpu" or machine.system != "Linux" or machine.matmul_gflops is None:
        return []
    speed = f"{machine.matmul_gflops:.0f} GFLOP/s in float32"
    if machine.blas is not None:
        return [Finding(level="ok", subject="BLAS", found=f"{machine.blas}, {speed}")]
    get = "" if openblas else "apt install libopenblas0-pthread, then "
    path = openblas or "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0"
    remedy = f"{get}start with LD_PRELOAD={path} (make does so by itself)"
    slow = machine.matmul_gflops < FAST_GFLOPS
    found = f"the one in MLX's wheel{', which is slow' if slow else ''}: {speed}"
    return [Finding(level="note" if slow else "ok", subject="BLAS", found=found, remedy=remedy if slow else None)]


def of_versions(installed: Mapping[str, str | None], python: tuple[int, ...]) -> list[Finding]:
    """Judge the versions of Python and of the packages that everything rests on.

    Args:
        installed: version of each package of `TESTED`, None where it is missing.
        python: the running one's.
    """
    findings = []
    if python < LEAST_PYTHON:
        findings.append(
            Finding(level="problem", subject="Python", found=_text(python), remedy="use Python 3.11 or newer")
        )
    else:
        findings.append(Finding(level="ok", subject="Python", found=_text(python)))
    for name, tested in TESTED.items():
        has = installed[name]
        if has is None:
            findings.append(
                Finding(level="problem", subject=name, found="not installed", remedy=f"pip install {name}=={tested}")
            )
        elif name in LEAST and _numbers(has) < _numbers(LEAST[name]):
            findings.append(
                Finding(
                    level="problem",
                    subject=name,
                    found=f"{has}, older than {LEAST[name]}, the least that works",
                    remedy=f"pip install -U {name}",
                )
            )
        elif has != tested:
            remedy = f"if something is odd: pip install {name}=={tested}"
            findings.append(
                Finding(level="note", subject=name, found=f"{has}; the tests ran with {tested}", remedy=remedy)
            )
        else:
            findings.append(Finding(level="ok", subject=name, found=f"{has}, as tested"))
    return findings


def of_hub(cache: Path, offline: bool) -> list[Finding]:
    """Judge the folder of downloaded models and whether more can come.

    Args:
        cache: the folder.
        offline: HF_HUB_OFFLINE is set.
    """
    try:
        models = len(list(cache.glob("models--*")))
        free = shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free
    except OSError as error:
        return [
            Finding(
                level="note",
                subject="Hub cache",
                found=f"{cache} cannot be read: {error.strerror}",
                remedy="make it readable, or name another folder with HF_HUB_CACHE",
            )
        ]
    found = f"{cache} holds {models} models, {free / 1e9:.0f} GB free"
    if offline:
        remedy = "unset HF_HUB_OFFLINE to download models"
        return [Finding(level="note", subject="Hub cache", found=f"{found}; offline by HF_HUB_OFFLINE", remedy=remedy)]
    return [Finding(level="ok", subject="Hub cache", found=found)]


def of_home(folder: Path) -> list[Finding]:
    """Judge the folder of trained heads and measurements: without it everything but keeping them works.

    Args:
        folder: the home folder.
    """
    what = f"{folder}" + (f" ({VARIABLE})" if VARIABLE in os.environ else "")
    try:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        heads = len(list((folder / "heads").glob("*/head.json")))
        usable = nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK)
    except OSError:
        usable, heads = False, 0
    if not usable:
        remedy = f"make it a folder that you may write to, or name another with {VARIABLE}"
        return [Finding(level="note", subject="home", found=f"{what} cannot keep heads or measurements", remedy=remedy)]
    return [Finding(level="ok", subject="home", found=f"{what} holds {heads} trained heads")]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))

"""The machine this runs on: device, memory and limits, the BLAS of a CPU. Knows facts, and judges none.

What it says of macOS and of Metal follows their documentation and has not been run by us.
"""

import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mlx.core as mx

Backend = Literal["metal", "cuda", "cpu"]

USABLE = 0.9  # of the memory for models; the rest is for caches, activations and everything else
MATMUL_SIZE = 512  # large enough to tell a fast BLAS from a slow one, and done in a moment by either
MAPS = Path("/proc/self/maps")
OPENBLAS = (  # where distributions put it
    "usr/lib/*/openblas-pthread/libopenblas.so.0",
    "usr/lib/*/libopenblas.so.0",
    "usr/lib64/libopenblas.so.0",
    "usr/lib/libopenblas.so.0",
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Facts of a machine.

    Args:
        system: "Darwin", "Linux" or another, as `platform.system` calls it.
        system_version: of macOS, or of the kernel elsewhere.
        architecture: of this Python, such as "arm64"; "x86_64" on a Mac is Rosetta.
        chip: the device's name, such as "Apple M2 Pro".
        cores: CPU cores that this process may use.
        backend: what MLX computes on.
        memory_bytes: the machine's memory.
        available_bytes: what of it is for models, see `available_bytes`.
        wired_limit_mb: `iogpu.wired_limit_mb`, where 0 leaves the limit to macOS; None where there is no such limit.
        blas: file name of the BLAS that MLX calls on a Linux CPU, None if it is the slow one of MLX's own wheel, or
            where no BLAS is called or known.
        matmul_gflops: speed of a float32 matrix product in 10^9 operations a second; None without a measurement.
    """

    system: str
    system_version: str
    architecture: str
    chip: str
    cores: int
    backend: Backend
    memory_bytes: int
    available_bytes: int
    wired_limit_mb: int | None
    blas: str | None
    matmul_gflops: float | None

    @property
    def name(self) -> str:
        """One line by which measurements tell machines apart: what changes it changes the times."""
        parts = [
            f"{self.system} {self.architecture}", self.chip, self.backend, f"{self.memory_bytes / 2**30:.0f} GiB",
        ]  # fmt: skip
        if self.backend == "cpu":
            parts += [f"{self.cores} cores", self.blas or "own BLAS"]
        return ", ".join(parts)


def available_bytes() -> int:
    """Memory for models in bytes: what Metal recommends as a working set, or the machine's memory elsewhere."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    return int(recommended or _memory_bytes())


def this_machine(*, measure: bool = True) -> Machine:
    """Look at the machine.

    Args:
        measure: time a matrix product where MLX computes on a CPU, some tenths of a second. Default True.
    """
    system, backend = platform.system(), _backend()
    return Machine(
        system=system,
        system_version=platform.mac_ver()[0] or platform.release(),
        architecture=platform.machine(),
        chip=str(mx.device_info().get("device_name") or platform.processor() or "unknown"),
        cores=len(os.sched_getaffinity(0)) if system == "Linux" else os.cpu_count() or 1,
        backend=backend,
        memory_bytes=_memory_bytes(),
        available_bytes=available_bytes(),
        wired_limit_mb=_wired_limit_mb() if backend == "metal" else None,
        blas=blas_in_use(MAPS.read_text(errors="replace")) if MAPS.exists() else None,
        matmul_gflops=matmul_gflops() if measure and backend == "cpu" else None,
    )


def blas_in_use(maps: str) -> str | None:
    """Find the BLAS that stands before that of MLX's wheel.

    Args:
        maps: the text of /proc/self/maps, after MLX was loaded.

    Returns:
        Its file name, or None. Libraries that ship inside a Python package serve that package alone.
    """
    for path in re.findall(r"(/\S.*)$", maps, flags=re.MULTILINE):
        name = Path(path).name
        if re.match(r"lib(openblas|mkl_rt|blis|flexiblas|blas)", name) and "site-packages" not in path:
            return name
    return None


def openblas_here(root: Path = Path("/")) -> Path | None:
    """Find an OpenBLAS that is installed, whether used or not.

    Args:
        root: the root of the file system.
    """
    return next((found for pattern in OPENBLAS for found in sorted(root.glob(pattern))), None)


def matmul_gflops(repeats: int = 3) -> float:
    """Speed of a float32 matrix product in 10^9 operations a second.

    Args:
        repeats: how many are timed; the fastest counts, for the machine may be busy. Default 3.
    """
    matrix = mx.full((MATMUL_SIZE, MATMUL_SIZE), 0.5)
    mx.eval(matrix @ matrix)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        mx.eval(matrix @ matrix)
        seconds.append(time.perf_counter() - started)
    return 2 * MATMUL_SIZE**3 / min(seconds) / 1e9


def _backend() -> Backend:
    if mx.metal.is_available():
        return "metal"
    return "cuda" if mx.cuda.is_available() else "cpu"


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _wired_limit_mb() -> int | None:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb"], capture_output=True, text=True, timeout=5
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):  # an older macOS has no such limit
        return None

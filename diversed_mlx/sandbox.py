"""Whether a program that a model wrote passes its tests, without trusting the program.

Two fresh Python processes share a pair of pipes. One runs the program, the other the tests; where a test calls the
program, the arguments go over and plain data comes back, and the comparison is made on the tests' side. The program
never sees a test, a verdict or a way to give one: `sys.exit(0)`, printing what a passed test prints, changing `assert`,
an object that says it equals everything, all leave the answers to be judged as they are. It could pass only by giving
the right answers to every call.

What holds it, on Linux (`sandboxed/confine.py` has the means): it can start no process or thread, write or delete no
file, reach no network, signal no other process, and read Python's own files only; time, memory and what it sends are
limited, what it prints goes nowhere, and it inherits neither environment nor open files. None of this needs root or a
container's leave. Where a limit cannot be had, programs are not run.

What it does not protect from: a flaw of the kernel or of Python's JSON reader; on kernels without Landlock (before
5.13), that a program reads the user's files, and unless root started it this library's memory, where it could find what
a test expects (it could send neither anywhere else); a test that compares one of the program's answers with another, or
passes what it expects as an argument. On macOS, which this has not run on, the profile below stands for the filter:
a program can read files there, and memory is not limited.

What a right program may miss: threads, files, third-party packages, and arguments changed in place, which tests do not
see. Of what it returns, subclasses of plain types arrive as these, and other objects can be called, iterated, indexed
and asked for attributes, but not compared.
"""

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from .errors import DiversedError

START_SECONDS = 60  # in which both processes must be ready; a busy machine starts them slowly

# One line of Python rather than `-m`, which would import the library. Its folder is on the path only for that line.
START = "import sys; sys.path.append({folder!r}); from sandboxed.{side} import main; sys.path.pop(); main(*{arguments})"

# For sandbox-exec. Not tried on a Mac: the processes check themselves that files and processes are out of reach.
PROFILE = """(version 1) (allow default) (deny network*) (deny process-fork) (deny signal) (allow signal (target self))
(deny file-write*) (allow file-write* (literal "/dev/null"))"""


def passes_tests(
    program: str, tests: str, *, names: Collection[str] | None = None, seconds: float = 5.0, memory_mb: int = 512
) -> bool:
    """Say whether a program passes tests. It is not trusted; the tests are.

    Args:
        program: Python source that defines what the tests use.
        tests: Python source that raises where the program is wrong: `assert` statements, with what they need.
        names: what the tests take from the program. Default: each name that they use and that is not Python's own,
            such as `len`; what they import or define themselves is theirs in any case.
        seconds: most time, of the clock and of the processor, once the processes are ready. Default 5.
        memory_mb: most memory of each of the two processes, in MiB. Default 512.

    Raises:
        DiversedError: this machine cannot confine a program.
    """
    _check_machine()
    return _run(program, tests, names, seconds, memory_mb)


@functools.cache
def _check_machine() -> None:
    """Try a program that is right, lest every one fails here for a reason of ours."""
    program = "import collections, math, re\ndef f(n):\n    return collections.Counter(re.sub('b', 'a', 'ab' * n))"
    if not _run(program, "assert f(2) == {'a': 4}", None, 60, 512):
        raise DiversedError("cannot run model-written code on this machine: in the sandbox even a right program fails")


def _run(program: str, tests: str, names: Collection[str] | None, seconds: float, memory_mb: int) -> bool:
    cpu_seconds = math.ceil(seconds) + 1  # starting takes some
    job = {
        "program": program, "tests": tests, "names": names if names is None else sorted(names),
        "seconds": seconds, "memory_mb": memory_mb, "cpu_seconds": cpu_seconds,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="diversed-") as folder,
        tempfile.TemporaryFile() as job_file,  # a file, because a pipe could fill before anyone reads it
        contextlib.ExitStack() as running,
    ):
        job_file.write(json.dumps(job).encode())
        job_file.seek(0)
        with _pipe() as (asked, asking), _pipe() as (answered, answering):
            running.enter_context(_side("program", (asked, answering, memory_mb, cpu_seconds), folder))
            judge = running.enter_context(_side("judge", (answered, asking), folder, job_file))
        try:
            written, _ = judge.communicate(timeout=START_SECONDS + seconds)
        except subprocess.TimeoutExpired as error:
            written = error.output or b""
    lines = written.decode(errors="replace").splitlines()
    if lines[:1] != ["ready"]:
        reason = lines[0].removeprefix("unconfined: ") if lines else f"not ready within {START_SECONDS} s, or ended"
        raise DiversedError(f"cannot run model-written code on this machine: its process is not confined ({reason})")
    return lines == ["ready", "passed"]


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe for two children; here both ends are closed, so that each child hears when the other is gone."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextlib.contextmanager
def _side(
    side: str, arguments: tuple[int, ...], folder: str, job: IO[bytes] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start one side in an empty folder; it is gone afterwards. It has no children: it could start none."""
    source = START.format(folder=str(Path(__file__).parent), side=side, arguments=arguments)
    profile = ["/usr/bin/sandbox-exec", "-p", PROFILE] if sys.platform == "darwin" else []
    with subprocess.Popen(
        # No `site`, no user packages, nothing from the folder it runs in.
        [*profile, sys.executable, "-s", "-S", "-P", "-c", source],
        cwd=folder,
        # Sets are in the same order each time, so a program that leans on it gets the same verdict each time.
        env={"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL if job is None else job,
        stdout=subprocess.DEVNULL if job is None else subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=arguments[:2],
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()

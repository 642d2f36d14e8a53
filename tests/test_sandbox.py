"""Programs that are right pass; whatever a program tries instead, it does not pass, harm, or leave anything behind."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from diversed_mlx import sandbox
from diversed_mlx.errors import DiversedError
from diversed_mlx.sandbox import passes_tests
from diversed_mlx.sandboxed import confine
from diversed_mlx.sandboxed.wire import decode, encode

ROOT = Path(__file__).parents[1]
SQUARE = "assert f(2) == 4\nassert f(3) == 9"


def landlock() -> bool:
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0


def processes_in(folder: Path) -> list[str]:
    """Processes of this machine that were started in a folder: cwd stays, whoever a process belongs to."""
    if not Path("/proc").is_dir():
        return [line for line in subprocess.check_output(["ps", "-axo", "args"], text=True).splitlines()
                if "from sandboxed." in line]  # fmt: skip
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # it has ended, or is not ours
    return found


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a file that matters; afterwards it is as it was, and what ran below it has ended."""
    (tmp_path / "precious.txt").write_text("precious")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield tmp_path
    assert (tmp_path / "precious.txt").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["precious.txt", "tmp"]
    assert processes_in(tmp_path) == []


def fails(program: str, place: Path, tests: str = SQUARE, seconds: float = 1.0) -> bool:
    """Whether a program fails, and does so in its time. Starting may take a while on a busy machine."""
    began = time.monotonic()
    passed = passes_tests(program.replace("PLACE", repr(str(place))), tests, seconds=seconds)
    assert time.monotonic() - began < seconds + 10
    return not passed


RIGHT = [
    ("def f(x): return x * x", SQUARE),
    ("def f(x):\r\n\treturn x * x\r\n", SQUARE),
    ("import math, re, heapq, collections, itertools, datetime, decimal\ndef f(x): return x ** 2", SQUARE),
    ("class f(int):\n    __new__ = lambda cls, x: int.__new__(cls, x * x)", SQUARE),
    ("from collections import Counter as f", "assert f('aba') == {'a': 2, 'b': 1}"),
    ("f = lambda *x, **y: (x, y)", "assert f(1, (2, {3}), a=[b'4', 1j]) == ((1, (2, {3})), {'a': [b'4', 1j]})"),
    ("f = lambda: float('nan')", "import math\nassert math.isnan(f())"),
    ("f = lambda n: (i * i for i in range(n))", "assert list(f(3)) == [0, 1, 4]"),
    ("f = lambda n: 1 / n", "try: f(0)\nexcept ZeroDivisionError: pass\nelse: raise AssertionError"),
    ("def f(x): return g(x)\ndef g(x): return x * x", "def g(x): return x * x\nassert f(2) == g(2)"),
    ("print('hello'); f = lambda x: print(x) or x * x", SQUARE + "\nprint('passed')"),
    ("import sys; sys.setrecursionlimit(5000)\ndef f(x): return x * x if x > -1000 else f(x + 1)", SQUARE),
    ("if __name__ == '__main__': raise SystemExit\nf = lambda x: x * x", SQUARE),
    (
        "f = lambda x: x",
        """
for x in (None, True, 1e308, -0.0, 10**5000, '\\ud800é', set(), frozenset({1}), range(3)):
    assert f(x) == x and type(f(x)) is type(x)
""",
    ),
    (
        """
class Node:
    def __init__(self, x):
        self.x, self.left = x, None
def depth(node):
    return 1 + depth(node.left) if node else 0
""",
        "root = Node(1)\nroot.left = Node(2)\nassert depth(root) == 2 and root.left.x == 2",
    ),
    (
        """
from dataclasses import dataclass
@dataclass
class Point:
    x: 'int' = 3
""",
        "assert Point(4).x == 4 and str(Point()) == 'Point(x=3)'",
    ),
]


@pytest.mark.parametrize(("program", "tests"), RIGHT)
def test_right_programs_pass(program, tests, place):
    assert passes_tests(program, tests, seconds=10)


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return x + 2", SQUARE),
        ("def g(x): return x * x", SQUARE),
        ("def f(x) return", SQUARE),
        ("def f(x): raise ValueError", SQUARE),
        ("def f(x): return x * x", "assert f(2) == 4 and"),
        ("", SQUARE),
        ("\0", SQUARE),
        ("def f(x): return x * x\nassert f(2) == 5", SQUARE),
    ],
)
def test_wrong_programs_fail(program, tests, place):
    assert fails(program, place, tests)


ENDINGS = {
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "exit": "exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "print": "print('PASS'); print('ready'); print('passed')",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "deep": """
    import sys
    sys.setrecursionlimit(10**9)
    deeper = lambda: deeper()
    deeper()
""",
    "close": "import os; os.closerange(0, 256)",
    "every descriptor": r"""
    import os
    for number in range(256):
        try:
            os.write(number, b'ready\npassed\n{"value": 4}\n')
        except OSError:
            pass
""",
}


@pytest.mark.parametrize("when", ["at the start", "when called"])
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_ending_early_or_saying_so_is_not_passing(ending, when, place):
    if when == "at the start":
        assert fails(f"def f(x): return x + 1\ndef end():\n    {ending}\nend()", place)
    else:
        assert fails(f"def f(x):\n    {ending}", place)


LIES = {
    "builtins": """
import builtins
builtins.AssertionError = ValueError
builtins.__debug__, f = False, lambda x: 0
""",
    "builtin names": """
def f(x): return 0
def abs(x): return 4
int = range = print = abs
__builtins__ = {}
""",
    "a number equal to all": """
class f(int):
    __eq__ = __ne__ = __lt__ = __gt__ = __bool__ = lambda *_: True
    __hash__ = None
""",
    "an object equal to all": """
class f:
    def __init__(self, x): pass
    __eq__ = __ne__ = __bool__ = __contains__ = lambda *_: True
""",
    "a lying class": """
class f:
    def __init__(self, x): pass
    __class__ = property(lambda self: int)
    __eq__ = lambda *_: True
""",
    "the machinery": """
import sys
for module in list(sys.modules.values()):
    for name in ('encode', 'decode', 'main', 'Channel'):
        setattr(module, name, lambda *_, **__: True)
f = lambda x: 0
""",
    "the frames": """
import sys, gc
def f(x):
    found, frame = gc.get_objects() + sys.argv, sys._getframe()
    while frame:
        found += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    return [x * x for text in found if isinstance(text, str) and 'assert' + ' f' in text][0]
""",
    "answers of its own": r"""
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"value": ["f"]}\n' + b'{"value": true}\n' * 9)
    except OSError:
        pass
""",
    "a flood": """
import os
for number in range(3, 64):
    try:
        while True:
            os.write(number, b'9' * 65536)
    except OSError:
        pass
""",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_lie_passes(lie, place):
    assert fails(lie, place)


def test_an_object_makes_no_test_true(place):
    program = "class f:\n    def __init__(self, x): pass\n    __eq__ = __ne__ = __bool__ = lambda *_: True"
    for test in (
        "f(2)",
        "not f(2)",
        "f(2) != 5",
        "f(2) == f(2)",
        "f(2) in [4]",
        "5 != f(2)",
        "f(2) not in [5]",
        "f(2) > 1",
    ):
        assert fails(program, place, f"assert {test}"), test


def test_names_keep_a_program_from_standing_in_for_python(place):
    program = "def sum(a, b): return a + b\ndef set(x): return 0"
    assert passes_tests(program, "assert sum(1, 2) == 3", names=["sum"])
    assert not passes_tests(program, "assert sum(1, 2) == 3")  # Python's own sum takes no 2
    assert not passes_tests(program, "assert set([sum(1, 2)]) == set([9])", names=["sum"])


ENDLESS = {
    "while True": "while True: pass",
    "sleep": "import time; time.sleep(1e6)",
    "a deaf loop": """
    import signal
    for number in range(1, 64):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True: pass
""",
    "a long calculation": "10 ** 10 ** 9",
    "print": "while True: print('x' * 10**6)",
    "stderr": "import sys\n    while True: sys.stderr.write('x' * 10**6)",
    "memory": "x = []\n    while True: x.append(bytearray(10**7))",
    "much memory": "return bytearray(10**12)",
    "a long answer": "return [0] * 10**7",
    "a nested answer": "x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "a circular answer": "x = []; x.append(x); return x",
    "an endless answer": "import itertools; return itertools.count()",
}


@pytest.mark.parametrize("endless", ENDLESS.values(), ids=ENDLESS)
def test_time_memory_and_talk_are_limited(endless, place):
    assert fails(f"def f(x):\n    {endless}", place, "assert list(f(2)) == [4]", seconds=0.7)


# What a program must not be able to do; each tries, and answers with the error's name or what it got.
REACHES = {
    "fork": "os.fork()",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "execv": "os.execv('/bin/true', ['true'])",
    "subprocess": "__import__('subprocess').run(['/bin/true'])",
    "thread": "__import__('_thread').start_new_thread(print, ())",
    "delete": "os.remove(PLACE + '/precious.txt')",
    "rename": "os.rename(PLACE + '/precious.txt', PLACE + '/x')",
    "overwrite": "open(PLACE + '/precious.txt', 'w')",
    "append": "open(PLACE + '/precious.txt', 'a')",
    "truncate": "os.truncate(PLACE + '/precious.txt', 0)",
    "truncate by opening": "os.open(PLACE + '/precious.txt', os.O_RDONLY | os.O_TRUNC)",
    "mode": "os.chmod(PLACE + '/precious.txt', 0)",
    "link": "os.symlink('/', 'x')",
    "new file": "open('x', 'w')",
    "new folder": "os.mkdir(PLACE + '/x')",
    "remove tree": "__import__('shutil').rmtree(PLACE)",
    "move away": "os.chdir('/')",
    "socket": "__import__('socket').socket()",
    "signal to the parent": "os.kill(os.getppid(), 0)",
    "signal to the group": "os.killpg(os.getpgid(os.getppid()), 0)",
    "limits": "__import__('resource').prlimit(os.getppid(), __import__('resource').RLIMIT_CPU, (1, 1))",
    "priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "owner of a pipe": "__import__('fcntl').fcntl(0, 8, os.getppid())",
    "shared memory": "os.memfd_create('x')",
}  # fmt: skip


def reach(expression: str) -> str:
    return f"""import os
def f(x):
    try:
        return repr({expression})
    except Exception as error:
        return type(error).__name__
"""


@pytest.mark.parametrize("expression", REACHES.values(), ids=REACHES)
def test_nothing_outside_is_reached(expression, place):
    program = reach(expression).replace("PLACE", repr(str(place)))
    refused = "('PermissionError', 'OSError', 'RuntimeError', 'BlockingIOError', 'AttributeError', 'ValueError')"
    assert passes_tests(program, f"assert f(2) in {refused}")


@pytest.mark.parametrize(
    "bomb",
    [
        "while True: os.fork()",
        "[__import__('multiprocessing').Process(target=f).start() for _ in range(1000)]",
        "[os.system('sleep 1000 &') for _ in range(1000)]",
        "os.fork() or os.setsid() or __import__('time').sleep(1000)",
    ],
)
def test_a_fork_bomb_starts_no_process(bomb, place):
    assert fails(f"import os\ndef f(): pass\n{bomb}", place)
    assert fails(f"import os\ndef f(x):\n    try:\n        {bomb}\n    except OSError: pass", place)


@pytest.mark.skipif(not landlock(), reason="needs Landlock; without it a program can read what its user can")
@pytest.mark.parametrize("what", ["precious.txt", "data", "environ", "cmdline", "other memory", "other descriptors"])
def test_nothing_is_read_but_pythons_own(what, place):
    paths = {
        "precious.txt": "PLACE + '/precious.txt'", "data": repr(__file__), "environ": "'/proc/self/environ'",
        "cmdline": "f'/proc/{os.getppid()}/cmdline'", "other memory": "f'/proc/{os.getppid()}/mem'",
        "other descriptors": "f'/proc/{os.getpid() + 1}/fd/1'",
    }  # fmt: skip
    program = reach(f"open({paths[what]}, 'rb').read(1)").replace("PLACE", repr(str(place)))
    assert passes_tests(program, "assert f(2) == 'PermissionError'")


def test_nothing_is_inherited(place, monkeypatch):
    monkeypatch.setenv("SECRET", "42")
    with socket.socket() as open_here:
        os.set_inheritable(open_here.fileno(), True)
        program = "import os, sys\ndef f(): return dict(os.environ), sys.stdin.read()\n"
        program += f"def g(): os.fstat({open_here.fileno()})"
        tests = "env, typed = f()\nassert 'SECRET' not in env and 'HOME' not in env and typed == ''\n"
        assert passes_tests(program, tests)
        if open_here.fileno() > 6:  # else the number may be that of one of the pipes
            assert passes_tests(program, "try: g()\nexcept OSError: pass\nelse: raise AssertionError")


def test_a_verdict_is_the_same_each_time(place):
    program = "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})"
    orders = {passes_tests(program, f"assert f()[0] == {letter!r}") for letter in "abcdefg" for _ in range(2)}
    firsts = [letter for letter in "abcdefg" if passes_tests(program, f"assert f()[0] == {letter!r}")]
    assert orders == {True, False}
    assert len(firsts) == 1


def test_nothing_stays_when_the_parent_is_killed(place):
    script = (
        f"import tempfile; tempfile.tempdir = {str(place / 'tmp')!r}\n"
        "from diversed_mlx.sandbox import passes_tests\n"
        "print('start', flush=True)\n"
        "passes_tests('import time; time.sleep(1e6)', 'pass', seconds=100)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"start\n"
        _wait(lambda: len(processes_in(place / "tmp")) == 2)
        time.sleep(0.3)
        parent.kill()
    if sys.platform == "linux":
        _wait(lambda: not processes_in(place / "tmp"))
    for folder in (place / "tmp").iterdir():  # a killed parent cannot remove it
        folder.rmdir()


def test_ctrl_c_ends_both_sides(place):
    script = (
        f"import tempfile; tempfile.tempdir = {str(place / 'tmp')!r}\n"
        "from diversed_mlx.sandbox import passes_tests\n"
        "print('start', flush=True)\n"
        "try: passes_tests('import time; time.sleep(1e6)', 'pass', seconds=100)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"start\n"
        _wait(lambda: len(processes_in(place / "tmp")) == 2)
        time.sleep(0.3)
        parent.send_signal(signal.SIGINT)
        assert parent.stdout.read() == b"interrupted\n"


def _wait(condition) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited for 10 s")


def test_where_nothing_confines_no_program_runs(tmp_path, monkeypatch):
    """On a processor whose system calls are not listed, and where the processes do not even start."""
    (tmp_path / "sandboxed").mkdir()
    for path in (ROOT / "diversed_mlx" / "sandboxed").glob("*.py"):
        text = path.read_text().replace('"x86_64"', '"another"').replace('"aarch64"', '"a third"')
        (tmp_path / "sandboxed" / path.name).write_text(text)
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "sandbox.py"))
    if sys.platform == "linux":
        with pytest.raises(DiversedError, match=r"not confined \(OSError: no list of system calls"):
            sandbox._run("", "", None, 1, 512)
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "nowhere" / "sandbox.py"))
    with pytest.raises(DiversedError, match="not ready"):
        sandbox._run("", "", None, 1, 512)


def test_a_right_program_that_fails_is_the_machines_fault(monkeypatch):
    monkeypatch.setattr(sandbox, "_run", lambda *_: False)
    sandbox._check_machine.cache_clear()
    with pytest.raises(DiversedError, match="even a right program fails"):
        passes_tests("def f(x): return x * x", SQUARE)


def test_plain_data_comes_over_as_it_is():
    value = [None, True, 1, 1.5, "a", (1, [2]), {3}, frozenset({4}), {(5, 6): {"b": b"7"}}, 8j, range(1, 9, 2)]
    assert decode(json.loads(json.dumps(encode(value, keep=id))), kept=str) == value
    assert encode(object, keep=lambda _: 7) == {"kept": 7}
    assert decode({"kept": 7}, kept=str) == "7"


@pytest.mark.skipif(not Path("/usr/include/asm-generic/unistd.h").exists(), reason="needs the kernel's headers")
def test_system_calls_have_the_kernels_numbers():
    """Both columns, against the headers: x86-64's are in a file of their own, ARM64 has the generic ones."""

    def numbers(path: str) -> dict[str, int]:
        text = Path(path).read_text()
        found = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}
        later = {name: int(number) for name, number in re.findall(r"#define __NR3264_(\w+) (\d+)", text)}
        return {"newfstatat": later.get("fstatat"), **later, **found}

    generic = numbers("/usr/include/asm-generic/unistd.h")
    special = {"open": confine.OPEN, "openat": confine.OPENAT, "fcntl": confine.FCNTL, "prlimit64": confine.PRLIMIT64}
    for name, (_, arm) in (confine.CALLS | special).items():
        if arm is not None:
            assert generic[name] == arm, name
    path = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if path.exists():
        intels = numbers(str(path))
        for name, (intel, _) in (confine.CALLS | special).items():
            assert intels[name] == intel, name


@pytest.mark.slow
def test_every_reference_of_mbpp_passes(shared):
    """With the harder tests that some have as well; 28 ms each on an idle machine, the slowest 2.3 s."""
    rows = [json.loads(line) for line in (shared / "data" / "mbpp" / "mbpp.jsonl").read_text().splitlines()]
    assert len(rows) == 300
    failed = []
    for row in rows:
        names = [name for name in ("sum",) if f"def {name}(" in row["code"]] or None
        tests = "\n".join([row["test_setup_code"], *row["test_list"], *row["challenge_test_list"]])
        if not passes_tests(row["code"], tests, names=names, seconds=30):
            failed.append(row["task_id"])
    assert failed == []

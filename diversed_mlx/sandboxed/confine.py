"""Takes from the process that calls it what a program needs to do harm: files, processes, the network, its neighbours.

Nothing here needs root, and root is held by it too. On Linux a system-call filter (seccomp) leaves computing, reading
and the open pipes; whatever is not on its list answers "not permitted". Landlock leaves of the files only Python's
own. On macOS the process was started under a profile (`sandbox.PROFILE`) with the same intent. Where the process can
still start another or write a file afterwards, that is reported and no program is run: an old kernel, or a processor
whose system-call numbers are not listed. Knows no programs and no tests.
"""

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterator

# System calls that may be made, with their numbers on x86-64 and on ARM64 (None: it has no such call). ARM64's come
# from the kernel's table and have not been run.
CALLS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "pread64": (17, 67), "readv": (19, 65), "writev": (20, 66), "access": (21, None), "select": (23, None),
    "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "nanosleep": (35, 101),
    "setitimer": (38, 103), "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "getcwd": (79, 17),
    "readlink": (89, None), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165),
    "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "sigaltstack": (131, 132), "gettid": (186, 178),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123), "getdents64": (217, 61),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "newfstatat": (262, 79), "readlinkat": (267, 78),
    "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "getrandom": (318, 278),
    "membarrier": (324, 283), "statx": (332, 291), "rseq": (334, 293), "faccessat2": (439, 439),
}  # fmt: skip
# Calls of which some forms may be made: opening without writing, descriptors' flags, reading limits.
OPEN, OPENAT, FCNTL, PRLIMIT64 = (2, None), (257, 56), (72, 25), (302, 261)
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # place in the pairs, the filter's name for it

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
HARMLESS_FCNTL = (0, 1, 2, 3, 1030)  # copies and flags of descriptors; not F_SETOWN, which sends signals to others

# What Python reads while it runs: its library, shared libraries, time zones.
READABLE = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/localtime",
    "/etc/ld.so.cache", "/dev/null", "/dev/urandom",
)  # fmt: skip


def confine(memory_mb: int, cpu_seconds: int) -> str | None:
    """Confine this process for good.

    Args:
        memory_mb: most address space, in MiB. macOS takes the limit and does not keep it.
        cpu_seconds: most processor time, in seconds.

    Returns:
        None, or why it is not confined; then it must not run what it does not trust.
    """
    try:
        _limit(memory_mb, cpu_seconds)
        if sys.platform == "linux":
            _confine_linux()
    except (OSError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return _still_possible()


def _limit(memory_mb: int, cpu_seconds: int) -> None:
    # NPROC stops no root, and the filter stops it anyway; a file may be as long as nothing at all.
    limits = {"CPU": cpu_seconds, "FSIZE": 0, "NOFILE": 32, "NPROC": 0, "CORE": 0}
    if sys.platform != "darwin":
        limits["AS"] = memory_mb * 2**20
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def _confine_linux() -> None:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(f"no list of system calls for {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.prctl, 1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it ends with whoever started it
    _call(libc.prctl, 4, 0)  # PR_SET_DUMPABLE: no other process of this user may look into it
    _call(libc.prctl, 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    # No capability, so that root is just the owner of its files.
    _call(libc.capset, struct.pack("Ii", 0x20080522, 0), bytes(24))
    _restrict_reading(libc)
    instructions = b"".join(_filter(*ARCHITECTURES[machine]))
    buffer = ctypes.create_string_buffer(instructions)
    program = struct.pack("HxxxxxxP", len(instructions) // 8, ctypes.addressof(buffer))
    _call(libc.prctl, 22, 2, program, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _call(function: Callable[..., int], *arguments: int | bytes | None) -> int:
    """Call a function of the C library, with numbers as wide as a register."""
    result = function(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _restrict_reading(libc: ctypes.CDLL) -> None:
    """Leave of the files those that Python reads. Kernels before 5.13 cannot; then every file can be read."""
    every_access, read_file, read_folder = 0x1FFF, 1 << 2, 1 << 3
    try:
        rules = _call(libc.syscall, 444, struct.pack("Q", every_access), 8, 0)  # landlock_create_ruleset
    except OSError:
        return
    for path in {*READABLE, os.path.join(sys.base_prefix, "lib"), os.path.dirname(os.__file__)}:
        if os.path.exists(path):
            access = read_file | (read_folder if os.path.isdir(path) else 0)
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _call(libc.syscall, 445, rules, 1, struct.pack("=Qi", access, file), 0)  # landlock_add_rule
            os.close(file)
    _call(libc.syscall, 446, rules, 0)  # landlock_restrict_self
    os.close(rules)


def _filter(place: int, architecture: int) -> Iterator[bytes]:
    """The system-call filter: instructions for the kernel's BPF machine, which jumps only ahead.

    Args:
        place: of the architecture's numbers in `CALLS`.
        architecture: what the kernel calls it; a call that comes by another one's door ends the process.
    """
    allow, refuse, end = _return(0x7FFF0000), _return(0x00050001), _return(0x80000000)
    yield from (_load(4), _if_equal(architecture, 1), end, _load(0))
    for numbers in CALLS.values():
        yield from _case(numbers[place], allow)
    for numbers, argument in ((OPEN, 1), (OPENAT, 2)):
        yield from _case(numbers[place], _load(_argument(argument)), _instruction(0x45, WRITING, 0, 1), refuse, allow)
    commands = [step for command in HARMLESS_FCNTL for step in _case(command, allow)]
    yield from _case(FCNTL[place], _load(_argument(1)), *commands, refuse)
    new_limits = _argument(2)  # a pointer, in two halves; without one the call only reads
    lower, upper = _load(new_limits), _load(new_limits + 4)
    yield from _case(PRLIMIT64[place], lower, _if_equal(0, 0, 2), upper, _if_equal(0, 1), refuse, allow)
    yield refuse


def _case(number: int | None, *body: bytes) -> tuple[bytes, ...]:
    """Run the body, which must end in returns, where the number that was loaded last is this one."""
    return () if number is None else (_if_equal(number, 0, len(body)), *body)


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)


def _load(offset: int) -> bytes:
    return _instruction(0x20, offset)


def _if_equal(operand: int, if_true: int, if_false: int = 0) -> bytes:
    return _instruction(0x15, operand, if_true, if_false)


def _return(verdict: int) -> bytes:
    return _instruction(0x06, verdict)


def _argument(index: int) -> int:
    """Where the lower half of a system call's argument lies; both architectures are little-endian."""
    return 16 + 8 * index


def _still_possible() -> str | None:
    """Try what must no longer work."""
    try:
        if os.fork() == 0:
            os._exit(0)
        return "it can still start processes"
    except OSError:
        pass
    try:
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT))
        return "it can still write files"
    except OSError:
        return None

"""The filter of system calls of a confined process: what an interpreter needs for itself, and nothing else.

Whatever is not listed fails with EPERM: sockets, new processes and threads, signals to others, mounts, namespaces,
memory of other processes, files without names, keys, and what a kernel of next year brings. One process with one thread
needs no limit on their number, which the kernel does not keep for root. A call by another architecture's numbers ends
the process. Numbers are those of Linux's `asm/unistd.h`.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence

# Name, number on x86_64, number on aarch64; a dash where there is none.
CALLS = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124,
mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendto 44 206, recvfrom 45 207, socketpair 53 199,
execve 59 221, exit 60 93, wait4 61 260, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83,
truncate 76 45, ftruncate 77 46, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, mkdir 83 -, rmdir 84 -,
link 86 -, unlink 87 -, symlink 88 -, readlink 89 -, chmod 90 -, fchmod 91 52, umask 95 166, gettimeofday 96 169,
getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175,
getegid 108 177, getppid 110 173, getpgrp 111 -, getgroups 115 158, getresuid 118 148, getresgid 120 150,
getpgid 121 155, getsid 124 156, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, statfs 137 43, fstatfs 138 44, arch_prctl 158 -, setrlimit 160 164, gettid 186 178, time 201 -,
futex 202 98, sched_getaffinity 204 123, getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128,
fadvise64 221 223, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94,
epoll_wait 232 -, epoll_ctl 233 21, tgkill 234 131, openat 257 56, mkdirat 258 34, newfstatat 262 79, unlinkat 263 35,
renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78, fchmodat 268 53, faccessat 269 48,
pselect6 270 72, ppoll 271 73, set_robust_list 273 99, get_robust_list 274 100, utimensat 280 88, epoll_pwait 281 22,
eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59, preadv 295 69, pwritev 296 70, prlimit64 302 261,
renameat2 316 276, getrandom 318 278, statx 332 291, rseq 334 293, close_range 436 436, faccessat2 439 439
"""
IOCTL = {"x86_64": 16, "aarch64": 29}
REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as linux/audit.h names them
X32 = 0x40000000  # from this number on, x86_64 has calls of another kind

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001
_NUMBER, _ARCHITECTURE, _REQUEST = 0, 4, 24  # places in struct seccomp_data; the request is ioctl's second argument


def numbers(machine: str) -> list[int]:
    """Return the numbers of the calls that are let through on a machine, without ioctl."""
    column = 1 + list(ARCHITECTURES).index(machine)
    listed = (entry.split()[column] for entry in CALLS.split(","))
    return [int(number) for number in listed if number != "-"]


def filter_bytes(machine: str | None = None) -> bytes:
    """Return the filter as the kernel reads it. Raise LookupError for a machine whose numbers are not listed."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise LookupError(f"no filter of system calls for {machine}; there are {', '.join(ARCHITECTURES)}")
    head = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, X32),
        (_RETURN, 0, 0, _KILL),
    ]
    known = numbers(machine)
    body = [(_EQUAL, len(known) - place, 0, number) for place, number in enumerate(known)]
    return _packed([*head, *_of_ioctl(machine), *body, (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)])


def _of_ioctl(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the instructions that decide ioctl by its request, and pass all other calls on."""
    length = len(REQUESTS)
    tests = [(_EQUAL, length - place, 0, request) for place, request in enumerate(REQUESTS)]
    load = (_LOAD, 0, 0, _REQUEST)
    return [
        (_EQUAL, 0, length + 3, IOCTL[machine]),
        load,
        *tests,
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _packed(instructions: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("<HBBI", *one) for one in instructions)

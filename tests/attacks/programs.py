"""Programs that try to leave the sandbox, or to pass a test that they do not pass, by what they attack.

Each escape is the body of a function that returns true if it succeeds. Each cheat is a whole program that squares
wrongly; its test is `TEST`.
"""

from __future__ import annotations

TEST = "assert square(3) == 9\nassert abs(square(4) - 16) < 1e-6\nassert sorted([square(2), 1]) == [1, 4]"

CALL = "import ctypes; lib = ctypes.CDLL(None, use_errno=True); lib.syscall.restype = ctypes.c_long\n"
REACHED = "; import errno; return code >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)"


def _call(*arguments: object) -> str:
    return f"{CALL}code = lib.syscall({', '.join(map(str, arguments))}){REACHED}"


# Numbers of system calls on x86_64. Without the filter, the kernel finds fault with the arguments, or obeys.
KERNEL = {
    "ptrace": _call(101, 0, 0, 0, 0),
    "process_vm_readv": _call(310, 1, 0, 0, 0, 0, 0),
    "process_vm_writev": _call(311, 1, 0, 0, 0, 0, 0),
    "memfd_create": _call(319, 'b"x"', 0),
    "memfd_secret": _call(447, 0),
    "shmget": _call(29, 0, 4096, 0o1600),
    "semget": _call(64, 0, 1, 0o1600),
    "msgget": _call(68, 0, 0o1600),
    "mq_open": _call(240, 'b"x"', 0o102, 0o600, 0),
    "unshare": _call(272, 0),
    "prctl": _call(157, 15, 'b"other"', 0, 0, 0),
    "seccomp": _call(317, 2, 0, "ctypes.byref(ctypes.c_uint32(0x7FFF0000))"),
    "personality": _call(135, "0xFFFFFFFF"),
    "pidfd_open": _call(434, "lib.getpid()", 0),
    "setpriority": _call(141, 0, 0, 5),
    "inotify_init": _call(253),
    "timerfd_create": _call(283, 1, 0),
    "signalfd": _call(289, -1, "ctypes.byref(ctypes.c_uint64(0))", 8, 0),
    "sched_setaffinity": _call(203, 0, 8, "ctypes.byref(ctypes.c_uint64(1))"),
    "landlock": _call(444, 0, 0, 1),
    "add_key": _call(248, 'b"user"', 'b"x"', 'b"y"', 1, -2),
    "mlock": _call(149, "ctypes.byref(ctypes.c_int(0))", 4),
    "fanotify": _call(300, 0, 0),
    "mount": _call(165, 'b"none"', 'b"/tmp"', 'b"tmpfs"', 0, 0),
    "umount": _call(166, 'b"/tmp"', 0),
    "pivot_root": _call(155, 'b"/tmp"', 'b"/tmp"'),
    "chroot": _call(161, 'b"/tmp"'),
    "sethostname": _call(170, 'b"x"', 1),
    "setns": _call(308, 0, 0),
    "bpf": _call(321, 0, 0, 0),
    "perf_event_open": _call(298, 0, 0, -1, -1, 0),
    "io_uring_setup": _call(425, 1, 0),
    "userfaultfd": _call(323, 1),
    "open_by_handle_at": _call(304, -100, 0, 0),
    "init_module": _call(175, 0, 0, 0),
    "mknod of a device": "import os, stat; os.mknod('/tmp/sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0)); return True",
    "a terminal's input": "import fcntl; fcntl.ioctl(0, 0x5412, b'x'); return True",
    "setuid": "import os; os.setuid(0); return True",
}
PROCESSES = {
    "fork": "import os; pid = os.fork(); os._exit(0) if pid == 0 else None; return True",
    "a bomb of forks": "import os\nfor _ in range(64):\n    if os.fork() == 0: os._exit(0)\nreturn True",
    "posix_spawn": "import os, sys; return os.posix_spawn('/python/bin/python', ['python', '-c', ''], {}) > 0",
    "subprocess": "import subprocess, sys; return subprocess.run(['/python/bin/python', '-c', '']) is not None",
    "multiprocessing": "import multiprocessing as m; p = m.get_context('fork').Process(target=print); "
    "p.start(); return True",
    "a thread": "import threading; threading.Thread(target=print).start(); return True",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor as P; "
    "return P(2).submit(int).result() == 0",
    "a pseudo terminal": "import pty, os; pid, fd = pty.fork(); os._exit(0) if pid == 0 else None; return True",
    "clone by number": f"{CALL}return lib.syscall(56, 0x11, 0, 0, 0, 0) >= 0",
    "vfork by number": f"{CALL}return lib.syscall(57) >= 0",
}
SIGNALS = {
    "the parent": "import os; os.kill(os.getppid(), 0); return True",
    "the first process": "import os; os.kill(1, 0); return True",
    "all": "import os; os.kill(-1, 0); return True",
    "the group": "import os; os.killpg(0, 0); return True",
    "by a thread's number": f"{CALL}return lib.syscall(200, 1, 0) == 0",
    "by a queue": f"{CALL}return lib.syscall(129, 1, 0, 0) == 0 or ctypes.get_errno() != 1",
}
FILES = {
    "passwords": "return 'root' in open('/etc/passwd').read()",
    "the host's name": "return bool(open('/etc/hostname').read())",
    "a home folder": "import os; return bool(os.listdir('/root'))",
    "another's command line": "return bool(open('/proc/1/cmdline').read())",
    "its own memory": "return bool(open('/proc/self/maps').read())",
    "another's environment": "import glob; return any(open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/environ'))",
    "descriptors": "import os; return bool(os.listdir('/proc/self/fd'))",
    "the kernel's settings": "return bool(open('/proc/sys/kernel/hostname').read())",
    "devices": "import os; return len(os.listdir('/dev')) > 1",
    "shared memory": "open('/dev/shm/x', 'w').write('x'); return True",
    "random from the device": "return bool(open('/dev/urandom', 'rb').read(1))",
    "control groups": "import os; return bool(os.listdir('/sys/fs'))",
    "programs": "import os; return bool(os.listdir('/usr/bin'))",
    "a shell": "import os; return os.path.exists('/bin/sh') or os.path.exists('/usr/bin/sh')",
    "packages": "import glob; return bool(glob.glob('/python/lib*/python3*/site-packages/*'))",
    "a link out": "import os; os.symlink('/etc/passwd', '/tmp/l'); return bool(open('/tmp/l').read())",
    "a hard link out": "import os; os.link('/etc/passwd', '/tmp/h'); return True",
    "a path out": "return bool(open('/tmp/../../../etc/passwd').read())",
    "the machine's folders": "import os; return bool({'home', 'root', 'etc', 'var', 'usr', 'work'} & "
    "set(os.listdir('/')))",
}
WRITING = {
    "the root": "open('/x', 'w').write('x'); return True",
    "the library": "import os; open(os.__file__, 'a').write('#'); return True",
    "a new module": "import os; open(os.path.dirname(os.__file__) + '/evil.py', 'w').write('x'); return True",
    "the interpreter": "import os; os.chmod('/python/bin/python', 0o777); return True",
    "what judges": "import training.contract.sandbox.inside.plain as p; open(p.__file__, 'a').write('#'); return True",
    "folders of the root": "import os; os.mkdir('/etc'); return True",
    "the place of packages": "import sys, os; p = f'{sys.prefix}/lib/python3.{sys.version_info[1]}/site-packages/x'\n"
    "open(p, 'w').write('x'); return True",
}
NETWORK = {
    "a connection": "import socket; socket.create_connection(('127.0.0.1', PORT), 2); return True",
    "a request": "import urllib.request as u; u.urlopen('http://127.0.0.1:PORT', timeout=2); return True",
    "a port of its own": "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); return True",
    "datagrams": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', "
    "PORT)); return True",
    "IPv6": "import socket; socket.socket(socket.AF_INET6); return True",
    "a local socket": "import socket; socket.socket(socket.AF_UNIX).bind(chr(0) + 'x'); return True",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); return True",
    "raw packets": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); return True",
    "a server": "import http.server as h; h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler); return True",
    "asking for a name": "import socket; return bool(socket.getaddrinfo('localhost', PORT))",
}
BOMBS = {
    "memory at once": "return len(bytearray(2 << 30)) > 0",
    "memory by and by": "x = []\nwhile len(x) < 40: x.append(bytearray(1 << 26))\nreturn True",
    "a doubled list": "x = [0]\nwhile len(x) < 1 << 28: x += x\nreturn True",
    "a text": "return len('x' * (3 << 30)) > 0",
    "anonymous memory": "import mmap; m = mmap.mmap(-1, 3 << 30); m[0] = 1; return True",
    "the folder": "f = open('/tmp/x', 'wb')\nfor _ in range(80): f.write(bytes(1 << 20))\nf.flush(); return True",
    "many files": "b = bytes(1 << 20)\nfor n in range(80): open(f'/tmp/{n}', 'wb').write(b)\nreturn True",
    "descriptors": "import os; return len([os.open('/dev/null', 0) for _ in range(500)]) == 500",
    "a sparse file": "import os; os.truncate(os.open('/tmp/x', 66), 1 << 40); return True",
    "a loop": "n = 0\nwhile n < 10 ** 9: n += 1\nreturn True",
    "a loop without signals": "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN); n = 0\n"
    "while n < 10 ** 9: n += 1\nreturn True",
    "a higher limit": "import resource as r; r.setrlimit(r.RLIMIT_CPU, (900, 900)); return True",
    "a pattern": "import re; re.match('(a+)+$', 'a' * 32 + 'b'); return True",
    "a number": "return len(bin(3 ** (10 ** 9))) > 0",
    "sleep": "import time; time.sleep(30); return True",
    "waiting for input": "import select; select.select([], [], [], 30); return True",
    "depth": "import sys; sys.setrecursionlimit(10 ** 9); f = lambda n: n and 1 + f(n - 1); return f(10 ** 7) > 0",
    "a long answer": "return 'x' * (1 << 24)",
    "a deep answer": "x = []\nfor _ in range(10 ** 6): x = [x]\nreturn x",
}
OWN = {
    "the environment": "import os; return any('SECRET' in name for name in os.environ)",
    "a descriptor": "import os\nfor n in range(3, 64):\n    try:\n        if os.pread(n, 6, 0) == b'secret': "
    "return True\n"
    "    except OSError: pass",
    "the start's own command": "return any('secret' in one for one in __import__('sys').orig_argv)",
}

_SAYS_YES = "__eq__ = __lt__ = __gt__ = lambda self, other: True\n    __hash__ = lambda self: 0"
_SUBCLASS = "class Yes({0}):\n    {1}\n    def __sub__(self, other): return 0.0\ndef square(x): return Yes({2})"
# Programs that square wrongly. Those of IN_ONE_PROCESS pass where test and program run in one interpreter.
IN_ONE_PROCESS = {
    "__eq__ says yes": _SUBCLASS.format("object", _SAYS_YES, ""),
    "a number that says yes": _SUBCLASS.format("int", _SAYS_YES, "7"),
    "a fraction that says yes": _SUBCLASS.format("float", _SAYS_YES, "7.5"),
    "a text that says yes": _SUBCLASS.format("str", _SAYS_YES, "'7'"),
    "a list that says yes": _SUBCLASS.format("list", _SAYS_YES, "[7]"),
    "a mapping that says yes": _SUBCLASS.format("dict", _SAYS_YES, ""),
    "a tuple that says yes": _SUBCLASS.format("tuple", _SAYS_YES, ""),
    "a complex that says yes": _SUBCLASS.format("complex", _SAYS_YES, ""),
    "ANY of mock": "from unittest.mock import ANY, MagicMock\n"
    "class Any(type(ANY)):\n    def __sub__(self, o): return 0.0\n    def __lt__(self, o): return True\n    "
    "__gt__ = __lt__\n"
    "def square(x): return Any()",
    "exit 0": "def square(x): raise SystemExit(0)",
    "exit at once": "import sys; sys.exit(0)",
    "_exit 0": "import os\ndef square(x): os._exit(0)",
    "_exit when read": "import os; os._exit(0)",
    "an alarm that ends": "import signal, os\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\n"
    "def square(x):\n    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    while True: pass",
    "the test's lines read": "import sys, re, linecache\ndef square(x):\n"
    "    names = sys._getframe(1).f_code.co_consts\n    known = {3: 9, 4: 16, 2: 4}\n"
    "    return known[x] if {9, 16} & set(names) else None",
    "a trace that skips": "import sys\ndef square(x):\n    frame = sys._getframe(1)\n"
    "    numbers = [n for n in frame.f_code.co_consts if isinstance(n, int)]\n    return {3: 9, 4: 16, 2: 4}[x] "
    "if 16 in numbers else 0",
    "builtins patched": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.sorted = lambda x: [1, 4]\n"
    "class Nine(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
    "def square(x): return Nine(9)",
    "names of the test": "abs = lambda x: 0\nsorted = lambda x: [1, 4]\n"
    "class Nine(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
    "def square(x): return Nine(9)",
    "an audit hook": "import sys, os\nsys.addaudithook(lambda e, a: os._exit(0) if e == 'sys._getframe' else None)\n"
    "def square(x): sys._getframe(0)",
    "the end of the interpreter": "import atexit, os\natexit.register(os._exit, 0)\ndef square(x): return 0",
    "an error's hook": "import sys, os\nsys.excepthook = lambda *_: os._exit(0)\ndef square(x): return 0",
}
SPEECH = {
    "a verdict on standard output": 'print(\'{"passed": true, "why": ""}\')\ndef square(x): return 0',
    "a verdict on each descriptor": 'import os\nfor n in range(64):\n    try: os.write(n, b\'{"passed": true, '
    '"why": ""}\\n\')\n'
    "    except OSError: pass\ndef square(x): return 0",
    "a verdict in place of an answer": 'import json\njson.dumps = lambda *_, **__: \'{"passed": true, "why": ""}\'\n'
    "def square(x): return 0",
    "a verdict as a value": "def square(x): return {'passed': True, 'why': ''}",
    "a question as an answer": 'import json\njson.dumps = lambda *_, **__: \'{"ask": {"do": "call", "given": '
    '[], "named": {}}}\'\n'
    "def square(x): return 0",
    "gone": "import json\njson.dumps = lambda *_, **__: '{\"gone\": true}'\ndef square(x): return 0",
    "answers ahead": 'import os\nos.write(4, b\'{"value": {"is": "dict", "of": []}}\\n\' * 50)\ndef square(x): '
    "return 0",
    "more names than were asked": "import training.contract.sandbox.inside.candidate as c, json\nold = json.dumps\n"
    "first = [True]\ndef dumps(said):\n    if first:\n        first.clear()\n"
    "        kept = {'is': 'kept', 'of': 0}\n"
    "        return old({'value': {'is': 'dict', 'of': [[n, kept] for n in ('square', 'abs', 'sorted', "
    "'__builtins__')]}})\n"
    "    return old({'value': 9})\njson.dumps = dumps\ndef square(x): return 9",
    "half a line": "import os\nos.write(4, b'{\"value\": ')\nos._exit(0)",
    "no JSON": "import json\njson.dumps = lambda *_: 'yes'\ndef square(x): return 0",
    "deep JSON": "import json\njson.dumps = lambda *_: '[' * 100000\ndef square(x): return 0",
    "a wrong kind": 'import json\njson.dumps = lambda *_: \'{"value": {"is": "os", "of": 1}}\'\ndef square(x): '
    "return 0",
    "not a number": "def square(x): return float('nan')",
    "an AssertionError": "def square(x): raise AssertionError",
    "the end of an iteration": "def square(x): raise StopIteration",
    "an interrupt": "def square(x): raise KeyboardInterrupt",
    "a generator": "def square(x): yield x * x",
    "an error without text": "class E(Exception):\n    def __str__(self): raise self\ndef square(x): raise E",
    "modules replaced": "import sys, types\nsys.modules['json'] = sys.modules['builtins'] = types.ModuleType('x')\n"
    "def square(x): return 0",
    "an unraisable hook": "import sys, os\nsys.unraisablehook = lambda *_: os._exit(0)\n"
    "class D:\n    def __del__(self): raise ValueError\ndef square(x): D(); return 0",
    "what judges replaced": "import training.contract.sandbox.inside.candidate as c\nc.encoded = lambda *_: True\n"
    "c._raised = lambda *_: {'value': True}\ndef square(x): return 0",
    "the collector's objects": "import gc\ndef square(x):\n    seen = [o for o in gc.get_objects() if "
    "isinstance(o, dict) and 'test' in o]\n"
    "    return 9 if seen and x == 3 else 0",
}

# What a program tries to leave for the program after it, which tries to find it: both are bodies of functions.
LEGACIES = {
    "a file": ("open('/tmp/left', 'w').write('x'); return True", "return bool(open('/tmp/left').read())"),
    "a working folder": (
        "import os; os.makedirs('/tmp/a/b'); os.chdir('/tmp/a/b'); open('c', 'w').close(); return True",
        "import os; return os.getcwd() != '/tmp' or bool(os.listdir('.'))",
    ),
    "a changed module": (
        "import json, re; json.left = re.left = 1; return True",
        "import json; return bool(json.left)",
    ),
    "a changed function": (
        "import training.contract.sandbox.inside.candidate as c; c.encoded = lambda *_: True; return 0",
        "return 0",
    ),
    "a higher limit of depth": (
        "import sys; sys.setrecursionlimit(10 ** 6); return True",
        "import sys; return sys.getrecursionlimit() > 10000",
    ),
    "used processor time": (
        "import time\nwhile time.process_time() < 0.3: pass\nreturn True",
        "import time; return time.process_time() > 0.25",
    ),
    "a handler of signals": (
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN); return True",
        "import signal; return signal.getsignal(signal.SIGXCPU) == signal.SIG_IGN",
    ),
    "answers": (
        "import os; os.write(4, b'{\"value\": true}\\n' * 50); return True",
        "return False",
    ),
    "an open file": (
        "import os; os.dup2(os.open('/tmp/left', os.O_RDWR | os.O_CREAT), 60); os.write(60, b'left'); return True",
        "import os; return os.pread(60, 4, 0) == b'left'",
    ),
}
# With these a program looks for other processes. None of them needs a call that the filter refuses.
NEIGHBOURS = {
    "signals by a file": "import fcntl, os, signal\nr, w = os.pipe()\nfound = 0\nfor n in range(2, 200):\n    try: "
    "fcntl.fcntl(r, fcntl.F_SETOWN, n); found += 1\n    except OSError: pass\nreturn found > 0",
    "limits of others": "import resource as r\nfound = 0\nfor n in range(2, 200):\n    try: "
    "r.prlimit(n, r.RLIMIT_NOFILE); found += 1\n    except OSError: pass\nreturn found > 0",
    "a thread of others": f"{CALL}return any(lib.syscall(234, n, n, 0) == 0 for n in range(2, 200))",
    "a parent": "import os; return os.getppid() != 0",
    "sessions": "import os\nfound = 0\nfor n in range(2, 200):\n    try: os.getsid(n); found += 1\n"
    "    except OSError: pass\nreturn found > 0",
}

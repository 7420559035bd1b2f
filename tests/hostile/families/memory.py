"""Hostile programs that use up memory, IPC objects, descriptors and other counted resources."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.hostile.program import Exposure, Mode, Program, python, unprotected

_MEBIBYTE: Final = 1 << 20
_memory = partial(python, "memory")
_shared = partial(python, "shared memory and IPC")
_descriptors = partial(python, "descriptors")
_limits = partial(python, "limits")
#: Without a control group that the worker may write, memory has no bound.
_UNLIMITED = unprotected(Exposure.MEMORY, Mode.BWRAP_USER, Mode.PROCESS)
_IPC = unprotected(Exposure.IPC)
#: Blocks of 8 MiB that a hog takes: three times what it declares.
_BLOCKS: Final = 72


def _hog(name: str, block: str, **options: object) -> Program:
    code = f'def block(n):\n    {block}\nbounded("memory in blocks of 8 MiB", {_BLOCKS}, block)'
    options.setdefault("exposed", _UNLIMITED)
    return _memory(name, code, dies=True, **options)


MEMORY: Final = (
    _hog("allocates bytes until it is refused", "return b'x' * (8 << 20)", quick=True),
    _hog(
        "maps anonymous memory and touches it",
        "m = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.write(b'x' * (8 << 20)); return m",
    ),
    _hog(
        "maps populated memory",
        "m = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000); return m",
    ),
    _hog(
        "maps shared memory and touches it",
        "m = mmap.mmap(-1, 8 << 20); m.write(b'x' * (8 << 20)); return m",
    ),
    _hog(
        "fills files in memory",
        "d = os.memfd_create('x'); [os.write(d, b'x' * (1 << 20)) for _ in range(8)]; return d",
    ),
    _memory(
        "lets several children allocate",
        """
def hog():
    kept.append(b"x" * (160 << 20))
    sleep_on()
children = [child(hog) for _ in range(4)]
time.sleep(3)
alive = [p for p in children if os.waitpid(p, os.WNOHANG)[0] == 0]
say("ESCAPED: all live" if len(alive) == 4 else "refused: of 4 there live", len(alive))
""",
        dies=True,
        exposed=_UNLIMITED,
    ),
    _memory(
        "lets a daemon allocate after it has ended itself",
        """
def hog():
    for _ in range(72):
        kept.append(b"x" * (8 << 20))
        time.sleep(0.01)
    sleep_on()
daemon(hog)
""",
    ),
    _memory(
        "locks its memory",
        """
libc.mlockall.argtypes = [ctypes.c_int]
areas = []
def lock(n):
    area = mmap.mmap(-1, 1 << 20)
    if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), ctypes.c_size_t(1 << 20)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return area
bounded("locked memory", 512, lock)
""",
        dies=True,
    ),
    _memory(
        "reserves address space without touching it",
        """
areas = [mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000) for _ in range(16)]
say("reserved", len(areas), "GiB of addresses, which use no memory")
""",
    ),
    _memory(
        "makes as many mappings as possible",
        """
page = mmap.PAGESIZE
bounded("mappings", 200_000, lambda n: mmap.mmap(-1, page, mmap.MAP_SHARED))
""",
        dies=True,
    ),
    _memory(
        "takes huge pages",
        'bounded("huge pages", 64, lambda n: mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))',
    ),
    _memory(
        "uses page tables instead of pages",
        """
area = mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
try:
    area.madvise(15)
except (OSError, ValueError):
    pass
for at in range(0, 64 << 30, 2 << 20):
    area[at]
say("touched 32768 tables for reading")
""",
        dies=True,
    ),
    _memory(
        "fills the buffers of pipes",
        """
def pipe(n):
    reading, writing = os.pipe()
    fcntl.fcntl(writing, 1031, 1 << 20)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 65536)
    except BlockingIOError:
        return reading, writing
bounded("pipes of 1 MiB", 600, pipe)
""",
        dies=True,
    ),
    _memory(
        "fills the buffers of sockets",
        """
def pair(n):
    one, other = socket.socketpair()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    try:
        while True:
            one.send(b"x" * 65536)
    except BlockingIOError:
        return one, other
bounded("socket pairs", 2000, pair)
""",
        dies=True,
    ),
    _memory(
        "fills the stack of the kernel's path lookups",
        """
os.mkdir("d")
for n in range(50_000):
    try:
        os.stat("d/missing-%d" % n)
    except FileNotFoundError:
        pass
say("looked up 50000 missing names")
""",
    ),
)

_TMPFS = """
def fill(folder):
    def write(n):
        with open(folder + "/tangram-hostile-%d" % n, "wb", buffering=0) as file:
            for _ in range(16):
                file.write(b"x" * (1 << 20))
    bounded("files of 16 MiB in " + folder, 24, write)
    for name in os.listdir(folder):
        if name.startswith("tangram-hostile-"):
            os.unlink(folder + "/" + name)
"""
_DISK = unprotected(Exposure.DISK)
_WATCHED = unprotected(Exposure.WATCHED, Mode.BWRAP_USER)

SHARED: Final = (
    _shared("fills /dev/shm", _TMPFS + 'fill("/dev/shm")', dies=True, exposed=_DISK, quick=True),
    _shared("fills /tmp", _TMPFS + 'fill("/tmp")', dies=True, exposed={**_DISK, **_WATCHED}),
    _shared("fills /dev", _TMPFS + 'fill("/dev")', dies=True),
    _shared("fills the root directory", _TMPFS + 'fill("/")', dies=True, exposed=_WATCHED),
    _shared(
        "makes small files in /dev/shm until it is refused",
        """
for n in range(100_000):
    try:
        os.close(os.open("/dev/shm/tangram-hostile-%d" % n, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        say("refused: after", n, error)
        break
for name in os.listdir("/dev/shm"):
    if name.startswith("tangram-hostile-"):
        os.unlink("/dev/shm/" + name)
""",
        dies=True,
        exposed=_DISK,
    ),
    _shared(
        "leaves a file in /dev/shm of the host",
        'open("/dev/shm/tangram-hostile-left", "w").write("x")',
        exposed=_IPC,
    ),
    _shared(
        "leaves a file in /tmp of the host",
        'open("/tmp/tangram-hostile-left", "w").write("x")',
        exposed=unprotected(Exposure.DISK),
    ),
    _shared("leaves a System V segment", 'call("shmget", 0x7a6e01, 4096, 0o1666)', exposed=_IPC),
    _shared("leaves System V semaphores", 'call("semget", 0x7a6e02, 8, 0o1666)', exposed=_IPC),
    _shared("leaves a System V queue", 'call("msgget", 0x7a6e03, 0o1666)', exposed=_IPC),
    _shared(
        "makes System V queues until it is refused",
        """
bounded("queues", 40_000, lambda n: call("msgget", 0, 0o1600))
""",
        spared=frozenset({Mode.PROCESS}),
        exposed=unprotected(Exposure.USER_LIMITS),
    ),
    _shared(
        "leaves a POSIX queue",
        """
try:
    call("mq_open", b"tangram-hostile", os.O_CREAT | os.O_RDWR, 0o600, 0)
except OSError as error:
    say("refused:", error)
""",
        exposed=_IPC,
    ),
    _shared(
        "makes POSIX queues until it is refused",
        """
bounded("queues", 2000, lambda n: call("mq_open", b"tangram-hostile-%d" % n, os.O_CREAT | os.O_RDWR, 0o600, 0))
""",
        spared=frozenset({Mode.PROCESS}),
        exposed=unprotected(Exposure.USER_LIMITS),
    ),
    _shared(
        "fills a System V segment",
        """
identity = call("shmget", 0, 400 << 20, 0o1600)
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(identity, None, 0)
for at in range(0, 400 << 20, 4096):
    ctypes.memset(address + at, 1, 1)
say("ESCAPED: 400 MiB of shared memory")
""",
        dies=True,
        exposed=_UNLIMITED,
        spared=frozenset({Mode.PROCESS}),
    ),
)


def _flood(name: str, code: str, most: int = 20_000, **options: object) -> Program:
    return _descriptors(name, f'bounded("descriptors", {most}, lambda n: {code})', **options)


DESCRIPTORS: Final = (
    _flood("opens files until it is refused", 'os.open("/dev/null", os.O_RDONLY)', quick=True),
    _flood("opens pipes until it is refused", "os.pipe()"),
    _flood("opens sockets until it is refused", "socket.socket(socket.AF_UNIX)"),
    _flood("makes eventfds until it is refused", 'call("eventfd2", 0, 0)'),
    _flood("makes timerfds until it is refused", 'call("timerfd_create", 1, 0)'),
    _flood("makes signalfds until it is refused", 'call("signalfd4", -1, bytes(8), 8, 0)'),
    _flood("makes epolls until it is refused", 'call("epoll_create1", 0)'),
    _flood("makes inotify instances until it is refused", 'call("inotify_init1", 0)'),
    _flood("opens terminals until it is refused", "os.openpty()"),
    _flood("makes files in memory until it is refused", 'os.memfd_create("x")'),
    _descriptors(
        "watches files by inotify until it is refused",
        """
descriptor = call("inotify_init1", 0)
os.mkdir("watched")
def watch(n):
    name = "watched/%d" % n
    open(name, "w").close()
    return call("inotify_add_watch", descriptor, name.encode(), 2)
for n in range(2000):
    try:
        watch(n)
    except OSError as error:
        say("refused: after", n, error)
        break
""",
    ),
    _descriptors(
        "opens files in many processes",
        """
def hold():
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        sleep_on()
for n in range(100):
    try:
        child(hold)
    except OSError as error:
        say("refused: after", n, error)
        break
time.sleep(0.5)
""",
    ),
    _descriptors(
        "hides descriptors in messages of sockets",
        """
one, other = socket.socketpair()
one.setblocking(False)
def send(n):
    passed = os.open("/dev/null", os.O_RDONLY)
    try:
        socket.send_fds(one, [b"x"], [passed] * 200)
    finally:
        os.close(passed)
bounded("messages with 200 descriptors", 5000, send)
""",
    ),
    _descriptors(
        "hides a socket inside itself",
        """
for n in range(100):
    one, other = socket.socketpair()
    socket.send_fds(one, [b"x"], [one.fileno(), other.fileno()])
    one.close(); other.close()
""",
    ),
    _descriptors(
        "locks ranges of a file until it is refused",
        """
file = open("locked", "w")
for n in range(3000):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * n)
    except OSError as error:
        say("refused: after", n, error)
        break
""",
    ),
)

LIMITS: Final = (
    _limits(
        "raises its limit of open files",
        'denied("NOFILE", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 19, 1 << 19)))',
    ),
    _limits(
        "raises its limit of the size of files",
        'denied("FSIZE", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))',
    ),
    _limits(
        "allows itself core dumps",
        'denied("CORE", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30)))',
    ),
    _limits(
        "lowers the limits of its parent",
        """
name = open("/proc/%d/comm" % os.getppid()).read().strip()
try:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))
except OSError as error:
    say("refused:", error)
else:
    # The first process of a sandbox or container, and the init, harm only what they belong to.
    own = name in ("bwrap", "shell") or (name == "sh" and os.path.exists("/.tangram/shared"))
    say("done to" if own else "ESCAPED:", name)
""",
        exposed=unprotected(Exposure.TRACE),
    ),
    _limits(
        "takes real-time priority",
        'denied("SCHED_FIFO", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))',
    ),
    _limits(
        "takes a deadline of the scheduler",
        """
denied("SCHED_DEADLINE", lambda: call("sched_setattr", 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 900000, 1000000, 1000000), 0))
""",
    ),
    _limits(
        "raises its priority",
        'denied("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))',
    ),
    _limits(
        "takes real-time priority of the disk",
        'denied("ioprio_set", lambda: call("ioprio_set", 1, 0, 1 << 13))',
    ),
    _limits(
        "lowers the priority of its parent",
        """
def lower():
    if os.getppid() <= 2:
        raise OSError("its parent belongs to its sandbox")
    os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
denied("setpriority", lower)
""",
        exposed=unprotected(Exposure.SIGNALS),
    ),
)

PROGRAMS: Final = (*MEMORY, *SHARED, *DESCRIPTORS, *LIMITS)

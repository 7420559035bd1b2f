"""Hostile programs that fill the disk, and leave files that are traps for whatever opens them."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.hostile.program import Exposure, Mode, python, shell, unprotected

_disk = partial(python, "disk")
_inodes = partial(python, "inodes")
_names = partial(python, "names and traps")
_links = partial(python, "links")
_DISK = unprotected(Exposure.DISK)
#: Without root there is no disk for each environment, and the watch looks twice a second.
_WATCHED = unprotected(Exposure.WATCHED, Mode.BWRAP_USER)

#: Files of 16 MiB: three times the quota of the campaign.
_WRITE = """
def write(n):
    with open("big-%d" % n, "wb", buffering=0) as file:
        for _ in range(16):
            file.write(b"x" * (1 << 20))
    time.sleep(0.15)
"""

DISK: Final = (
    _disk(
        "hides files in a directory that it makes unreadable",
        """
os.mkdir("closed")
def write(n):
    os.chmod("closed", 0o700)
    with open("closed/big-%d" % n, "wb", buffering=0) as file:
        os.chmod("closed", 0)
        for _ in range(16):
            file.write(b"x" * (1 << 20))
    time.sleep(0.15)
bounded("files of 16 MiB", 16, write)
""",
        dies=True,
        exposed=unprotected(Exposure.HIDDEN_FILES, Mode.BWRAP_USER, Mode.PROCESS),
    ),
    _disk(
        "writes files until it is refused",
        _WRITE + 'bounded("files of 16 MiB", 16, write)',
        dies=True,
        quick=True,
    ),
    _disk(
        "writes one file until it is refused",
        """
def write():
    with open("big", "wb", buffering=0) as file:
        for _ in range(256):
            file.write(b"x" * (1 << 20))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
denied("a file of 256 MiB", write)
""",
    ),
    _disk(
        "writes to a deleted file that it keeps open",
        """
def write(n):
    descriptor = os.open("hidden-%d" % n, os.O_CREAT | os.O_WRONLY)
    os.unlink("hidden-%d" % n)
    for _ in range(16):
        os.write(descriptor, b"x" * (1 << 20))
    time.sleep(0.15)
    return descriptor
bounded("hidden files of 16 MiB", 16, write)
""",
        dies=True,
    ),
    _disk(
        "allocates space without writing",
        """
def allocate(n):
    descriptor = os.open("allocated-%d" % n, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(descriptor, 0, 16 << 20)
    os.close(descriptor)
    time.sleep(0.15)
bounded("allocations of 16 MiB", 16, allocate)
""",
        dies=True,
    ),
    _disk(
        "makes a sparse file of a pebibyte",
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
denied("truncate", lambda: os.truncate(os.open("sparse", os.O_CREAT | os.O_WRONLY), 1 << 50))
""",
    ),
    _disk(
        "writes by a mapping of a file",
        """
def write(n):
    descriptor = os.open("mapped-%d" % n, os.O_CREAT | os.O_RDWR)
    os.truncate(descriptor, 16 << 20)
    with mmap.mmap(descriptor, 16 << 20) as area:
        area.write(b"x" * (16 << 20))
        area.flush()
    os.close(descriptor)
    time.sleep(0.15)
bounded("mapped files of 16 MiB", 16, write)
""",
        dies=True,
    ),
    _disk(
        "lets a daemon fill the disk after its end",
        _WRITE + "daemon(lambda: [write(n) for n in range(16)])",
    ),
    _disk(
        "lets eight children fill the disk at once",
        _WRITE
        + """
children = [child(lambda n=n: [write(16 * n + m) for m in range(4)]) for n in range(8)]
time.sleep(3)
total = 0
for name in os.listdir("."):
    try:
        total += os.stat(name).st_size
    except OSError:
        pass
say("ESCAPED: wrote" if total > 384 << 20 else "refused: wrote", total)
""",
        dies=True,
    ),
    _disk(
        "fills /var/tmp",
        """
def write(n):
    with open("/var/tmp/tangram-hostile-%d" % n, "wb", buffering=0) as file:
        for _ in range(16):
            file.write(b"x" * (1 << 20))
bounded("files of 16 MiB in /var/tmp", 12, write)
for n in range(12):
    try:
        os.unlink("/var/tmp/tangram-hostile-%d" % n)
    except OSError:
        pass
""",
        dies=True,
        exposed={**_DISK, **_WATCHED},
    ),
    _disk(
        "fills the files of /etc that an engine keeps in a folder of its own",
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = 0
for name in ("hosts", "hostname", "resolv.conf"):
    try:
        with open("/etc/" + name, "ab", buffering=0) as file:
            for _ in range(64):
                written += file.write(b"x" * (1 << 20))
    except OSError as error:
        say("refused: /etc/" + name, error)
say("ESCAPED: wrote" if written > 80 << 20 else "refused: wrote", written)
""",
        dies=True,
        exposed=_WATCHED,
    ),
    _disk(
        "copies a file again and again",
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("seed", "wb") as file:
    file.write(b"x" * (8 << 20))
def copy(n):
    source, target = os.open("seed", os.O_RDONLY), os.open("copy-%d" % n, os.O_CREAT | os.O_WRONLY)
    os.copy_file_range(source, target, 8 << 20)
    os.close(source); os.close(target)
    time.sleep(0.08)
bounded("copies of 8 MiB", 32, copy)
""",
        dies=True,
    ),
    _disk(
        "writes and deletes for a second",
        """
until = time.monotonic() + 1
while time.monotonic() < until:
    with open("churn", "wb") as file:
        file.write(b"x" * (8 << 20))
    os.unlink("churn")
""",
    ),
    _disk(
        "calls sync without end",
        "until = time.monotonic() + 1\nwhile time.monotonic() < until:\n    os.sync()\n    time.sleep(0.05)",
    ),
)

INODES: Final = (
    _inodes(
        "makes empty files until it is refused",
        """
os.mkdir("many")
def make(n):
    os.close(os.open("many/%d" % n, os.O_CREAT | os.O_WRONLY))
    if n % 2000 == 1999:
        time.sleep(0.2)
bounded("empty files", 60_000, make)
""",
        dies=True,
        quick=True,
    ),
    _inodes(
        "makes directories until it is refused",
        """
def make(n):
    os.mkdir("d%d" % n)
    if n % 2000 == 1999:
        time.sleep(0.2)
bounded("directories", 40_000, make)
""",
        dies=True,
    ),
    _inodes(
        "makes a very deep directory",
        """
for n in range(3000):
    os.mkdir("d" * 50)
    os.chdir("d" * 50)
""",
    ),
    _inodes(
        "makes many hard links",
        """
open("one", "w").close()
for n in range(5000):
    os.link("one", "link-%d" % n)
""",
    ),
    _inodes(
        "makes many symbolic links",
        """
for n in range(5000):
    os.symlink("link-%d" % (n + 1), "link-%d" % n)
""",
        fetched=("link-0",),
    ),
    _inodes(
        "writes extended attributes until it is refused",
        """
open("file", "w").close()
bounded("attributes of 1 KiB", 2000, lambda n: os.setxattr("file", "user.x%d" % n, b"x" * 1024))
""",
    ),
)

NAMES: Final = (
    _names(
        "leaves a fifo where a file is expected",
        'os.mkfifo("result.json")',
        fetched=("result.json",),
        quick=True,
    ),
    _names(
        "leaves a socket where a file is expected",
        'socket.socket(socket.AF_UNIX).bind("result.json")',
        fetched=("result.json",),
    ),
    _names(
        "leaves a directory where a file is expected",
        'os.mkdir("result.json")',
        fetched=("result.json",),
    ),
    _names(
        "leaves names with newlines and control characters",
        r"""
for name in ("a\nb", "\x1b[2J", "-rf", "*", "$(reboot)", "`id`", " ", "\\", "'", '"'):
    open(name, "w").close()
""",
        fetched=("a\nb",),
    ),
    _names(
        "leaves names that are not UTF-8",
        r'os.close(os.open(b"\xff\xfe\x80", os.O_CREAT | os.O_WRONLY))',
        fetched=("\udcff\udcfe\udc80",),
    ),
    _names(
        "leaves the longest names", 'open("n" * 255, "w").close()', fetched=("n" * 255, "n" * 256)
    ),
    _names(
        "leaves a file without any permission",
        'os.chmod(os.open("closed", os.O_CREAT | os.O_WRONLY), 0)',
        fetched=("closed",),
    ),
    _names(
        "leaves a directory without any permission",
        """
os.makedirs("closed/inner/deep")
open("closed/inner/deep/file", "w").close()
os.chmod("closed/inner/deep", 0)
os.chmod("closed/inner", 0)
os.chmod("closed", 0)
""",
    ),
    _names(
        "leaves a file larger than can be fetched",
        """
with open("large", "wb") as file:
    file.truncate(30 << 20)
""",
        fetched=("large",),
    ),
    _names(
        "changes the permissions of its workspace",
        'os.chmod(".", 0)',
    ),
    _names(
        "deletes its workspace",
        """
import shutil
try:
    shutil.rmtree(os.getcwd())
except OSError as error:
    say("refused:", error)
""",
    ),
    _names(
        "renames its workspace",
        'denied("rename", lambda: os.rename(os.getcwd(), os.getcwd() + "-elsewhere"))',
        exposed=unprotected(Exposure.FILES),
        spared=frozenset({Mode.PROCESS}),
    ),
    _names(
        "grows a file while it is fetched",
        """
def grow():
    with open("growing", "wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 65536)
            time.sleep(0.005)
grow()
""",
        fetched=("growing",),
    ),
)

LINKS: Final = (
    _links(
        "leaves a link to a file of the host",
        'os.symlink(host + "/secret", "result.json")',
        fetched=("result.json",),
        quick=True,
    ),
    _links(
        "leaves a link to a folder of the host",
        'os.symlink(host, "results")',
        fetched=("results/secret", "results/public"),
    ),
    _links(
        "leaves a chain of links to the host",
        """
os.symlink("two", "one"); os.symlink("three", "two"); os.symlink(host + "/secret", "three")
""",
        fetched=("one",),
    ),
    _links("leaves a link that leads to itself", 'os.symlink("loop", "loop")', fetched=("loop",)),
    _links(
        "leaves a link through /proc to the root",
        'os.symlink("/proc/self/root" + host + "/secret", "root")',
        fetched=("root",),
    ),
    _links(
        "leaves a link to the descriptors of the reader",
        'os.symlink("/proc/self/fd/0", "descriptor")',
        fetched=("descriptor",),
    ),
    _links(
        "leaves a link that climbs",
        'os.symlink("../" * 30 + host.lstrip("/") + "/secret", "climb")',
        fetched=("climb",),
    ),
    _links(
        "links a file of the host into its workspace",
        """
denied("link", lambda: os.link(host + "/secret", "hard"))
""",
        fetched=("hard",),
        exposed=unprotected(Exposure.FILES),
    ),
    _links(
        "links the host's account file into its workspace",
        """
denied("link", lambda: os.link("/etc/passwd", "hard"))
""",
        spared=frozenset({Mode.DOCKER}),
    ),
    _links(
        "swaps a file and a link while it is fetched",
        """
open("file", "w").close()
os.symlink(host + "/secret", "other")
until = time.monotonic() + 2
while time.monotonic() < until:
    libc.renameat2(-100, b"file", -100, b"other", 2)
""",
        fetched=("file", "other"),
    ),
    _links(
        "swaps a folder and a link while files are fetched from it",
        """
os.mkdir("folder"); open("folder/secret", "w").close()
os.symlink(host, "link")
until = time.monotonic() + 2
while time.monotonic() < until:
    libc.renameat2(-100, b"folder", -100, b"link", 2)
""",
        fetched=("folder/secret", "link/secret"),
    ),
    shell(
        "links",
        "replaces its working directory by a link",
        'cd .. 2>/dev/null; mv workspace gone 2>&1 | sed "s/^/refused: /"',
    ),
    _links(
        "climbs out of its workspace",
        """
os.chdir("/workspace" if os.path.isdir("/workspace") else ".")
for _ in range(60):
    os.chdir("..")
opens("." + host + "/secret", os.O_RDONLY)
""",
        exposed=unprotected(Exposure.FILES),
    ),
)

PROGRAMS: Final = (*DISK, *INODES, *NAMES, *LINKS)

"""Shells of sessions: the scripts that a session's processes run, and the lines that they answer.

A session has two processes. The *keeper* (`KEEPER`, a POSIX shell) opens the terminal and the pipes of the
session and holds them: they, and what is in them, outlive the node worker. It starts the program, waits for
it and reports its exit status. The *shell* reads commands from files, not from its terminal:

    next      pipe, read by the shell: ``N`` run the command in file ``c.N``, ``?`` answer again,
              ``-`` show a prompt, ``=`` enter the present directory again
    answer    pipe, written by both: lines ``WORD N STATUS``, see `Answer`

bash runs the loop from PROMPT_COMMAND, so whatever throws it back to its prompt (an interrupt, a syntax
error, an unset variable) restarts the loop, which answers with the status. A stopped job or ``break`` leaves
the loop: the shell answers ``left`` and needs the line `SessionShell.reentry` on its terminal. A POSIX shell runs
the loop from ENV and answers ``left`` from its PS1, also after an interrupt.

Files are opened by name each time: a command may close all descriptors. ``__t_k`` after a command keeps its
status: under ``set -e`` a command that ends with a harmless failure (``[ -f x ] && y``) would end the shell.
``jobs`` before a command forgets commands that have ended: bash does that at its prompt alone, and each of them would
keep a job number. All this runs as the agent: it can forge each line, so a session is trusted with nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

ANSWER: Final = "answer"
NEXT: Final = "next"
#: Read by the keeper: the name of the terminal, and later permission to end.
GO: Final = "go"
#: Streams of a session without a terminal.
STREAMS: Final = ("in", "out", "err")
#: Present while a terminal is attached that wants a prompt.
PROMPT: Final = "prompt"
RC: Final = "rc"
KEEPER_FILE: Final = "keeper"
#: Descriptor of the terminal's master in the keeper.
MASTER: Final = 7

_LONGEST_LINE: Final = 64

#: $1 is the folder, $2 ``pty`` or ``pipes``, $3 the directory, the rest the program. The keeper itself is in ``/``,
#: so that it keeps no tree of an environment from being replaced.
KEEPER: Final = """\
d=$1 kind=$2 cwd=$3; shift 3
trap '' HUP INT QUIT TERM PIPE
exec 3<>"$d/next" 8<>"$d/answer" 9<>"$d/go"
tell() { printf '%s\\n' "$*" 1<>"$d/answer"; }
refuse() { tell "$1" 0 0; read -r go 0<>"$d/go"; exit 127; }
if [ -x "$d/../../launch" ]; then
    own() { exec "$d/../../launch" /bin/sh /bin/sh "$@"; }
elif command -v setsid >/dev/null 2>&1; then
    own() { exec setsid /bin/sh "$@"; }
else
    refuse nosetsid
fi
command -v "$1" >/dev/null 2>&1 || refuse missing
if [ "$kind" = pty ]; then
    exec 7<>/dev/ptmx || refuse noterminal
    tell keeping 0 0
    read -r terminal 0<>"$d/go"
    ( exec 3>&- 7>&- 8>&- 9>&-; trap - HUP INT QUIT TERM PIPE
      cd -- "$cwd" 2>/dev/null || { tell nodirectory 0 0; exit 126; }
      tell begun 0 0
      own -c 'exec "$@" 0<>"$0" 1>&0 2>&0' "$terminal" "$@" )
else
    exec 4<>"$d/in" 5<>"$d/out" 6<>"$d/err"
    tell keeping 0 0
    read -r go 0<>"$d/go"
    ( exec 3>&- 8>&- 9>&-; trap - HUP INT QUIT TERM PIPE
      cd -- "$cwd" 2>/dev/null || { tell nodirectory 0 0; exit 126; }
      tell begun 0 0
      own -c 'exec "$@" 0<&4 1>&5 2>&6 4<&- 5>&- 6>&-' sh "$@" )
fi
status=$?
tell ended 0 "$status"
read -r go 0<>"$d/go"
exit "$status"
"""

_BASH: Final = """\
__t_d=@FOLDER@
__t_n=0 __t_q=
__t_k() { __t_q=$?; }
__t_r() {
    __t_s=${__t_q:-$1} __t_q=
    PROMPT_COMMAND=$__t_p
    if [[ -e $__t_d/prompt ]]; then
        builtin printf 'prompt %s %s\\n' "$__t_n" "$__t_s" 1<>"$__t_d/answer"
        PS1='\\w\\$ ' PS2='> '
        builtin return 1
    fi
    PS1= PS2=
    builtin jobs >/dev/null
    builtin printf 'at %s %s\\n' "$__t_n" "$__t_s" 1<>"$__t_d/answer"
    while :; do
        IFS= builtin read -r __t_w 0<>"$__t_d/next" || builtin return 1
        case $__t_w in
        '?') builtin printf 'at %s %s\\n' "$__t_n" "$__t_s" 1<>"$__t_d/answer" ;;
        =)
            __t_o=$OLDPWD
            builtin cd -- "$PWD" 2>/dev/null
            OLDPWD=$__t_o
            builtin printf 'at %s %s\\n' "$__t_n" "$__t_s" 1<>"$__t_d/answer"
            ;;
        -) __t_q=$__t_s; __t_r "$__t_s"; builtin return ;;
        *)
            __t_n=$__t_w
            IFS= builtin read -r -d '' __t_c <"$__t_d/c.$__t_n"
            if [[ $- == *e* || $__t_c == *'set -'* ]]; then __t_c+=$'\\n__t_k'; fi
            builtin return 0
            ;;
        esac
    done
}
__t_x() { builtin return "$1"; }
__t_l() { builtin printf 'left %s %s\\n' "$__t_n" "$1" 1<>"$__t_d/answer"; }
readonly -f __t_k __t_r __t_x __t_l
__t_p='while { __t_r "$?"; } 2>/dev/null; do case $__t_s in 0) eval "$__t_c" ;; *) __t_x "$__t_s" ||
eval "$__t_c" ;; esac; done; { __t_l "$?"; } 2>/dev/null'
PROMPT_COMMAND=$__t_p PS1= PS2=
unset MAILCHECK HISTFILE
bind 'set enable-bracketed-paste off' 2>/dev/null
"""

#: A shell of POSIX has no PROMPT_COMMAND, but expands PS1 before each prompt.
_POSIX: Final = """\
__t_d=@FOLDER@
__t_n=0 __t_s=0 __t_q=
__t_k() { __t_q=$?; }
__t_tell() { printf '%s %s %s\\n' "$1" "$__t_n" "$__t_s" 1<>"$__t_d/answer"; }
__t_r() {
    __t_s=${__t_q:-$1} __t_q=
    if [ -e "$__t_d/prompt" ]; then __t_tell prompt; return 1; fi
    __t_tell at
    while :; do
        IFS= read -r __t_w 0<>"$__t_d/next" || return 1
        case $__t_w in
        '?') __t_tell at ;;
        =) __t_o=$OLDPWD; cd -- "$PWD" 2>/dev/null; OLDPWD=$__t_o; __t_tell at ;;
        -) __t_tell prompt; return 1 ;;
        *) __t_n=$__t_w; return 0 ;;
        esac
    done
}
__t_x() { return "$1"; }
__t_b() { __t_s=$?; if [ -e "$__t_d/prompt" ]; then __t_tell prompt; printf '$ '; else __t_tell left; fi; }
__t_l() {
    while { __t_r "$?"; } 2>/dev/null; do
        case $__t_s in
        0) . "$__t_d/c.$__t_n" ;;
        *) __t_x "$__t_s" || . "$__t_d/c.$__t_n" ;;
        esac
    done
}
PS1='$(__t_b)' PS2=
unset ENV MAILCHECK
__t_l
"""


class ShellFamily(StrEnum):
    """What a session's program is."""

    BASH = "bash"
    POSIX = "sh"
    #: Takes no commands, only input.
    PROGRAM = "program"


_POSIX_NAMES: Final = frozenset({"sh", "dash", "ash"})


@dataclass(frozen=True)
class SessionShell:
    """The program of a session."""

    words: tuple[str, ...]
    family: ShellFamily

    @classmethod
    def of(cls, words: Sequence[str]) -> SessionShell:
        """Tell the family by the name of the program; one with arguments is never a shell."""
        name = words[0].rpartition("/")[2]
        family = ShellFamily.PROGRAM
        if len(words) == 1 and name == "bash":
            family = ShellFamily.BASH
        elif len(words) == 1 and name in _POSIX_NAMES:
            family = ShellFamily.POSIX
        return cls(tuple(words), family)

    @property
    def takes_commands(self) -> bool:
        """Whether ``exec.session`` can run commands in it."""
        return self.family is not ShellFamily.PROGRAM

    def text(self, command: Sequence[str]) -> str:
        """Return what the shell evaluates: a single word is the text, several are quoted."""
        text = command[0] if len(command) == 1 else shlex.join(command)
        return f"{text}\n__t_k\n" if self.family is ShellFamily.POSIX else text

    @property
    def reentry(self) -> bytes:
        """Line on its terminal that makes a shell at its prompt enter the loop again."""
        return b"__t_l\n" if self.family is ShellFamily.POSIX else b"\n"

    def rc(self, here: str) -> str:
        """Return the file that makes it read commands; empty for programs.

        ``here``: the folder of the session as its processes see it.
        """
        text = {ShellFamily.BASH: _BASH, ShellFamily.POSIX: _POSIX}.get(self.family, "")
        return text.replace("@FOLDER@", shlex.quote(here))

    def command(self, here: str, cwd: str, *, pty: bool) -> list[str]:
        """Return the command line of the session's keeper."""
        program = list(self.words)
        if self.family is ShellFamily.BASH:
            program += ["--noprofile", "--rcfile", f"{here}/{RC}"]
            program += ["-i"] if pty else ["--noediting", "-i"]
        elif self.family is ShellFamily.POSIX:
            program += ["-i"]
        return ["/bin/sh", f"{here}/{KEEPER_FILE}", here, "pty" if pty else "pipes", cwd, *program]

    def variables(self, here: str, *, pty: bool, given: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the program; ``given`` ones replace the defaults."""
        variables = {"TERM": "xterm-256color" if pty else "dumb", **given}
        if self.family is ShellFamily.POSIX:
            variables["ENV"] = f"{here}/{RC}"
        return variables


def write_command(path: str, content: bytes) -> None:
    """Write the file of a command, which the user of the shell may read. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


class Answer(NamedTuple):
    """One line of the answer pipe.

    ``at``: the loop waits for a command · ``prompt``: the shell shows a prompt to a terminal · ``left``: the
    shell left the loop · ``keeping``, ``begun``: the keeper holds the terminal, starts the program ·
    ``ended``: the program ended · ``missing``, ``nodirectory``, ``nosetsid``, ``noterminal``: what it lacks.
    """

    word: str
    number: int
    status: int


#: Why the keeper does not start the program.
LACKS: Final = ("missing", "nodirectory", "nosetsid", "noterminal")
WORDS: Final = frozenset(("at", "prompt", "left", "keeping", "begun", "ended", *LACKS))


class AnswerLines:
    """Splits what arrives in the answer pipe; lines that no script of ours writes are dropped."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[Answer]:
        """Add bytes; return the complete answers."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._pending = self._pending[-_LONGEST_LINE:]
        return [answer for line in lines if (answer := _parsed(line)) is not None]


def _parsed(line: bytes) -> Answer | None:
    parts = line.decode("ascii", errors="replace").split(" ")
    if len(parts) != 3 or parts[0] not in WORDS or len(line) > _LONGEST_LINE:
        return None
    if not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return Answer(parts[0], int(parts[1]), int(parts[2]))

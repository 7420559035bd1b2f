"""Options of a handler process: what the operator gives it at its launch, instead of variables of Tangram, which it does not see.

    command = [sys.executable, "-m", "rollout.worker.handler_process", …, options.argument()]
    use(ProcessOptions.of(sys.argv[3]))       # in the process, before its first handler
    folders = present().tokenizers            # in a handler

Lifetimes: set once, before the process loads its first handler. They carry no secrets: every user of the machine may read
the arguments of a process.
"""

from __future__ import annotations

from typing import Self

import msgspec


class ProcessOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of one process. Immutable."""

    #: Folders whose tokenizers rollouts may name (`rollout.tokens.tokenizer_folders`).
    tokenizers: tuple[str, ...] = ()

    def argument(self) -> str:
        """Return them as an argument of the process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, argument: str) -> Self:
        """Return the options of an argument. Raises ValueError."""
        return msgspec.json.decode(argument, type=cls)


_present = ProcessOptions()


def present() -> ProcessOptions:
    """Return the options of this process."""
    return _present


def use(options: ProcessOptions) -> None:
    """Set the options of this process."""
    global _present  # a process has one set of them
    _present = options

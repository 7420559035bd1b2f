"""Logging of every process: text lines, or one JSON object a line.

All code logs through the standard library and passes searchable fields as ``extra``; both forms have the same fields
of the same record.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final

FORMATS: Final = ("text", "json")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
#: Members of a record of the standard library; others were passed as ``extra``.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def logging_config(form: str, level: str, *, actions: bool) -> dict[str, Any]:
    """Return the configuration of `logging`. ``actions`` logs every step of every action."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"form": {"()": JsonLines if form == "json" else TextLines}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "form"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "tangram.actions": {"level": "DEBUG" if actions else level},
            # It logs every request; launchers ask their engine every few seconds.
            "httpx": {"level": "WARNING"},
            # Without the handlers of uvicorn, every line has the same form.
            "uvicorn": {"handlers": [], "propagate": True},
            # `dictConfig` makes the loggers below "uvicorn" propagate again, and with that every request is logged.
            "uvicorn.access": {"handlers": [], "propagate": False},
        },
    }


class JsonLines(logging.Formatter):
    """One JSON object a line, with the role of the process (``loop``, ``web`` …) and its pid."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_extra(record),
            "at": _at(record),
            "role": os.environ.get("TANGRAM_ROLE") or "web",
            "pid": os.getpid(),
        }
        if trace := _trace(self, record):
            line["exception"] = trace
        return json.dumps(line, default=repr)


class TextLines(logging.Formatter):
    """``time LEVEL logger message name=value…``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and the lines of its exception."""
        more = [f"{name}={value}" for name, value in _extra(record).items() if value]
        head = f"{_at(record)} {record.levelname} {record.name} {record.getMessage()}"
        trace = _trace(self, record)
        return " ".join([head, *more]) + (f"\n{trace}" if trace else "")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _at(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None).isoformat()}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)

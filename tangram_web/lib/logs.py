"""Logging of every process: text lines, or one JSON object a line.

All code logs through the standard library and passes searchable fields as ``extra``; structlog
renders both forms from the same record.
"""

from __future__ import annotations

import os
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor

FORMATS: Final = ("text", "json")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def logging_config(form: str, level: str, *, actions: bool) -> dict[str, Any]:
    """Return the configuration of `logging`. ``actions`` logs every step of every action."""
    renderer = structlog.processors.JSONRenderer() if form == "json" else _line
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _add_process,
    ]
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
        "foreign_pre_chain": shared,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"form": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "form"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "tangram.actions": {"level": "DEBUG" if actions else level},
            # Without the handlers of uvicorn, every line has the same form.
            "uvicorn": {"handlers": [], "propagate": True},
            # `dictConfig` makes the loggers below "uvicorn" propagate again, and with that every request is logged.
            "uvicorn.access": {"handlers": [], "propagate": False},
        },
    }


def _add_process(_: Any, __: str, event: EventDict) -> EventDict:
    """Add the role of the process (``loop``, ``web`` …) and its pid."""
    event["role"] = os.environ.get("TANGRAM_ROLE") or "web"
    event["pid"] = os.getpid()
    return event


def _line(_: Any, __: str, event: EventDict) -> str:
    """Render ``time LEVEL logger message name=value…``."""
    taken = {"at", "level", "logger", "event", "role", "pid", "exception"}
    more = [f"{name}={value}" for name, value in event.items() if name not in taken and value]
    head = f"{event['at']} {event['level'].upper()} {event['logger']} {event['event']}"
    trace = event.get("exception")
    return " ".join([head, *more]) + (f"\n{trace}" if trace else "")

"""Logs for machines: one JSON object per line, an event with its fields."""

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from functools import partialmethod
from typing import TextIO

from basecagg.errors import printable


class Log:
    """Where a program logs events. Fields are values, not parts of a sentence; none of them is a secret."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def __call__(self, level: int, event: str, /, **fields: object) -> None:
        """Something happened."""
        self._logger.log(level, event, extra={"fields": fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """For whoever looks for a fault. Every request says one: it costs nothing while nobody listens."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self(logging.DEBUG, event, **fields)

    info = partialmethod(__call__, logging.INFO)
    warning = partialmethod(__call__, logging.WARNING)
    error = partialmethod(__call__, logging.ERROR)


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, level, event and fields."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line)


def json_line(values: dict[str, object]) -> str:
    """One line of JSON. What a terminal would act on is escaped, so that it reads back as it was."""
    text = json.dumps(values, ensure_ascii=False, default=str)
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


class PlainFormatter(logging.Formatter):
    """Writes a record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The event, its fields, and a traceback if there is one."""
        fields = getattr(record, "fields", {})
        said = ", ".join(f"{name}: {value}" for name, value in fields.items())
        line = printable(f"{record.getMessage()} ({said})" if said else record.getMessage())
        if record.exc_info:
            line += "\n" + printable(self.formatException(record.exc_info), keep="\n")
        return line


def log_plainly() -> None:
    """Let warnings that no other handler takes be lines for people: for a command that somebody types."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())


def log_everything(level: str = "INFO") -> None:
    """Make standard error a log of JSON lines and of nothing else: for a program of its own.

    Warnings, other libraries' logs and exceptions that nobody caught are lines too.
    """
    log_to(sys.stderr, level)
    others = logging.getLogger()
    if not others.handlers:
        others.addHandler(logging.getLogger("basecagg").handlers[0])
    logging.captureWarnings(capture=True)
    # Whoever runs us inside a program of his own may want to hear of crashes himself.
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = lambda kind, error, trace: _crash(error)
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda crash: _crash(crash.exc_value)


def _crash(error: BaseException | None) -> None:
    logging.getLogger("basecagg").critical("crash", exc_info=error)


def log_to(stream: TextIO = sys.stderr, level: str = "INFO") -> None:
    """Send all logs of the service and of uvicorn to the stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    for name in ("basecagg", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False

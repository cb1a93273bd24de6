"""Logs: one JSON object a line on standard error, and nothing else there.

The rule it keeps: an event has a stable name and fields; values of rows are never among them, and
a text that came from outside is cut.
"""

import logging
import sys
from typing import Final

import structlog

TEXT_CHARACTERS_MAX: Final = 16 << 10
"""Characters of a field: a long traceback; of longer texts the middle is left out."""


def configure_logs(*, verbose: bool = False) -> None:
    """Sends the events of this program and of its libraries to standard error."""
    level = logging.DEBUG if verbose else logging.INFO
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        cut_texts,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,  # Another verb in this process may set it up again.
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def cut_texts(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Cuts the texts of an event: names and values that clients sent may be megabytes."""
    half = TEXT_CHARACTERS_MAX // 2
    for name, value in event.items():
        if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
            event[name] = f"{value[:half]}… ({len(value)} characters) …{value[-half:]}"
    return event

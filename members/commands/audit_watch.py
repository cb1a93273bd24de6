"""`groupcert audit --watch`: audits what is new every few minutes, and serves what was found.

`/` is the page of the last audit, `/summary.json` its summary, `/metrics` has what an alert needs,
`/healthz` answers with 503 if the last audit failed. An audit that fails is told and tried again.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ...certifier.audit.answers.result import JsonObject
from ...certifier.audit.output import REPORT, SUMMARY
from ...certifier.errors import GroupcertError, Unavailable
from ..console.http_server import serve
from ..errors.usage import InvalidOption
from ..services.metrics import Measurement, PlainCollector, metrics_application
from .audit import AuditOptions, audits, lines

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_PAGES = {
    "/": (REPORT, "text/html; charset=utf-8"),
    "/summary.json": (SUMMARY, "application/json"),
}
NONE_YET = "no audit is done yet"
_TEXT = "text/plain; charset=utf-8"


class Watched:
    """The pages of the last audit, and what it and those before were like, as metrics have it."""

    def __init__(self, out: Path) -> None:
        """Begins with the answers that are in the folder `out`, if there are some."""
        self._lock = threading.Lock()
        self._out = out
        self._pages = self._read()
        self._last: JsonObject = {}
        self._last_at = 0.0
        self._audits = self._failures = self._whole = 0
        self._failed: str | None = None

    def done(self, summary: JsonObject) -> None:
        """Takes the summary of an audit, whose pages are in the folder."""
        pages = self._read()
        with self._lock:
            self._pages = pages
            self._last, self._last_at, self._failed = summary, time.time(), None
            self._audits += 1
            since = summary["since"]
            self._whole += not isinstance(since, dict) or since["whole_because"] is not None

    def failed(self, error: GroupcertError) -> None:
        """Takes the error of an audit."""
        with self._lock:
            self._failed = str(error)
            self._audits += 1
            self._failures += 1

    def page(self, path: str) -> bytes | None:
        """Returns a page of the last audit; None before the first.

        The next audit's folder takes the place of the last one's in two steps: a page is not read
        when somebody asks.
        """
        return self._pages.get(path)

    def _read(self) -> dict[str, bytes]:
        if not (self._out / SUMMARY).is_file():
            return {}
        return {path: (self._out / name).read_bytes() for path, (name, _) in _PAGES.items()}

    @property
    def problem(self) -> str | None:
        """What is wrong with the watching itself; None if the last audit was made."""
        return self._failed if self._failed or self._audits else NONE_YET

    def measured(self) -> Iterator[Measurement]:
        """Yields the metrics."""
        with self._lock:
            findings = self._last.get("findings")
            counts = {}
            if isinstance(findings, dict):
                counts = {name: float(findings[f"{name}s"]) for name in ("error", "warning")}
            seconds = self._last.get("seconds", 0)
            assert isinstance(seconds, (int, float))
            numbers = (
                ("audits", "Audits that were begun.", self._audits, True),
                ("failures", "Audits that failed.", self._failures, True),
                ("whole_audits", "Audits that read all rows.", self._whole, True),
                ("last_timestamp_seconds", "When the last one was done.", self._last_at, False),
                ("last_duration_seconds", "How long that took.", seconds, False),
            )
        yield Measurement(
            "groupcert_audit_findings", "Findings of the last audit.", counts, "severity"
        )
        for name, text, value, is_counter in numbers:
            yield Measurement(f"groupcert_audit_{name}", text, value, is_counter=is_counter)


def watch_logs(options: AuditOptions, *, minutes: float, listen: str) -> int:
    """Audits until SIGINT or SIGTERM; returns the exit code.

    Raises:
        InvalidOption: the answers are not on this machine.
        PortTaken: another program serves at `listen`.
    """
    if "://" in options.out:
        expected = "a folder of this machine, whose page is served"
        raise InvalidOption(name="--out", value=options.out, expected=expected)
    options.settings()
    watched, ended = Watched(Path(options.out)), threading.Event()
    stop = serve(listen, _application(watched))
    sys.stderr.write(f"the last page is at http://{listen}/, metrics at http://{listen}/metrics\n")
    try:
        with _until_stopped(ended):
            while not ended.is_set():
                try:
                    going_on = replace(options, since=options.since or _before(options.out))
                    for summary in audits(going_on, lambda: not ended.wait(60 * minutes)):
                        watched.done(summary)
                        _tell(lines(summary, options.out))
                except Unavailable as error:
                    watched.failed(error)
                    _tell([str(error)])
                    ended.wait(60 * minutes)
    finally:
        stop()
    return 0


def _before(out: str) -> str | None:
    """Returns the folder of the answers if an audit has written it."""
    return out if (Path(out) / SUMMARY).is_file() else None


def _tell(told: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in told))
    sys.stdout.flush()


@contextmanager
def _until_stopped(ended: threading.Event) -> Iterator[None]:
    """Sets `ended` when the process is asked to stop."""

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _application(
    watched: Watched,
) -> "Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]":
    """Returns the answer to a request."""
    metrics = metrics_application(PlainCollector(watched.measured))

    def answer(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = str(environ["PATH_INFO"])
        if path == "/metrics":
            return metrics(environ, start)
        if path == "/healthz":
            problem = watched.problem
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            return _answered(start, status, problem or "ok")
        if path not in _PAGES:
            known = ", ".join([*_PAGES, "/metrics", "/healthz"])
            return _answered(start, HTTPStatus.NOT_FOUND, f"there is no {path}, only {known}")
        page = watched.page(path)
        if page is None:
            return _answered(start, HTTPStatus.SERVICE_UNAVAILABLE, NONE_YET)
        start(_line(HTTPStatus.OK), [("Content-Type", _PAGES[path][1])])
        return [page]

    return answer


def _answered(start: "StartResponse", status: HTTPStatus, text: str) -> Iterable[bytes]:
    start(_line(status), [("Content-Type", _TEXT)])
    return [f"{text}\n".encode()]


def _line(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"

"""What a process serves over HTTP, by path: WSGI applications, put together.

The rule it keeps: GET and HEAD of known paths, without a body, and nothing else; no page of another
site may read an answer or show it in a frame, and nothing may be kept by caches.
"""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog
from prometheus_client.registry import Collector

from ..services.metrics import metrics_application
from .http_server import serve
from .viewers import Viewers

TEXT = "text/plain; charset=utf-8"
HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Answer(NamedTuple):
    """One answer."""

    body: bytes
    type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


def told(text: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Returns a line of text as an answer."""
    return Answer(f"{text}\n".encode(), TEXT, status)


def page(answer: Callable[[], Answer]) -> WSGIApplication:
    """Returns an application that answers with what `answer` returns then."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return _answered(answer(), start_response)

    return application


def guarded(application: WSGIApplication, viewers: Viewers) -> WSGIApplication:
    """Returns an application that answers `viewers` only."""

    def guard(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        refusal = viewers.refusal(environ)
        if refusal is None:
            return application(environ, start_response)
        challenges = [("WWW-Authenticate", each) for each in refusal.challenges]
        return _answered(told(refusal.text, refusal.status), start_response, *challenges)

    return guard


def paths(routes: Mapping[str, WSGIApplication]) -> WSGIApplication:
    """Returns the application of all paths; another one is answered with a list of them."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(status, [*headers, *HEADERS], *error)

        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method not in ("GET", "HEAD"):
            refused = told("this is read only: GET and HEAD", HTTPStatus.METHOD_NOT_ALLOWED)
            return _answered(refused, start, ("Allow", "GET, HEAD"))
        if path not in routes:
            listed = "\n".join(["there is no such path; there are", *routes])
            return _answered(told(listed, HTTPStatus.NOT_FOUND), start)
        try:
            body = b"".join(routes[path]({**environ, "REQUEST_METHOD": "GET"}, start))
        except TimeoutError:
            late = told("the event loop does not answer", HTTPStatus.SERVICE_UNAVAILABLE)
            return _answered(late, start)
        except Exception as error:
            log.error("http_failed", path=path, text=repr(error))
            failed = told("this failed; the log says why", HTTPStatus.INTERNAL_SERVER_ERROR)
            return _answered(failed, start)
        return [body] if method == "GET" else []

    return application


def _answered(
    answer: Answer, start_response: StartResponse, *headers: tuple[str, str]
) -> Iterable[bytes]:
    status = f"{answer.status.value} {answer.status.phrase}"
    length = ("Content-Length", str(len(answer.body)))
    start_response(status, [("Content-Type", answer.type), length, *headers])
    return [answer.body]


def serve_metrics(address: str, *collectors: Collector) -> Callable[[], None]:
    """Serves `/metrics` and `/healthz` at `host:port`; returns a function that stops that.

    Raises PortTaken if another program serves there.
    """
    alive = page(lambda: told("alive"))
    metrics = metrics_application(*collectors)
    return serve(address, paths({"/metrics": metrics, "/healthz": alive}))

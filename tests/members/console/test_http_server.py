"""The server answers whoever asks, whatever others do to it: each test speaks to a real socket."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from groupcert.members.console import http_server
from groupcert.members.console.http_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, serve
from groupcert.members.console.paths import HEADERS, Answer, page, paths, told
from groupcert.members.host.loopback import HOST, free_port

PAGE = b"<p>it</p>"


def fails() -> Answer:
    raise ZeroDivisionError


@pytest.fixture
def port() -> Iterator[int]:
    """A server with a page, and one that fails."""
    number = free_port()
    routes = {"/": page(lambda: Answer(PAGE, "text/html")), "/told": page(lambda: told("yes"))}
    stop = serve(f"{HOST}:{number}", paths({**routes, "/fails": page(fails)}))
    yield number
    stop()


def ask(port: int, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(HOST, port)
    connection.request(method, path)
    with connection.getresponse() as answer:
        return answer.status, dict(answer.getheaders()), answer.read()


def raw(port: int, head: bytes) -> bytes:
    """What the server says to bytes, until it hangs up."""
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(head)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
        return b"".join(parts)


def test_a_page_comes_with_what_keeps_other_sites_out(port: int) -> None:
    status, headers, body = ask(port, "GET", "/")
    assert (status, body, headers["Content-Type"]) == (200, PAGE, "text/html")
    assert headers.items() >= dict(HEADERS).items()
    assert "Access-Control-Allow-Origin" not in headers


def test_head_has_the_headers_alone(port: int) -> None:
    status, headers, body = ask(port, "HEAD", "/")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(PAGE)))


def test_another_path_is_answered_with_those_that_there_are(port: int) -> None:
    status, _, body = ask(port, "GET", "/../etc/passwd")
    assert (status, body) == (404, b"there is no such path; there are\n/\n/told\n/fails\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"])
def test_it_is_read_only(port: int, method: str) -> None:
    status, headers, _ = ask(port, method, "/")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_page_that_fails_says_so_without_particulars(port: int) -> None:
    status, _, body = ask(port, "GET", "/fails")
    assert (status, body) == (500, b"this failed; the log says why\n")


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"y" * HEAD_BYTES_MAX, b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX, b"431"),
        (b"GET /" + b"y" * HEAD_BYTES_MAX, b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"\r\n", b""),
    ],
)
def test_what_is_no_request_of_its_size_is_turned_away(
    port: int, head: bytes, answer: bytes
) -> None:
    try:
        assert answer in raw(port, head)[:200]
    except ConnectionError:  # It hung up on what it had not read.
        pass
    assert ask(port, "GET", "/")[0] == 200


def test_who_holds_connections_keeps_nobody_out(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            held = stack.enter_context(socket.create_connection((HOST, port)))
            held.sendall(b"GET / HT")
        for _ in range(5):
            assert ask(port, "GET", "/")[2] == PAGE
        assert threading.active_count() < 2 * CONNECTIONS_MAX


def test_who_sends_too_slowly_is_hung_up_on(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.1)
    with socket.create_connection((HOST, port)) as held:
        held.sendall(b"GET / HT")
        assert held.recv(1_000) == b""


def test_who_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 0.1)
    number = free_port()
    stop = serve(f"{HOST}:{number}", paths({"/": page(lambda: Answer(bytes(64 << 20)))}))
    try:
        with socket.create_connection((HOST, number)) as held:
            held.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert wait_until(lambda: not answering())
    finally:
        stop()


def answering() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "process_request_thread" in each.name]


def wait_until(holds: Callable[[], bool]) -> bool:
    """Whether it holds within a minute; while there is no thread yet, it waits for that."""
    while not answering():
        time.sleep(0.005)
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()

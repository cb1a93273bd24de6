"""The console of one member: takes samples, asks the other members, and serves pages.

Samples and questions are tasks of the member's event loop. Browsers are answered by threads, which
have the event loop copy numbers and make a document of these: once a second at most, however many
pages are open. Load balancers and supervisors ask here, too, whether the process lives and may be
sent clients.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog

from ...certifier.errors import NotServing
from ..core.views import MemberState
from ..door.answer_budget import AnswerBudget, Unsent
from ..runtime.observation import Observation
from ..services.current_runtime import CurrentRuntime
from ..settings.member import MemberConfig
from ..settings.shown import shown_settings
from .document import document
from .http_server import serve
from .paths import Answer, guarded, page, paths, told
from .peers import Peers
from .samples import PERIOD_SECONDS, History
from .seen import Seen, others, sample_of, seen
from .viewers import Viewers

LOOP_SECONDS_MAX = 2.0
PEERS_SECONDS = 0.2
"""Seconds that a document waits for the other members' answers; later ones are in the next one."""
SHARED_SECONDS = 0.9
"""Pages ask once a second; all of them get the same document."""
FILES: Mapping[str, str] = {
    "console.html": "text/html; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
    "group.js": "text/javascript; charset=utf-8",
    "tables.js": "text/javascript; charset=utf-8",
    "units.js": "text/javascript; charset=utf-8",
}
Result = TypeVar("Result")
log: structlog.stdlib.BoundLogger = structlog.get_logger()
State = tuple[str, str]
"""The name of a member's state, and why it is not ONLINE."""


def health(state: Callable[[], State]) -> Answer:
    """Answers whether the event loop does: also that of a fenced member, which a restart would not
    help.
    """
    state()
    return told("alive")


def readiness(state: Callable[[], State]) -> Answer:
    """Answers whether the member is ONLINE; if it is not, with its state and the reason."""
    now, reason = state()
    if now == MemberState.ONLINE.name:
        return told(now)
    text = f"{now}: {reason}".removesuffix(": ")
    return told(text, HTTPStatus.SERVICE_UNAVAILABLE)


class Console:
    """The console of one member's process."""

    def __init__(
        self, config: MemberConfig, current: CurrentRuntime, answers: AnswerBudget
    ) -> None:
        self._config = config
        self._current = current
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._peers = Peers(config.credentials(), self._newest_version)
        self._history = History()
        self._shared = Shared(self._document)

    def on_loop(self, look: Callable[[], Result], seconds_max: float) -> Result:
        """Returns the result of `look` on the event loop to other threads. Raises TimeoutError."""

        async def see() -> Result:
            return look()

        return self._run(see(), seconds_max)

    def _run(self, work: Coroutine[None, None, Result], seconds_max: float) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds_max)

    @asynccontextmanager
    async def serving(self, address: str, metrics: WSGIApplication) -> AsyncIterator[None]:
        """Serves pages, probes and metrics while the block runs. Raises PortTaken."""
        stop = serve(address, self._counted(self._application(metrics)))
        sampling = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            await asyncio.to_thread(stop)
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            await self._peers.close()

    def _application(self, metrics: WSGIApplication) -> WSGIApplication:
        config = self._config
        viewers = Viewers(config.access, (config.address, config.console_address))
        state = partial(self.on_loop, self._state, LOOP_SECONDS_MAX)
        folder = files("groupcert.members.console").joinpath("page")
        routes = {
            f"/{name}": page(partial(Answer, folder.joinpath(name).read_bytes(), kind))
            for name, kind in FILES.items()
        }
        routes = {"/": routes.pop("/console.html"), **routes}
        routes["/console.json"] = page(
            lambda: Answer(self._shared.get(), "application/json; charset=utf-8")
        )
        open_to_all = {
            "/metrics": metrics,
            "/healthz": page(partial(health, state)),
            "/readyz": page(partial(readiness, state)),
        }
        return paths({each: guarded(routes[each], viewers) for each in routes} | open_to_all)

    def _counted(self, application: WSGIApplication) -> WSGIApplication:
        """Returns an application whose answers are in the budget until they are taken, or the
        server has hung up: they wait for nobody, as there are few connections.
        """

        def count(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            answer = _Counted(application(environ, start_response))
            unsent = Unsent(self._answers.places, f"http {environ['REMOTE_ADDR']}")
            on_loop = self._loop.call_soon_threadsafe
            on_loop(unsent.settle, sum(map(len, answer)))
            answer.on_taken = partial(on_loop, unsent.settle, 0)
            return answer

        return count

    def _state(self) -> State:
        try:
            self._current.stopping.check(self._config.member)
            member = self._current.operated().member
        except NotServing as error:
            return error.state, ""
        return member.state.name, member.reason

    async def _sample(self) -> None:
        """Takes samples for ever, whether or not somebody looks."""
        while True:
            begun_at = self._loop.time()
            try:
                observed = await self._observed()
                sample = sample_of(observed, self._peers) if observed else None
            except Exception as error:  # The console may fail, but not for good.
                log.error("console_sample_failed", member=self._config.member, text=repr(error))
                sample = None
            self._history.add(sample, time.time_ns() // 1000)
            await asyncio.sleep(PERIOD_SECONDS - (self._loop.time() - begun_at))

    async def _observed(self) -> Observation | None:
        """Returns an observation of the run, if there is one, once the others were asked."""
        if self._current.runtime is None:
            return None
        await self._peers.ask(others(self._current.observed()), PEERS_SECONDS)
        return self._current.observed()

    async def _see(self) -> Seen | None:
        observed = await self._observed()
        return seen(observed, self._peers, self._history) if observed else None

    def _newest_version(self) -> int:
        return self._current.operated().member.certifier.window.newest_version

    def _document(self) -> bytes:
        found = self._run(self._see(), LOOP_SECONDS_MAX)
        if found is None:
            starting = {"group": self._config.group, "observer": self._config.member}
            return json.dumps(starting | {"starting": True}).encode()
        made = document(found, shown_settings(self._config))
        return json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()


class _Counted(list[bytes]):
    """An answer that says when it is taken."""

    on_taken: Callable[[], object]

    def close(self) -> None:
        """Notes that it was taken, or given up: the server calls it."""
        with suppress(RuntimeError):  # The event loop has ended before.
            self.on_taken()


class Shared:
    """A document that is made when somebody asks, at most once in `SHARED_SECONDS`."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made, self._made_at = b"", -SHARED_SECONDS

    def get(self) -> bytes:
        """Returns the document; whoever asks while it is made waits for it."""
        with self._lock:
            if time.monotonic() - self._made_at >= SHARED_SECONDS:
                self._made = self._make()
                self._made_at = time.monotonic()
            return self._made

"""Callers that make the fuzzer's calls, many at a time, and count how they end."""

import asyncio
import json
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from groupcert.members.security.credentials import Credentials
from groupcert.members.wire.channels import open_aio_channel, token_metadata
from tests.fuzz.calls import Call, harmless
from tests.fuzz.chosen_calls import chosen_calls
from tests.fuzz.methods import methods, why_left_out
from tests.fuzz.mutations import mutated
from tests.fuzz.random_messages import random_message
from tests.fuzz.valid_requests import VALID
from tests.fuzz.values import Answers

CALLERS = 10
ANSWERS_MAX = 20
"""Messages of one stream that are read; then its client hangs up."""
STREAM_MESSAGES_MAX = 4
LAST_CALLS = 300
SHOWN_BYTES = 4_096
"""Of each message among the last calls."""
FRESH_SHARE = 0.02
"""Of calls that come over a connection of their own."""
ANONYMOUS_SHARE = 0.02
"""Of calls without a token."""
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
REFUSED_HERE = "NOT_SENT"
"""The library of the client refused it."""


class LastCalls:
    """The last calls to each member: what somebody reads who looks for what ended it."""

    def __init__(self) -> None:
        self._calls: dict[str, deque[dict[str, object]]] = {}

    def note(self, member: str, call: Call) -> dict[str, object]:
        """Adds a call that begins; its status is set in what is returned."""
        noted: dict[str, object] = {
            "time": round(time.time(), 3),
            "case": call.case,
            "method": call.method.path,
            "payloads": [each[:SHOWN_BYTES].hex() for each in call.payloads[:STREAM_MESSAGES_MAX]],
            "bytes": [len(each) for each in call.payloads],
            "status": "running",
        }
        self._calls.setdefault(member, deque(maxlen=LAST_CALLS)).append(noted)
        return noted

    def write(self, folder: Path) -> None:
        """Writes a file of JSON lines for each member."""
        for member, calls in self._calls.items():
            lines = "".join(json.dumps(each) + "\n" for each in calls)
            (folder / f"last-calls-{member}.jsonl").write_text(lines)


class Callers:
    """All callers of one run."""

    def __init__(
        self, addresses: Mapping[str, str], credentials: Credentials, seed: str, answers: Answers
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._seed = seed
        self._answers = answers
        self.last_calls = LastCalls()
        self.statuses: Counter[tuple[str, str]] = Counter()
        """Calls, by method and status."""
        self.cases: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    async def run(self, stopped: asyncio.Event) -> None:
        """Calls until it is stopped."""
        channels = {name: self._channel(address) for name, address in self._addresses.items()}
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(CALLERS):
                    group.create_task(self._work(number, channels, stopped))
        finally:
            for channel in channels.values():
                await channel.close(None)

    async def _work(
        self, number: int, channels: Mapping[str, grpc.aio.Channel], stopped: asyncio.Event
    ) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        while not stopped.is_set():
            member = chance.choice(list(self._addresses))
            calls = self._draw(chance)
            if chance.random() < FRESH_SHARE:
                async with self._channel(self._addresses[member]) as channel:
                    await self._send_all(member, channel, calls, chance)
            else:
                await self._send_all(member, channels[member], calls, chance)

    async def _send_all(
        self, member: str, channel: grpc.aio.Channel, calls: Sequence[Call], chance: random.Random
    ) -> None:
        token = () if chance.random() < ANONYMOUS_SHARE else token_metadata(self._credentials)
        await asyncio.gather(*(self._send(member, channel, each, token) for each in calls))

    def _channel(self, address: str) -> grpc.aio.Channel:
        return open_aio_channel(address, self._credentials, OPTIONS)

    def _draw(self, chance: random.Random) -> list[Call]:
        """Returns calls that may be made side by side."""
        mode = chance.random()
        if mode < 0.3:
            drawn = chosen_calls(chance, self._answers)
        else:
            drawn = [self._drawn(chance, is_mutated=mode < 0.65)]
        sent = []
        for each in drawn:
            payloads = [harmless(payload) for payload in each.payloads]
            whys = (why_left_out(each.method, payload) for payload in payloads or [b""])
            if why := next(filter(None, whys), ""):
                self.left_out[f"{each.method.name}: {why}"] += 1
            else:
                sent.append(each._replace(payloads=payloads))
        return sent

    def _drawn(self, chance: random.Random, *, is_mutated: bool) -> Call:
        method = chance.choice(methods())
        count = chance.randrange(STREAM_MESSAGES_MAX + 1) if method.streams_requests else 1
        if is_mutated and method.name in VALID:
            messages = VALID[method.name](chance, self._answers)
        else:
            messages = [random_message(method.request, chance, self._answers) for _ in range(count)]
        payloads = [each.SerializeToString() for each in messages]
        if is_mutated:
            payloads = [
                mutated(each, chance) if chance.random() < 0.8 else each for each in payloads
            ]
        timeout_s = chance.choice((0.05, 0.5, 2.0))
        return Call("mutated" if is_mutated else "random", method, payloads, timeout_s)

    async def _send(
        self,
        member: str,
        channel: grpc.aio.Channel,
        call: Call,
        token: tuple[tuple[str, str], ...],
    ) -> None:
        noted = self.last_calls.note(member, call)
        status = await self._status(channel, call, token)
        noted["status"] = status
        self.statuses[call.method.name, status] += 1
        self.cases[call.case] += 1

    async def _status(
        self, channel: grpc.aio.Channel, call: Call, token: tuple[tuple[str, str], ...]
    ) -> str:
        """Makes a call, and returns the name of its status."""
        made: Any = None
        is_cancelled = asyncio.Event()
        metadata = (*token, *call.metadata)
        try:
            made = self._made(channel, call, metadata)
            if call.cancel_after_s is not None:

                def cancel() -> None:
                    is_cancelled.set()
                    made.cancel()

                asyncio.get_running_loop().call_later(call.cancel_after_s, cancel)
            await self._take(made, call)
            return "OK"
        except grpc.aio.AioRpcError as error:
            return error.code().name
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not is_cancelled.is_set() or (task and task.cancelling()):
                raise
            return "CANCELLED"
        except (ValueError, TypeError, grpc.aio.UsageError):
            return REFUSED_HERE
        finally:
            if made is not None:
                made.cancel()

    def _made(self, channel: grpc.aio.Channel, call: Call, metadata: Any) -> Any:
        method = call.method
        kinds = {False: "unary", True: "stream"}
        kind = f"{kinds[method.streams_requests]}_{kinds[method.streams_responses]}"
        requests: Any = call.payloads[0] if call.payloads else b""
        if method.streams_requests:
            requests = _requests(call)
        make = getattr(channel, kind)(method.path)
        return make(requests, timeout=call.timeout_s, metadata=metadata)

    async def _take(self, made: Any, call: Call) -> None:
        """Reads the answers of a call."""
        if not call.method.streams_responses:
            self._harvest(call, await made)
            return
        count = 0
        async for answer in made:
            self._harvest(call, answer)
            count += 1
            if count == ANSWERS_MAX:
                return

    def _harvest(self, call: Call, answer: bytes) -> None:
        with suppress(DecodeError):
            self._answers.harvest(call.method.response.FromString(answer))


async def _requests(call: Call) -> AsyncIterator[bytes]:
    for payload in call.payloads:
        yield payload
    if not call.half_closes:
        await asyncio.sleep(call.timeout_s)

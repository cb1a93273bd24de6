"""Messages that a stranger with the right to write puts into the group's log.

What is no valid message of a member, all members skip. What is one, they believe, by design: a log
that others may write to is not protected by that. `judged` says which is which, so that the run
goes on after the second kind, and is strict about the first.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from groupcert.internal.v1.log_pb2 import (
    ControlRecord,
    Fragment,
    FragmentSet,
    GroupSettings,
    LogBatch,
    LogBatchHead,
    LoggedTransaction,
    MemberReport,
    ViewProposal,
)
from groupcert.internal.v1.log_pb2 import Member as NamedRun
from groupcert.members.core.views import FORMAT_FIRST, FORMAT_VERSION
from tests.fuzz.calls import harmless
from tests.fuzz.methods import MEMBERS
from tests.fuzz.mutations import MESSAGE_BYTES_MAX, mutated
from tests.fuzz.orders import FuzzedOrder, Publish
from tests.fuzz.random_messages import random_message
from tests.fuzz.values import Answers
from tests.fuzz.watcher import Watcher

FORMATS = range(FORMAT_FIRST, FORMAT_VERSION + 1)
"""Those that members know, and 0, which is none and skipped."""
CAPTURED_MAX = 200
LAST_MESSAGES = 300
PAUSE_SECONDS = 0.1
IN_A_RUNS_NAME_SECONDS = 20.0
"""Between two messages that a member's run is held for the author of: it comes back each time."""
AHEAD_MAX = 1_000


class Judgement(NamedTuple):
    """What members make of a message."""

    left_out: str = ""
    """Why it is not published: it has an effect that is meant."""
    run_of: str = ""
    """The member whose run it is of, which may come back as another run."""


class CapturedLog:
    """The last messages of the group's log, and the runs that wrote them."""

    def __init__(self) -> None:
        self.payloads: deque[bytes] = deque(maxlen=CAPTURED_MAX)
        self.runs: dict[int, str] = {}
        """The member of each run."""
        self.numbers: dict[int, int] = {}
        """The last batch of each run."""

    def take(self, payload: bytes) -> None:
        """Takes a message that a member has sent."""
        with suppress(DecodeError):
            head = LogBatchHead.FromString(payload)
            if head.member in MEMBERS and head.format_version in FORMATS:
                self.payloads.append(payload)
                self.runs[head.incarnation] = head.member
                last = self.numbers.get(head.incarnation, 0)
                self.numbers[head.incarnation] = max(last, head.batch_number)

    def newest_run(self, chance: random.Random) -> int:
        """Returns a run that has written lately; 0: none has."""
        return LogBatchHead.FromString(chance.choice(self.payloads)).incarnation


def judged(payload: bytes, log: CapturedLog) -> Judgement:
    """Returns what members make of a message, as far as that is by design."""
    try:
        head = LogBatchHead.FromString(payload)
    except DecodeError:
        return Judgement()
    member = log.runs.get(head.incarnation, "")
    if head.format_version not in FORMATS:
        return Judgement()
    try:
        batch = LogBatch.FromString(payload)
    except DecodeError:
        return Judgement()
    kinds = {each.WhichOneof("record") for each in batch.controls}
    if not member:
        joins = [
            each.name
            for control in batch.controls
            for each in control.view_proposal.members
            if each.incarnation == batch.incarnation and each.name in MEMBERS
        ]
        return Judgement("a later process of a member's name takes it over" if joins else "")
    if batch.batch_number <= log.numbers[batch.incarnation]:
        return Judgement()
    if kinds & {"group_settings", "view_proposal", "row_digests"} and None not in kinds:
        return Judgement("a member may change settings and views, and tell of its rows")
    return Judgement(run_of=member)


class LogMessages:
    """Publishes messages until it is stopped."""

    def __init__(self, order: FuzzedOrder, seed: str, answers: Answers, watcher: Watcher) -> None:
        self._order = order
        self._chance = random.Random(f"{seed}/log")
        self._answers = answers
        self._watcher = watcher
        self.log = CapturedLog()
        self.sent: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.last_messages: deque[tuple[str, bytes]] = deque(maxlen=LAST_MESSAGES)
        self._own: set[bytes] = set()
        self._next_named = 0.0

    async def run(self, stopped: asyncio.Event) -> None:
        """Publishes until it is stopped, some messages a second."""
        async with self._order.stranger(self._take) as publish:
            while not stopped.is_set():
                if self.log.payloads:
                    name, payload = self._draw()
                    await self._publish(publish, name, harmless(payload))
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), PAUSE_SECONDS)

    def _take(self, payload: bytes) -> None:
        if payload in self._own:
            self._own.discard(payload)
        else:
            self.log.take(payload)

    async def _publish(self, publish: Publish, name: str, payload: bytes) -> None:
        payload = payload[:MESSAGE_BYTES_MAX]
        judgement = judged(payload, self.log)
        if judgement.left_out:
            self.left_out[judgement.left_out] += 1
            return
        if judgement.run_of:
            now = asyncio.get_running_loop().time()
            if now < self._next_named or not self._watcher.all_are_online():
                self.left_out["in a run's name, too soon after the last one"] += 1
                return
            self._next_named = now + IN_A_RUNS_NAME_SECONDS
            self._watcher.excuse(judgement.run_of)
            name = "in a run's name"
        self._own.add(payload)
        self.last_messages.append((name, payload))
        await publish(payload)
        self.sent[name] += 1

    def _draw(self) -> tuple[str, bytes]:
        chance = self._chance
        mode = chance.random()
        if mode < 0.15:
            return "random", random_message(LogBatch, chance, self._answers).SerializeToString()
        if mode < 0.4:
            name, build = chance.choice(CHOSEN)
            return name, build(chance, self)
        batch = LogBatch.FromString(chance.choice(self.log.payloads))
        if mode < 0.6:
            batch.incarnation = chance.getrandbits(64)
            batch.member = chance.choice(("m9", *MEMBERS))
            return "mutated, of a stranger", mutated(batch.SerializeToString(), chance)
        if mode < 0.7:
            batch.incarnation = self.log.newest_run(chance)
            batch.member = self.log.runs[batch.incarnation]
            mutated_batch = LogBatch()
            with suppress(DecodeError):
                mutated_batch.ParseFromString(mutated(batch.SerializeToString(), chance))
            last = self.log.numbers[batch.incarnation]
            mutated_batch.batch_number = last + chance.randrange(1, AHEAD_MAX)
            mutated_batch.incarnation, mutated_batch.member = batch.incarnation, batch.member
            mutated_batch.format_version = chance.choice((*FORMATS, FORMAT_VERSION + 1))
            return "of a run", mutated_batch.SerializeToString()
        return "mutated repetition", mutated(batch.SerializeToString(), chance)


def _stranger(chance: random.Random, **fields: object) -> bytes:
    batch = LogBatch(
        format_version=chance.choice((FORMAT_FIRST, FORMAT_VERSION)),
        member="m9",
        incarnation=chance.getrandbits(63) + 1,
        batch_number=chance.choice((1, 2, 65_536, 65_537, 2**64 - 1)),
        **fields,  # type: ignore[arg-type]  # one of its own
    )
    return batch.SerializeToString()


def _in_a_name(chance: random.Random, log: CapturedLog, **fields: object) -> bytes:
    """Returns an invalid batch in the name of a run: its number is too far ahead, or it lies."""
    incarnation = log.newest_run(chance)
    batch = LogBatch(
        format_version=chance.choice((FORMAT_FIRST, FORMAT_VERSION)),
        member=log.runs[incarnation],
        incarnation=incarnation,
        batch_number=log.numbers[incarnation],
        **fields,  # type: ignore[arg-type]  # one of its own
    )
    return batch.SerializeToString()


def _control(chance: random.Random, messages: LogMessages) -> bytes:
    """Returns control records of a stranger."""
    huge = chance.choice((0, 2**63, 2**64 - 1))
    run = NamedRun(name="m9", incarnation=9, address=chance.choice(("", "x", "127.0.0.1:9")))
    kinds: Sequence[ControlRecord] = (
        ControlRecord(view_proposal=ViewProposal(previous_view_id=huge)),
        ControlRecord(view_proposal=ViewProposal(previous_view_id=1, members=[run] * 30)),
        ControlRecord(report=MemberReport(applied_version=huge, digest=bytes(1_000))),
        ControlRecord(group_settings=GroupSettings(settings_version=1, group="other")),
        ControlRecord(group_settings=GroupSettings(settings_version=2, group="local")),
        ControlRecord(),
    )
    return _stranger(chance, controls=[chance.choice(kinds)] * chance.choice((1, 2, 1_000)))


def _unknown_kinds(chance: random.Random, messages: LogMessages) -> bytes:
    """Returns control records of which one is of a kind that no release knows."""
    field, size = chance.randrange(20, 2**20), chance.choice((0, 1, 1_000))
    unknown = bytearray()
    for number in (field << 3 | 2, size):
        while number > 0x7F:
            unknown.append(number & 0x7F | 0x80)
            number >>= 7
        unknown.append(number)
    view = ControlRecord(view_proposal=ViewProposal(previous_view_id=chance.randrange(9)))
    controls = [view] * chance.randrange(3)
    controls.append(ControlRecord.FromString(bytes(unknown) + bytes(size)))
    if chance.random() < 0.5:
        return _stranger(chance, controls=controls)
    return _in_a_name(chance, messages.log, controls=controls)


def _fragments(chance: random.Random, messages: LogMessages) -> bytes:
    huge = chance.choice((0, 1, 2**32, 2**63, 2**64 - 1))
    pieces = [Fragment(number=huge, index=2**32 - 1, data=chance.randbytes(50)) for _ in range(9)]
    refers = LoggedTransaction(
        fragments=FragmentSet(number=huge, count=2**32 - 1, bytes=2**64 - 1, digest=bytes(99))
    )
    if chance.random() < 0.5:
        return _stranger(chance, fragments=pieces, transactions=[refers])
    return _in_a_name(chance, messages.log, fragments=pieces, transactions=[refers])


def _many(chance: random.Random, messages: LogMessages) -> bytes:
    """Returns a message with too many of something small."""
    many: Sequence[dict[str, Sequence[Message]]] = (
        {"transactions": [LoggedTransaction()] * 65_537},
        {"fragments": [Fragment()] * 65_537},
        {"controls": [ControlRecord()] * 65_537},
    )
    return _in_a_name(chance, messages.log, **chance.choice(many))


def _long_sets(chance: random.Random, messages: LogMessages) -> bytes:
    text = ":".join(map(str, range(1, chance.choice((20_000, 200_000, 380_000)), 2)))
    transaction = LoggedTransaction(snapshot_gtid_set=f"{'0' * 8}-f022-4e5d-8000-{'0' * 12}:{text}")
    return _stranger(chance, transactions=[transaction])


def _too_far_ahead(chance: random.Random, messages: LogMessages) -> bytes:
    payload = _in_a_name(chance, messages.log, transactions=[LoggedTransaction()])
    batch = LogBatch.FromString(payload)
    batch.batch_number = 2**63
    batch.member = next(each for each in MEMBERS if each != batch.member)
    return batch.SerializeToString()


CHOSEN: Sequence[tuple[str, Callable[[random.Random, LogMessages], bytes]]] = (
    ("control records of a stranger", _control),
    ("records of unknown kinds", _unknown_kinds),
    ("fragments", _fragments),
    ("too many fields", _many),
    ("long sets of GTIDs", _long_sets),
    ("another member's name", _too_far_ahead),
    ("an unknown format", lambda chance, _: LogBatchHead(
        format_version=chance.choice((0, FORMAT_VERSION + 1, 2**32 - 1)), member="m1", incarnation=9
    ).SerializeToString()),
    ("empty", lambda *_: b""),
    ("noise", lambda chance, _: chance.randbytes(chance.choice((1, 100, 500_000)))),
)  # fmt: skip

"""A member's whole way from the log to its store, with messages that no member would send.

Method: messages made by chance of values at the edges of what the wire can carry, many of them in
the names of members of the view, go through a real runtime: decoded, certified, stored, applied,
with a history and a binary log. Nothing but the two errors that fence may come of one, and two
members that read the same must agree.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from groupcert.certifier.errors import ForeignLog, UnsupportedFormat
from groupcert.internal.v1 import log_pb2
from groupcert.members.core.log_records import LogBatch, ViewProposal
from groupcert.members.core.member import Member
from groupcert.members.core.views import View, ViewMember
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from groupcert.v1 import transaction_pb2
from tests.members.rows import rows_of
from tests.members.runtime.test_runtime import WRITER, runtime_at

MESSAGES = 500
NUMBERS = (0, 1, 2, 3, 2**20, 2**31, 2**32 - 1)
LARGE_NUMBERS = (*NUMBERS, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
GTID_SETS = ("", f"{GROUP}:1-3", f"{GROUP}:{2**63 - 2}", f"{GROUP}:5-2", "junk", f"{GROUP}:1:1-9,,")
GTIDS = ("", f"{GROUP}:7", f"{GROUP}:x:{2**63 - 2}", f"{GROUP}:{2**63 - 1}", "junk", f"{GROUP}:0")
TEXTS = ("", "m1", "m2", "close", "tight", GROUP, "g", "a b", "127.0.0.1:1", "x" * 300, "[/]\n")
CHANGES = (
    b"",
    b"\xff",
    b"\x00" * 45,
    transaction_pb2.Changes(put_keys=[b"k"]).SerializeToString(),
    transaction_pb2.Changes(put_keys=[b"", b"k"], put_values=[b"", b"v"]).SerializeToString(),
    transaction_pb2.Changes(delete_keys=[b"k"], continued=True).SerializeToString(),
)


class Forger:
    """Whoever writes to the log, and knows what members say of themselves."""

    def __init__(self, seed: int, member: Member) -> None:
        self._dice = random.Random(seed)
        self._member = member

    def message(self) -> bytes:
        """The next one."""
        dice, member = self._dice, self._member
        view = member.view
        if dice.random() < 0.1:
            return self._joining(view)
        runs = [(each.name, each.incarnation) for each in view.members]
        name, incarnation = dice.choice((*runs * 5, ("m9", 9), ("m2", 8)))
        last = member.numbers.last(incarnation) or 0
        batch = log_pb2.LogBatch(
            format_version=dice.choice((*(2, 3) * 10, 0, 1)),
            member=dice.choice((*(name,) * 60, *TEXTS)),
            incarnation=incarnation,
            batch_number=dice.choice((*(last + 1,) * 60, last + 2**63, *LARGE_NUMBERS)),
        )
        for _ in range(dice.choice((0, 1, 1, 2))):
            self._add_transaction(batch.transactions.add())
        for _ in range(dice.choice((0, 0, 0, 0, 0, 0, 0, 1, 2))):
            self._add_control(batch.controls.add(), incarnation)
        for _ in range(dice.choice((0, 0, 0, 1))):
            batch.fragments.add(
                number=dice.choice(LARGE_NUMBERS), index=dice.choice(NUMBERS), data=b"junk"
            )
        encoded = batch.SerializeToString()
        return encoded if dice.random() < 0.95 else encoded[: dice.randrange(len(encoded))]

    def _joining(self, view: View) -> bytes:
        """A run that joins, in the place of another one of its name."""
        number = self._dice.choice((2, 3, 9))
        run = ViewMember(
            name=f"m{number}", incarnation=self._dice.getrandbits(60), address="127.0.0.1:1"
        )
        proposal = ViewProposal(view.view_id, view.with_member(run))
        return encode_batch(LogBatch(run.name, run.incarnation, 1, controls=[proposal]))

    def _add_transaction(self, message: log_pb2.LoggedTransaction) -> None:
        dice = self._dice
        newest = self._member.certifier.window.newest_version
        message.transaction_id = dice.choice((*(b"",) * 20, b"id", dice.randbytes(16), bytes(33)))
        message.snapshot_version = dice.choice((*(newest,) * 60, *LARGE_NUMBERS))
        message.snapshot_gtid_set = dice.choice((*("",) * 60, *GTID_SETS))
        message.write_set.extend(dice.choices(LARGE_NUMBERS, k=dice.randint(0, 3)))
        message.read_set.extend(dice.choices(LARGE_NUMBERS, k=dice.choice((0, 0, 2))))
        message.gtid = dice.choice((*("",) * 60, *GTIDS))
        message.changes = dice.choice((*(CHANGES[4],) * 60, *CHANGES))
        message.report_applied = dice.random() < 0.1
        message.gtid_domain_id = dice.choice((0, 0, 0, 2**32 - 1))
        if dice.random() < 0.05:  # Fragments that are there are those of another test.
            message.fragments.number = dice.choice(LARGE_NUMBERS)
            message.fragments.count = dice.choice((0, 2, 2**32 - 1))
            message.fragments.bytes = dice.choice(LARGE_NUMBERS)
            message.fragments.digest = bytes(dice.choice((0, 16, 17)))

    def _add_control(self, message: log_pb2.ControlRecord, incarnation: int) -> None:
        dice = self._dice

        def large() -> int:
            return dice.choice(LARGE_NUMBERS)

        view, settings = self._member.view, self._member.settings
        match dice.randrange(7):
            case 0:
                proposal = message.view_proposal
                proposal.previous_view_id = dice.choice((*(view.view_id,) * 5, large()))
                for each in dice.sample(view.members, dice.randint(0, len(view.members))):
                    member = (each.name, each.incarnation, each.address, each.weight)
                    self._add_member(proposal, member)
                if dice.random() < 0.5:
                    self._add_member(proposal, ("m9", incarnation, dice.choice(TEXTS), 2**32 - 1))
            case 1:
                report = message.report
                report.applied_version, report.stable_version = large(), large()
                report.digest_log_sequence, report.durable_log_sequence = large(), large()
                report.digest = bytes(dice.choice((0, 0, 100)))
                report.history_place = large()
                report.history_chain = bytes(dice.choice((0, 100)))
            case 2:
                values = message.group_settings
                values.settings_version = dice.choice((*(settings.settings_version + 1,) * 5, 7))
                values.group = dice.choice((*(settings.group,) * 9, *TEXTS))
                values.group_uuid = dice.choice((*(settings.group_uuid,) * 9, *TEXTS))
                values.gtid_assignment_block_size = large()
                values.gc_window = dice.choice(TEXTS)
                values.write_set_items_max = dice.choice(NUMBERS)
                values.outcomes_max = dice.choice((*(settings.outcomes_max,) * 5, large()))
                values.flow_control_lag_max = large()
                values.members_allowed.extend(dice.choices(TEXTS, k=dice.choice((0, 1))))
                values.postgresql_tables.extend(dice.choices(TEXTS, k=dice.choice((0, 0, 1))))
            case 3:
                message.appointment.primary = dice.choice(TEXTS)
            case 4:
                message.abandonment.number = large()
            case 5:
                message.skip.log_sequence = large()

    @staticmethod
    def _add_member(proposal: log_pb2.ViewProposal, member: tuple[str, int, str, int]) -> None:
        name, incarnation, address, weight = member
        proposal.members.add(name=name, incarnation=incarnation, address=address, weight=weight)


async def deliver(runtime: MemberRuntime, payloads: Sequence[bytes]) -> None:
    """Delivers messages; those that nobody can read are skipped, as if operators had said so."""
    member = runtime.member
    for payload in payloads:
        delivery = Delivery(member.log_sequence + 1, payload)
        with suppress(ForeignLog, UnsupportedFormat):
            await runtime._deliver([delivery])
            continue
        member.skip_sequence = delivery.sequence
        await runtime._deliver([delivery])


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_that_is_written_to_the_log_ends_a_member(tmp_path: Path, seed: int) -> None:
    first, second = (
        runtime_at(tmp_path / name, certification_log=tmp_path / name / "log")
        for name in ("1", "2")
    )
    forger = Forger(seed, first.member)
    settings = first.member.options.settings
    founding = LogBatch("m2", WRITER.incarnation, 1, (), [settings, ViewProposal(0, (WRITER,))])
    await deliver(first, [encode_batch(founding)])
    messages = [encode_batch(founding)]
    for _ in range(MESSAGES):
        messages.append(forger.message())
        await deliver(first, messages[-1:])
        if len(messages) % 10 == 0:
            first.save()
            assert rows_of(first).applier.drain(10)
            first.snapshots.expire(first.now_ms())
    for start in range(0, len(messages), 100):
        await deliver(second, messages[start : start + 100])
    states = [
        (each.member.certifier.digest(), each.member.view, each.member.skipped.dump())
        for each in (first, second)
    ]
    assert states[0] == states[1]
    assert first.member.certifier.window.newest_version > MESSAGES / 10, "too little was taken"
    assert first.member.skipped.total > MESSAGES / 20, "too little was skipped"
    for each in (first, second):
        each.save()
        assert rows_of(each).applier.drain(10)
        each.member.certifier.check_invariants()
        each.close()

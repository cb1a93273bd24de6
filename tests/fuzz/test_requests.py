"""What the fuzzer sends: every rpc, the same for a seed, and nothing that spoils the check."""

import random
import re

import pytest
from google.protobuf.message import DecodeError

from groupcert.v1.admin_pb2 import ChangeSettingsRequest, LeaveRequest, RejoinRequest
from groupcert.v1.store_pb2 import CommitRequest, OpenSnapshotResponse
from groupcert.v1.transaction_pb2 import Changes
from tests.fuzz.calls import harmless
from tests.fuzz.chosen_calls import CASES, set_with_gaps
from tests.fuzz.methods import EXCLUSIONS, method_named, methods, why_left_out
from tests.fuzz.mutations import MESSAGE_BYTES_MAX, MUTATIONS, mutated, varint
from tests.fuzz.random_messages import random_message
from tests.fuzz.valid_requests import VALID
from tests.fuzz.values import Answers
from tests.sources import ROOT


def test_every_rpc_of_proto_is_called() -> None:
    written = [
        f"{service}/{method}"
        for path in (ROOT / "proto" / "groupcert" / "v1").glob("*.proto")
        for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", path.read_text(), re.M | re.S)
        for method in re.findall(r"^  rpc (\w+)\(", body, re.M)
    ]
    found = {each.name for each in methods()}
    assert len(written) > 30
    assert found >= {*written, "Health/Watch", "ServerReflection/ServerReflectionInfo"}
    assert found >= {*VALID, *EXCLUSIONS}


def test_what_is_left_out_is_said_with_the_reason() -> None:
    for name, request, reason in (
        ("AdminService/Leave", LeaveRequest(), "leave its group"),
        ("AdminService/Rejoin", RejoinRequest(discard_state=True), "empty state"),
        ("AdminService/Rejoin", RejoinRequest(unfence=True), ""),
        ("AdminService/ChangeSettings", ChangeSettingsRequest(dry_run=True), ""),
        ("AdminService/ChangeSettings", ChangeSettingsRequest(), "whole group"),
    ):
        why = why_left_out(method_named(name), request.SerializeToString())
        assert reason in why if reason else not why
    assert not why_left_out(method_named("AdminService/Leave"), b"\xff")


@pytest.mark.parametrize("method", methods(), ids=lambda each: each.name)
def test_random_requests_are_drawn_by_the_seed(method: object) -> None:
    (found,) = [each for each in methods() if each == method]

    def drawn(seed: int) -> list[bytes]:
        chance, answers = random.Random(seed), Answers()
        answers.harvest(OpenSnapshotResponse(snapshot_id=7, version=9))
        made = (random_message(found.request, chance, answers) for _ in range(20))
        return [each.SerializeToString(deterministic=True) for each in made]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2) or not found.request.DESCRIPTOR.fields


def test_answers_come_back_in_requests() -> None:
    chance, answers = random.Random(1), Answers()
    answers.harvest(OpenSnapshotResponse(snapshot_id=77, version=9))
    kind = method_named("StoreService/CloseSnapshot").request
    drawn = [random_message(kind, chance, answers).SerializeToString() for _ in range(50)]
    assert b"\x08" + varint(77) in drawn
    assert answers.latest("version") == 9
    assert answers.newest("copy_id") is None


def test_mutations_change_messages_and_stay_within_what_is_sent() -> None:
    chance, answers = random.Random(1), Answers()
    (message,) = VALID["StoreService/Commit"](chance, answers)
    payload = message.SerializeToString()
    unreadable = 0
    for _ in range(300):
        changed = mutated(payload, chance)
        assert len(changed) <= MESSAGE_BYTES_MAX
        try:
            CommitRequest.FromString(changed)
        except DecodeError:
            unreadable += 1
    assert 0 < unreadable < 300, "some are no messages, some are other messages"
    assert all(mutation(b"", chance) is not None for mutation in MUTATIONS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_chosen_case_makes_calls(case: object) -> None:
    (found,) = [each for each in CASES if each == case]
    chance, answers = random.Random(1), Answers()
    for _ in range(5):
        for call in found.build(chance, answers):
            assert call.method in methods()
            assert call.method.streams_requests or len(call.payloads) == 1


def test_sets_of_gtids_are_as_long_as_they_can_be() -> None:
    assert 32_000 < len(set_with_gaps(32 << 10)) <= 32 << 10


def test_rows_of_the_honest_clients_are_never_written() -> None:
    request = CommitRequest(
        changes=Changes(put_keys=[b"account/00000001", b"transfer/ab"], put_values=[b"0", b"1"])
    )
    sent = CommitRequest.FromString(harmless(request.SerializeToString()))
    assert list(sent.changes.put_keys) == [b"fuzzing/00000001", b"fuzzings/ab"]

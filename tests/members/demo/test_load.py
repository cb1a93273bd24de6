"""The workloads, against real members: what they promise holds afterwards."""

import json
import random
import sys
from typing import NoReturn

import pytest

from groupcert import AsyncClient, Client, Consistency
from groupcert.members.commands import cli
from groupcert.members.demo.load import (
    AppendWorkload,
    BankWorkload,
    LoadCounts,
    run_load,
)
from groupcert.members.demo.local_group import LocalGroup


def test_counts_of_clients_add_up() -> None:
    first = LoadCounts(committed_ids=[b"1", b"2"], conflicts=1, latencies_ms=[3.0, 1.0])
    first.add(LoadCounts(committed_ids=[b"3"], unknown_ids=[b"4"], latencies_ms=[2.0]))
    assert first.document(2.0) == {
        "seconds": 2.0,
        "commits": 3,
        "conflicts": 1,
        "too_old": 0,
        "unknown": 1,
        "unavailable": 0,
        "commits_per_second": 1.5,
        "p50_ms": 2.0,
        "p99_ms": 3.0,
    }


def test_a_load_that_did_nothing_has_no_latency() -> None:
    document = LoadCounts().document(0.0)
    assert (document["commits_per_second"], document["p50_ms"]) == (0.0, 0.0)


def test_a_bank_needs_two_accounts() -> None:
    with pytest.raises(ValueError, match="a bank of 1 accounts: expected 2 or more"):
        BankWorkload(accounts=1)


def test_a_client_that_fails_ends_the_load_with_its_error() -> None:
    class Broken(AppendWorkload):
        async def transact(self, client: AsyncClient, chance: random.Random) -> NoReturn:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_load(Broken(), ["127.0.0.1:1"], clients=2, seconds=30)


def test_clients_of_an_absent_member_count_what_they_could_not_do() -> None:
    class Absent(AppendWorkload):
        async def transact(self, client: AsyncClient, chance: random.Random) -> NoReturn:
            async with AsyncClient("127.0.0.1:1", timeout_ms=50) as absent:
                await absent.transaction()
            raise AssertionError("a member answered")

    counts, _ = run_load(Absent(), ["127.0.0.1:1"], clients=1, seconds=0.3)
    assert counts.unavailable > 0
    assert counts.committed_ids == []


def test_a_bank_keeps_its_sum_and_its_ledger_has_each_acknowledged_transfer(
    local_group: LocalGroup,
) -> None:
    addresses = list(local_group.addresses.values())
    bank = BankWorkload(accounts=10, initial_balance=100)
    ticks = []
    with Client(addresses, consistency=Consistency.BEFORE) as client:
        bank.prepare(client)
        before = bank.total(client)
        counts, seconds = run_load(
            bank, addresses, clients=4, seconds=0.6, on_tick=lambda *tick: ticks.append(tick)
        )
        bank.prepare(client)
        assert bank.total(client) == before
        assert bank.ledger(client).issuperset(counts.committed_ids)
    assert counts.committed_ids
    assert counts.unknown_ids == []
    assert len(counts.latencies_ms) == len(counts.committed_ids)
    assert seconds >= 0.6
    assert len(ticks) >= 2


@pytest.mark.parametrize("workload", ["bank", "update", "append"])
def test_the_verb_load_prints_what_clients_at_every_member_were_told(
    local_group: LocalGroup,
    workload: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--workload", workload, "--rows", "50", "--clients", "4", "--seconds", "0.4"]
    members = [*local_group.addresses.values()]
    monkeypatch.setattr(sys, "argv", ["groupcert", "load", *members, *flags, "--json"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    document = json.loads(capsys.readouterr().out)
    assert caught.value.code == 0
    assert (document["workload"], document["clients"]) == (workload, 4)
    assert document.get("total_unchanged") is (True if workload == "bank" else None)
    assert document["commits"] > 0
    assert document["commits_per_second"] > 0
    assert 0 < document["p50_ms"] <= document["p99_ms"]
    assert document["unavailable"] == 0

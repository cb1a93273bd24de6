"""The verbs of `groupcert` that need a group: what they print, and what their exit codes say."""

import json
from pathlib import Path
from threading import Thread

import pytest

from groupcert import Client
from groupcert.applier.targets.rocksdb import ROW_PREFIX
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.demo.group_checks import check_group, settle
from groupcert.members.demo.local_group import LocalGroup
from tests.commands import groupcert
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole
from tests.members.certification_logs import histories_in

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

FINE, FINDING, USAGE = range(3)


class TestDemo:
    """A whole group in one command, which proves itself."""

    def test_the_document_has_what_the_checks_found_and_the_logs_are_kept(
        self, tmp_path: Path
    ) -> None:
        logs = tmp_path / "logs"
        flags = ("--seconds", "1", "--clients", "4", "--json", "--certification-log", str(logs))
        done = groupcert("demo", *flags, TMPDIR=str(tmp_path))
        document = json.loads(done.stdout)
        assert done.returncode == FINE, done.stderr
        assert document["members"] == 3
        assert document["certified"] >= document["acknowledged"] > 0
        assert document["seconds"] >= 1
        assert document["commits_per_second"] > 0
        assert document["parallelism_mean"] >= 1
        assert document["conflicts"] >= 0
        assert document["lost"] == 0
        assert document["findings"] == []
        verdicts = ("converged", "invariant_ok", "exactly_once", "stamps_valid")
        assert [document[name] for name in verdicts] == [True] * 4
        assert list(tmp_path.iterdir()) == [logs], "its folder is removed"
        for name in ("m1", "m2", "m3"):
            (rows,) = histories_in(logs / name).values()
            certified = [row for row in rows if row.get("verdict") == "certified"]
            assert len(certified) == document["certified"]
            assert all(len(row["write_keys"]) == len(row["write_set"]) for row in certified)
        done = groupcert("demo", *flags)
        assert done.returncode == USAGE, "logs of two groups would contradict each other"
        assert "expected a folder that is empty" in done.stderr

    def test_money_from_outside_is_a_finding(self, tmp_path: Path) -> None:
        """Somebody else writes to the bank while the demo runs: its sum is not what it was."""
        outsider = Thread(target=deposit, args=(tmp_path,))
        outsider.start()
        done = groupcert("demo", "--seconds", "6", "--json", TMPDIR=str(tmp_path))
        outsider.join()
        document = json.loads(done.stdout)
        assert done.returncode == FINDING
        assert (document["invariant_ok"], document["converged"]) == (False, True)
        assert "all accounts hold 1000001, expected 1000000" in document["findings"][0]
        (folder,) = tmp_path.iterdir()
        assert f"the demo's folder is kept: {folder}" in done.stderr.replace("\n", "")


def deposit(temporary: Path) -> None:
    """Adds 1 to an account of the demo that runs in a folder."""
    (third,) = wait_for("a third member", lambda: list(temporary.glob("*/m3.toml")))
    first = third.with_name("m1.toml")
    settings = dict(line.split(" = ", 1) for line in first.read_text().splitlines())
    key = b"account/00000000"
    with Client(json.loads(settings["address"]), timeout_ms=60_000) as client:
        wait_for("the bank", lambda: client.run(lambda transaction: transaction.get(key)))
        client.run(
            lambda transaction: transaction.put(
                key, b"%d" % (int(transaction.get(key) or b"0") + 1)
            ),
            attempts_max=100,
        )


def test_a_member_that_lost_a_row_is_found_by_the_checks(group: LocalGroup) -> None:
    """The row is taken out of its store while it is stopped."""
    load = BankLoad()
    with load.running(list(group.addresses.values()), seed=8):
        load.wait_for_commits(50)
    assert_whole(group, load)
    victim, ledger = load.bank.account(7), load.bank.ledger_key(load.counts.committed_ids[0])
    kept = rewrite(group, "m2", {victim: None, ledger: None})
    observers = [Client(address) for address in group.addresses.values()]
    findings = check_group(load.bank, observers, settle(observers), load.counts)
    assert (findings.converged, findings.invariant_ok, findings.lost) == (False, False, 1)
    assert findings.texts[0].startswith("members differ in their rows: {'m1': ")
    assert any(text.startswith("m2: acknowledged transfer") for text in findings.texts)
    rewrite(group, "m2", kept)
    assert_whole(group, load)
    for observer in observers:
        observer.close()


def rewrite(
    group: LocalGroup, name: str, rows: "dict[bytes, bytes | None]"
) -> "dict[bytes, bytes | None]":
    """Changes rows of a member behind its back, and returns what they were."""
    group.stop_member(name)
    with Store(group.folder / name, StoreIdentity(group="local", member=name)) as store:
        kept = {key: store.get(Family.DATA, ROW_PREFIX + key) for key in rows}
        batch = store.batch()
        batch.apply(Family.DATA, {ROW_PREFIX + key: value for key, value in rows.items()})
        store.write(batch)
    group.start_member(name)
    group.wait_online()
    return kept

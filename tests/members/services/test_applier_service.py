"""The message about an applier: all that its coordinator and its workers know."""

from pathlib import Path

from groupcert.applier.engine.applier import Applier, ApplierStatus
from groupcert.applier.queue.target_progress import LastError, Stage
from groupcert.applier.targets.rocksdb import RowChanges
from groupcert.members.services.applier_service import ApplierMessage
from groupcert.members.wire.applier_status import applier_status
from tests.members.appliers import GROUP, running_applier, transaction


def told(
    status: ApplierStatus,
    *,
    activity: str = "",
    lag_seconds: float = 0.0,
    behind_transactions: int = 0,
) -> ApplierMessage:
    """The message of a replica's."""
    return applier_status(
        status,
        channel="r1",
        source="a:1",
        scheme="jobs barrier",
        consistency="any-time",
        activity=activity,
        lag_seconds=lag_seconds,
        behind_transactions=behind_transactions,
    )


def finished(applier: Applier[RowChanges], count: int) -> ApplierStatus:
    """The status after so many transactions of one row."""
    applier.append([transaction(number) for number in range(1, count + 1)])
    assert applier.drain(20)
    return applier.status()


def test_it_has_what_was_done_and_how_far_it_is(tmp_path: Path) -> None:
    with running_applier(tmp_path) as applier:
        status = finished(applier, 5)
        message = told(status, lag_seconds=1.5, behind_transactions=7)
    coordinator = message.coordinator
    assert (coordinator.channel, coordinator.source) == ("r1", "a:1")
    assert (coordinator.scheme, coordinator.consistency) == ("jobs barrier", "any-time")
    assert (coordinator.state, coordinator.waits_for, coordinator.error) == ("running", "", "")
    assert (coordinator.pending_transactions, coordinator.pending_bytes) == (0, 0)
    assert coordinator.committed_transactions == 5 >= coordinator.committed_groups > 0
    assert coordinator.parallelism_mean >= 1
    assert coordinator.gtid_executed == f"{GROUP}:1-5"
    assert coordinator.low_water_mark_gtid == f"{GROUP}:5"
    assert coordinator.low_water_mark_file == 1
    assert coordinator.low_water_mark_sequence_number == 5
    assert (coordinator.lag_seconds, coordinator.behind_transactions) == (1.5, 7)
    assert sum(worker.executed_transactions for worker in message.workers) == 5
    assert [worker.worker for worker in message.workers] == [0, 1]
    assert [worker.queued_transactions for worker in message.workers] == [0, 0]
    newest = max(message.workers, key=lambda worker: worker.last_seconds)
    assert newest.last_gtid == f"{GROUP}:5"
    assert not coordinator.HasField("last_error")


def test_causes_are_counted_the_most_frequent_first(tmp_path: Path) -> None:
    with running_applier(tmp_path) as applier:
        status = finished(applier, 50)
        message = told(status)
    counts = {one.cause: one.count for one in message.coordinator.holds}
    assert counts == {cause.value: count for cause, count in status.holds.items()}
    ordered = [one.count for one in message.coordinator.holds]
    assert ordered == sorted(ordered, reverse=True)


def test_where_nothing_is_pending_it_says_what_is_waited_for(tmp_path: Path) -> None:
    with running_applier(tmp_path) as applier:
        message = told(applier.status(), activity="waiting for its source")
    assert message.coordinator.waits_for == "waiting for its source"
    assert message.coordinator.low_water_mark_gtid == ""
    assert [(each.state, each.waits_for) for each in message.workers] == [
        ("idle", "a transaction")
    ] * 2


def test_a_failure_names_its_cause(tmp_path: Path) -> None:
    with running_applier(tmp_path) as applier:
        applier.append([transaction(1, "fail")])
        assert not applier.drain(20)
        message = told(applier.status())
    assert message.coordinator.state == "failed"
    assert "a row that cannot be read" in message.coordinator.error
    assert message.coordinator.gtid_executed == ""
    last = message.coordinator.last_error
    assert (last.stage, last.gtid) == ("executing", f"{GROUP}:1")
    assert last.HasField("worker") and last.worker in (0, 1)
    assert "a row that cannot be read" in last.cause


def test_an_error_is_told_after_a_restart_without_a_worker_where_none_met_it(
    tmp_path: Path,
) -> None:
    with running_applier(tmp_path) as applier:
        applier.note(LastError.of(Stage.READING, ValueError("purged")))
    with running_applier(tmp_path) as applier:
        coordinator = told(applier.status()).coordinator
        assert (coordinator.state, coordinator.error) == ("running", "")
        last = coordinator.last_error
        assert (last.stage, last.cause) == ("reading the source", "ValueError: purged")
        assert not last.HasField("worker")
        assert not told(finished(applier, 1)).coordinator.HasField("last_error")

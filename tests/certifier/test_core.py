"""The certifier against the naive model, and against itself under other circumstances.

Method: random histories (`tests/certifier/histories.py`). First, each decision and stamp is what
`tests/model.py` says. Then metamorphic: what must not matter (when a collection makes its steps,
where a member restarts, how a process hashes) does not.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupcert.certifier import core
from groupcert.certifier.certified_window import NAMES_MAX
from groupcert.certifier.certifier_state import dump, restore
from groupcert.certifier.core import STEP_ITEMS, Certifier, CertifierOptions
from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.records import (
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    Verdict,
    ViewChange,
)
from groupcert.certifier.storage.info_store import CertificationInfoStore
from groupcert.certifier.storage.store import Store
from tests.certifier.histories import (
    GROUP,
    LIVE_KINDS,
    Operation,
    deliver_to_model,
    fingerprint,
    histories,
    options,
    random_operations,
    records_of,
    seen,
    to_model,
    to_record,
)
from tests.model import Model
from tests.stores import IDENTITY, writing


@given(histories(), st.sampled_from(("close", "tight")), st.booleans())
@settings(max_examples=60)
@example([Operation(kind="elsewhere"), Operation(kind="collect_set", holes=(0,))], "close", False)
def test_decisions_and_stamps_are_the_naive_models(
    history: list[Operation], gc_window: str, learn: bool
) -> None:
    check_agreement_with_the_model(history, gc_window, learn=learn)


@pytest.mark.slow
@pytest.mark.parametrize("gc_window", ["close", "tight"])
def test_decisions_and_stamps_of_long_histories_are_the_naive_models(gc_window: str) -> None:
    for seed in range(100):
        check_agreement_with_the_model(random_operations(seed, 60), gc_window, learn=seed % 2 == 0)


def check_agreement_with_the_model(
    history: list[Operation], gc_window: str, *, learn: bool
) -> None:
    model = Model(GROUP, gc_window=gc_window, learn=learn)
    certifier = Certifier(options(gc_window=gc_window, learn=learn))
    for number, operation in enumerate(history):
        record = to_record(operation, model, number)
        expected = deliver_to_model(model, record)
        assert seen(certifier.deliver(record)) == expected, (number, record)
        certifier.check_invariants()
        assert to_model(certifier.executed()) == model.executed
        held = {item: certifier.window.gtid(writer) for item, writer in certifier.info.entries()}
        assert held == {item: writer.gtid for item, writer in model.info.items()}
        assert len(certifier.info) == len(model.info)


@given(
    histories(),
    st.sampled_from(("close", "tight")),
    st.integers(0, 5),
    st.sampled_from((1, 2, 5, 64)),
)
@settings(max_examples=60)
def test_when_collections_make_their_steps_changes_no_decision_and_no_stamp_becomes_unsafe(
    history: list[Operation], gc_window: str, period: int, step: int
) -> None:
    records = records_of(history, Model(GROUP, learn=True))
    at_once = Certifier(options(learn=True))
    in_steps = Certifier(options(gc_window=gc_window, period=period, step=step, learn=True))
    dependencies = Dependencies()
    for record in records:
        expected, result = at_once.deliver(record), in_steps.deliver(record)
        if isinstance(expected, Outcome) and isinstance(result, Outcome):
            assert isinstance(record, Transaction)
            assert _without_stamps(result) == _without_stamps(expected)
            dependencies.check(record, result)
        elif isinstance(record, ViewChange) and record.resets_clock:
            dependencies = Dependencies()
        in_steps.check_invariants()
        assert in_steps.digest() == at_once.digest()
    while in_steps.collection_pending:
        in_steps.collect()
    assert sorted(in_steps.info.entries()) == sorted(at_once.info.entries())
    assert in_steps.purged_total <= at_once.purged_total, "what is written again is not purged"


class Dependencies:
    """What a transaction of an observer's relay queue must wait for, nothing ever forgotten."""

    def __init__(self) -> None:
        self._last_writers: dict[int, int] = {}
        self._last_alone = 0
        self._last_stamped = 1

    def check(self, transaction: Transaction, outcome: Outcome) -> None:
        """Stamps ascend, and reach back no further than the dependencies."""
        if outcome.last_committed is None or outcome.sequence_number is None:
            self._last_writers |= dict.fromkeys(transaction.write_set, 0) if outcome.version else {}
            return
        assert outcome.last_committed < outcome.sequence_number == self._last_stamped + 1
        needed = [self._last_writers.get(item, 0) for item in transaction.write_set]
        assert outcome.last_committed >= max([self._last_alone, *(needed or [self._last_stamped])])
        if not transaction.write_set:
            self._last_alone = outcome.sequence_number
        self._last_writers |= dict.fromkeys(transaction.write_set, outcome.sequence_number)
        self._last_stamped = outcome.sequence_number


@given(histories(LIVE_KINDS), st.integers(1, 9), st.booleans())
@settings(max_examples=60)
@pytest.mark.slow
def test_a_certifier_restored_from_a_checkpoint_goes_on_as_the_one_that_was_dumped(
    history: list[Operation], every: int, tight: bool
) -> None:
    chosen = options(gc_window="tight" if tight else "close", period=2, step=3, learn=True)
    uninterrupted, restarted = Certifier(chosen), Certifier(chosen)
    for number, record in enumerate(records_of(history, Model(GROUP, learn=True))):
        if number % every == 0:
            restarted = _restored(restarted)
        assert restarted.deliver(record) == uninterrupted.deliver(record)
        restarted.check_invariants()
    _assert_same_state(restarted, uninterrupted)


@pytest.mark.slow
@given(histories(LIVE_KINDS), st.lists(st.integers(1, 5), min_size=1, max_size=8))
@settings(max_examples=15)
def test_a_member_that_restarts_from_its_store_goes_on_as_one_that_did_not(
    history: list[Operation], batches: list[int]
) -> None:
    chosen = options(period=1, step=2, learn=True)
    records = records_of(history, Model(GROUP, learn=True))
    uninterrupted = Certifier(chosen)
    expected = [uninterrupted.deliver(record) for record in records]
    results: list[object] = []
    with tempfile.TemporaryDirectory() as folder:
        while len(results) < len(records):
            results += _one_run(Path(folder), chosen, records[len(results) :], batches)
        assert results == expected
        with Store(Path(folder), IDENTITY) as store:
            last = Certifier(chosen)
            assert CertificationInfoStore(store, last).load() is bool(records)
            _assert_same_state(last, uninterrupted)


def _one_run(
    folder: Path, chosen: CertifierOptions, records: list[Record], batches: list[int]
) -> list[object]:
    """Opens the store, delivers some batches and saves after each; the last one stays unsaved."""
    results: list[object] = []
    with Store(folder, IDENTITY) as store:
        certifier = Certifier(chosen)
        saved = CertificationInfoStore(store, certifier)
        saved.load()
        certifier.check_invariants()
        for size in batches:
            delivered = [certifier.deliver(record) for record in records[len(results) :][:size]]
            with writing(store) as batch:
                saved.save(batch)
            results += delivered
        for record in records[len(results) :][:3]:
            certifier.deliver(record)
    return results


def test_restarts_and_collections_agree_over_several_segments(tmp_path: Path) -> None:
    chosen = options(period=16, step=64, block_size=1_000)
    records = records_of([])
    for number in range(10_000):
        records.append(Transaction(number, "m1", number, [number, 7], local=number % 3 == 0))
        if number % 1_000 == 999:
            records.append(GarbageCollection(number, number - 600))
    uninterrupted, restarted = Certifier(chosen), Certifier(chosen)
    store = Store(tmp_path, IDENTITY)
    saved = CertificationInfoStore(store, restarted)
    for number, record in enumerate(records):
        assert restarted.deliver(record) == uninterrupted.deliver(record)
        if number % 700 == 0:
            with writing(store) as batch:
                saved.save(batch)
            if number % 2_100 == 0:
                restarted = Certifier(chosen)
                saved = CertificationInfoStore(store, restarted)
                assert saved.load()
                restarted.check_invariants()
    store.close()
    _assert_same_state(restarted, uninterrupted)


def test_the_processes_hash_seed_changes_nothing() -> None:
    """Neither this process's, whatever it is, nor another one."""
    program = "from tests.certifier.histories import fingerprint; print(fingerprint(1), end='')"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout == fingerprint(1)


def test_each_decision_changes_the_digest_and_another_order_gives_another() -> None:
    certified = Transaction(1, "m1", 0, [5])
    conflict = Transaction(2, "m2", 0, [5, 6])
    refused = Transaction(3, "m2", 9, [7])
    too_old = Transaction(5, "m2", 0, [8])
    records: list[Record] = [certified, conflict, refused, GarbageCollection(4, 1), too_old]
    one, other = Certifier(options()), Certifier(options())
    digests = [one.digest()]
    for record in records:
        one.deliver(record)
        digests.append(one.digest())
    assert digests[3] == digests[4], "a collection is no decision"
    assert len(set(digests)) == 5
    assert {len(digest) for digest in digests} == {8}
    other.deliver(refused)
    other.deliver(certified)
    other.deliver(conflict)
    assert other.digest() not in digests


def test_a_refusal_says_what_to_do() -> None:
    certifier = Certifier(options())
    certifier.deliver(Transaction(1, "m1", 0, [5]))
    certifier.deliver(GarbageCollection(2, 1))
    outcome = certifier.certify(Transaction(3, "m1", 0, [6]))
    assert outcome.reason == (
        "the snapshot lacks some of version 1, whose items were collected: "
        "take a new snapshot and run the transaction again"
    )


def test_a_stable_version_that_was_never_certified_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="stable before it was certified"):
        Certifier(options()).deliver(GarbageCollection(1, 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: options(gc_window="loose"), "gc_window is 'loose': expected close or tight"),
        (lambda: options(block_size=0), "gtid_assignment_block_size is '0': expected 1 or more"),
        (lambda: options(period=-1), "collection_period_transactions is '-1': expected 0 or more"),
        (lambda: options(step=0), "collection_step_transactions is '0': expected 1 or more"),
        (
            lambda: CertifierOptions(group_source=GROUP, snapshot_lag_max=0),
            "snapshot_lag_max is '0': expected 1 or more",
        ),
    ],
)
def test_an_option_out_of_its_range_is_named(
    make: Callable[[], CertifierOptions], message: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        make()
    assert str(caught.value) == f"setting {message}"


def _without_stamps(outcome: Outcome) -> Outcome:
    return outcome._replace(last_committed=None, sequence_number=None)


def _restored(certifier: Certifier) -> Certifier:
    """A new certifier with the state of another one, by way of JSON."""
    window = certifier.window
    sets = {
        "read": {str(version): str(gtids) for version, gtids in window.snapshot_sets.items()},
        "elsewhere": {str(version): str(gtids) for version, gtids in window.elsewhere.items()},
    }
    pieces = [(first, rows, sets) for first, rows in window.dump(window.first_version)]
    restored = Certifier(certifier.options)
    restore(restored, json.loads(json.dumps(dump(certifier))), pieces)
    return restored


def _assert_same_state(one: Certifier, other: Certifier) -> None:
    assert sorted(one.info.entries()) == sorted(other.info.entries())
    assert dump(one) == dump(other)


def test_gtids_of_more_sources_than_a_group_takes_are_refused_and_the_others_go_on() -> None:
    """Rows refer to sources by 16 bits: with 65,537 of them every member of the group ended."""
    certifier = Certifier(CertifierOptions(group_source=GROUP))

    def verdict_of(gtid: Gtid | None) -> Verdict:
        newest = certifier.window.newest_version
        return certifier.certify(Transaction(newest + 1, "m1", newest, [newest], gtid=gtid)).verdict

    assert verdict_of(None) is Verdict.CERTIFIED
    room = NAMES_MAX - len(certifier.window.names)
    tagged = [Gtid(f"{GROUP}:tag_{number}", 1) for number in range(room + 1)]
    assert {verdict_of(gtid) for gtid in tagged[:-1]} == {Verdict.CERTIFIED}
    assert verdict_of(tagged[-1]) is Verdict.REFUSED
    assert verdict_of(tagged[0]._replace(number=2)) is Verdict.CERTIFIED
    assert verdict_of(None) is Verdict.CERTIFIED
    certifier.check_invariants()


@given(histories(), st.sampled_from(("close", "tight")), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=60)
def test_deciding_in_small_steps_changes_nothing(
    history: list[Operation], gc_window: str, period: int, items: int
) -> None:
    records = records_of(history, Model(GROUP, learn=True))
    made = options(gc_window=gc_window, period=period, step=2, learn=True)
    at_once, in_steps = Certifier(made), Certifier(made)
    expected = [at_once.deliver(record) for record in records]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "STEP_ITEMS", items)
        assert [in_steps.deliver(record) for record in records] == expected
    in_steps.check_invariants()
    assert in_steps.digest() == at_once.digest()
    assert sorted(in_steps.info.entries()) == sorted(at_once.info.entries())
    assert in_steps.purged_total == at_once.purged_total


def test_a_large_transaction_is_decided_and_collected_in_steps() -> None:
    """One of 100,000 items held up its member for 100 ms, a collection of 64 such for 3 s."""
    certifier = Certifier(options(period=1, step=64))
    snapshot, count = 0, 5 * STEP_ITEMS
    for number in range(3):
        items = range(number * count, (number + 1) * count)
        deciding = certifier.certify_in_steps(Transaction(number, "m1", snapshot, items))
        steps = sum(1 for _ in deciding)
        assert steps >= 2 * 5, "looked at, and recorded"
    certifier.deliver(GarbageCollection(3, 3))
    steps = sum(1 for _ in certifier.certify_in_steps(Transaction(4, "m1", 3, [1])))
    assert steps >= 3 * 5, "purged"
    assert certifier.purged_total == 3 * count - 1, "one was written again"

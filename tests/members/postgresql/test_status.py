"""A companion's metrics are those of the table in members/postgresql/README.md."""

import re

from groupcert.members.postgresql.status import CompanionStatus, measurements
from groupcert.members.services.metrics import PlainCollector
from tests.sources import ROOT

STATUS = CompanionStatus(
    server="PostgreSQL 127.0.0.1/shop",
    member="127.0.0.1:7101",
    out_of_group="no member answers",
    version=7,
    behind_transactions=2,
    pending_transactions=1,
    certifying_transactions=0,
    waiting_transactions=0,
    granted_transactions=1,
    held_snapshot_version=5,
    oldest_transaction_seconds=0.5,
    waits_for="backend 17, which commits s:7",
    waits_seconds=0.25,
    certified_transactions=3,
    refused_transactions={"40001": 4, "54000": 0},
    committed_transactions=4,
    executed_for_backends=0,
    cancelled_sessions=0,
    skipped_transactions=0,
    astray_sequences=["public.s"],
    rows_outside=0,
    skipped_rows=0,
)


def test_the_table_has_each_metric() -> None:
    text = (ROOT / "members/postgresql/README.md").read_text()
    listed = re.findall(r"^\| `(groupcert_postgresql_\w+)`", text, re.MULTILINE)
    samples = [
        sample
        for metric in PlainCollector(lambda: measurements(STATUS)).collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    ]
    assert list(dict.fromkeys(sample.name for sample in samples)) == listed
    values = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert values["groupcert_postgresql_takes_writes",] == 0
    assert values["groupcert_postgresql_behind_transactions",] == 2
    assert values["groupcert_postgresql_refused_transactions_total", "40001"] == 4


def test_there_are_none_while_there_is_no_companion() -> None:
    assert not [*PlainCollector(lambda: measurements(None)).collect()]

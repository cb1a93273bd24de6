"""A member's metrics have the numbers of its status."""

from groupcert.members.services.metrics import measurements
from groupcert.v1.postgresql_pb2 import PostgresqlStatus

STATUS = PostgresqlStatus(
    server="PostgreSQL 127.0.0.1/shop",
    out_of_group="no member answers",
    behind_transactions=2,
    refused_transactions={"40001": 4, "54000": 0},
    astray_sequences=["public.s"],
    rows_outside=3,
    waits_seconds=0.25,
)


def test_each_metric_has_its_number() -> None:
    told = {each.name.removeprefix("groupcert_postgresql_"): each for each in measurements(STATUS)}
    assert len(told) == 20
    assert told["takes_writes"].value == 0
    assert told["behind_transactions"].value == 2
    assert told["astray_sequences"].value == 1
    assert told["waits_seconds"].value == 0.25
    assert told["rows_outside"].value == 3 and told["rows_outside"].is_counter
    assert told["refused_transactions"].value == {"40001": 4, "54000": 0}
    assert {each.name: each.value for each in measurements(PostgresqlStatus())}[
        "groupcert_postgresql_takes_writes"
    ]

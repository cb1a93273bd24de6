"""The certification logs of a group whose log was lost and rebuilt are audited as one history.

Method: members are killed together with the log under them, so that what they had not stored of
their states is made again; then they go on. The members' logs have both, before and after.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from groupcert.members.demo.local_group import LocalGroup
from tests.integration.test_log_rebuild import (
    answer,
    commit_rows,
    keys_at,
    lose_log,
    start_all,
    stop_all,
    words_for,
)
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.in_turns]

SETTINGS: dict[str, object] = {"stable_set_period_ms": 200, "certification_log_file_seconds": 1}


def test_the_audit_proves_what_a_group_has_done_before_and_after(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    with LocalGroup(tmp_path / "group", settings=SETTINGS, certification_logs=logs) as group:
        acknowledged = commit_rows(group, "before")
        for name in group.names:
            group.kill(name)
        lose_log(group)
        done = answer(capsys, words_for(group), "--yes")
        start_all(group)
        acknowledged |= commit_rows(group, "after")
        for name in group.names:
            wait_for(name, lambda: keys_at(group, name) == acknowledged)  # noqa: B023 - called here
        stop_all(group)
    log = Log(spark, [str(logs)])
    assert done["result"] == "rebuilt"
    verified, agreed, proved = (job.run(log) for job in (verify, agree, proof))
    assert [*verified.findings, *agreed.findings, *proved.findings] == []
    certified = [each["certified"] for each in verified.summary["observers"]]
    assert max(certified) == len(acknowledged), "of who had read most it is one history"
    compared = [each["differing"] for each in agreed.summary["pairs"] if each["places"]]
    assert compared == [0] * len(compared) != []

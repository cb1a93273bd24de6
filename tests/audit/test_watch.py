"""`groupcert audit --watch`: it audits what is new, and serves what it has found."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from groupcert.members.commands.audit import AuditOptions
from groupcert.members.commands.audit_watch import watch_logs
from groupcert.members.errors.usage import InvalidOption
from groupcert.members.host.loopback import free_port
from tests.audit.faults import numbered
from tests.audit.histories import Workload, random_order, rows_of, write_as_is
from tests.audit.java_options import FAST_START
from tests.integration.waiting import wait_for


def asked(address: str, path: str) -> tuple[int, str]:
    """The status and the text of an answer; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_answers_on_other_machines_are_refused() -> None:
    options = AuditOptions(
        paths=("logs",), out="hdfs://host/out", master=None, memory="1g", jobs=(), spark_settings=()
    )
    with pytest.raises(InvalidOption, match="a folder of this machine"):
        watch_logs(options, minutes=1, listen="127.0.0.1:0")


@pytest.mark.in_turns
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_new_is_audited_and_the_last_page_served(tmp_path: Path) -> None:
    workload = Workload(transactions=60)
    rows = numbered(rows_of(random_order(1, workload), "m1", workload))
    logs, out, address = tmp_path / "logs", tmp_path / "out", f"127.0.0.1:{free_port()}"
    write_as_is(logs, rows[:40])
    command = [sys.executable, "-m", "groupcert.members", "audit", str(logs), "--out", str(out)]
    java = f"spark.driver.extraJavaOptions={FAST_START}"
    flags = ["--memory", "1g", "--spark-setting", java, "--watch", "0.02", "--listen", address]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as watching:
        try:
            wait_for("it listens", lambda: asked(address, "/healthz")[0])
            assert asked(address, "/")[0] in (200, 503)
            assert asked(address, "/none")[0] == 404
            wait_for("the first audit", lambda: asked(address, "/healthz") == (200, "ok\n"))
            assert "<title>" in asked(address, "/")[1]
            write_as_is(logs, rows[40:])

            def has_read_all() -> bool:
                summary = json.loads(asked(address, "/summary.json")[1])
                (history,) = summary["histories"]
                return bool(history["rows"] == len(rows))

            wait_for("what is new is audited", has_read_all)
            since = json.loads(asked(address, "/summary.json")[1])["since"]
            assert since["report"] == str(out) and since["whole_because"] is None
            told = asked(address, "/metrics")[1].splitlines()
            assert "groupcert_audit_whole_audits_total 1.0" in told
            assert 'groupcert_audit_findings{severity="error"} 0.0' in told
        finally:
            watching.send_signal(signal.SIGTERM)
        assert watching.wait(120) == 0

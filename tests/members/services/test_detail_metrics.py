"""Metrics of a running member's inside: those of the README's tables, and their numbers."""

import platform
import re
from importlib.metadata import version
from pathlib import Path

from groupcert.certifier.storage.store import Family
from groupcert.members.core.views import FORMAT_VERSION
from groupcert.members.door.answer_budget import AnswerBudget
from groupcert.members.door.call_times import CallTimes
from groupcert.members.host.histogram import Histogram
from groupcert.members.runtime.observation import observe
from groupcert.members.services.detail_metrics import (
    PROCESS_COLLECTORS,
    DetailCollector,
    Details,
    details,
)
from tests.members.recovery.test_copies import running, write_of
from tests.members.services.test_metrics import listed, told_by


def names_in(text: str) -> set[str]:
    """The metrics that Prometheus gets."""
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


async def details_of_commits(folder: Path) -> Details:
    """What a member counts: two commits, one of which has a transaction that lost, and a call."""
    calls = CallTimes()
    calls.seconds["/groupcert.v1.StoreService/Commit", "OK"] = Histogram()
    calls.seconds["/groupcert.v1.StoreService/Commit", "OK"].add(0.004)
    calls.refusals["NOT_PRIMARY"] = 2
    async with running(folder) as runtime:
        await runtime.submit([write_of(b"a", 0)])
        await runtime.submit([write_of(b"b", 1), write_of(b"c", 0)])
        await runtime.committed(2)
        found = details(observe(runtime), calls, AnswerBudget(1 << 20))
        await runtime.submit([write_of(b"d", 2)])
    return found


async def test_every_metric_of_the_inside_is_in_the_readme_and_has_its_number(
    tmp_path: Path,
) -> None:
    found = await details_of_commits(tmp_path)
    text = told_by(DetailCollector("g", "m1", lambda: found))
    assert names_in(text) == listed("### How long, why, and in which store")
    assert set(text.splitlines()) >= {
        'groupcert_commit_seconds_count{outcome="certified"} 2.0',
        'groupcert_commit_seconds_count{outcome="conflict"} 1.0',
        'groupcert_commit_stage_seconds_count{stage="queued"} 2.0',
        'groupcert_commit_stage_seconds_count{stage="committed"} 2.0',
        "groupcert_log_message_transactions_count 2.0",
        "groupcert_log_message_transactions_sum 3.0",
        'groupcert_call_seconds_bucket{code="OK",le="0.002",method="StoreService/Commit"} 0.0',
        'groupcert_call_seconds_bucket{code="OK",le="0.005",method="StoreService/Commit"} 1.0',
        'groupcert_call_seconds_bucket{code="OK",le="+Inf",method="StoreService/Commit"} 1.0',
        'groupcert_call_refusals_total{reason="NOT_PRIMARY"} 2.0',
        'groupcert_call_refusals_total{reason="OVERLOADED"} 0.0',
        'groupcert_log_server_state{server="memory",state="CURRENT"} 1.0',
        'groupcert_log_server_state{server="memory",state="SILENT"} 0.0',
        'groupcert_store_writes_stopped{family="data"} 0.0',
    }
    (build,) = re.findall(r"^groupcert_build_info\{(.*)\} 1\.0$", text, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="(.*?)"', build))
    assert labels == {
        "group": "g",
        "member": "m1",
        "version": version("groupcert"),
        "python": platform.python_version(),
        "format_version": str(FORMAT_VERSION),
    }


async def test_every_transaction_that_is_applied_counts_once(tmp_path: Path) -> None:
    found = await details_of_commits(tmp_path)
    counts = {each.name: each.histograms for each in found.distributions}
    applied = counts["groupcert_apply_seconds"][()]
    assert applied.count >= 2, "two transactions, and the member's own view"
    assert 0 < applied.sum < 60
    appended = counts["groupcert_log_append_seconds"][()]
    assert appended.count >= counts["groupcert_log_message_transactions"][()].count


async def test_the_store_tells_of_each_family_until_it_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        await runtime.submit([write_of(b"a" * 5000, 0)])
        await runtime.committed(1)
        store = details(observe(runtime), CallTimes(), AnswerBudget(1 << 20)).store
        assert store["size-all-mem-tables"].keys() == {family.value for family in Family}
        assert store["size-all-mem-tables"]["data"] > 5_000
        runtime.store.flush_tables()
        flushed = details(observe(runtime), CallTimes(), AnswerBudget(1 << 20)).store
        assert flushed["total-sst-files-size"]["data"] > 0
        assert flushed["num-files-at-level0"]["data"] == 1
    assert (
        details(observe(runtime), CallTimes(), AnswerBudget(1 << 20)).store["total-sst-files-size"]
        == {}
    )


def test_a_member_that_is_starting_says_what_it_is() -> None:
    assert names_in(told_by(DetailCollector("g", "m1", lambda: None))) == {"groupcert_build_info"}


def test_metrics_of_the_process_are_in_the_readme() -> None:
    names = set().union(*(names_in(told_by(each)) for each in PROCESS_COLLECTORS))
    assert names == listed("### Of the process")

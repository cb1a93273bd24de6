"""The audit: runs its jobs one after another and writes their answers.

A job knows neither the other jobs nor where its answers are written. If Spark fails, the audit ends
with nothing written.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain, zip_longest
from time import monotonic, time_ns
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.errors import SparkFailed, UnreadableLog
from groupcert.certifier.audit.answers.findings import FINDING, MEANINGS, Code, Finding, Severity
from groupcert.certifier.audit.answers.result import SAMPLE, JsonObject, Result
from groupcert.certifier.audit.output import MARK, REPORT, SUMMARY, Output
from groupcert.certifier.audit.report import page
from groupcert.certifier.audit.rows.consequences import told_once
from groupcert.certifier.audit.rows.log import History, Log
from groupcert.certifier.audit.spark.progress import OnProgress, Progress, watched
from groupcert.certifier.audit.spark.session import GONE, first_line
from groupcert.certifier.history.schema import kind_at, position_at
from groupcert.certifier.position import log_index_of, log_sequence_of

FORMAT_VERSION = 1
"""Version of the summary's format."""
SHOWN_MAX = 200
"""Most findings in the summary; the table has `answers.findings.ROWS_MAX` of each code."""


class Job(NamedTuple):
    """A job: the module that has its `run`, and the text that is shown while it runs."""

    module: str
    text: str


_TEXTS = {
    "verify": "deriving every decision and every stamp again",
    "agree": "comparing the members, place by place",
    "isolation": "looking for lost updates and anomalies",
    "apply": "checking what the appliers ran at once",
    "profile": "measuring parallelism and conflicts",
    "proof": "following the chain of each history",
}
JOBS = {
    name: Job(f"groupcert.certifier.audit.{name}.{name}", text) for name, text in _TEXTS.items()
}


def known_jobs() -> tuple[str, ...]:
    """Returns the names of the jobs, in the order in which they run."""
    return tuple(JOBS)


def audit(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    jobs: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Audits the logs below `paths`, writes the answers to the folder `out`, returns the summary.

    Args:
        spark: a session of `certifier.audit.spark.session`.
        paths: folders or files, anywhere that Spark reads.
        out: the folder; an earlier audit's answers there are replaced.
        jobs: names of those to run; all by default.
        on_progress: called with the progress, several times a second.

    Raises:
        UnreadableLog: there is no certification log.
        ForeignOutput: the folder holds something else.
        SparkFailed: Spark gave up.
    """
    names = [name for name in known_jobs() if jobs is None or name in jobs]
    started_us, begin = time_ns() // 1_000, monotonic()
    task = "reading the logs"
    step = Progress("read", task, 1, len(names) + 1, 0)
    output = None
    try:
        output = Output(spark, out, paths)
        with watched(spark, step, on_progress):
            log = Log(spark, paths)
            histories = [_history(each, log.histories) for each in log.histories]
        results: dict[str, Result] = {}
        entries: list[JsonObject] = []
        for number, name in enumerate(names, 2):
            task = JOBS[name].text
            step = Progress(name, task, number, len(names) + 1, 0)
            with watched(spark, step, on_progress):
                results[name], entry = _run(name, log, output)
            entries.append(entry)
        task = "writing the answers"
        findings, counts = told_once(list(results.values()))
        rows = [(*finding[:1], finding.severity, *finding[1:]) for finding in findings]
        output.write_table("findings", spark.createDataFrame(rows, FINDING).coalesce(1))
        summary: JsonObject = {
            **MARK,
            "format_version": FORMAT_VERSION,
            "paths": list(paths),
            "started_us": started_us,
            "seconds": round(monotonic() - begin, 3),
            "spark": _versions(spark),
            "histories": histories,
            "jobs": entries,
            "findings": _findings(findings, counts),
            **{name: results[name].summary if name in results else {} for name in JOBS},
        }
        output.write_text(SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
        output.write_text(REPORT, page(summary))
        output.finish()
    except (PySparkException, *GONE) as error:
        if "[FAILED_READ_FILE" in str(error):
            advice = "restore the file, or leave it out"
            raise UnreadableLog(problem=first_line(error), advice=advice) from error
        raise SparkFailed(task=task, cause=first_line(error)) from error
    finally:
        with suppress(*GONE):  # If Java has ended, so has its cache.
            spark.catalog.clearCache()
            if output:
                output.abandon()
    return summary


def has_findings(summary: JsonObject) -> bool:
    """Returns whether the summary of an audit has any finding."""
    findings = summary["findings"]
    assert isinstance(findings, dict)
    return bool(findings["errors"] or findings["warnings"])


def _run(name: str, log: Log, output: Output) -> tuple[Result, JsonObject]:
    """Runs a job and writes its answers; its tables are computed here. Returns also its entry in
    the summary.
    """
    begin = monotonic()
    result = import_module(JOBS[name].module).run(log)
    assert isinstance(result, Result)
    for table, rows in result.tables.items():
        assert table != "findings"
        output.write_table(table, rows)
    for file, content in result.files.items():
        output.write_bytes(file, content)
    if SAMPLE in result.files:
        result.summary["whatif"] = _whatif(f"{output.place}/{SAMPLE}")
    count = result.counts.total()
    return result, {"name": name, "seconds": round(monotonic() - begin, 3), "findings": count}


def _whatif(sample: str) -> str:
    """Returns the command that schedules a sample under every scheme.

    >>> _whatif("file:/tmp/out/sample.jsonl.gz")
    'groupcert whatif /tmp/out/sample.jsonl.gz'
    """
    if sample.startswith("file:"):
        return f"groupcert whatif {shlex.quote(sample.removeprefix('file:'))}"
    return f"hadoop fs -cat {shlex.quote(sample)} | groupcert whatif -"


def _history(history: History, all_histories: Sequence[History]) -> JsonObject:
    """Returns a history's entry in the summary; it begins late or ends early if others of its group
    reach further.
    """
    group = history.group_source
    others = [each for each in all_histories if group is not None and each.group_source == group]
    begin = min((position_at(each.first_place) for each in others), default=None)
    end = max((position_at(each.last_place) for each in others), default=None)
    return {
        "observer": history.observer,
        "history": history.history,
        "source": history.source.value,
        "rows": history.rows,
        "transactions": history.transactions,
        "first_place": history.first_place,
        "last_place": history.last_place,
        "first_us": history.first_us,
        "last_us": history.last_us,
        "begins_late": begin is not None and position_at(history.first_place) > begin,
        "ends_early": end is not None and position_at(history.last_place) < end,
    }


def _versions(spark: SparkSession) -> JsonObject:
    assert spark._jvm is not None
    java = spark._jvm.java.lang.System.getProperty("java.version")
    return {"version": spark.version, "master": spark.sparkContext.master, "java": str(java)}


def _findings(findings: Sequence[Finding], counts: "Counter[str]") -> JsonObject:
    """Returns the findings' entry in the summary: all are counted, some of each code are shown."""
    codes = [code for code in Code if counts[code]]
    codes.sort(key=lambda code: (MEANINGS[code].severity != Severity.ERROR, -counts[code]))
    by_code: list[JsonObject] = [
        {
            "code": code.value,
            "severity": MEANINGS[code].severity.value,
            "count": counts[code],
            "meaning": MEANINGS[code].text,
        }
        for code in codes
    ]
    of_severity: Counter[str] = Counter()
    for code in codes:
        of_severity[MEANINGS[code].severity] += counts[code]
    return {
        "errors": of_severity[Severity.ERROR],
        "warnings": of_severity[Severity.WARNING],
        "by_code": by_code,
        "first": [_shown(finding) for finding in _first(findings, codes)],
    }


def _first(findings: Sequence[Finding], codes: Sequence[Code]) -> list[Finding]:
    """Returns the first findings in the order of places, equally many of each code if possible."""
    of_code: dict[Code, list[Finding]] = defaultdict(list)
    for finding in sorted(
        findings, key=lambda finding: (finding.place, finding.observer, finding.history)
    ):
        of_code[finding.code].append(finding)
    in_turn = chain.from_iterable(zip_longest(*(of_code[code] for code in codes)))
    chosen = [finding for finding in in_turn if finding is not None][:SHOWN_MAX]
    return sorted(chosen, key=lambda finding: (codes.index(finding.code), finding.place))


def _shown(finding: Finding) -> JsonObject:
    """Returns a finding as an object; its place also as message and record of the log, and the kind
    of the row there, if there can be one.
    """
    kind = kind_at(finding.place)
    return {
        "severity": finding.severity.value,
        **finding._asdict(),
        "kind": kind and kind.value,
        "log_sequence": log_sequence_of(position_at(finding.place)),
        "log_index": log_index_of(position_at(finding.place)),
    }

"""The audit as a whole: its jobs one after another, and what is written about them.

The rule it keeps: a job knows nothing of the others, nor where its answers go. What Spark cannot do
ends the audit with nothing written.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, zip_longest
from time import monotonic, time_ns
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from certifier.audit.consequences import told_once
from certifier.audit.errors import SparkFailed, UnreadableLog
from certifier.audit.findings import FINDING, MEANINGS, Code, Finding, Severity
from certifier.audit.log import History, Log
from certifier.audit.output import MARK, REPORT, SUMMARY, Output
from certifier.audit.progress import OnProgress, Progress, watched
from certifier.audit.report import page
from certifier.audit.result import JsonObject, Result
from certifier.audit.session import GONE, first_line
from certifier.history import kind_at, log_index_at, log_sequence_at, position_at

FORMAT_VERSION = 1
"""Of the summary."""
SHOWN_MAX = 200
"""Findings in the summary; the table has `certifier.audit.findings.ROWS_MAX` of each code."""


class Job(NamedTuple):
    """A job: the module whose `run` it is, and what people read while it runs."""

    module: str
    text: str


JOBS = {
    "verify": Job("certifier.audit.verify", "deriving every decision and every stamp again"),
    "agree": Job("certifier.audit.agree", "comparing the members, place by place"),
    "isolation": Job("certifier.audit.isolation", "looking for lost updates and anomalies"),
    "apply": Job("certifier.audit.apply", "checking what the appliers ran at once"),
    "profile": Job("certifier.audit.profile", "measuring parallelism and conflicts"),
    "proof": Job("certifier.audit.proof", "following the chain of each history"),
}


@dataclass(slots=True)
class _Answers:
    """What the jobs have said so far."""

    results: list[Result]
    jobs: list[JsonObject]
    summaries: dict[str, JsonObject]


def known_jobs() -> tuple[str, ...]:
    """The names of the jobs, in the order in which they run."""
    return tuple(JOBS)


def audit(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    jobs: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Audits the logs below some paths, writes the answers to a folder, returns the summary.

    Args:
        spark: A session of `certifier.audit.session`.
        paths: Folders or files, anywhere that Spark reads.
        out: The folder; what an earlier audit has written there is replaced.
        jobs: Names of those to run; all by default.
        on_progress: Told where it is, several times a second.

    Raises:
        UnreadableLog: There is no certification log.
        ForeignOutput: The folder holds something else.
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
        answers = _Answers([], [], {})
        for number, name in enumerate(names, 2):
            task = JOBS[name].text
            step = Progress(name, task, number, len(names) + 1, 0)
            with watched(spark, step, on_progress):
                _run(name, log, output, answers)
        task = "writing the answers"
        findings, counts = told_once(answers.results)
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
            "jobs": answers.jobs,
            "findings": _findings(findings, counts),
            **{name: answers.summaries.get(name, {}) for name in JOBS},
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
        with suppress(*GONE):  # Java is gone: what it kept is, too.
            spark.catalog.clearCache()
            if output:
                output.abandon()
    return summary


def has_findings(summary: JsonObject) -> bool:
    """Whether anything was found, by the summary of an audit."""
    findings = summary["findings"]
    assert isinstance(findings, dict)
    return bool(findings["errors"] or findings["warnings"])


def _run(name: str, log: Log, output: Output, answers: _Answers) -> None:
    """Runs a job and takes its answers; tables are computed here."""
    begin = monotonic()
    result = import_module(JOBS[name].module).run(log)
    assert isinstance(result, Result)
    for table, rows in result.tables.items():
        assert table != "findings"
        output.write_table(table, rows)
    answers.results.append(result)
    answers.summaries[name] = result.summary
    count = result.counts.total()
    answers.jobs.append({"name": name, "seconds": round(monotonic() - begin, 3), "findings": count})


def _history(history: History, all_histories: Sequence[History]) -> JsonObject:
    """What the summary says of a history; one begins late or ends early if others of its group
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
    """The findings as the summary has them: all are counted, some of each code are shown."""
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
    """The first findings in the order of places, and of each code as many as of the others."""
    of_code: dict[Code, list[Finding]] = defaultdict(list)
    for finding in sorted(
        findings, key=lambda finding: (finding.place, finding.observer, finding.history)
    ):
        of_code[finding.code].append(finding)
    in_turn = chain.from_iterable(zip_longest(*(of_code[code] for code in codes)))
    chosen = [finding for finding in in_turn if finding is not None][:SHOWN_MAX]
    return sorted(chosen, key=lambda finding: (codes.index(finding.code), finding.place))


def _shown(finding: Finding) -> JsonObject:
    """A finding as an object; the place also as people call it: message and record of the log, and
    the kind of the row there, if such a place can be.
    """
    kind = kind_at(finding.place)
    return {
        "severity": finding.severity.value,
        **finding._asdict(),
        "kind": kind and kind.value,
        "log_sequence": log_sequence_at(finding.place),
        "log_index": log_index_at(finding.place),
    }

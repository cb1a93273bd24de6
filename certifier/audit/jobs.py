"""The audit: runs its jobs and writes their answers.

A job knows neither the other jobs nor where its answers are written. If Spark fails, the audit ends
with nothing written.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain, zip_longest
from time import monotonic, time_ns
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ..errors import GroupcertError
from ..history.schema import kind_at, position_at
from ..position import log_index_of, log_sequence_of
from .agree.beside import BESIDE, beside
from .answers.errors import SparkFailed, UnreadableLog
from .answers.findings import FINDING, MEANINGS, Code, Finding, Severity
from .answers.result import SAMPLE, JsonObject, Result
from .compared import compared
from .keeping import to_keep
from .output import MARK, REPORT, SUMMARY, Output
from .report import page
from .rows.consequences import told_once
from .rows.histories import History
from .rows.kept import AuditWhole, Since, read_kept, summary_at
from .rows.log import Log
from .spark.at_once import answers
from .spark.progress import OnProgress, Progress, watched
from .spark.session import GONE, first_line
from .spark.walks import is_divided

FORMAT_VERSION = 1
"""Version of the summary's format."""
READING = "reading the logs"
_RESTORE = "restore the file, or leave it out"
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


_NEEDED_BY_SPARK = "pandas"
"""It imports this once it gets rows of the driver."""
JOBS_AT_ONCE = 2
"""Jobs that run at the same time on a log of few rows."""
_BEGUN = ("verify", "profile", "proof", "agree", "apply", "isolation")
"""The order in which they begin there: those late that ask for the facts that `verify` makes."""


def known_jobs() -> tuple[str, ...]:
    """Returns the names of the jobs, in the order in which they run."""
    return tuple(JOBS)


def import_modules(names: Iterable[str]) -> None:
    """Imports the jobs' modules ahead. The command calls it while Java starts (about 1 s)."""
    for module in (*(JOBS[name].module for name in names), _NEEDED_BY_SPARK):
        import_module(module)


def audit(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    jobs: Sequence[str] | None = None,
    since: str | None = None,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Audits the logs below `paths`, writes the answers to the folder `out`, returns the summary.

    If all jobs run, what they know is kept beside the answers, for an audit of later rows.

    Args:
        spark: a session of `certifier.audit.spark.session`.
        paths: folders or files, anywhere that Spark reads.
        out: the folder; an earlier audit's answers there are replaced.
        jobs: names of those to run; all by default.
        since: the folder of an audit before, after which only new files are read; what is found is
            the same as without.
        on_progress: called with the progress, several times a second.

    Raises:
        UnreadableLog: there is no certification log.
        ForeignOutput: the folder holds something else.
        NoAuditBefore: `since` is no folder of an audit.
        SparkFailed: Spark gave up.
    """
    names = [name for name in known_jobs() if jobs is None or name in jobs]
    started_us, begin = time_ns() // 1_000, monotonic()
    task = READING
    continued = None if since is None else Since(since)
    output = None
    try:
        output = Output(spark, out, paths)
        before = _summary_before(spark, output, since)
        done = _run_new(spark, paths, output, names, on_progress, continued)
        task = "writing the answers"
        results = done.results
        told = _write_findings(done, output)
        summary: JsonObject = {
            **MARK,
            "format_version": FORMAT_VERSION,
            "paths": list(paths),
            "started_us": started_us,
            "seconds": round(monotonic() - begin, 3),
            "spark": _versions(spark),
            "since": continued.as_json() if continued else None,
            "histories": done.histories,
            "jobs": done.entries,
            "findings": told,
            **{name: results[name].summary if name in results else {} for name in JOBS},
        }
        summary["compared"] = compared(before, summary)
        output.write_text(SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
        output.write_text(REPORT, page(summary))
        output.finish()
    except (PySparkException, *GONE) as error:
        raise _failed(task, error) from error
    finally:
        with suppress(*GONE):  # If Java has ended, so has its cache.
            spark.catalog.clearCache()
            if output:
                output.abandon()
    return summary


class _Done(NamedTuple):
    """The answers of all jobs."""

    log: Log
    histories: list[JsonObject]
    results: dict[str, Result]
    entries: list[JsonObject]


def _write_findings(done: _Done, output: Output) -> JsonObject:
    """Writes all findings, and what the next audit needs; returns the findings' entry in the
    summary.
    """
    log, results = done.log, done.results
    findings, counts = told_once(list(results.values()))
    rows = [(*finding[:1], finding.severity, *finding[1:]) for finding in findings]
    table = log.spark.createDataFrame(rows, FINDING).coalesce(1)
    writes: dict[str, Callable[[], None]] = {
        "findings": lambda: output.write_table("findings", table)
    }
    told = _findings(log, findings, counts)
    if log.keeps:
        writes |= to_keep(log, results, _shown_by_name(told), output)
    answers(log.spark, writes, _at_once(log))
    return told


def _summary_before(spark: SparkSession, output: Output, since: str | None) -> bytes | None:
    """Returns the summary of the audit that this one goes on from, or else replaces."""
    return output.summary_before() if since is None else summary_at(spark, since)


def _run_new(
    spark: SparkSession,
    paths: Sequence[str],
    output: Output,
    names: Sequence[str],
    on_progress: OnProgress | None,
    continued: Since | None,
) -> _Done:
    """Runs jobs over new rows if that is all they ask for, else over all, and notes why."""
    try:
        return _run_all(spark, paths, output, names, on_progress, continued)
    except AuditWhole as whole:
        assert continued
        continued.reason = whole.reason
        return _run_all(spark, paths, output, names, on_progress)


def _run_all(
    spark: SparkSession,
    paths: Sequence[str],
    output: Output,
    names: Sequence[str],
    on_progress: OnProgress | None,
    continued: Since | None = None,
) -> _Done:
    """Runs jobs over new rows if the audit goes on from one before, else over all.

    Raises:
        AuditWhole: an audit of new rows asks for what was not kept.
    """
    step = Progress("read", READING, 1, len(names) + 1, 0)
    with watched(spark, step, on_progress):
        kept = read_kept(spark, continued.report, paths) if continued else None
        log = Log(spark, paths, kept, keeps=len(names) == len(JOBS))
        histories = [_history(each, log.histories) for each in log.histories]
        if continued and kept:
            continued.files, continued.gone = len(kept.files), kept.gone
            continued.rows = int(log.files["rows"].sum())
    answered = _answered(log, output, names, on_progress)
    results = {name: answered[name][0] for name in names}
    return _Done(log, histories, results, [answered[name][1] for name in names])


def has_findings(summary: JsonObject) -> bool:
    """Returns whether the summary of an audit has any finding."""
    findings = summary["findings"]
    assert isinstance(findings, dict)
    return bool(findings["errors"] or findings["warnings"])


def _failed(task: str, error: Exception) -> GroupcertError:
    """Returns the error that the user gets for one of Spark."""
    if "[FAILED_READ_FILE" in str(error):
        return UnreadableLog(problem=first_line(error), advice=_RESTORE)
    return SparkFailed(task=task, cause=first_line(error))


def _answered(
    log: Log, output: Output, names: Sequence[str], on_progress: OnProgress | None
) -> dict[str, tuple[Result, JsonObject]]:
    """Runs jobs; by name their results, and their entries in the summary."""

    def run(number: int, name: str) -> tuple[Result, JsonObject]:
        task = JOBS[name].text
        step = Progress(name, task, number, len(names) + 1, 0)
        try:
            with watched(log.spark, step, on_progress):
                return _run(name, log, output)
        except (PySparkException, *GONE) as error:
            raise _failed(task, error) from error

    at_once = _at_once(log)
    begun = names if at_once == 1 else sorted(names, key=_BEGUN.index)
    calls = {name: partial(run, number, name) for number, name in enumerate(begun, 2)}
    return answers(log.spark, calls, at_once)


def _at_once(log: Log) -> int:
    """Returns the number of jobs, or writes of tables, that run at the same time. Where rows are
    not divided each has one task at a time, so that there is room for another.
    """
    return 1 if is_divided(log.rows) else JOBS_AT_ONCE


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
        "group": history.group_source,
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


def _findings(log: Log, findings: Sequence[Finding], counts: "Counter[str]") -> JsonObject:
    """Returns the findings' entry in the summary: all are counted, some of each code are shown."""
    codes = [code for code in Code if counts[code]]
    codes.sort(key=lambda code: (MEANINGS[code].severity != Severity.ERROR, -counts[code]))
    by_code: list[JsonObject] = [
        {
            "code": code.value,
            "severity": MEANINGS[code].severity.value,
            "count": counts[code],
            "meaning": MEANINGS[code].text,
            "advice": MEANINGS[code].advice,
        }
        for code in codes
    ]
    first = _first(findings, codes)
    known = log.kept.shown if log.kept else {}
    # The rows of the others may not be kept: the audit before has looked them up.
    told = [each for each in first if _name(each._asdict()) not in known]
    rows = {_name(each._asdict()): rows for each, rows in zip(told, beside(log, told), strict=True)}
    of_severity: Counter[str] = Counter()
    for code in codes:
        of_severity[MEANINGS[code].severity] += counts[code]
    return {
        "errors": of_severity[Severity.ERROR],
        "warnings": of_severity[Severity.WARNING],
        "by_code": by_code,
        "first": [
            _shown(finding) | {**known, **rows}[_name(finding._asdict())] for finding in first
        ],
    }


def _shown_by_name(told: JsonObject) -> dict[str, JsonObject]:
    """Returns the members' records (`BESIDE`) of each finding that is shown, by its name."""
    first = told["first"]
    assert isinstance(first, list)
    return {_name(finding): {name: finding[name] for name in BESIDE} for finding in first}


def _name(finding: Mapping[str, object]) -> str:
    """Returns the name of a finding, which no other one has: code, observer, history and place."""
    return " ".join(str(finding[name]) for name in ("code", "observer", "history", "place"))


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

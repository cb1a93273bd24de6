"""The audit: runs its jobs and writes their answers.

A job knows neither the other jobs nor where its answers are written. If Spark fails, the audit ends
with nothing written. Its answers are a summary and tables, an HTML page for people, and what it
keeps for the next audit (`rows/kept.py` reads that, and says what it is). Where answers of an audit
lay before, both are compared, in the figures that both have: what is new, what is gone.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.resources import files
from itertools import chain, zip_longest
from time import monotonic, time_ns
from typing import NamedTuple

import polars as pl
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..errors import GroupcertError
from ..history.schema import RecordKind, kind_at, position_at
from ..pages import page as pages
from ..position import log_index_of, log_sequence_of
from .agree.beside import BESIDE, beside
from .answers.causes import Told, told_once
from .answers.errors import SparkFailed, UnreadableLog
from .answers.findings import FINDING, MEANINGS, Code, Finding, Severity
from .answers.result import SAMPLE, JsonObject, Result
from .output import MARK, REPORT, SUMMARY, Output
from .rows.certification_log import SCHEMA, Log
from .rows.items import facts
from .rows.kept import (
    DOCUMENT,
    FILES,
    ROWS,
    STATE_VERSION,
    AuditWhole,
    Since,
    read_kept,
    summary_at,
)
from .rows.survey import TELLING, of_history
from .rows.surveyed_history import History
from .rows.tails import Tail, tails_of
from .spark.at_once import answers
from .spark.audit_progress import AuditProgress, OnProgress, watched
from .spark.spark_session import GONE, first_line
from .spark.walks import is_divided

FORMAT_VERSION = 1
"""Version of the summary's format."""
READING = "reading the logs"
_RESTORE = "restore the file, or leave it out"
SHOWN_MAX = 200
"""Most findings in the summary; the table has `answers.findings.ROWS_MAX` of each code."""
_COUNTS = (
    "rows",
    "transactions",
    "stamped",
    "read_sets",
    "gtid_snapshots",
    "elsewhere",
    "certified_read_sets",
)
"""The sums of a history that go on, beside those of its verdicts."""
_FILE = "file string, size long, modified_us long"
_ROOM = files("groupcert.certifier.audit")


def page(summary: JsonObject) -> str:
    """Returns the page of a summary."""
    names = ("cycle.js", "report.js", "report.css")
    *scripts, style = (_ROOM.joinpath(name).read_text("utf-8") for name in names)
    return pages.page("Audit of certification logs", "\n".join(scripts), summary, style=style)


def to_keep(
    log: Log, results: Mapping[str, Result], shown: Mapping[str, JsonObject], output: Output
) -> dict[str, Callable[[], None]]:
    """Returns, by names, what writes rows, files and what the jobs keep; any order will do.

    Args:
        results: of all jobs, by name.
        shown: what the summary has beside its findings, by their names.
    Cost: a pass over the rows, and a second one of histories that are not kept whole.
    """
    tails = tails_of(log)
    needed = {row for result in results.values() for row in result.rows}

    def write_document() -> None:
        ends = _ends(log, tails)
        document: JsonObject = {
            "version": STATE_VERSION,
            "histories": [
                _kept_history(log, history, tails[history.h], ends) for history in log.histories
            ],
            "jobs": {name: result.kept for name, result in results.items()},
            "shown": shown,
        }
        output.write_state_text(json.dumps(document, allow_nan=False))

    return {
        ROWS: lambda: output.write_state(ROWS, _rows(log, tails, needed)),
        FILES: lambda: output.write_state(FILES, _files(log)),
        DOCUMENT: write_document,
    }


def _rows(log: Log, tails: Mapping[int, Tail], needed: Iterable[tuple[int, int]]) -> DataFrame:
    """Returns the rows that are kept: those of the tails, and of the others those that tell a
    history's turns, the last writers of items, and what the jobs need.
    """
    columns = SCHEMA.fieldNames()
    first = log.by_history(lambda history: tails[history.h].number)
    in_tail = F.col("number") >= first
    joins = (F.col("kind") == RecordKind.VIEW_CHANGE.value) & F.col("resets_clock")
    tells = F.coalesce(F.col("kind").isin(*TELLING) | joins, F.lit(False))
    kept = log.rows.where(in_tail | tells)
    if all(tail.number == 1 for tail in tails.values()):
        return kept.select(columns).coalesce(1)
    earlier = {(h, number) for h, number in needed if number < tails[h].number}
    told = log.spark.createDataFrame(sorted(earlier), "h int, number long")
    writers = facts(log).where("is_kept").select("h", "number")
    asked = F.broadcast(told).union(writers).distinct()
    others = log.rows.where(~in_tail & ~tells).join(asked, ["h", "number"], "left_semi")
    return kept.union(others.select(kept.columns)).select(columns)


def _files(log: Log) -> DataFrame:
    """Returns all files that were read, by this audit or one before, as they were then."""
    names = ("file", "size", "modified_us")
    read = log.files.select(names).unique("file").sort("file")
    new = log.spark.createDataFrame(read.rows(), _FILE).coalesce(1)
    if not log.kept:
        return new
    return log.spark.read.parquet(log.kept.files_path).select(*names).union(new).coalesce(1)


def _ends(log: Log, tails: Mapping[int, Tail]) -> dict[int, tuple[int, int]]:
    """Returns by history the largest tick and version of the rows that are not all kept."""
    before = {history.h: history.before for history in log.histories}
    ends = {
        h: (each.tick, each.whole_version - 1) if each else (0, 0) for h, each in before.items()
    }
    if all(tail.number == 1 for tail in tails.values()):
        return ends
    first = log.by_history(lambda history: tails[history.h].number)
    found = log.rows.where(F.col("number") < first).groupBy("h")
    for h, tick, version in found.agg(F.max("committed_tick"), F.max("version")).collect():
        ends[h] = max(ends[h][0], tick or 0), max(ends[h][1], version or 0)
    return ends


def _kept_history(
    log: Log, history: History, tail: Tail, ends: Mapping[int, tuple[int, int]]
) -> JsonObject:
    """Returns a `KeptHistory` as JSON: the part of a history that is kept beside its rows."""
    files, before = of_history(log.files, history.name), history.before
    stamps = files.filter(pl.col("last_stamp").is_not_null()).sort("last_stamp_at")["last_stamp"]
    tick, version = ends[history.h]
    return {
        "observer": history.observer,
        "history": history.history,
        "since": history.last_number,
        "last_place": history.last_place,
        "whole_from": tail.number,
        "whole_version": version + 1,
        "whole_place": tail.place,
        "resumes": tail.resumes,
        "tick": tick,
        "first_number": before.first_number if before else files["first_number"].min(),
        "first_place": history.first_place,
        "first_version": history.first_version,
        "first_us": history.first_us,
        "first_stamp": history.first_stamp,
        "last_stamp": stamps[-1] if len(stamps) else before.last_stamp if before else 0,
        "counts": {
            **{name: getattr(history, name) for name in _COUNTS},
            **{verdict.value: count for verdict, count in history.verdicts.items()},
        },
        "lost_resets": list(history.lost_resets),
        "settings": history.settings,
        "used": _used(of_history(log.surveyed.used, history.name), before.used if before else {}),
    }


def _used(
    new: pl.DataFrame, before: Mapping[str, Sequence[tuple[int, int]]]
) -> dict[str, list[tuple[int, int]]]:
    """Returns the intervals of GTIDs that a history shows as used, by source: joined, ascending."""
    found = {source: [(first, last) for first, last in each] for source, each in before.items()}
    for source, first, last in new.select("gtid_source", "first", "last").iter_rows():
        found.setdefault(source, []).append((first, last))
    return {source: joined(intervals) for source, intervals in found.items()}


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the same numbers as intervals that neither overlap nor touch, ascending.

    >>> joined([(5, 9), (1, 3), (4, 4), (12, 12), (6, 7)])
    [(1, 9), (12, 12)]
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def compared(before: bytes | None, now: JsonObject) -> JsonObject | None:
    """Returns the counts of findings by code, and some figures, of two audits.

    Args:
        before: the summary of the audit before; None if there was none.
        now: the summary of this one.
    """
    if before is None:
        return None
    try:
        told: object = json.loads(before)
    except ValueError:  # Nobody's answers depend on what was here before.
        return None
    if not isinstance(told, dict) or "started_us" not in told:
        return None
    codes = [dict(_codes(told)), dict(_codes(now))]
    figures = [dict(_figures(told)), dict(_figures(now))]
    return {
        "started_us": told["started_us"],
        "jobs": sorted(str(each.get("name")) for each in _list(told, "jobs")),
        "codes": [
            {"code": code, "before": codes[0].get(code, 0), "now": codes[1].get(code, 0)}
            for code in sorted({*codes[0], *codes[1]})
        ],
        "figures": [
            {"name": name, "before": value, "now": figures[1][name]}
            for name, value in figures[0].items()
            if name in figures[1]
        ],
    }


def _list(told: JsonObject, *path: str) -> list[JsonObject]:
    """Returns the objects of a list; none if the summary does not have it."""
    found: object = told
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _numbers(objects: list[JsonObject], *names: str) -> list[float]:
    """Returns the numbers that objects have by one of several names."""
    found = [one.get(name) for one in objects for name in names]
    return [value for value in found if isinstance(value, (int, float))]


def _codes(told: JsonObject) -> Iterator[tuple[str, int]]:
    for each in _list(told, "findings", "by_code"):
        count = each.get("count")
        if isinstance(count, int):
            yield str(each.get("code")), count


def _figures(told: JsonObject) -> Iterator[tuple[str, float]]:
    """Yields figures by name; those of several histories are of the largest."""
    if rows := _numbers(_list(told, "histories"), "transactions"):
        yield "decisions", max(rows)
    longest = max(
        _list(told, "verify", "observers"),
        key=lambda each: sum(_numbers([each], "transactions")),
        default={},
    )
    if decided := sum(_numbers([longest], "certified", "conflict", "too_old", "refused")):
        lost = sum(_numbers([longest], "conflict", "too_old", "refused"))
        yield "aborted_share", round(lost / decided, 6)
    lags = [each.get("lag_us") for each in _list(told, "apply", "observers")]
    if p95 := _numbers([each for each in lags if isinstance(each, dict)], "p95"):
        yield "lag_p95_us", max(p95)
    profile = told.get("profile")
    replica = profile.get("replica") if isinstance(profile, dict) else None
    if isinstance(replica, dict) and (mean := sum(_numbers([replica], "mean"))):
        yield "parallelism", mean


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
        spark: a session of `certifier.audit.spark.spark_session`.
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
    told = told_once(list(results.values()))
    table = log.spark.createDataFrame(_table(told), FINDING).coalesce(1)
    writes: dict[str, Callable[[], None]] = {
        "findings": lambda: output.write_table("findings", table)
    }
    entry = _findings(log, told)
    if log.keeps:
        writes |= to_keep(log, results, _shown_by_name(entry), output)
    answers(log.spark, writes, _at_once(log))
    return entry


def _table(told: Told) -> list[tuple[object, ...]]:
    """Returns all findings as rows of `FINDING`, each behind its cause."""
    rows: list[tuple[object, ...]] = []
    for cause in told.findings:
        rows.append((cause.code, cause.severity, *cause[1:], None, None))
        rows += [
            (each.code, each.severity, *each[1:], cause.code, cause.place)
            for each in told.following.get(cause[:4], ())
        ]
    return rows


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
    step = AuditProgress("read", READING, 1, len(names) + 1, 0)
    with watched(spark, step, on_progress):
        kept = read_kept(spark, continued.report, paths) if continued else None
        log = Log(spark, paths, kept, keeps=len(names) == len(JOBS))
        histories = [_history(history, log.histories) for history in log.histories]
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
        step = AuditProgress(name, task, number, len(names) + 1, 0)
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


def _findings(log: Log, told: Told) -> JsonObject:
    """Returns the findings' entry in the summary: all are counted, some of each code are shown."""
    findings, counts, following = told
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
    new = [each for each in first if _name(each._asdict()) not in known]
    rows = {_name(each._asdict()): rows for each, rows in zip(new, beside(log, new), strict=True)}
    of_severity: Counter[str] = Counter()
    for code in codes:
        of_severity[MEANINGS[code].severity] += counts[code]
    return {
        "errors": of_severity[Severity.ERROR],
        "warnings": of_severity[Severity.WARNING],
        "by_code": by_code,
        "first": [
            _shown(finding)
            | {"following": _following(following.get(finding[:4], ()))}
            | {**known, **rows}[_name(finding._asdict())]
            for finding in first
        ],
    }


def _following(findings: Iterable[Finding]) -> list[JsonObject]:
    """Returns by code the number of findings that follow from one, and the place of the first."""
    of_code: dict[Code, list[int]] = {}
    for finding in findings:
        of_code.setdefault(finding.code, []).append(finding.place)
    return [
        {"code": code.value, "count": len(places), "place": min(places)}
        for code, places in of_code.items()
    ]


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

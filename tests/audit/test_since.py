"""An audit that goes on from one before finds what one audit of everything would find: for every
fault in the tree, wherever the rows are cut.
"""

import os
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.errors import NoAuditBefore
from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.audit_run import audit
from groupcert.certifier.audit.isolation import isolation
from groupcert.certifier.audit.rows import states, survey, tails
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.rows.kept import (
    AuditWhole,
    KeptHistory,
    paths_to_read,
    read_kept,
)
from groupcert.certifier.audit.rows.surveyed_history import History, settings_of
from groupcert.certifier.history.schema import Row
from tests.audit.anomalies import NEIGHBOURS_MAX
from tests.audit.audited import Audited, keys
from tests.audit.faults import Scene, integer, numbered
from tests.audit.histories import Workload, random_order, rows_of, write_as_is

ASKS_FOR_MORE = (
    "read_skew",
    "lost_update_far_back",
    "lost_update_of_an_old_snapshot",
    "late",
    "late_and_skips",
    "without_common_places",
    "store_lost_and_joined",
    "store_lost_and_begins_late",
)
"""Scenes that ask for what is not kept, wherever they are cut, or nearly so."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few rows are kept whole that most are not."""
    monkeypatch.setattr(states, "SEGMENT_ROWS", 100)
    monkeypatch.setattr(survey, "MILESTONE_ROWS", 16)
    monkeypatch.setattr(tails, "VERSIONS", 20)
    monkeypatch.setattr(tails, "ROWS_MAX", 200)
    monkeypatch.setattr(isolation, "NEIGHBOURS_MAX", NEIGHBOURS_MAX)


def cut_at_random(
    histories: Sequence[Sequence[Row]], seed: int, parts: int
) -> list[list[list[Row]]]:
    """The rows of each history in so many parts, cut at places that its group has nearly alike: a
    history that begins late has fewer rows before them.
    """
    chance = random.Random(seed)
    longest = max(histories, key=len)
    cuts = sorted(chance.randrange(len(longest)) for _ in range(parts - 1))
    places = [place_of(longest[cut]) for cut in cuts]
    found: list[list[list[Row]]] = [[] for _ in range(parts)]
    for rows in histories:
        cuts = [bisect_left(rows, place, key=place_of) for place in places]
        ends = [max(cut + chance.randrange(-8, 8), 1) if cut else 0 for cut in cuts]
        begins = [0, *sorted(ends)]
        for part, (begin, end) in enumerate(zip(begins, [*begins[1:], len(rows)], strict=True)):
            found[part].append(list(rows[begin:end]))
    return found


def place_of(row: Row) -> int:
    """The place of a row."""
    return integer(row, "place")


def found_in_parts(
    spark: SparkSession, folder: Path, scenes: Sequence[Scene], seed: int, parts: int
) -> tuple[list[Finding], Any]:
    """What audits find of scenes in parts, each of which goes on from the one before; and the last
    one's summary.
    """
    cut: list[list[list[Row]]] = [[] for _ in range(parts)]
    for number, scene in enumerate(scenes):
        histories = [*scene.histories.values()]
        for part, rows in enumerate(cut_at_random(histories, seed + number, parts)):
            cut[part] += rows
    summary: Any = None
    for number, histories in enumerate(cut):
        write_as_is(folder / "logs" / str(number), *(rows for rows in histories if rows))
        out = folder / f"part-{number}"
        before = str(folder / f"part-{number - 1}") if number else None
        summary = audit(spark, [str(folder / "logs")], str(out), since=before)
    return told(out), summary


def told(out: Path) -> list[Finding]:
    """The findings as they are written."""
    rows = parquet.read_table(out / "tables" / "findings").to_pylist()
    return sorted(
        Finding(Code(row["code"]), *(row[name] for name in Finding._fields[1:])) for row in rows
    )


def told_of(audited: Audited, scenes: Iterable[Scene]) -> list[Finding]:
    """What one audit of everything has found of some scenes."""
    histories = [rows for scene in scenes for rows in scene.histories.values()]
    observers = {rows[0]["observer"] for rows in histories}
    every = [*audited.told.findings, *audited.following]
    return sorted(each for each in every if each.observer in observers)


@pytest.mark.parametrize(
    ("seed", "parts"),
    [
        (1, 2),
        *(pytest.param(seed, 2 + seed % 2, marks=pytest.mark.nightly) for seed in range(2, 8)),
    ],
)
def test_parts_have_the_findings_of_the_whole(
    spark: SparkSession, audited: Audited, tmp_path: Path, seed: int, parts: int
) -> None:
    every = {**audited.faulty, **audited.right}
    scenes = [scene for name, scene in every.items() if name not in ASKS_FOR_MORE]
    found, summary = found_in_parts(spark, tmp_path, scenes, 1_000 * seed, parts)
    reason = summary["since"]["whole_because"]
    if reason is None:
        assert summary["since"]["new_files"] == 1
    else:  # A cut may fall just before the row with which a member joins.
        assert seed != 1 and "has joined only now" in reason
    assert found == told_of(audited, scenes)
    counts = {each["code"]: each["count"] for each in summary["findings"]["by_code"]}
    causes = keys(audited.told.findings)
    assert counts == Counter(each.code.value for each in found if keys([each]) <= causes)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ASKS_FOR_MORE)
def test_who_asks_for_what_is_not_kept_has_the_findings_of_the_whole(
    spark: SparkSession, audited: Audited, tmp_path: Path, name: str
) -> None:
    scenes = [audited.faulty[name]]
    found, _ = found_in_parts(spark, tmp_path, scenes, 1, 2)
    assert found == told_of(audited, scenes)


@pytest.fixture(scope="module")
def before(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log, and the folder of an audit of it."""
    folder = tmp_path_factory.mktemp("before")
    workload = Workload(transactions=60)
    rows = numbered(rows_of(random_order(1, workload), "m1", workload))
    write_as_is(folder / "logs", rows[:40])
    audit(spark, [str(folder / "logs")], str(folder / "out"))
    return folder / "logs", str(folder / "out")


def histories_since(spark: SparkSession, before: str, *logs: Path) -> Sequence[History]:
    """The histories of an audit that goes on from one before."""
    paths = [str(each) for each in logs]
    return Log(spark, paths, read_kept(spark, before, paths)).histories


def test_who_has_read_nothing_new_knows_what_was_there(
    spark: SparkSession, before: tuple[Path, str]
) -> None:
    (history,) = histories_since(spark, before[1], before[0])
    (read,) = Log(spark, [str(before[0])]).histories
    assert history.since == history.last_number == read.last_number == 40
    names = ("rows", "verdicts", "first_place", "last_place", "resets", "told", "start", "stamped")
    assert [getattr(history, name) for name in names] == [getattr(read, name) for name in names]


def test_what_will_be_read_is_told_without_spark(before: tuple[Path, str], tmp_path: Path) -> None:
    logs, out = before
    (file,) = logs.iterdir()
    (tmp_path / file.name).write_bytes(b"another file")
    paths, kept = [str(logs), str(tmp_path)], f"{out}/state/rows"
    assert paths_to_read(paths, out) == [kept, str(tmp_path / file.name)]
    assert paths_to_read([logs.as_uri()], Path(out).as_uri()) == [kept]
    for since in (str(tmp_path / "absent"), "hdfs://host/out"):
        assert paths_to_read(paths, since) == paths


def test_files_that_are_gone_are_counted(
    spark: SparkSession, before: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    kept = read_kept(spark, before[1], [str(tmp_path / "empty")])
    assert (kept.files, kept.gone) == ([], 1)


def test_a_file_that_has_changed_makes_an_audit_whole(
    spark: SparkSession, before: tuple[Path, str]
) -> None:
    logs, out = before
    (file,) = logs.iterdir()
    was = file.stat()
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1_000_000))
    try:
        with pytest.raises(AuditWhole, match=rf"{file.name} has changed since"):
            read_kept(spark, out, [str(logs)])
        assert paths_to_read([str(logs)], out) == [str(logs)]
    finally:
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_rows_that_come_again_make_an_audit_whole(
    spark: SparkSession, before: tuple[Path, str], tmp_path: Path
) -> None:
    logs, out = before
    (file,) = logs.iterdir()
    (tmp_path / f"copy-{file.name}").write_bytes(file.read_bytes())
    with pytest.raises(AuditWhole, match=r"copy-.* has rows of .* that were audited before"):
        histories_since(spark, out, logs, tmp_path)


def test_a_group_that_is_known_only_now_makes_an_audit_whole() -> None:
    """A history without its first files, of which nothing certified was audited before."""
    name = ("m3", "1")
    assigned = pl.DataFrame({"observer": ["m3"], "history": ["1"], "gtid_source": ["group"]})
    zeros: Any = dict.fromkeys(KeptHistory.__dataclass_fields__, 0)
    known = {"group_source": "group"}
    before = {name: KeptHistory(**{**zeros, "settings": known})}
    assert settings_of({name: []}, {}, assigned, before) == {name: known}
    before = {name: KeptHistory(**{**zeros, "settings": {}})}
    with pytest.raises(AuditWhole, match="history 1 of m3 tells its group only now"):
        settings_of({name: []}, {}, assigned, before)


def test_an_audit_of_some_jobs_has_kept_nothing(
    spark: SparkSession, before: tuple[Path, str], tmp_path: Path
) -> None:
    logs, _ = before
    audit(spark, [str(logs)], str(tmp_path / "out"), jobs=["proof"])
    summary: Any = audit(
        spark,
        [str(logs)],
        str(tmp_path / "again"),
        jobs=["proof"],
        since=str(tmp_path / "out"),
    )
    assert summary["since"]["whole_because"].startswith("the audit before has kept no state")
    assert summary["histories"][0]["rows"] == 40


def test_a_folder_without_an_audit_is_refused(
    spark: SparkSession, before: tuple[Path, str], tmp_path: Path
) -> None:
    logs, _ = before
    for folder in (logs, tmp_path / "none"):
        with pytest.raises(NoAuditBefore, match="name the folder of an audit"):
            read_kept(spark, str(folder), [str(logs)])

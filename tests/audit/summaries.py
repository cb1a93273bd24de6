"""Summaries of audits, written by hand: what the page has to show."""

import math
from typing import Any

from groupcert.certifier.audit.answers.findings import MEANINGS, Code
from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.history.schema import RecordKind, place_of
from groupcert.certifier.position import position_of

BEGIN_US = 1_780_000_200_000_000
HOUR_US = 3_600_000_000
BUCKETS = 100
HOSTILE_KEY = "shop.orders/PRIMARY/<script>document.title='broken'</script>"
MEMBERS = ("m1", "m2", "m3")
HISTORIES = ("60303ae22b998861", "6f86d081884c7d65")
"""Of the member that has begun again."""
HOURS = 36
GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def clean_summary() -> JsonObject:
    """One of a group without findings; every section has something to show."""
    return {
        "format_version": 1,
        "paths": ["logs/m1", "logs/m2", "hdfs://name-node/logs/m3"],
        "started_us": BEGIN_US + 40 * HOUR_US,
        "seconds": 74.218,
        "spark": {"version": "4.3.0", "master": "local[2]", "java": "17.0.15"},
        "histories": [
            _history("m1", 1, 9_000, begins_late=False),
            _history("m2", 1, 9_000, begins_late=False),
            _history("m3", 4_200, 8_100, begins_late=True),
        ],
        "jobs": [
            {"name": name, "seconds": seconds, "findings": 0}
            for name, seconds in (
                ("verify", 21.4),
                ("agree", 8.2),
                ("isolation", 13.9),
                ("apply", 9.5),
                ("profile", 17.3),
                ("proof", 4.0),
            )
        ],
        "findings": {"errors": 0, "warnings": 0, "by_code": [], "first": []},
        "compared": None,
        "verify": {"observers": [_verified("m1"), _verified("m2"), _verified("m3", late=True)]},
        "agree": {
            "places": 412_003,
            "compared": 1_030_117,
            "pairs": [
                {"one": "m1", "other": "m2", "places": 412_003, "differing": 0},
                {"one": "m1", "other": "m3", "places": 204_900, "differing": 0},
                {"one": "m2", "other": "m3", "places": 204_900, "differing": 0},
            ],
        },
        "isolation": {
            "transactions": 401_220,
            "with_read_set": 80_411,
            "anomalies": [
                {"name": name, "code": code.value, "found": 0, "checked": 401_220 * checked}
                for name, code, checked in (
                    ("lost update", Code.LOST_UPDATE, True),
                    ("G0, write cycle", Code.WRITE_CYCLE, True),
                    ("G1, information cycle", Code.INFORMATION_CYCLE, True),
                    ("G-single, read skew", Code.READ_SKEW, True),
                    ("write skew", Code.WRITE_SKEW, False),
                )
            ],
        },
        "apply": {"observers": [_applied("m1", 1.0), _applied("m2", 1.6)], "skipped": ["m3"]},
        "profile": _profile(),
        "proof": {
            "observers": [
                {
                    "observer": member,
                    "history": "1",
                    "rows": 431_000,
                    "chained": 431_000,
                    "reports": 214,
                    "reports_behind": 0,
                    "unvouched_rows": 96,
                    "digests": 203,
                    "last_place": _place(8_100, 4),
                }
                for member in MEMBERS
            ]
        },
    }


def summary_with_findings() -> JsonObject:
    """The same with findings; texts of the log among them try to be HTML. The state of `m2` was
    replaced, and two of what it told of its first history come after the end of that.
    """
    summary = _begun_again(clean_summary(), "m2")
    codes = (
        (Code.STAMP_TOO_LOW, 2, "last_committed 812", "last_committed 809"),
        (Code.RECORD_EDITED, 1, "chain 9f86d081884c7d65", "chain 60303ae22b998861"),
        (Code.STAMP_TOO_HIGH, 12_400, "last_committed 811", "last_committed 812"),
    )
    first = [
        finding_entry(code, number, expected, found)
        for code, count, expected, found in codes
        for number in range(min(count, 3))
    ]
    by_code = [code_entry(code, count) for code, count, _, _ in codes]
    summary["findings"] = {"errors": 3, "warnings": 12_400, "by_code": by_code, "first": first}
    return summary


def empty_summary() -> JsonObject:
    """What is left if no job had anything to say."""
    summary = clean_summary()
    summary |= {name: {} for name in ("verify", "agree", "isolation", "apply", "profile", "proof")}
    summary["jobs"] = []
    return summary


def code_entry(code: Code, count: int) -> JsonObject:
    """A code among the findings."""
    meaning = MEANINGS[code]
    told = {"meaning": meaning.text, "advice": meaning.advice, "count": count}
    return {"code": code.value, "severity": meaning.severity.value, **told}


def _begun_again(summary: Any, observer: str) -> JsonObject:
    """The same, with two histories of an observer."""
    parts = ("verify", "apply", "proof")
    lists = [(summary, "histories"), *((summary[name], "observers") for name in parts)]
    for holder, name in (*lists, (summary["profile"], "parallelism")):
        holder[name] = [
            {**each, "history": history}
            for each in holder[name]
            for history in (HISTORIES if each["observer"] == observer else ("1",))
        ]
    _, first, second, _ = summary["histories"]
    first |= _history(observer, 1, 5_200, begins_late=False) | {"history": HISTORIES[0]}
    second |= _history(observer, 5_310, 9_000, begins_late=True) | {"history": HISTORIES[1]}
    _, first, _, _ = summary["proof"]["observers"]
    first |= {"reports_behind": 2, "last_place": _place(5_200, 4)}
    told: JsonObject = summary
    return told


def _place(sequence: int, index: int, kind: RecordKind = RecordKind.TRANSACTION) -> int:
    return place_of(position_of(sequence, index), kind)


def _history(observer: str, first: int, last: int, *, begins_late: bool) -> JsonObject:
    return {
        "observer": observer,
        "history": "1",
        "group": GROUP,
        "source": "member",
        "rows": 48 * (last - first),
        "transactions": 45 * (last - first),
        "first_place": _place(first, 0),
        "last_place": _place(last, 4),
        "first_us": BEGIN_US + first * 14_000_000,
        "last_us": BEGIN_US + last * 14_000_000,
        "begins_late": begins_late,
        "ends_early": begins_late,
    }


def _verified(observer: str, *, late: bool = False) -> JsonObject:
    share = 3 if late else 1
    return {
        "observer": observer,
        "transactions": 404_955 // share,
        "certified": 391_204 // share,
        "conflict": 13_609 // share,
        "too_old": 131 // share,
        "refused": 11 // share,
        "begins_late": late,
        "stamps_checked": 260_802 // share,
    }


def finding_entry(code: Code, number: int, expected: str, found: str) -> JsonObject:
    """A finding, as the page shows it."""
    return {
        "severity": MEANINGS[code].severity.value,
        "code": code.value,
        "observer": "m2",
        "history": HISTORIES[number % 2],
        "place": _place(123 + number, 4),
        "expected": expected,
        "found": found,
        "witness": f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{800 + number} wrote {HOSTILE_KEY} "
        f"before, with sequence number {812 + number}",
        "kind": "transaction",
        "log_sequence": 123 + number,
        "log_index": 4,
        "gtid": f"{GROUP}:{number}",
        "members": [
            {"observer": "m1", "history": "1"},
            {"observer": "m2", "history": HISTORIES[0]},
        ],
        "differing": {"winner_origin": ["m3", HOSTILE_KEY], "gtid_number": ["7", None]}
        if code is Code.RECORD_EDITED
        else {},
    }


def _applied(observer: str, slowness: float) -> JsonObject:
    wave = [1.3 + math.sin(i / 9) + (4 if 61 <= i <= 66 else 0) for i in range(BUCKETS)]
    p50: list[int | None] = [int(900 * slowness * level + 200) for level in wave]
    p50[31] = p50[32] = None
    bucket_us = HOURS * HOUR_US // BUCKETS
    return {
        "observer": observer,
        "history": "1",
        "transactions": 260_802,
        "workers": 4,
        "overlapping": 0.412,
        "running_mean": 1.71,
        "possible_mean": 3.94,
        "used_share": 0.434,
        "busy_share": 0.004,
        "forced_cuts": 0,
        "lag_us": {"p50": int(1_400 * slowness), "p95": int(9_700 * slowness), "max": 361_000},
        "lag": {
            "begin_us": BEGIN_US,
            "bucket_us": bucket_us,
            "p50_us": p50,
            "p95_us": [None if value is None else 3 * value for value in p50],
            "max_us": [None if value is None else 40 * value for value in p50],
            "count": [0 if value is None else 2_608 for value in p50],
        },
        "running": {
            "begin_us": BEGIN_US,
            "bucket_us": bucket_us,
            "mean": [round(min(level / 1.5, 4), 3) for level in wave],
            "max": [4 if level > 1 else 3 for level in wave],
        },
        "worker_busy": [
            {
                "worker": worker,
                "transactions": 90_000 - 14_000 * worker,
                "busy_us": int(HOURS * HOUR_US * (0.62 - 0.13 * worker)),
            }
            for worker in range(4)
        ],
    }


def _profile() -> JsonObject:
    wave = [2.5 + 1.8 * math.sin(i / 7) + 0.6 * math.sin(i / 2) for i in range(BUCKETS)]
    return {
        "observer": "m1",
        "history": "1",
        "durations": "measured",
        "parallelism": [_parallelism(member, number) for number, member in enumerate(MEMBERS)],
        "width": {
            "unit": "time",
            "begin": BEGIN_US,
            "bucket": HOURS * HOUR_US // BUCKETS,
            "mean": [round(level, 3) for level in wave],
            "max": [int(3 * level + 4) for level in wave],
        },
        "sample": {
            "file": "sample.jsonl.gz",
            "transactions": 99_000,
            "share": 0.25,
            "has_tables": True,
        },
        "whatif": "groupcert whatif /audits/1/sample.jsonl.gz",
        "conflicts": _conflicts(),
        "classes": _classes(),
        "snapshots": _snapshots(),
        "certification_info": _certification_info(),
        "holders": _holders(),
        "replica": _replica(),
        "heat": _heat(),
        "distances": {
            "observer": "m1",
            "history": "1",
            "by_power": [
                {"from": 2**power, "to": 2 ** (power + 1) - 1, "transactions": 90_000 >> power}
                for power in range(9)
            ],
        },
        "hot_items": [
            *(_hot(HOSTILE_KEY if not i else f"shop.stock/PRIMARY/{i}", i) for i in range(7)),
            _hot(None, 8) | {"item": "bfffffffffffffff"},
        ],
        "hot_writers": [
            _hot(f"shop.visits/PRIMARY/{i}", i) | {"writers": 9_000 - 100 * i, "conflicts": 0}
            for i in range(8)
        ],
        "windows": {
            "collections": 602,
            "purged_items": 380_112,
            "closed": 590,
            "waiting_for_window": 21_408,
            "critical_path": 12_218_000_000,
            "critical_path_without": 9_902_000_000,
            "forced_cuts": 0,
        },
        "without_write_set": {
            "total": 412,
            "share": 0.00102,
            "critical_path_share": 0.031,
            "by_origin": [
                {"origin": member, "transactions": 260 - 90 * number}
                for number, member in enumerate(MEMBERS)
            ],
        },
    }


def _hot(key: str | None, number: int) -> JsonObject:
    return {
        "key": key,
        "item": f"{77 + number:016x}",
        "writers": 4_000 // (number + 1),
        "readers": 900 // (number + 1),
        "conflicts": 700 // (number + 1),
    }


def _parallelism(observer: str, number: int) -> JsonObject:
    return {
        "observer": observer,
        "history": "1",
        "durations": "measured",
        "transactions": 260_802,
        "epochs": 1_204 + number,
        "work": 48_211_000_000,
        "critical_path": 12_218_000_000,
        "forced_cuts": 0,
        "mean": 3.94,
        "width_max": 41,
    }


def _classes() -> JsonObject:
    names = ("shop.orders, shop.stock", HOSTILE_KEY, None, "")
    first = [
        {
            "tables": name,
            "transactions": 200_000 >> number,
            "share": 0.5 / 2**number,
            "aborted": 8_000 >> number,
            "abort_rate": 0.04,
            "mean_us": 740 + 100 * number if name else None,
            "wasted_us": (740 + 100 * number) * (8_000 >> number) if name else None,
        }
        for number, name in enumerate(names)
    ]
    return {
        "observer": "m1",
        "history": "1",
        "classes": 31,
        "transactions": 404_955,
        "aborted": 13_751,
        "wasted_us": 9_280_000,
        "first": first,
    }


def _certification_info() -> JsonObject:
    purged = [5_500 if number % 10 == 9 else 0 for number in range(BUCKETS)]
    entered = [600] * BUCKETS
    return {
        "observer": "m1",
        "history": "1",
        "begin_us": BEGIN_US,
        "bucket_us": HOURS * HOUR_US // BUCKETS,
        "since_start": False,
        "held": [sum(entered[: end + 1]) - sum(purged[: end + 1]) for end in range(BUCKETS)],
        "entered": entered,
        "purged": purged,
        "collections": [6 if count else 0 for count in purged],
    }


def _holders() -> JsonObject:
    """The second member is slow in the second half of the time."""
    late = range(BUCKETS // 2, BUCKETS)
    return {
        "observer": "m1",
        "history": "1",
        "begin_us": BEGIN_US,
        "bucket_us": HOURS * HOUR_US // BUCKETS,
        "known_us": HOURS * HOUR_US,
        "members": [
            {
                "member": member,
                "held_us": int(HOURS * HOUR_US * share),
                "share": share,
                "behind_max": behind,
                "unexecuted_max": behind // 2,
            }
            for member, share, behind in (("m2", 0.5, 12_400), ("m3", 0.02, 31))
        ],
        "by_part": {
            "holder": [0 if part in late else 1 if part == 4 else None for part in range(BUCKETS)],
            "behind": [
                100 * part if part in late else 31 if part == 4 else None for part in range(BUCKETS)
            ],
        },
    }


def _replica() -> JsonObject:
    return {
        "observer": "m1",
        "history": "1",
        "rule": "last_writers",
        "transactions": 391_204,
        "estimated": 130_402,
        "unit_us": 740,
        "work": 72_000_000_000,
        "critical_path": 9_000_000_000,
        "forced_cuts": 0,
        "mean": 8.0,
        "width_max": 51,
    }


def _heat() -> JsonObject:
    return {
        "begin_us": BEGIN_US,
        "bucket_us": HOURS * HOUR_US // BUCKETS,
        "items": [
            {
                "key": None if number == 3 else f"{HOSTILE_KEY}/{number}",
                "item": f"{number:016x}",
                "conflicts": [max(0, part - 90 - number) for part in range(BUCKETS)],
            }
            for number in range(4)
        ],
    }


def _snapshots() -> JsonObject:
    return {
        "observer": "m1",
        "history": "1",
        "unknown": 11,
        "by_origin": [
            {"origin": member, "transactions": 130_000, "p50": 3, "p95": 61, "max": 8_811 - number}
            for number, member in enumerate(MEMBERS)
        ],
        "oldest": [
            {
                "place": _place(700 + number, 2),
                "verdict": "conflict" if number % 2 else "certified",
                "origin": MEMBERS[number % 3],
                "gtid": None if number % 2 else f"{GROUP}:{90_000 + number}",
                "age": 8_811 - number,
                "snapshot_version": 81_189 + 2 * number,
            }
            for number in range(10)
        ],
    }


def _conflicts() -> JsonObject:
    return {
        "total": 13_609,
        "by_table": [
            {"table": table, "conflicts": conflicts, "transactions": 10 * conflicts}
            for table, conflicts in (("shop.stock", 9_120), ("shop.orders", 4_020), ("", 469))
        ],
        "by_key": [
            {"key": HOSTILE_KEY, "item": f"{77:016x}", "conflicts": 700},
            *(
                {"key": f"shop.stock/PRIMARY/{i}", "item": f"{i:016x}", "conflicts": 700 // i}
                for i in (2, 3)
            ),
            {"key": None, "item": "bfffffffffffffff", "conflicts": 88},
        ],
        "by_pair": [
            {"loser": loser, "winner": winner, "conflicts": 2_400 - 700 * abs(i - j) - 150 * i}
            for i, loser in enumerate(MEMBERS)
            for j, winner in enumerate(MEMBERS)
        ],
        "by_time": {
            "width_us": HOUR_US,
            "parts": [
                {
                    "begin_us": (BEGIN_US // HOUR_US + hour) * HOUR_US,
                    "certified": int(10_866 + 6_000 * math.sin(hour / 4)),
                    "conflict": int(378 + 300 * math.sin(hour / 4)),
                    "too_old": 30 if hour == 20 else 0,
                    "refused": 3 if hour == 21 else 0,
                }
                for hour in range(HOURS)
            ],
        },
    }

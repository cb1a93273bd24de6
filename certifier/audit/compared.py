"""Compared with the audit before, whose answers lay where these ones go: what is new, what is gone.

Only figures that both audits have are compared: they may be of other jobs.
"""

import json
from collections.abc import Iterator

from .answers.result import JsonObject


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
    found = [each.get(name) for each in objects for name in names]
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

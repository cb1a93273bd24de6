"""Summaries of audits with cycles, written by hand: what the page has to draw."""

from typing import Any

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.answers.result import JsonObject
from tests.audit.summaries import (
    GROUP,
    HOSTILE_KEY,
    clean_summary,
    code_entry,
    finding_entry,
)


def summary_with_cycles() -> JsonObject:
    """One with a finding of each of two cycles, and a verdict from which a third one followed."""
    summary: Any = clean_summary()
    told = ((Code.WRITE_SKEW, 2), (Code.SERIALIZATION_CYCLE, 4), (Code.LOST_UPDATE, 2))
    codes = (Code.WRITE_SKEW, Code.SERIALIZATION_CYCLE, Code.CONFLICT_MISSED)
    first = [
        finding_entry(code, number, "no such cycle", "one") for number, code in enumerate(codes)
    ]
    summary["findings"] = {
        "errors": len(codes),
        "warnings": 0,
        "by_code": [code_entry(code, 1) for code in codes],
        "first": first,
    }
    summary["isolation"]["cycles"] = [
        {name: finding[name] for name in ("observer", "history", "place")}
        | {"code": code.value}
        | _cycle(size, 100 * number)
        for number, ((code, size), finding) in enumerate(zip(told, first, strict=True))
    ]
    return dict(summary)


def _cycle(size: int, first: int) -> JsonObject:
    kinds = ("rw", "ww", "wr", "rw")
    return {
        "transactions": [
            {"gtid": f"{GROUP}:{first + number}" if number else None, "version": 7, "member": "m1"}
            for number in range(size)
        ],
        "edges": [
            {"dependency": kinds[-number - 1], "row": HOSTILE_KEY if number else "item 07"}
            for number in range(size)
        ],
    }

"""Jobs that say what they are told to: what is around jobs is tested with them."""

from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.rows.certification_log import Log

FOUND = (
    Finding(Code.STAMP_TOO_HIGH, "m1", "1", (9 << 24) + (2 << 4) + 3, "1", "2", "warned of"),
    Finding(Code.STAMP_TOO_LOW, "m2", "1", (7 << 24) + 3, "4", "3", "<b>a key</b>"),
    Finding(Code.STAMP_TOO_LOW, "m1", "1", (5 << 24) + 8, "8", "6", "another"),
)


def run(log: Log) -> Result:
    """Three findings, one of a code with more of them than are kept, and a table."""
    result = Result()
    result.add(list(FOUND))
    result.counts[Code.STAMP_TOO_HIGH.value] += 40
    result.summary = {"observers": []}
    result.tables["verdicts"] = log.transactions.groupBy("verdict").count()
    return result

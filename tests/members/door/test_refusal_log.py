"""Refused calls in the log: a line each, and no more than so many a second."""

from structlog.testing import capture_logs

from groupcert.members.door.refusal_log import LINES_A_SECOND_MAX, RefusalLog
from groupcert.members.errors.permissions import NotAuthenticated

REFUSAL = NotAuthenticated(call="/s/Call", problem="nobody has its token")


def test_many_refusals_in_a_second_are_counted_and_said_later() -> None:
    now_s = 7.0
    log = RefusalLog(lambda: now_s)
    with capture_logs() as lines:
        for _ in range(LINES_A_SECOND_MAX + 5):
            log.note("/s/Call", "ipv4:1", REFUSAL)
        assert len(lines) == LINES_A_SECOND_MAX
        now_s = 8.0
        log.note("/s/Call", "ipv4:1", REFUSAL)
        log.note("/s/Call", "ipv4:1", REFUSAL)
    assert [line.get("left_out") for line in lines[-3:]] == [None, 5, None]
    assert lines[0]["event"] == "call_refused"
    assert (lines[0]["call"], lines[0]["peer"]) == ("/s/Call", "ipv4:1")
    assert lines[0]["text"] == str(REFUSAL)

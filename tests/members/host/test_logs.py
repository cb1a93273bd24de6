"""Logs are JSON lines on standard error, from this program and from its libraries."""

import json
import subprocess
import sys

from groupcert.members.host.logs import TEXT_CHARACTERS_MAX, cut_texts

PROGRAM = """
import logging, structlog
from groupcert.members.host.logs import configure_logs
configure_logs(verbose={verbose})
log = structlog.get_logger()
log.debug("batch_read", position=1)
log.info("member_online", member="m1", position=7)
logging.getLogger("nats").error("lost %s", "connection")
logging.getLogger("nats").info("chatter")
"""


def events(*, verbose: bool) -> list[dict[str, object]]:
    """Returns what a program logs."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(verbose=verbose)], capture_output=True, check=True
    )
    assert done.stdout == b""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_each_event_is_one_json_object_with_time_and_level() -> None:
    online, lost = events(verbose=False)
    assert (online["event"], online["member"], online["position"]) == ("member_online", "m1", 7)
    assert (lost["event"], lost["logger"], lost["level"]) == ("lost connection", "nats", "error")
    assert str(online["timestamp"]).endswith("Z")


def test_verbose_logs_have_more_of_this_program() -> None:
    assert [event["event"] for event in events(verbose=True)] == [
        "batch_read",
        "member_online",
        "lost connection",
    ]


def test_a_text_that_is_too_long_is_cut_in_the_middle() -> None:
    event = cut_texts(None, "", {"replica": "a" * 1_000_000 + "z", "member": "m1", "position": 7})
    assert event["member"] == "m1"
    text = event["replica"]
    assert len(text) < TEXT_CHARACTERS_MAX + 50
    assert text.startswith("aaa") and text.endswith("aaz")
    assert "(1000001 characters)" in text

"""Values of a log that jobs at once share."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.rows.once import once
from tests.waiting import SECONDS_MAX


def log_of_nothing() -> Log:
    """A log that no Spark has opened."""
    log = Log.__new__(Log)
    log.made = {}
    return log


def test_who_asks_while_a_value_is_made_gets_the_same() -> None:
    begun, goes_on = Event(), Event()

    @once
    def made(log: Log) -> object:
        assert not begun.is_set(), "a second time"
        begun.set()
        assert goes_on.wait(SECONDS_MAX)
        return object()

    log = log_of_nothing()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(made, log)
        assert begun.wait(SECONDS_MAX)
        second = threads.submit(made, log)
        goes_on.set()
    assert first.result() is second.result() is made(log)


def test_each_log_has_its_own_and_takes_it_along() -> None:
    @once
    def made(log: Log) -> set[Log]:
        return {log}

    log, other = log_of_nothing(), log_of_nothing()
    assert made(log) == {log} and made(other) == {other}
    gone = weakref.ref(log)
    del log
    gc.collect()
    assert gone() is None, "an audit that is repeated keeps no log of those before"

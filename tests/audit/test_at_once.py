"""Calls that use Spark at the same time, and what becomes of them when one fails."""

from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.spark.at_once import answers
from tests.waiting import SECONDS_MAX


class Cancelled:
    """Stands for Spark, of which only this is asked: to cancel what runs."""

    def __init__(self) -> None:
        self.cancelled = Event()
        self.session = cast(
            "SparkSession",
            SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=self.cancelled.set)),
        )


def test_answers_have_their_names_whoever_is_done_first() -> None:
    spark, second_is_done = Cancelled(), Event()

    def first() -> int:
        assert second_is_done.wait(SECONDS_MAX), "they run at once"
        return 1

    def second() -> int:
        second_is_done.set()
        return 2

    found = answers(spark.session, {"first": first, "second": second}, 2)
    assert found == {"first": 1, "second": 2}
    assert not spark.cancelled.is_set()


def test_a_failure_cancels_what_runs_and_begins_nothing_more() -> None:
    spark, runs, begun = Cancelled(), Event(), Event()

    def fail() -> int:
        assert runs.wait(SECONDS_MAX)
        raise ValueError("on purpose")

    def wait() -> int:
        runs.set()
        assert spark.cancelled.wait(SECONDS_MAX), "Spark ends it"
        return 1

    def late() -> int:
        begun.set()
        return 2

    calls = {"fails": fail, "runs": wait, "waits for its turn": late}
    with pytest.raises(ValueError, match="on purpose"):
        answers(spark.session, calls, 2)
    assert not begun.is_set()

"""Several jobs of an audit at once: while the driver plans one, Spark runs tasks of another."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TypeVar

from pyspark.sql import SparkSession

from .spark_session import GONE

Answer = TypeVar("Answer")


def answers(
    spark: SparkSession, calls: Mapping[str, Callable[[], Answer]], at_once: int
) -> dict[str, Answer]:
    """Calls functions that use Spark, and returns what they return by their names.

    Each has a thread of its own, and so one of Java. Where one raises, or the user interrupts, what
    Spark runs for the others is cancelled, and those that have not begun do not begin.

    Args:
        calls: in the order in which they begin.
        at_once: how many run at the same time.
    """
    waiting, running = deque(calls.items()), dict[Future[Answer], str]()
    found: dict[str, Answer] = {}
    with ThreadPoolExecutor(at_once, thread_name_prefix="audit") as threads:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    name, call = waiting.popleft()
                    running[threads.submit(call)] = name
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    found[running.pop(done)] = done.result()
        except BaseException:
            with suppress(*GONE):
                spark.sparkContext.cancelAllJobs()
            raise
    return found

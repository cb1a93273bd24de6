"""The progress of an audit: numbers of Spark's status tracker, and lines of text about them.

Nothing here changes the result of a job; a tracker that does not answer is ignored.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple, TextIO, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

POLL_SECONDS = 0.25
LINE_SECONDS = 5
IDLE_SECONDS = 10
"""Seconds without a running task after which that is shown: a cluster may have no executor."""


class AuditProgress(NamedTuple):
    """The progress of an audit: step `number` of `steps`, and the tasks of Spark's running stages.

    Spark plans a job's stages while it goes, so how many more will come is not known.
    """

    name: str
    text: str
    number: int
    steps: int
    seconds: float
    tasks_done: int = 0
    tasks: int = 0
    tasks_running: int = 0
    idle_seconds: float = 0
    is_done: bool = False


OnProgress: TypeAlias = Callable[[AuditProgress], None]


@contextmanager
def watched(
    spark: SparkSession, start: AuditProgress, on_progress: OnProgress | None
) -> Iterator[None]:
    """Calls `on_progress` from a thread, several times a second, while the block runs; its tasks
    are those of the Spark jobs that the block's own thread starts.
    """
    if on_progress is None:
        yield
        return
    begin, over = monotonic(), Event()
    spark.sparkContext.setJobGroup(start.name, start.text)

    def watch() -> None:
        busy = begin
        while not over.wait(POLL_SECONDS):
            with suppress(Py4JError, OSError):
                now = monotonic()
                progress = _with_tasks(spark, start._replace(seconds=now - begin))
                if progress.tasks_running or not progress.tasks:
                    busy = now
                on_progress(progress._replace(idle_seconds=now - busy))

    on_progress(start)
    watcher = Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    on_progress(start._replace(seconds=monotonic() - begin, is_done=True))


def _with_tasks(spark: SparkSession, progress: AuditProgress) -> AuditProgress:
    """Returns the progress with the tasks of its stages that run now."""
    tracker = spark.sparkContext.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(progress.name))
    own = {stage for job in jobs if job is not None for stage in job.stageIds}
    known = (tracker.getStageInfo(stage) for stage in own.intersection(tracker.getActiveStageIds()))
    stages = [stage for stage in known if stage is not None]
    return progress._replace(
        tasks_done=sum(stage.numCompletedTasks for stage in stages),
        tasks=sum(stage.numTasks for stage in stages),
        tasks_running=sum(stage.numActiveTasks for stage in stages),
    )


class ProgressLines:
    """Writes a line when a step begins, every few seconds, and when it is done; several steps may
    be under way.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Writes to `stream`; to standard error by default."""
        self._stream = stream or sys.stderr
        self._written: dict[str, float] = {}

    def __call__(self, progress: AuditProgress) -> None:
        """Takes the present progress and writes a line if one is due."""
        begins = progress.name not in self._written
        due = progress.seconds - self._written.get(progress.name, 0.0) >= LINE_SECONDS
        if not (begins or due or progress.is_done):
            return
        self._written[progress.name] = progress.seconds
        if progress.is_done:
            del self._written[progress.name]
        head = f"[{progress.number}/{progress.steps}] {progress.name}"
        self._stream.write(f"{head}: {_state(progress, begins=begins)}\n")
        self._stream.flush()


def _state(progress: AuditProgress, *, begins: bool) -> str:
    if progress.is_done:
        return f"done in {progress.seconds:.1f} s"
    if begins:
        return progress.text
    return f"{tasks_text(progress)}, {progress.seconds:.0f} s"


def tasks_text(progress: AuditProgress) -> str:
    """Returns Spark's present work in a few words."""
    if not progress.tasks:
        return "planning"
    if progress.idle_seconds >= IDLE_SECONDS:
        return f"{progress.tasks - progress.tasks_done} tasks wait for an executor"
    return f"{progress.tasks_done} of {progress.tasks} tasks"

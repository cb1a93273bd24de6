"""A Spark session for audits, local or on a cluster.

All settings that the jobs need are here; the jobs' code is the same everywhere. Functions that run
in Spark's Python workers travel by value, so that a cluster needs nothing of this project
installed, only numpy, polars and pyarrow.

An archive of Java's loaded classes in the user's cache saves half of a session's start, and makes a
small audit a fifth faster. The first audit makes it when its Java ends; Java itself leaves aside
one that does not fit it.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Thread

import pyspark
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.version import __version__ as spark_version

from ... import audit
from ...history import schema
from ..answers.errors import SparkFailed
from .java import Java, find_java
from .walks import BATCH_ROWS, FRAME_ROWS, PARTITIONS

_SURROUNDINGS = re.compile(r"^([\w.]+\.\w+Exception: )?(\[[A-Z_.]+\] )?|[. ]*(SQLSTATE: \w+)?$")
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception|Exit|Interrupt): .*$", re.MULTILINE)
GONE = (Py4JError, ConnectionError)
"""The errors if Java has ended, or does not know a requested object."""
LOCAL_MEMORY = "4g"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    BATCH_ROWS: str(FRAME_ROWS),
    # A task for each 32 MB, so that no core waits long for the other's last one; but not for each
    # small file.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.files.openCostInBytes": "1m",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "32m",
    # No limit: their rows are limited where they are large, see `limit_batches`.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # Each function of columns would tell Java where in Python it was called.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Each plan would be checked after each rule that changes it.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.log.structuredLogging.enabled": "false",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    PARTITIONS: "1",
    "spark.sql.adaptive.enabled": "false",
}
"""Where a plan costs more than its rows: expressions are interpreted, and nothing is divided."""
DAEMON = "groupcert.certifier.audit.spark.daemon"
_JAVA_FOR_FEW_ROWS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA_FOR_MANY_ROWS = "-XX:+UseParallelGC -XX:+UseTransparentHugePages"
"""Large pages: rows that were sorted are read one by one from all over the heap."""
LINKED_VERSION_MIN = 25
"""From this version on Java archives classes that are linked already, and needs no archive of its
own for that, which the packaged one lacks."""
_WITHOUT_PROFILES = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions "
    "-XX:-AOTRecordTraining -XX:-AOTReplayTraining"
)
"""Java would archive profiles of methods too, those of a short run: a long one, compiled by them,
takes up to 1.7 times as long."""
KEPT_MAX = 2
"""Archives that are kept: those used last, each of some 200 MB."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr -XX:+DisplayVMOutputToStderr"
"""Java's messages about the archive are no answer of an audit."""


def class_archive_options(java: Java) -> str:
    """Returns Java's options that read the archive, or make it; none if there is no cache."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "groupcert"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # A user without a home has no cache.
        return ""
    if not os.access(folder, os.W_OK) or any(each.isspace() for each in str(folder)):
        return ""
    file = folder / f"spark-{spark_version}-java-{java.version}-{_made_of(java)}"
    options, reads, makes = _QUIET, "SharedArchiveFile", "ArchiveClassesAtExit"
    if java.version >= LINKED_VERSION_MIN:
        options = f"{options} {_WITHOUT_PROFILES}"
        reads, makes = "AOTCache", "AOTCacheOutput"
    if file.is_file():
        with suppress(OSError):
            # Those used last are kept, see `_make_room`.
            os.utime(file)
        return f"{options} -XX:{reads}={file}"
    _make_room(folder)
    return f"{options} -XX:{makes}={file}"


def _made_of(java: Java) -> str:
    """Returns a hash of which files of Java and Spark an archive is made: it fits no others."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    files = (java.home / "lib" / "modules", Path(home) / "jars")
    told = [(str(file), file.stat().st_mtime_ns if file.exists() else None) for file in files]
    return sha256(repr(told).encode()).hexdigest()[:8]


def _make_room(folder: Path) -> None:
    """Removes the archives that were used least recently, so that there is room for one."""
    with suppress(OSError):  # Another audit may have removed them.
        used = sorted(folder.glob("spark-*"), key=lambda file: file.stat().st_mtime_ns)
        for file in used[: len(used) + 1 - KEPT_MAX]:
            file.unlink()


@contextmanager
def spark_session(
    master: str | None = None,
    *,
    memory: str = LOCAL_MEMORY,
    few_rows: bool = False,
    settings: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yields a session that ends with the block.

    Args:
        master: a cluster's URL; None: this machine's cores, or what spark-submit has chosen.
        memory: heap of the Java process if it is on this machine.
        few_rows: whether the rows are so few that plans are not compiled, see `has_few_rows`; of
            no effect on a cluster.
        settings: Spark's own settings, over those here.

    Raises:
        NoSuitableJava: there is no Java for Spark.
        SparkFailed: Spark cannot be started.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for module in (audit, schema):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # it has none
    builder = SparkSession.builder.appName("groupcert audit")
    if submitted or not (master or "local").startswith("local"):
        # There shuffles go over a network; on one machine smaller bytes are not worth the time.
        builder = builder.config("spark.io.compression.codec", "zstd")
    if not submitted:
        cores = max(os.cpu_count() or 1, 1)
        builder = builder.master(master or f"local[{cores}]")
        builder = builder.config("spark.driver.memory", memory)
        if master is None or master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
            builder = builder.config(PARTITIONS, str(8 * cores))
            # Each of Spark's Python workers has a core of its own.
            builder = builder.config("spark.executorEnv.POLARS_MAX_THREADS", "1")
            if _has_this_package(os.environ["PYSPARK_PYTHON"]):
                builder = builder.config("spark.python.daemon.module", DAEMON)
            options = _JAVA_FOR_FEW_ROWS if few_rows else _JAVA_FOR_MANY_ROWS
            archived = f"{options} {class_archive_options(java)}"
            builder = builder.config("spark.driver.extraJavaOptions", archived)
            for name, value in FOR_FEW_ROWS.items() if few_rows else ():
                builder = builder.config(name, value)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(task="starting", cause=first_line(error)) from error
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        with suppress(*GONE):  # If Java has ended, its error was raised already.
            _stop(spark)


def _stop(spark: SparkSession) -> None:
    """Stops Spark. The server of its accumulators, of which audits have none, looks once a second
    whether it is to end: that is not waited for.
    """
    server = vars(spark.sparkContext).pop("_accumulatorServer", None)
    if server is not None:
        Thread(target=server.shutdown, daemon=True).start()
    spark.stop()


def _has_this_package(python: str) -> bool:
    """Returns whether Spark's Python workers can import this project: they are of this Python, and
    it is not in the archive that `spark-submit` takes.
    """
    return python == sys.executable and Path(__file__).is_file()


def first_line(error: Exception) -> str:
    """Returns the line that tells an error of Spark, without its stack: the first one; of what a
    Python worker raised the last one, such as a module that its machine lacks.
    """
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    java = getattr(error, "java_exception", None)
    if java is not None:
        # What was awaited is the cause.
        told = (java.getCause() or java) if "awaitResult" in java.toString() else java
        text = str(told.toString())
    if isinstance(error, PythonException):
        raised = _RAISED.findall(str(error))
        return raised[-1] if raised else repr(error)
    first = next((line.strip() for line in (text or "").splitlines() if line.strip()), repr(error))
    return _SURROUNDINGS.sub("", first)

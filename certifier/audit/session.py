"""A Spark session for audits, local or on a cluster.

The rule it keeps: what a job needs of Spark is set here, and nothing else; the code of the jobs is
the same everywhere. Functions that run in Spark's Python workers travel by value, so that a cluster
needs nothing of this project installed, only numpy and pyarrow.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import certifier.audit as audit
import certifier.history as history
from certifier.audit.errors import SparkFailed
from certifier.audit.java import find_java

_SURROUNDINGS = re.compile(r"^([\w.]+\.\w+Exception: )?(\[[A-Z_.]+\] )?|[. ]*(SQLSTATE: \w+)?$")
GONE = (Py4JError, ConnectionError)
"""What is raised when Java has ended, or does not know what it was asked."""
LOCAL_MEMORY = "4g"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.log.structuredLogging.enabled": "false",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}


@contextmanager
def spark_session(
    master: str | None = None,
    *,
    memory: str = LOCAL_MEMORY,
    settings: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session that ends with the block.

    Args:
        master: A cluster's URL; None: this machine's cores, or what spark-submit has chosen.
        memory: Heap of the Java process where it is on this machine.
        settings: Spark's own settings, over those here.

    Raises:
        NoSuitableJava: There is no Java for Spark.
        SparkFailed: Spark cannot be started.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for module in (audit, history):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # it has none
    builder = SparkSession.builder.appName("groupcert audit")
    if submitted or not (master or "local").startswith("local"):
        # There shuffles pass a network; on one machine they do not pay for tighter bytes.
        builder = builder.config("spark.io.compression.codec", "zstd")
    if not submitted:
        cores = max(os.cpu_count() or 1, 1)
        builder = builder.master(master or f"local[{cores}]")
        builder = builder.config("spark.driver.memory", memory)
        if master is None or master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
            builder = builder.config("spark.sql.shuffle.partitions", str(8 * cores))
            builder = builder.config("spark.driver.extraJavaOptions", "-XX:+UseParallelGC")
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
        with suppress(*GONE):  # Java is gone: what went on there has raised already.
            spark.stop()


def first_line(error: Exception) -> str:
    """What an error of Spark's says, without its stack."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    java = getattr(error, "java_exception", None)
    if java is not None:
        text = str(java.toString())
    first = next((line.strip() for line in (text or "").splitlines() if line.strip()), repr(error))
    return _SURROUNDINGS.sub("", first)

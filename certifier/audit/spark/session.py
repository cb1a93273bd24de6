"""A Spark session for audits, local or on a cluster.

All settings that the jobs need are here; the jobs' code is the same everywhere. Functions that run
in Spark's Python workers travel by value, so that a cluster needs nothing of this project
installed, only numpy and pyarrow.
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

from groupcert.certifier import audit
from groupcert.certifier.audit.answers.errors import SparkFailed
from groupcert.certifier.audit.spark.java import find_java
from groupcert.certifier.history import schema

_SURROUNDINGS = re.compile(r"^([\w.]+\.\w+Exception: )?(\[[A-Z_.]+\] )?|[. ]*(SQLSTATE: \w+)?$")
GONE = (Py4JError, ConnectionError)
"""The errors if Java has ended, or does not know a requested object."""
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
    """Yields a session that ends with the block.

    Args:
        master: a cluster's URL; None: this machine's cores, or what spark-submit has chosen.
        memory: heap of the Java process if it is on this machine.
        settings: Spark's own settings, over those here.

    Raises:
        NoSuitableJava: there is no Java for Spark.
        SparkFailed: Spark cannot be started.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java().home)
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
        with suppress(*GONE):  # If Java has ended, its error was raised already.
            spark.stop()


def first_line(error: Exception) -> str:
    """Returns the first line of an error of Spark, without its stack."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    java = getattr(error, "java_exception", None)
    if java is not None:
        text = str(java.toString())
    first = next((line.strip() for line in (text or "").splitlines() if line.strip()), repr(error))
    return _SURROUNDINGS.sub("", first)

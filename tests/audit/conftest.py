"""One Spark session for all tests of a run: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from certifier.audit.session import spark_session
from tests.audit.java_options import FAST_START


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on this machine, for small data."""
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": FAST_START,
    }
    with spark_session(settings=settings) as session:
        yield session

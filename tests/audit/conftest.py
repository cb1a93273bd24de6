"""One Spark session for all tests of a run: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from certifier.audit.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on this machine, for small data."""
    with spark_session(settings={"spark.sql.shuffle.partitions": "4"}) as session:
        yield session

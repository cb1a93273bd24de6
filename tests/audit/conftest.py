"""One Spark session for all tests of a run, and one audit of all that is to be found or not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from selenium.webdriver import Chrome

from groupcert.certifier.audit.audit_run import page
from groupcert.certifier.audit.spark import walks
from groupcert.certifier.audit.spark.spark_session import spark_session
from tests.audit.audited import Audited, audit_of_all_scenes
from tests.audit.java_options import COLUMN_LIMIT, FAST_START
from tests.audit.report_pages import WIDTHS, Look
from tests.browser import opened

FRAME_ROWS = 4_999


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on this machine, for small data: plans are interpreted, since code made and compiled
    for each costs more than they take. Sessions of their own run what is compiled, as a user's do:
    those of `test_command.py`, and of `test_cluster.py`, whose answers are compared with these.
    """
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": f"{FAST_START} {COLUMN_LIMIT}",
        "spark.sql.parquet.columnarReaderBatchSize": "128",
        walks.BATCH_ROWS: str(FRAME_ROWS),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walks, "FRAME_ROWS", FRAME_ROWS)
        with spark_session(settings=settings) as session:
            yield session


@pytest.fixture(scope="session")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """An audit of all scenes."""
    return audit_of_all_scenes(spark, tmp_path_factory.mktemp("scenes"))


@pytest.fixture
def look(browser: Chrome, tmp_path: Path) -> Look:
    """Opens the page of a summary."""
    return lambda summary: opened(browser, page(summary), tmp_path / "report.html", WIDTHS[-1])

"""What Spark's Python workers are forked from on this machine: a process that has what walks need.

Without it each worker would import Polars and Arrow anew; an audit of a small log starts four.
"""

import polars
import pyarrow.compute
from pyspark import worker
from pyspark.daemon import manager

IMPORTED = (polars, pyarrow.compute, worker)

if __name__ == "__main__":
    manager()

"""Functions of Arrow arrays as functions of columns."""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType

ColumnFunction = Callable[..., Column]


def arrow_function(function: Callable[..., object], kind: DataType) -> ColumnFunction:
    """Returns a function of columns that applies `function` to one batch of rows after the other;
    `function` takes and returns Arrow arrays of the same length.
    """
    made: ColumnFunction = arrow_udf(function, kind)  # type: ignore[call-overload] # has no such
    return made

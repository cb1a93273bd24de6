"""Functions of Arrow arrays as functions of columns."""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType

ColumnFunction = Callable[..., Column]


def arrow_function(function: Callable[..., object], kind: DataType) -> ColumnFunction:
    """The function of columns that applies `function`, which takes and returns Arrow arrays with as
    many values, to one batch of rows after the other.
    """
    made: ColumnFunction = arrow_udf(function, kind)  # type: ignore[call-overload] # has no such
    return made

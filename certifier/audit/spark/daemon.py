"""What Spark's Python workers are forked from on this machine: a process that has what walks need.

Without it each worker would import Polars and Arrow anew; an audit of a small log starts four.
Spark has its modules first in an archive, uncompiled, which each worker would read again: those of
the package that is installed are taken, which it is a copy of.
"""

import sys
from importlib import import_module

NEEDED = ("polars", "pyarrow.compute", "pyspark.worker")


def is_archive(path: str) -> bool:
    """Returns whether a path of modules is one of Spark's archives.

    >>> lib = "/spark/python/lib"
    >>> [is_archive(path) for path in (f"{lib}/pyspark.zip", f"{lib}/py4j-0.10-src.zip", lib)]
    [True, True, False]
    """
    return path.endswith(("/pyspark.zip", "-src.zip"))


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not is_archive(path)]
    for path in filter(is_archive, [*sys.path_importer_cache]):
        del sys.path_importer_cache[path]
    for name in NEEDED:
        import_module(name)
    import_module("pyspark.daemon").manager()

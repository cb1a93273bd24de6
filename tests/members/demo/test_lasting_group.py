"""Where the parts of a lasting group are, from its folder's first start on."""

import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.demo import lasting_group
from groupcert.members.demo.lasting_group import Places, alone_in, places_of, take_down
from groupcert.members.demo.running_group import is_held, members_up_in, servers_up_in
from groupcert.members.host.loopback import HOST, free_port


@pytest.fixture(autouse=True)
def ports(monkeypatch: pytest.MonkeyPatch) -> int:
    """Free ports in the place of the default ones; returns that of the first member."""
    for name in ("LOG_PORT", "MEMBER_PORT", "CONSOLE_PORT", "POSTGRESQL_PORT"):
        monkeypatch.setattr(lasting_group, name, free_port())
    return lasting_group.MEMBER_PORT


def chosen(folder: Path, **wishes: object) -> Places:
    """Returns the places of a group, of which nothing is asked but `wishes`."""
    asked = {"group": None, "members": None, "log_servers": (), **wishes}
    return places_of(folder, **asked)  # type: ignore[arg-type]  # values of any kind


def test_members_have_one_port_after_the_other_where_these_are_free(
    tmp_path: Path, ports: int
) -> None:
    places = chosen(tmp_path)
    assert list(places.members) == list(places.consoles) == ["m1", "m2", "m3"]
    assert places.members["m1"] == f"{HOST}:{ports}"
    assert chosen(tmp_path) == places == Places.read(tmp_path)


def test_a_port_where_others_listen_is_left_to_them_and_taken_back_later(
    tmp_path: Path, ports: int
) -> None:
    first = chosen(tmp_path, members=1)
    with alone_in(tmp_path), socket.create_server((HOST, ports)):
        meanwhile = chosen(tmp_path, members=1)
        assert members_up_in(tmp_path) == meanwhile.members
    assert meanwhile.members["m1"] != first.members["m1"]
    assert chosen(tmp_path, members=1) == first


def test_a_new_group_keeps_the_ports_that_it_found_free(tmp_path: Path, ports: int) -> None:
    with socket.create_server((HOST, ports)):
        first = chosen(tmp_path, members=1)
    assert chosen(tmp_path).members["m1"] == first.members["m1"] != f"{HOST}:{ports}"


def test_a_group_grows_and_keeps_the_places_of_those_who_stay_away(tmp_path: Path) -> None:
    first = chosen(tmp_path, members=2)
    assert len(chosen(tmp_path, members=3).members) == 3
    assert list(chosen(tmp_path, members=1).members) == ["m1"]
    assert chosen(tmp_path).members["m2"] == first.members["m2"]
    assert len(chosen(tmp_path).members) == 3


def test_a_folder_stays_with_its_group_and_its_log(tmp_path: Path) -> None:
    chosen(tmp_path, group="shop", log_servers=("nats://127.0.0.1:1",))
    assert chosen(tmp_path).log_servers == ("nats://127.0.0.1:1",)
    with pytest.raises(InvalidSetting, match="--group is 'other': expected shop, as at"):
        chosen(tmp_path, group="other")
    with pytest.raises(InvalidSetting, match="--log-server"):
        chosen(tmp_path, log_servers=("nats://127.0.0.1:2",))


def test_servers_keep_their_ports_their_password_and_their_number(tmp_path: Path) -> None:
    first = chosen(tmp_path, postgresql=True, members=2, tables=("shop.*",))
    assert list(first.postgresql) == ["m1", "m2"]
    dsn = urlsplit(first.postgresql["m1"])
    assert dsn.password and (dsn.hostname, dsn.port) == (HOST, lasting_group.POSTGRESQL_PORT)
    assert chosen(tmp_path) == first == Places.read(tmp_path)
    with alone_in(tmp_path), socket.create_server((HOST, dsn.port or 0)):
        meanwhile = chosen(tmp_path)
        assert servers_up_in(tmp_path) == meanwhile.postgresql
    moved = urlsplit(meanwhile.postgresql["m1"])
    assert (moved.port != dsn.port, moved.password) == (True, dsn.password)
    for wish, flag in (
        ({"members": 3}, "--members is '3': expected 2, as at"),
        ({"tables": ("public.*",)}, "--tables"),
    ):
        with pytest.raises(InvalidSetting, match=flag):
            chosen(tmp_path, **wish)


def test_a_folder_stays_with_what_keeps_its_rows(tmp_path: Path) -> None:
    chosen(tmp_path)
    with pytest.raises(InvalidSetting, match="--postgresql is 'True': expected none, as at"):
        chosen(tmp_path, postgresql=True)
    with alone_in(tmp_path):
        chosen(tmp_path)
        with pytest.raises(
            InvalidSetting, match="expected a folder of `groupcert up --postgresql`"
        ):
            servers_up_in(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"log_servers": [], "more": 1})])
def test_a_file_that_is_no_groups_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "group.json").write_text(text)
    with pytest.raises(InvalidSetting, match="a folder of `groupcert up`, an empty one"):
        chosen(tmp_path)


def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "rocksdb").mkdir()
    with pytest.raises(InvalidSetting, match="a folder of `groupcert up`, an empty one"):
        chosen(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["rocksdb"]


def test_a_folder_has_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        alone_in(tmp_path),
        pytest.raises(InvalidSetting, match="whose group is down: `groupcert down`"),
        alone_in(tmp_path),
    ):
        raise AssertionError("twice in one folder")
    (tmp_path / "up.lock").write_text(str(os.getpid()))  # As a killed one leaves it.
    with (tmp_path / "up.lock").open() as lock:
        assert not is_held(lock, tmp_path)
        assert not take_down(tmp_path)  # Nor is it asked to end while somebody looks.
    assert not take_down(tmp_path / "none")

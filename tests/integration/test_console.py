"""The console of real members, as a browser shows it: what it says of a group that works, of one
that has lost a member, and of the member that it belongs to when that is gone.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver import Chrome

import groupcert
from groupcert.members.commands.cli_up import Ready
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.security.credentials import credentials_of
from tests.browser import asked_of_others, colours, count, logged, resize, text
from tests.integration.postgresql_group import PostgresqlGroup, group_verb
from tests.integration.test_bad_input import delete_log
from tests.integration.test_up import run, up
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]
WIDTHS = (420, 1280)
ROW = b"<b>hot</b>/1"
"""The key of a row, which must not become a part of the page."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Ready]:
    """A group of three members, one of which has refused a transaction."""
    folder = tmp_path / "group"
    ready = up(folder)
    try:
        conflict_at(ready["members"]["m1"])
        yield ready
    finally:
        assert run(folder, "down").returncode == 0


def conflict_at(address: str) -> None:
    with (
        groupcert.Client(address) as client,
        pytest.raises(groupcert.CertificationConflict),
        client.transaction() as late,
    ):
        client.run(lambda early: early.put(ROW, b"first"))
        late.put(ROW, b"second")


def open_console(browser: Chrome, url: str) -> None:
    """Opens a console and waits until it has drawn the group."""
    browser.get(url)
    wait_for("the page shows the group", lambda: "m3" in text(browser, "#members"))


def get(url: str, path: str, token: str = "") -> tuple[int, str]:
    """Returns the status and the text of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(url + path, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_shows_a_group_at_any_width(browser: Chrome, running: Ready) -> None:
    for width in WIDTHS:
        resize(browser, width)
        open_console(browser, running["console"])
        wait_for("all is well", lambda: "Nothing is wrong" in text(browser, "#problems"))
        wide = int(browser.execute_script("return document.scrollingElement.scrollWidth"))
        assert wide <= width
    assert "3 of 3 members are ONLINE" in text(browser, "#group-text")
    assert "leader" in text(browser, "#log")
    assert ROW.decode() in text(browser, "#hot") and ROW.decode() in text(browser, "#conflicts")
    assert "m1" in text(browser, "#conflicts")
    assert browser.execute_script("return document.querySelectorAll('#hot td b').length") <= 1
    for place in ("#applier-text", "#info-text", "#flow-text", "#settings-text", "#workers"):
        assert text(browser, place), place
    assert [entry for entry in logged(browser, "browser") if entry["level"] == "SEVERE"] == []


def test_the_page_loads_nothing_from_others_and_tells_what_differs(
    browser: Chrome, tmp_path: Path
) -> None:
    consoles = {name: f"{HOST}:{free_port()}" for name in ("m1", "m2", "m3")}
    own: dict[str, dict[str, object]] = {
        name: {"metrics_address": address} for name, address in consoles.items()
    }
    own["m3"]["workers"] = 2
    with LocalGroup(tmp_path, own_settings=own) as group:
        browser.get("about:blank")  # The page of another test asks no more.
        logged(browser, "performance")
        open_console(browser, f"http://{consoles['m1']}/")
        differ = "Members differ in workers."
        wait_for("settings", lambda: differ in text(browser, "#settings-text"))
        assert text(browser, "#member-settings .marked").split("\t")[-1] == "2 workers"
        wait_for("points", lambda: count(browser, "#rates .curve") == 2)
        own_url = f'"url":"http://{consoles["m1"]}/'
        assert [each for each in asked_of_others(browser) if own_url not in each] == []
        grounds = set()
        for scheme in ("light", "dark"):
            colours(browser, scheme)
            script = "return getComputedStyle(document.body).backgroundColor"
            grounds.add(browser.execute_script(script))
        colours(browser, "")
        assert len(grounds) == 2

        group.kill("m2")
        wait_for("its expulsion", lambda: "expelled: nobody heard of it" in text(browser))
        assert count(browser, "#members .gone") == 1
        group.start_member("m2")
        wait_for("it is back", lambda: count(browser, "#members .good") == 3)
        wait_for("all is well", lambda: "Nothing is wrong" in text(browser, "#problems"))
        for word in ("undefined", "NaN", "[object"):
            assert word not in text(browser, "body")


def test_a_killed_member_is_told_by_others_and_by_its_own_page(
    browser: Chrome, running: Ready
) -> None:
    resize(browser, WIDTHS[-1])
    open_console(browser, running["console"])
    wait_for("all is well", lambda: "Nothing is wrong" in text(browser, "#problems"))
    os.kill(running["processes"]["m3"], signal.SIGKILL)
    wait_for("m1 tells of m3", lambda: "m3 does not answer" in text(browser, "#problems"))
    assert "NO ANSWER" in text(browser, "#members")

    os.kill(running["processes"]["m1"], signal.SIGKILL)
    wait_for("its page tells of m1", lambda: "No answer from m1" in text(browser, "#lost"))
    links = browser.execute_script(
        "return [...document.querySelectorAll('#lost a')].map(a => a.href)"
    )
    assert running["consoles"]["m2"] in links


@pytest.mark.database
@pytest.mark.in_turns
def test_the_page_shows_what_the_status_of_each_server_says(
    browser: Chrome, servers3: PostgresqlGroup
) -> None:
    first, second, third = servers3.primaries
    url = f"http://{first.metrics_address}"

    def row(name: str) -> str:
        return text(browser, f"#servers [data-key={name}]")

    resize(browser, WIDTHS[-1])
    open_console(browser, f"{url}/")
    wait_for("all", lambda: "3 of 3 take writes" in text(browser, "#servers-text"))
    assert "PostgreSQL" in row("m2") and "8 tables" in row("m2")
    second.query("CREATE TABLE late (id int)")
    second.query("INSERT INTO late VALUES (1)")
    wait_for("rows outside", lambda: "1 row in tables that are not attached" in row("m2"))
    with closing(second.connect()) as session:
        session.execute("SELECT 1")
        words = f"session {session.info.backend_pid} of "
        wait_for("the oldest transaction", lambda: words in row("m2"))
        wide = int(browser.execute_script("return document.scrollingElement.scrollWidth"))
        assert wide <= WIDTHS[-1]
    with servers3.member_stopped(2):
        wait_for("m3 is silent", lambda: "its member does not answer" in row("m3"))
    assert group_verb("leave", third)
    wait_for("why it is out", lambda: "no: its member is LEFT" in row("m3"))
    assert group_verb("rejoin", third)
    wait_for("all", lambda: "3 of 3 take writes" in text(browser, "#servers-text"))
    metrics = get(url, "/metrics")[1]
    for name in ("behind_transactions", "waits_seconds", "takes_writes", "attached_tables"):
        assert f"\ngroupcert_postgresql_{name} " in metrics
    second.query("DROP TABLE late")
    for word in ("undefined", "NaN", "[object"):
        assert word not in text(browser, "body")


def test_a_fenced_member_lives_and_is_not_ready(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    console = f"http://{address}"
    with LocalGroup(tmp_path, members=1, settings={"metrics_address": address}) as group:
        assert get(console, "/healthz") == (200, "alive\n")
        assert get(console, "/readyz") == (200, "ONLINE\n")
        status, said = get(console, "/console.json")
        assert (status, json.loads(said)["observer"]) == (200, "m1")
        status, said = get(console, "/metrics/more")
        assert status == 404 and "/metrics" in said.split()
        asyncio.run(delete_log(group))
        wait_for("m1 is not ready", lambda: get(console, "/readyz")[0] == 503)
        assert get(console, "/readyz")[1].startswith("FENCED: FOREIGN_LOG: ")
        assert get(console, "/healthz") == (200, "alive\n")
        (document,) = json.loads(get(console, "/console.json")[1])["members"]
        assert document["state"] == "FENCED"


def test_an_access_list_is_asked_for_the_role_observe(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    console = f"http://{address}"
    (tmp_path / "access.toml").write_text(
        "".join(
            f'[[principal]]\nname = "{name}"\nroles = ["{role}"]\n'
            f'token_sha256 = "{sha256(name.encode()).hexdigest()}"\n'
            for name, role in (("watcher", "observe"), ("writer", "write"), ("all", "member"))
        )
    )
    (tmp_path / "token").write_text("all")
    settings = {
        "metrics_address": address,
        "access": str(tmp_path / "access.toml"),
        "token_file": str(tmp_path / "token"),
    }
    credentials = credentials_of(None, tmp_path / "token")
    group = LocalGroup(tmp_path, members=1, settings=settings, credentials=credentials)
    with group:
        assert get(console, "/console.json")[0] == 401
        assert get(console, "/console.json", token="other")[0] == 401
        assert get(console, "/console.json", token="writer")[0] == 403
        assert get(console, "/console.json", token="watcher")[0] == 200
        assert get(console, "/", token="watcher")[0] == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert get(console, path)[0] == 200

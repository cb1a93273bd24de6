"""A console over a real member: probes, who may look, and what it tells, over a real socket."""

import asyncio
import base64
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from groupcert.certifier.write_set import store_key_item
from groupcert.members.console import console as console_module
from groupcert.members.console.console import Console, Shared
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.door.answer_budget import AnswerBudget
from groupcert.members.errors.membership import NameTaken
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.security.access import AccessList
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.metrics import metrics_application
from groupcert.v1.transaction_pb2 import Changes
from tests.members.recovery.test_copies import running

PAGES = ("/", "/console.json", "/console.js", "/console.css", "/charts.js", "/group.js")
PROBES = ("/metrics", "/healthz", "/readyz")
KEY = b"<b>\xff\n"


class Served:
    """A console, its member, and what both answer."""

    def __init__(self, runtime: MemberRuntime, current: CurrentRuntime, address: str) -> None:
        self.runtime, self.current, self.address = runtime, current, address

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """The status and the text of an answer, which is waited for."""
        request = urllib.request.Request(f"http://{self.address}{path}", headers=dict(headers))
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def ask(self, path: str, **headers: str) -> tuple[int, str]:
        """The same, while the member goes on."""
        return await asyncio.to_thread(self.answer, path, headers)

    async def document(self) -> Any:
        """What the page draws."""
        status, text = await self.ask("/console.json")
        assert status == 200, text
        return json.loads(text)


@asynccontextmanager
async def served(folder: Path, **settings: object) -> AsyncIterator[Served]:
    """A console of a member that is ONLINE, alone in its group."""
    async with running(folder / "m1") as runtime:
        address = f"{HOST}:{free_port()}"
        update = {"metrics_address": address, **settings}
        runtime.config = runtime.config.model_copy(update=update)
        current = CurrentRuntime()
        current.runtime = runtime
        console = Console(runtime.config, current, AnswerBudget(1 << 20))
        async with console.serving(address, metrics_application()):
            yield Served(runtime, current, address)


def write_of(number: int, snapshot: int) -> LoggedTransaction:
    changes = Changes(put_keys=[KEY], put_values=[b"%d" % number]).SerializeToString()
    item = store_key_item(KEY)
    return LoggedTransaction(b"t%d" % number, snapshot, [item], payload=changes)


async def test_a_conflict_is_told_with_its_row_winner_and_loser(tmp_path: Path) -> None:
    async with served(tmp_path) as console:
        await console.runtime.submit([write_of(1, 0)])
        await console.runtime.submit([write_of(2, 0)])
        document = await console.document()
    (conflict,) = document["conflicts"]
    assert conflict["row"] == {"key": r"<b>\xff\n", "item": f"{store_key_item(KEY):016x}"}
    assert (conflict["winner_member"], conflict["winner_version"]) == ("m1", 1)
    assert (conflict["loser_member"], conflict["loser_transaction_id"]) == ("m1", b"t2".hex())
    (row,) = document["hot_rows"]["rows"]
    assert (row["row"], row["conflicts"], row["conflicts_min"]) == (conflict["row"], 1, 1)
    assert document["transactions"]["conflict"] == 1
    (member,) = document["members"]
    assert (member["state"], member["version"], member["lag_transactions"]) == ("ONLINE", 1, 0)
    assert document["problems"] == []


async def test_who_holds_collection_back_is_told_with_the_reason(tmp_path: Path) -> None:
    async with served(tmp_path) as console:
        runtime = console.runtime
        await runtime.submit([write_of(1, 0)])
        runtime.snapshots.open(runtime.committed_version, runtime.now_ms())
        await runtime.submit([write_of(2, 1)])
        async with asyncio.timeout(60):
            while True:
                info = (await console.document())["certification"]
                if info["held_at_version"]:
                    break
                await asyncio.sleep(0.1)
    assert (info["held_by"], info["newest_version"]) == ("m1", 2)
    assert info["held_why"] == "a client there works on a snapshot of version 1"


async def test_a_fenced_member_lives_and_is_not_ready(tmp_path: Path) -> None:
    async with served(tmp_path) as console:
        assert await console.ask("/readyz") == (200, "ONLINE\n")
        console.runtime.fence(NameTaken(member="m1", address="elsewhere:1"))
        assert await console.ask("/healthz") == (200, "alive\n")
        status, text = await console.ask("/readyz")
        assert status == 503 and text.startswith("FENCED: NAME_TAKEN: ")
        assert (await console.document())["problems"][0]["kind"] == "member_state"


async def test_a_member_that_stops_or_has_not_begun_is_not_ready(tmp_path: Path) -> None:
    async with served(tmp_path) as console:
        console.current.runtime = None
        assert await console.ask("/readyz") == (503, "OFFLINE\n")
        assert (await console.document())["starting"] is True
        console.current.stopping.begin()
        assert await console.ask("/readyz") == (503, "STOPPING\n")


async def test_an_event_loop_that_stands_still_is_no_healthy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_module, "LOOP_SECONDS_MAX", 0.05)
    async with served(tmp_path) as console:
        # The event loop stands still until both are answered.
        answers = [console.answer(path, {}) for path in ("/healthz", "/readyz")]
        assert answers == [(503, "the event loop does not answer\n")] * 2


async def test_the_access_list_guards_all_but_probes(tmp_path: Path) -> None:
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("eye", "shop")}
    access = AccessList.model_validate(
        {
            "principal": [
                {"name": "a", "token_sha256": digests["eye"], "roles": ["observe"]},
                {"name": "b", "token_sha256": digests["shop"], "roles": ["read", "write"]},
            ]
        }
    )
    basic = base64.b64encode(b"me:eye").decode()
    async with served(tmp_path, access=access) as console:
        for path in PAGES:
            assert (await console.ask(path))[0] == 401
            assert (await console.ask(path, Authorization="Bearer shop"))[0] == 403
            assert (await console.ask(path, Authorization="Bearer eye"))[0] == 200
            assert (await console.ask(path, Authorization=f"Basic {basic}"))[0] == 200
        for path in PROBES:
            assert (await console.ask(path))[0] == 200


async def test_a_page_of_another_site_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as console:
        assert (await console.ask("/console.json", Host="evil.example"))[0] == 403
        assert (await console.ask("/metrics", Host="evil.example"))[0] == 200


def test_pages_that_ask_together_share_a_document() -> None:
    made: list[bytes] = []

    def make() -> bytes:
        made.append(b"document %d" % len(made))
        return made[-1]

    shared = Shared(make)
    assert {shared.get() for _ in range(100)} == {b"document 0"}

"""`groupcert whatif --member`: the binary log of a member that runs."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from groupcert import Client
from groupcert.members.commands.cli import app
from groupcert.members.demo.group_checks import settle
from groupcert.members.demo.local_group import LocalGroup

pytestmark = [pytest.mark.nats, pytest.mark.slow]
TRANSACTIONS = 40
ROWS = 4


def document(*words: str) -> Any:
    """What the verb prints as JSON."""
    done = CliRunner().invoke(app, ["whatif", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def write(client: Client, number: int) -> None:
    """Commits a transaction that writes one of few rows."""
    with client.transaction() as transaction:
        transaction.put(f"shop.orders/{number % ROWS}".encode(), b"x")


def test_a_running_member_gives_its_transactions_and_rows(
    group: LocalGroup, clients: list[Client]
) -> None:
    for number in range(TRANSACTIONS):
        write(clients[0], number)
    settle(clients)
    address = next(iter(group.addresses.values()))
    of_member = document("--member", address)
    assert of_member["source"]["files"] == [address]
    assert of_member["workload"]["transactions"] == TRANSACTIONS
    assert {each["item"] for each in of_member["hot_items"]} == {
        f"shop.orders/{row}" for row in range(ROWS)
    }
    # Whoever writes a row follows its last writer: ten, one after the other, behind the views.
    views = of_member["workload"]["entries"] - TRANSACTIONS
    assert of_member["critical_path"]["transactions"] == TRANSACTIONS // ROWS + views


def test_a_member_that_does_not_answer_is_named() -> None:
    done = CliRunner().invoke(app, ["whatif", "--member", "127.0.0.1:1"])
    assert done.exit_code == 1 and "127.0.0.1:1" in str(done.exception)

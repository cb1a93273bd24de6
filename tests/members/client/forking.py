"""Programs that fork with a client, each run as a process of its own by `test_forks.py`.

python -m tests.members.client.forking NAME ADDRESS
"""

import multiprocessing
import os
import sys
import threading
import traceback
import uuid
from collections.abc import Callable

from groupcert import CertificationConflict, Client, Transaction, certifiable
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED

KEY = b"forks"
WORKERS = 3
COMMITS = 5


def increment(transaction: Transaction) -> None:
    """Adds one to the row."""
    transaction.put(KEY, b"%d" % (int(transaction.get(KEY) or b"0") + 1))


def value(client: Client) -> int:
    """The row's number."""
    return client.run(lambda transaction: int(transaction.get(KEY) or b"0"))


def forked(work: Callable[[], None]) -> int:
    """Forks a process that does some work and ends as a program does; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def wait(*pids: int) -> None:
    """Waits for processes, which must end well."""
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, f"a child ended with {status}"


def preloaded(client: Client) -> None:
    """A server that loads its application, uses the client, and forks its workers; then again."""
    before = value(client)

    def work() -> None:
        for _ in range(COMMITS):
            client.run(increment, timeout_ms=60_000)
        rows = dict(client.transaction().scan(KEY, KEY + b"\x00"))
        assert int(rows[KEY]) > before
        client.close()

    for _ in range(2):
        workers = [forked(work) for _ in range(WORKERS)]
        client.run(increment, timeout_ms=60_000)
        wait(*workers)
    client.version = client.status().observer.committed_version
    assert value(client) == before + 2 * (WORKERS * COMMITS + 1)


def pooled(client: Client) -> None:
    """A pool of processes by `multiprocessing`, which use the client that they have inherited."""
    before = value(client)
    global _inherited
    _inherited = client
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        versions = pool.map(_commit, range(WORKERS * COMMITS))
    assert len(set(versions)) == WORKERS * COMMITS
    client.version = max(versions)
    assert value(client) == before + WORKERS * COMMITS


_inherited: Client


def _commit(_number: int) -> int:
    _inherited.run(increment, timeout_ms=60_000)
    return _inherited.version


def unused(client: Client) -> None:
    """A client that was made and not used."""
    wait(forked(lambda: client.run(increment)))
    client.run(increment)


def after_errors(client: Client) -> None:
    """Errors that are kept, with their frames, keep nothing of gRPC."""
    kept: list[Exception] = []
    client.run(increment)
    lost = client.transaction(snapshot_version=client.version - 1)
    lost.put(KEY, b"lost")
    ended = client.transaction()
    ended.rollback()
    for call in (
        lost.commit,
        lambda: ended.get(KEY),
        lambda: client.certify(certifiable(snapshot="nonsense", write_set=[1])),
        lambda: list(client.certify_stream([[certifiable(snapshot="nonsense", write_set=[1])]])),
        lambda: list(client.history(1 << 62)),
    ):
        try:
            call()
        except Exception as error:
            kept.append(error)
    assert isinstance(kept[0], CertificationConflict) and len(kept) >= 4, kept
    with Client("127.0.0.1:1", timeout_ms=300) as nowhere:
        try:
            nowhere.status()
        except Exception as error:
            kept.append(error)
    wait(forked(lambda: client.run(increment)))
    client.run(increment)


def busy(client: Client) -> None:
    """A process that forks while its other threads commit: nobody loses a commit."""
    before, stopped = value(client), threading.Event()
    commits: list[None] = []

    def work() -> None:
        while not stopped.is_set():
            commits.append(client.run(increment, timeout_ms=60_000))

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    workers = [forked(lambda: client.run(increment, timeout_ms=60_000)) for _ in range(WORKERS)]
    stopped.set()
    for thread in threads:
        thread.join()
    wait(*workers)
    client.version = client.status().observer.committed_version
    assert value(client) == before + WORKERS + len(commits)


def in_a_transaction(client: Client) -> None:
    """The parent's transaction goes on; the child says at once why it has no client."""

    def refused() -> None:
        with Client(client.address) as other:
            for used in (client, other):
                try:
                    used.status()
                except RuntimeError as error:
                    assert "a client had an open transaction when this process was" in str(error)
                else:
                    raise AssertionError("not refused")

    with client.transaction() as transaction:
        increment(transaction)
        wait(forked(refused))
    wait(forked(lambda: client.run(increment)))


def in_a_stream(client: Client) -> None:
    """The parent's stream goes on; the child says at once why it has no client."""

    def refused() -> None:
        try:
            client.run(increment)
        except RuntimeError as error:
            assert "a call of a client ran when this process was forked" in str(error)
        else:
            raise AssertionError("not refused")

    newest = client.status().observer.committed_version
    rows = [uuid.uuid4().hex for _ in range(2)]
    batches = ([certifiable(snapshot=newest, write_set=[row])] for row in rows)
    watched = client.watch(50)
    next(watched)
    wait(forked(refused))
    next(watched)
    del watched
    assert [outcome.verdict for _, outcome in client.certify_stream(batches)] == [
        VERDICT_CERTIFIED
    ] * 2
    wait(forked(lambda: client.run(increment)))


def unfinished(client: Client) -> None:
    """A program that ends with a stream that it has not read to its end, and an error."""
    watched = client.watch(50)
    next(watched)
    sys.stdout.write("done")
    sys.exit(0 if next(watched).members else 1)


PROGRAMS = (
    preloaded,
    pooled,
    unused,
    after_errors,
    busy,
    in_a_transaction,
    in_a_stream,
    unfinished,
)

if __name__ == "__main__":
    _, name, *addresses = sys.argv
    with Client(addresses, timeout_ms=20_000) as client:
        next(each for each in PROGRAMS if each.__name__ == name)(client)
    sys.stdout.write("done")

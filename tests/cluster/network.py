"""What happens to packets between containers: rules in the forwarding path of this machine.

The containers' addresses are fixed, so rules outlive them: a member that was killed and started
again is still cut off. Clients on this machine reach every container whatever the rules say.

The rule it keeps: all rules are in one chain of the cluster's own, so that removing this chain
removes every fault, also those of a run that was killed.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

from tests.cluster.engine import BRIDGE_FILTER, iptables, try_run
from tests.commands import CommandFailed

HOOK = "DOCKER-USER"
"""The chain that Docker passes every forwarded packet through, before rules of its own."""

Rule = tuple[str, ...]


class Network:
    """The packets of one cluster. Rules that drop come before those that delay."""

    def __init__(self, number: int) -> None:
        """`number`: of the cluster; two that run at the same time have different ones."""
        self._chain = f"GROUPCERT-TEST-{number}"
        self._queue_first = 100 * (number + 1)
        self._delays: dict[Rule, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """Makes the chain.

        Raises CommandFailed: packets between containers do not pass it on this machine.
        """
        if not BRIDGE_FILTER.is_file() or BRIDGE_FILTER.read_text().strip() != "1":
            raise CommandFailed(f"{BRIDGE_FILTER} is not 1: packets on a bridge pass no rules")
        self.remove()
        iptables("--new-chain", self._chain)
        iptables("--insert", HOOK, "--jump", self._chain)

    def remove(self) -> None:
        """Removes the chain and every fault with it, whoever made them."""
        self._stop_delays()
        try_run("iptables", "--wait", "--delete", HOOK, "--jump", self._chain)
        try_run("iptables", "--wait", "--flush", self._chain)
        try_run("iptables", "--wait", "--delete-chain", self._chain)

    def clear(self) -> None:
        """Heals every fault."""
        iptables("--flush", self._chain)
        self._stop_delays()

    def drop(self, rule: Rule) -> None:
        """Drops what matches."""
        iptables("--insert", self._chain, *rule, "--jump", "DROP")

    def stop_dropping(self, rule: Rule) -> None:
        """Takes a rule back, if it is there."""
        try_run("iptables", "--wait", "--delete", self._chain, *rule, "--jump", "DROP")

    def delay(self, rule: Rule, delay_ms: float) -> None:
        """Holds what matches for so long; packets keep their order."""
        queue = next(self._free_queues())
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.packet_delay", str(queue), str(delay_ms)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()  # It says that it has the queue, or ends.
        if process.poll() is not None:
            raise CommandFailed(f"packet_delay of queue {queue} ended with {process.returncode}")
        self._delays[(*rule, *_to_queue(queue))] = process
        iptables("--append", self._chain, *rule, *_to_queue(queue))

    def stop_delaying(self, rule: Rule) -> None:
        """Takes a delay back, if it is there."""
        for full_rule in [each for each in self._delays if each[: len(rule)] == rule]:
            try_run("iptables", "--wait", "--delete", self._chain, *full_rule)
            _end(self._delays.pop(full_rule))

    def rules(self) -> list[str]:
        """The rules there are now."""
        with suppress(CommandFailed):
            return iptables("--list-rules", self._chain).splitlines()[1:]
        return []

    def dropped_packets(self) -> int:
        """How many packets the rules of now have dropped."""
        listed = iptables("--list", self._chain, "--verbose", "--exact", "--numeric")
        rows = [line.split() for line in listed.splitlines()[2:]]
        return sum(int(packets) for packets, _bytes, target, *_ in rows if target == "DROP")

    def _free_queues(self) -> Iterator[int]:
        used = {int(rule[-2]) for rule in self._delays}
        return (
            number
            for number in range(self._queue_first, self._queue_first + 100)
            if number not in used
        )

    def _stop_delays(self) -> None:
        for process in self._delays.values():
            _end(process)
        self._delays.clear()


def _to_queue(queue: int) -> Rule:
    """Packets pass undelayed where nobody holds the queue any more."""
    return ("--jump", "NFQUEUE", "--queue-num", str(queue), "--queue-bypass")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The kernel drops what the process still held; TCP sends it again."""
    process.terminate()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()

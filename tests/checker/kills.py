"""Kills processes of a group one after the other, by a seed, and starts them again.

Each kill leaves what is asked for by the group's promise: one member of those that are killed is
there, and two log servers of three. The next one comes when the last one is back.
"""

import random
import time
from collections import Counter
from collections.abc import Callable

from groupcert.members.demo.local_group import LocalGroup
from tests.checker.orders import KilledOrder
from tests.integration.replicas import ReplicaProcess
from tests.integration.waiting import wait_for

DOWN_SECONDS = (0.0, 0.5, 2.0)
WEIGHTS = {"member": 5, "two members": 2, "replica": 3, "log server": 2, "log leader": 2}


class Kills:
    """The schedule; `counts` says what was killed."""

    def __init__(
        self,
        group: LocalGroup,
        victims: list[str],
        order: KilledOrder,
        replica: ReplicaProcess,
        seed: int,
    ) -> None:
        """`victims`: the members that may be killed."""
        self._group = group
        self._victims = victims
        self._order = order
        self._replica = replica
        self._chance = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def kill_next(self) -> int:
        """Kills once, or two members at once, and starts again; returns how many were killed."""
        (kind,) = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        kill: dict[str, Callable[[], int]] = {
            "member": lambda: self._kill_members(1),
            "two members": lambda: self._kill_members(2),
            "replica": self._kill_replica,
            "log server": lambda: self._kill_server(self._chance.choice(self._order.names)),
            "log leader": self._kill_leader,
        }
        count = kill[kind]()
        self.counts[kind] += 1
        return count

    def _kill_members(self, count: int) -> int:
        names = self._chance.sample(self._victims, count)
        for name in names:
            self._group.kill(name)
        self._stay_down()
        for name in names:
            self._group.start_member(name)
        self._group.wait_online()
        return count

    def _kill_replica(self) -> int:
        self._replica.kill()
        self._stay_down()
        self._replica.start()
        return 1

    def _kill_leader(self) -> int:
        name = wait_for("a leader of the log", self._order.leader)
        return self._kill_server(name)

    def _kill_server(self, name: str) -> int:
        self._order.kill(name)
        self._stay_down()
        self._order.start(name)
        self._order.wait_ready()
        return 1

    def _stay_down(self) -> None:
        """Leaves what is dead dead for a while that the seed draws: a fault has a length."""
        time.sleep(self._chance.choice(DOWN_SECONDS))

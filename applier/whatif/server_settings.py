"""The settings with which MySQL's and MariaDB's own replicas schedule as one of the schemes does.

Only the schedule is the same: a server's replica executes in the server, without an applier beside
it. Numbers of workers are `replica_parallel_workers` (`slave_parallel_workers` before 8.0.26) and
`slave_parallel_threads`.

Source: MySQL 8.4 Reference Manual, "Replica Server Options and Variables"; MySQL 8.0, "Binary
Logging Options and Variables"; MySQL 8.4.0 release notes; MariaDB, "Parallel Replication".
"""

from typing import NamedTuple

from .scheme_comparison import Line
from .workload import Stamps


class ServerSetting(NamedTuple):
    """A setting of a server's replica, and of its source if it takes one there. `limits`: what the
    server does otherwise, or which releases have it.
    """

    server: str
    replica: str
    source: str = ""
    limits: str = ""


MYSQL, MARIADB = "MySQL", "MariaDB"
SETTINGS: dict[Line, tuple[ServerSetting, ...]] = {
    Line("logical-clock"): (
        ServerSetting(
            MYSQL,
            "replica_parallel_type=LOGICAL_CLOCK",
            "binlog_transaction_dependency_tracking=WRITESET",
            "from 8.4 on without the setting of the source; before 8.0.26 slave_parallel_type; "
            "transactions on tables with foreign keys or without a primary key wait for each other",
        ),
    ),
    Line("logical-clock", stamps=Stamps.LOCK_INTERVALS): (
        ServerSetting(
            MYSQL,
            "replica_parallel_type=LOGICAL_CLOCK",
            "binlog_transaction_dependency_tracking=COMMIT_ORDER",
            "from 5.7.3 to 8.3; before 8.0.26 slave_parallel_type",
        ),
    ),
    Line("commit-parent"): (
        ServerSetting(MYSQL, "slave_parallel_type=LOGICAL_CLOCK", limits="of 5.7.2 alone"),
    ),
    Line("group-commit"): (
        ServerSetting(
            MARIADB, "slave_parallel_mode=conservative", limits="the default before 10.5.1"
        ),
    ),
    Line("database"): (
        ServerSetting(
            MYSQL,
            "replica_parallel_type=DATABASE",
            limits="before 8.0.26 slave_parallel_type, whose default it was",
        ),
    ),
    Line("jobs", conflicts="ordered"): (
        ServerSetting(
            MARIADB,
            "slave_parallel_mode=optimistic",
            limits="the default from 10.5.1 on; it rolls back and repeats transactions that "
            "conflict, which is not counted; aggressive begins more of them",
        ),
    ),
}
"""By the line of the comparison that schedules so."""

"""The command `groupcert`: verbs, flags and exit codes; each verb's work is in a module of its own.

The rule it keeps: answers go to standard output, everything else to standard error. The exit code is
0 for fine, 1 for a finding, 2 for wrong usage or input, 3 for something that is not available.
Modules are imported by the verb that needs them, so that the command starts quickly.
"""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, NoReturn
from uuid import UUID

import typer
from typer.core import TyperGroup

from certifier.errors import GroupcertError, InvalidRequest, Unavailable
from members.failures import MemberFailed, TransactionFailed

FINDING, USAGE, UNAVAILABLE = 1, 2, 3
GROUP_UUID = UUID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
"""Source of GTIDs in traces that do not matter elsewhere; MySQL's manual uses it, too."""


class GcWindow(str, Enum):
    """What a garbage collection does to the applier's window."""

    CLOSE = "close"
    TIGHT = "tight"


class WorkloadName(str, Enum):
    """The workloads of `load`."""

    BANK = "bank"
    UPDATE = "update"
    APPEND = "append"


class Verbs(TyperGroup):
    """Turns what a verb raises into one line on standard error and an exit code."""

    def invoke(self, ctx: typer.Context) -> object:
        """Runs a verb."""
        from members.config import InvalidConfig

        try:
            return super().invoke(ctx)
        except (InvalidRequest, InvalidConfig, ValueError, OSError) as error:
            _fail(error, USAGE)
        except (Unavailable, MemberFailed) as error:
            _fail(error, UNAVAILABLE)
        except (GroupcertError, TransactionFailed) as error:
            _fail(error, FINDING)

"""`groupcert export --log-server`: writes the certification log of a group's log.

The rule it keeps: the log is read as members read it, and nothing is ever written to it.
"""

import asyncio
from collections.abc import Iterator

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.certification_log.export_folder import check_absent
from groupcert.members.commands.export import ExportOptions, absent_observer, tell, write_history
from groupcert.members.commands.total_order_history import TotalOrderHistory
from groupcert.members.runtime.skips import is_skip_ordered
from groupcert.members.total_order.log_options import LogOptions, make_order
from groupcert.members.total_order.port import Delivery, LogState, TotalOrder


def export_total_order(
    log: LogOptions,
    observer: str | None,
    options: ExportOptions,
    *,
    first_sequence: int = 1,
    last_sequence: int | None = None,
) -> None:
    """Writes the history of a group's log, as `observer` sees it.

    Args:
        first_sequence: The message with which the history begins.
        last_sequence: The one with which it ends; None: the last one there is now.

    Raises:
        CorruptRecord, DigestMismatch, ForeignLog, LogGap, UnsupportedFormat: The log cannot be
            certified.
        GroupMissing, LogServerUnavailable, LogServerTooOld: It cannot be read.
        InvalidSetting: It does not have these messages, or not those before them any more; or the
            observer has a log in the folder.
        OSError: The files cannot be written.
    """
    order = make_order(log)
    with asyncio.Runner() as runner:
        history = TotalOrderHistory(
            observer,
            first_sequence,
            keys=options.keys,
            is_skip_ordered=lambda sequence: runner.run(is_skip_ordered(order, sequence)),
        )
        check_absent(options.out, history.observer)
        try:
            state = runner.run(order.open(create=False))
            last = last_sequence or state.last_sequence
            check_reached(state, first_sequence, last)
            rows = history.rows(_deliveries(runner, order, last))
            exported = write_history(rows, history.observer, options)
        finally:
            runner.run(order.close())
    tell(exported, options, "total_order", absent_observer(exported, observer))


def check_reached(state: LogState, first_sequence: int, last_sequence: int) -> None:
    """Raises InvalidSetting unless the log has all messages up to `last_sequence`."""
    if state.first_sequence > 1:
        raise InvalidSetting(
            name="log_server",
            value=f"a log that begins with message {state.first_sequence}",
            expected="one that was not trimmed, because decisions follow from all before them: "
            "take the certification logs that the members wrote",
        )
    for name, value in (("first", first_sequence), ("last", last_sequence)):
        if not first_sequence <= value <= state.last_sequence:
            expected = f"a message of the log, which ends with {state.last_sequence}"
            if name == "last":
                expected += f", and {first_sequence} or later"
            raise InvalidSetting(name=name, value=value, expected=expected)


def _deliveries(
    runner: asyncio.Runner, order: TotalOrder, last_sequence: int
) -> Iterator[Delivery]:
    """Yields the log's messages up to the last one; serves the connection while it waits."""
    batches = order.read(1)

    async def following() -> list[Delivery]:
        return await anext(batches)

    try:
        sequence = 0
        while sequence < last_sequence:
            for delivery in runner.run(following()):
                sequence = delivery.sequence
                if sequence <= last_sequence:
                    yield delivery
    finally:
        runner.run(batches.aclose())

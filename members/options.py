"""What a member's settings mean to its parts."""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from certifier.history import Cursor
from certifier.store import Store
from members.binary_log import BinaryLogOptions
from members.config import MemberConfig
from members.convert import changed_keys
from members.decisions import Decisions
from members.log_records import GroupSettings
from members.member_state import MemberOptions
from members.outbox import Outbox
from members.publisher import BatchLimits
from members.views import ViewMember

if TYPE_CHECKING:
    from members.certification_log_writer import CertificationLogWriter


def binary_log_options(config: MemberConfig) -> BinaryLogOptions:
    """When its binary log begins a file, and how many it keeps."""
    return BinaryLogOptions(
        file_bytes_max=config.binary_log_file_bytes_max,
        files_max=config.binary_log_files_max,
        retention_bytes=config.binary_log_retention_bytes,
        sequence_number_max=config.binary_log_sequence_number_max,
    )


def member_options(config: MemberConfig) -> MemberOptions:
    """A member's options for a new run: it has an incarnation of its own."""
    return MemberOptions(
        me=ViewMember(
            name=config.member,
            incarnation=secrets.randbits(64),
            address=config.address,
            weight=config.weight,
        ),
        settings=group_settings(config),
        batches=BatchLimits(
            transactions_max=config.batch_transactions_max,
            bytes_max=config.batch_bytes_max,
            window=config.publish_window,
            linger_ms=config.batch_linger_ms,
        ),
        stable_period_ms=config.stable_set_period_ms,
        stable_items=config.stable_set_rows,
        suspicion_ms=config.suspicion_timeout_ms,
        expel_ms=config.member_expel_timeout_ms,
        unreachable_ms=config.unreachable_majority_timeout_ms,
    )


def decisions_of(config: MemberConfig) -> Decisions:
    """What notes a member's decisions, if it keeps a history."""
    is_on = config.record_history or config.certification_log is not None
    keys_of = changed_keys if config.certification_log_keys else None
    return Decisions(config.member, is_on=is_on, keys_of=keys_of)


def writer_of(
    config: MemberConfig,
    store: Store,
    committed_version: Callable[[], int],
    on_written: Callable[[Cursor], None],
    on_error: Callable[[Exception], None],
) -> "CertificationLogWriter | None":
    """The writer of a member's certification log, if it keeps one; `start` has it write."""
    if config.certification_log is None:
        return None
    # A member without a log does without what Parquet takes of its memory.
    from members.certification_log_writer import CertificationLogOptions, CertificationLogWriter

    options = CertificationLogOptions(
        folder=config.certification_log,
        file_bytes=config.certification_log_file_bytes,
        file_seconds=config.certification_log_file_seconds,
    )
    outbox = Outbox(
        store,
        config.member,
        bytes_max=config.certification_log_waiting_bytes_max,
        keeps=config.record_history,
        allows_keys=config.certification_log_keys,
    )
    return CertificationLogWriter(outbox, options, committed_version, on_written, on_error)


def group_settings(config: MemberConfig) -> GroupSettings:
    """What the group must agree on, as this member has it configured."""
    return GroupSettings(
        settings_version=1,
        group=config.group,
        group_uuid=str(config.group_uuid),
        gtid_assignment_block_size=config.gtid_assignment_block_size,
        gc_window=config.gc_window,
        write_set_items_max=config.write_set_items_max,
        outcomes_max=config.outcomes_max,
        flow_control_lag_max=config.flow_control_lag_max,
        single_primary=config.single_primary,
        members_allowed=config.members_allowed,
    )

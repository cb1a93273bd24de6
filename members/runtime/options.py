"""Builds the options of a member's parts from its settings."""

import secrets
from collections.abc import Callable
from importlib.metadata import version

from ...certifier.history.schema import Cursor
from ...certifier.storage.store import Store
from ..binary_log.log import BinaryLogOptions
from ..certification_log.outbox import KeptHistory, Outbox
from ..core.decisions import Decisions
from ..core.log_records import GroupSettings
from ..core.options import MemberOptions
from ..core.views import FORMAT_VERSION, ViewMember
from ..settings.member import MemberConfig
from ..wire.row_changes import changed_keys


def binary_log_options(config: MemberConfig) -> BinaryLogOptions:
    """Returns the sizes at which the binary log begins a file and removes old ones."""
    return BinaryLogOptions(
        file_bytes_max=config.binary_log_file_bytes_max,
        retention_bytes=config.binary_log_retention_bytes,
    )


def member_options(config: MemberConfig) -> MemberOptions:
    """Returns a member's options for a new run, with an incarnation of its own."""
    return MemberOptions(
        me=ViewMember(
            name=config.member,
            incarnation=secrets.randbits(64),
            address=config.address,
            weight=config.weight,
            format_version=FORMAT_VERSION,
            release=version("groupcert"),
        ),
        settings=group_settings(config),
        stable_period_ms=config.stable_set_period_ms,
        suspicion_ms=config.suspicion_timeout_ms,
        expel_ms=config.member_expel_timeout_ms,
        unreachable_ms=config.unreachable_majority_timeout_ms,
    )


def decisions_of(config: MemberConfig) -> Decisions:
    """Returns the `Decisions` that notes a member's decisions, if it keeps a certification log."""
    is_on = config.certification_log is not None
    keys_of = changed_keys if config.certification_log_keys else None
    return Decisions(config.member, is_on=is_on, keys_of=keys_of)


def writer_of(
    config: MemberConfig,
    store: Store,
    committed_version: Callable[[], int],
    on_written: Callable[[Cursor], None],
    on_error: Callable[[Exception], None],
) -> KeptHistory | None:
    """Returns the writer of a member's certification log, if it has one; `start` starts it."""
    if config.certification_log is None:
        return None
    outbox = Outbox(
        store,
        config.member,
        bytes_max=config.certification_log_waiting_bytes_max,
        allows_keys=config.certification_log_keys,
    )
    if not config.writes_certification_log:
        return KeptHistory(outbox, config.certification_log)
    # A member that writes no files does without the memory that Parquet takes.
    from ..certification_log.writer import (
        CertificationLogOptions,
        CertificationLogWriter,
    )

    options = CertificationLogOptions(
        folder=config.certification_log,
        file_bytes=config.certification_log_file_bytes,
        file_seconds=config.certification_log_file_seconds,
    )
    return CertificationLogWriter(outbox, options, committed_version, on_written, on_error)


def group_settings(config: MemberConfig) -> GroupSettings:
    """Returns the settings on which the group must agree, as this member has them configured."""
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
        postgresql_tables=config.postgresql_tables,
    )

"""Settings of a member as texts that others may see: passwords are left out.

A group's members are compared by these: one with another `workers`, say, is the slow one.
"""

from pydantic_core import PydanticUndefined

from ..core.log_records import GroupSettings
from ..security.access import AccessList
from ..total_order.server_address import without_password
from .member import MemberConfig

OF_ONE_MEMBER = frozenset(
    {
        "member",
        "address",
        "listen_address",
        "metrics_address",
        "data_folder",
        "seeds",
        "certification_log",
        "rows",
        "postgresql",
        "tls_certificate",
        "tls_key",
        "token_file",
        "log_tls_certificate",
        "log_tls_key",
        "weight",
        "create_log",
    }
)
"""Settings that differ between members by what they are for."""


def shown_settings(config: MemberConfig) -> dict[str, str]:
    """Returns the settings of one member, but for those that its group agrees on."""
    return {
        name: _text(getattr(config, name))
        for name in MemberConfig.model_fields
        if name not in GroupSettings._fields
    }


def default_settings() -> dict[str, str]:
    """Returns `shown_settings` of a member that sets nothing; empty: it depends."""
    return {
        name: "" if field.default is PydanticUndefined else _text(field.default)
        for name, field in MemberConfig.model_fields.items()
        if name not in GroupSettings._fields
    }


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(_text, value))
        case AccessList():
            return f"{len(value.principal)} principals"
        case _:
            return without_password(str(value))

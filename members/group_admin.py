"""`groupcert group` and `groupcert bootstrap`: what operators change, and what they are told.

The rule it keeps: each answer says what has changed, and what is to be done next where that is not
all.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import grpc

from certifier.errors import InvalidSetting
from groupcert.v1 import admin_pb2
from groupcert.v1.admin_pb2_grpc import AdminServiceStub
from members.credentials import Credentials
from members.jetstream import JetStreamOptions, JetStreamOrder
from members.membership_errors import AlreadyBootstrapped
from members.remote import RemoteMember

TIMEOUT_SECONDS = 15.0
Answer = TypeVar("Answer")


class Operator(NamedTuple):
    """Who asks which member."""

    address: str
    credentials: Credentials

    def ask(self, call: Callable[[AdminServiceStub], Answer]) -> Answer:
        """The answer of the member. Raises what it raised, or NotServing."""
        member = RemoteMember(self.address, self.credentials)
        try:
            return call(AdminServiceStub(member.channel))
        except grpc.RpcError as error:
            raise member.failure(error) from None
        finally:
            member.channel.close()


def bootstrap(options: JetStreamOptions, *, if_absent: bool) -> str:
    """Makes the group's log, once, and says so.

    Raises:
        AlreadyBootstrapped: It is there; not with `if_absent`.
        LogServerUnavailable: No log server answered in time.
    """
    made, created = asyncio.run(_make_log(options))
    if not made and not if_absent:
        raise AlreadyBootstrapped(group=options.group, created=created)
    how = "bootstrapped" if made else "was bootstrapped before"
    return f"group {options.group} {how}, at {created}: start its members"


async def _make_log(options: JetStreamOptions) -> tuple[bool, str]:
    asking, making = JetStreamOrder(options), JetStreamOrder(options)
    try:
        made = not await asking.exists()
        state = await making.open(create=made)
    finally:
        await asking.close()
        await making.close()
    return made, state.identity.created


def show_settings(operator: Operator, *, as_json: bool) -> None:
    """Prints the group's settings."""
    answer = operator.ask(
        lambda admin: admin.GetSettings(admin_pb2.GetSettingsRequest(), TIMEOUT_SECONDS)
    )
    settings = dict(sorted(answer.settings.items()))
    document = {"settings_version": answer.settings_version, "settings": settings}
    if as_json:
        print_line(json.dumps(document))
    else:
        print_line(f"version {answer.settings_version}")
        for name, value in settings.items():
            print_line(f"{name} = {value}")


def change_settings(operator: Operator, assignments: Iterable[str], *, dry_run: bool) -> None:
    """Changes settings of the group, given as NAME=VALUE."""
    settings = _assigned(assignments)
    request = admin_pb2.ChangeSettingsRequest(settings=settings, dry_run=dry_run)
    answer = operator.ask(lambda admin: admin.ChangeSettings(request, TIMEOUT_SECONDS))
    version = answer.settings_version
    print_line(
        f"valid; nothing was changed, settings have version {version}"
        if dry_run
        else (f"settings have version {version} at all members")
    )


def switch_mode(operator: Operator, *, single_primary: bool, primary: str) -> None:
    """To single-primary or multi-primary mode."""
    request = admin_pb2.SwitchModeRequest(single_primary=single_primary, primary=primary)
    answer = operator.ask(lambda admin: admin.SwitchMode(request, TIMEOUT_SECONDS))
    if single_primary:
        print_line(f"single-primary mode, primary {answer.primary}")
    else:
        print_line("multi-primary mode")


def set_primary(operator: Operator, primary: str) -> None:
    """Makes a member the primary."""
    request = admin_pb2.SetPrimaryRequest(primary=primary)
    operator.ask(lambda admin: admin.SetPrimary(request, TIMEOUT_SECONDS))
    print_line(f"primary {primary}")


def expel(operator: Operator, member: str) -> None:
    """Puts a member out of the view."""
    request = admin_pb2.ExpelMemberRequest(member=member)
    answer = operator.ask(lambda admin: admin.ExpelMember(request, TIMEOUT_SECONDS))
    print_line(f"view {answer.view_id} is without {member}; if it runs, it rejoins")


def forget(operator: Operator, member: str) -> None:
    """Has a member that has departed named no more."""
    request = admin_pb2.ForgetMemberRequest(member=member)
    operator.ask(lambda admin: admin.ForgetMember(request, TIMEOUT_SECONDS))
    print_line(f"{member} is forgotten; if it comes back, it is a member as before")


def leave(operator: Operator) -> None:
    """Has a member leave its group."""
    answer = operator.ask(lambda admin: admin.Leave(admin_pb2.LeaveRequest(), TIMEOUT_SECONDS))
    if answer.view_id:
        print_line(
            f"it is in view {answer.view_id} until the log takes that it leaves, or the others "
            "expel it; it takes no more transactions, and answers reads"
        )
    else:
        print_line("it has left its group, and answers reads")
    print_line("`groupcert group rejoin` brings it back")


def rejoin(operator: Operator, *, unfence: bool, discard_state: bool, trust_log: bool) -> None:
    """Has a member begin anew."""
    request = admin_pb2.RejoinRequest(
        unfence=unfence, discard_state=discard_state, trust_log=trust_log
    )
    answer = operator.ask(lambda admin: admin.Rejoin(request, TIMEOUT_SECONDS))
    begins = "it joins without asking others" if trust_log else "it begins anew"
    print_line(f"{begins}; `groupcert status` shows how far it is")
    if answer.discarded_path:
        print_line(
            f"its state was set aside in {answer.discarded_path}: remove that when it is ONLINE"
        )


def skip(operator: Operator, log_sequence: int) -> None:
    """Has the log say that a message which nobody can read is to be skipped."""
    request = admin_pb2.SkipMessageRequest(log_sequence=log_sequence)
    operator.ask(lambda admin: admin.SkipMessage(request, TIMEOUT_SECONDS))
    print_line(f"who cannot read message {log_sequence} of the log skips it from now on")
    print_line("`groupcert group rejoin --unfence` brings each member back that is fenced at it")


def print_line(text: str) -> None:
    """One line of an answer."""
    sys.stdout.write(f"{text}\n")


def _assigned(assignments: Iterable[str]) -> Mapping[str, str]:
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidSetting(name=assignment, value="", expected="NAME=VALUE")
        settings[name] = value
    return settings

"""The error tree: every leaf has a stable reason, and a message that says what to do."""

import pickle
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

from groupcert.applier import errors as applier_errors
from groupcert.applier.mysql_logs import row_errors
from groupcert.applier.mysql_servers import source_errors
from groupcert.certifier import errors
from groupcert.certifier.audit.answers import errors as audit_errors
from groupcert.certifier.errors import GroupcertError
from groupcert.members.commands import extras as extra_errors
from groupcert.members.errors import calls as call_errors
from groupcert.members.errors import membership as membership_errors
from groupcert.members.errors import permissions as security_errors
from groupcert.members.errors import postgresql_servers as postgresql_errors
from groupcert.members.errors import rebuild as rebuild_errors
from groupcert.members.errors import recovery as recovery_errors
from groupcert.members.errors import transactions as transaction_errors
from groupcert.members.errors import usage as usage_errors
from groupcert.members.host import servers
from tests.datadriven import Command, run_script

CATEGORIES = (
    errors.InvalidRequest,
    errors.Unavailable,
    errors.Fenced,
    errors.CorruptLog,
    transaction_errors.TransactionFailed,
    transaction_errors.MemberFailed,
)


def leaves(root: type[GroupcertError] = GroupcertError) -> Iterator[type[GroupcertError]]:
    """Yield the classes that are raised."""
    for child in root.__subclasses__():
        if child.__subclasses__():
            yield from leaves(child)
        else:
            yield child


KINDS = {leaf.__name__: leaf for leaf in leaves()}
SCRIPT = Path(__file__).parent.parent / "testdata" / "errors.txt"


def example_of(command: Command) -> GroupcertError:
    """Returns the error that `error <class>` makes; its body has a field and its value a line."""
    [name] = command.arguments
    values = dict(line.split(" ", 1) for line in command.body)
    return KINDS[name](**{name: literal_eval(value) for name, value in values.items()})


def described(error: GroupcertError) -> str:
    """Returns what a script draws of an error: its reason, who must act, and its message."""
    [category] = (each for each in CATEGORIES if isinstance(error, each))
    return f"{error.reason}, {category.__name__}\n{error}"


def examples() -> list[GroupcertError]:
    """Returns the errors of the script."""
    made: list[GroupcertError] = []

    def make(command: Command) -> str:
        made.append(example_of(command))
        return described(made[-1])

    run_script(SCRIPT, {"error": make})
    return made


def test_reason_and_message_name_values_limit_and_next_step(rewrite: bool) -> None:
    run_script(SCRIPT, {"error": lambda one: described(example_of(one))}, rewrite=rewrite)


def test_reasons_are_unique() -> None:
    assert len({leaf.reason for leaf in KINDS.values()}) == len(list(leaves()))


def test_each_error_belongs_to_one_who_must_act() -> None:
    for leaf in leaves():
        assert len([category for category in CATEGORIES if issubclass(leaf, category)]) == 1, leaf


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = [
        line.split()
        for module in (
            errors,
            applier_errors,
            audit_errors,
            call_errors,
            extra_errors,
            membership_errors,
            postgresql_errors,
            rebuild_errors,
            recovery_errors,
            row_errors,
            security_errors,
            transaction_errors,
            usage_errors,
            servers,
            source_errors,
        )
        for line in (module.__doc__ or "").splitlines()
        if "── " in line
    ]
    named = {words[-2]: words[-1] for words in drawn if words[-1].isupper()}
    assert named == {leaf.__name__: leaf.reason for leaf in leaves()}


def test_every_error_has_an_example() -> None:
    assert {type(error) for error in examples()} == set(leaves())


def test_every_error_can_be_pickled_with_its_fields() -> None:
    for error in examples():
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert vars(again) == vars(error)
        assert str(again) == str(error)


def test_long_text_is_shortened_in_messages_and_kept_in_the_field() -> None:
    error = errors.InvalidGtid(text="x" * 1_000, expected="a UUID")
    assert str(error) == f"invalid GTID '{'x' * 80}'… (1000 characters): expected a UUID"
    assert error.text == "x" * 1_000

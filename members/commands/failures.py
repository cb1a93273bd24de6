"""How the command ends if a verb fails: one line on standard error, an exit code, and with `--json`
one document on standard output.

A program that reads what `--json` prints has to read of a failure there, too, whatever has failed:
the command line, a setting, a member that does not answer, or the command itself. So all failures
come here, and no verb prints its own.
"""

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import typer

from ...certifier.errors import GroupcertError, InvalidRequest, Unavailable
from ..errors.transactions import MemberFailed
from ..errors.usage import InvalidConfig, InvalidUsage, MissingOption
from ..host.interruption import INTERRUPTED, interruptible
from .extras import missing_extra
from .verb_options import FINDING, FINE, UNAVAILABLE, USAGE


class Failure(NamedTuple):
    """The end of a verb that failed. `fields`: those of the error, by name."""

    reason: str
    text: str
    exit_code: int
    fields: dict[str, object]

    def document(self) -> str:
        """Returns it as `--json` prints it."""
        error = {
            "reason": self.reason,
            "message": self.text,
            "exit_code": self.exit_code,
            "fields": self.fields,
        }
        return json.dumps({"error": error}, default=_plain)


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Runs the command, says how it failed if it did, and returns its exit code."""
    try:
        with interruptible():
            code: int | None = app(arguments, prog_name="groupcert", standalone_mode=False)
    except (typer.TyperException, GroupcertError, OSError) as error:
        if not str(error):  # No argument was given at all: Typer has printed the help.
            return USAGE
        return _tell(failure_of(error, app, arguments), arguments)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (missing := missing_extra(error, arguments)):
            return _tell(failure_of(missing, app, arguments), arguments)
        text = traceback.format_exception_only(error)[-1]
        _tell(Failure("UNEXPECTED", text.strip(), FINDING, {}), arguments)
        raise
    if code == INTERRUPTED:  # Of a verb that had nothing to keep: others end by themselves.
        return _tell(Failure("INTERRUPTED", "interrupted", INTERRUPTED, {}), arguments)
    return code or FINE


def failure_of(error: Exception, app: typer.Typer, arguments: Sequence[str]) -> Failure:
    """Returns the text for an error, with a hint if the command line can be mended."""
    if isinstance(error, typer.TyperException):
        error = _usage_error(error)
    match error:
        case InvalidConfig() | MissingOption():
            hint = f"; for example: {example_of(app, arguments)}" if _is_missing(error) else ""
        case InvalidUsage():
            words, _ = _verb_of(app, arguments)
            hint = f"; see {' '.join(words)} --help"
        case _:
            hint = ""
    text = f"{' '.join(_text(error).split())}{hint}"
    if not isinstance(error, GroupcertError):
        path = error.filename if isinstance(error, OSError) else None
        named = {} if path is None else {"path": path}
        return Failure("SYSTEM_ERROR", text, _exit_code(error), named)
    values = {field.name: getattr(error, field.name) for field in fields(error)}
    return Failure(error.reason, text, _exit_code(error), values)


def example_of(app: typer.Typer, arguments: Sequence[str]) -> str:
    """Returns the example that the help of a verb ends with."""
    _, verb = _verb_of(app, arguments)
    return str(verb.epilog or "").partition("Example: ")[2]


def _usage_error(error: typer.TyperException) -> GroupcertError:
    """Returns Typer's complaint about a command line as an error of ours."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        problem = error.format_message().rstrip(".")
        return InvalidUsage(problem=f"{problem[:1].lower()}{problem[1:]}")
    is_argument = parameter.param_type_name == "argument"
    name = parameter.metavar or parameter.name.upper() if is_argument else parameter.opts[0]
    if hasattr(error, "param_type"):  # Of Typer's errors, only the one of what is missing has it.
        ways = "behind the verb" if is_argument else f"as {name}"
        return MissingOption(name=name.removeprefix("--"), ways=ways)
    return InvalidUsage(problem=f"{name}: {error.message[:1].lower()}{error.message[1:]}")


def _is_missing(error: GroupcertError) -> bool:
    return isinstance(error, MissingOption) or " is missing: " in str(error)


def _verb_of(app: typer.Typer, arguments: Sequence[str]) -> tuple[list[str], Any]:
    """Returns the verb that a command line names: its words, and what it is."""
    command: Any = typer.main.get_command(app)
    words = ["groupcert"]
    for word in arguments:
        below = getattr(command, "commands", {})
        if word in below:
            command = below[word]
            words.append(word)
    return words, command


def _exit_code(error: Exception) -> int:
    match error:
        case InvalidRequest() | OSError():
            return USAGE
        case Unavailable() | MemberFailed():
            return UNAVAILABLE
        case _:
            return FINDING


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _tell(failure: Failure, arguments: Sequence[str]) -> int:
    """Prints a failure, and returns its exit code."""
    sys.stderr.write(f"groupcert: {failure.text}\n")
    if "--json" in arguments:
        sys.stdout.write(f"{failure.document()}\n")
        sys.stdout.flush()
    return failure.exit_code


def _plain(value: object) -> str:
    """Returns a value of a field that JSON does not have."""
    return value.hex() if isinstance(value, bytes) else str(value)

"""Asks the other members about the log before a member joins: is the log complete?

A log of one server may come back from a bad disk without its end. A member that has read more
fences itself; an empty member would take what is left for the whole log, and commit on it. The rule
it keeps: no member joins before the members of the last view have said how far they have read, with
which digest; a member that has read more than the log has keeps the joiner out. Pure.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from ...certifier.errors import DigestMismatch, ForeignLog
from ..errors.recovery import LogCutShort
from ..total_order.port import SHORTER_MS_MAX, LogState
from .views import View, ViewMember

ALONE_MS = 3_000
"""Milliseconds to wait for members that do not answer where they are not needed: because several
servers hold the log and agree among themselves, or because the view is this member alone and only
seeds may know more."""
REPLICAS_MIN = 3


class Progress(NamedTuple):
    """How far a member has read, as its status says."""

    name: str
    group: str
    log: str
    """The identity of its log; empty: it knows none yet, or does not say."""
    log_sequence: int
    digest: bytes
    """Digest of its certification state there; empty: it has none that counts."""
    vouches: bool
    """It had read of the log before this run began, or has been ONLINE since."""


class Step(Enum):
    """A joiner's next step."""

    JOIN = 1
    ASK = 2
    """Ask again, a little later."""
    READ = 3
    """Read on."""


class Judgement(NamedTuple):
    """The next step, and why in words."""

    step: Step
    reason: str = ""


class Witnesses:
    """The answers to one joiner that has come near the log's end.

    Its driver calls `judge`, does the step returned, and asks every member in `addresses` at least
    once before it joins. First it reads the log to where it ends now, because the last view is
    there.
    """

    def __init__(self, me: ViewMember, group: str, log: LogState, began_ms: int) -> None:
        self._me = me
        self._group = group
        self._log = log
        self._began_ms = began_ms
        self._end = 0
        self._short_since_ms: int | None = None
        self._heard: dict[str, Progress] = {}
        self._silent: dict[str, str] = {}

    def addresses(self, view: View, seeds: Iterable[str]) -> list[str]:
        """Returns the addresses to ask: the members of the view, and the seeds."""
        others = (each.address for each in view.members if each.name != self._me.name)
        return [each for each in dict.fromkeys((*others, *seeds)) if each != self._me.address]

    def note(self, address: str, answer: Progress | str) -> None:
        """Notes an answer, or why there is none; an answer counts for the whole run."""
        if isinstance(answer, Progress) and answer.group != self._group:
            answer = f"it is of group {answer.group}"
        if isinstance(answer, Progress):
            answer = self._on_this_log(answer)
        if isinstance(answer, str):
            self._silent[address] = answer
            return
        self._silent.pop(address, None)
        if answer.name != self._me.name:
            self._heard[answer.name] = answer

    def judge(
        self,
        view: View,
        *,
        last_sequence: int | None,
        log_sequence: int,
        digest_at: Callable[[int], bytes],
        now_ms: int,
    ) -> Judgement:
        """Returns the joiner's next step.

        Args:
            view: The last one in the log, as far as it is read.
            last_sequence: Where the log ends now, or did when asked last after the answers; None:
                it does not answer.
            log_sequence: How far the joiner has read.
            digest_at: Its own digest after a message; empty: unknown.

        Raises:
            ForeignLog: Somebody in the group has another log.
            LogCutShort: Somebody has read more than the log has had for `SHORTER_MS_MAX`.
            DigestMismatch: Half of those who can compare, or more, certified something else.
        """
        self._check_log()
        if last_sequence is None:
            self._short_since_ms = None
            return Judgement(Step.ASK, "the log does not answer")
        self._end = self._end or last_sequence
        farthest = max(self._heard.values(), key=lambda each: each.log_sequence, default=None)
        if farthest and farthest.log_sequence > last_sequence:
            error = LogCutShort(
                last_sequence=last_sequence,
                member=farthest.name,
                log_sequence=farthest.log_sequence,
            )
            if self._short_since_ms is None:
                self._short_since_ms = now_ms
            if now_ms - self._short_since_ms >= SHORTER_MS_MAX:
                raise error
            return Judgement(Step.ASK, str(error))
        self._short_since_ms = None
        reaches = max(self._end, farthest.log_sequence if farthest else 0)
        if log_sequence < reaches:
            return Judgement(
                Step.READ, f"reading the log: {log_sequence:,} of {reaches:,} messages"
            )
        self._check_digests(digest_at)
        return self._count(view, now_ms)

    def _check_log(self) -> None:
        mine, continues = str(self._log.identity), self._log.continues
        ours = ("", mine, str(continues.log) if continues else mine)
        for each in self._heard.values():
            if each.log not in ours:
                raise ForeignLog(expected=f"{each.log}, as member {each.name} has it", found=mine)

    def _on_this_log(self, answer: Progress) -> Progress | str:
        """Returns the answer of a member; or, in words, that it has read more of the log before
        this one than was left of that when this one was rebuilt.
        """
        continues = self._log.continues
        if continues and answer.log == str(continues.log):
            if answer.log_sequence > continues.log_sequence:
                return (
                    f"it has read message {answer.log_sequence} of the log before this one, which "
                    f"was rebuilt from message {continues.log_sequence} on"
                )
        return answer

    def _check_digests(self, digest_at: Callable[[int], bytes]) -> None:
        compared = [
            (each, mine)
            for each in self._heard.values()
            if each.digest and each.log_sequence and (mine := digest_at(each.log_sequence))
        ]
        differing = [(each, mine) for each, mine in compared if each.digest != mine]
        if differing and 2 * len(differing) > len(compared):
            (each, mine), *_ = differing
            raise DigestMismatch(
                position=each.log_sequence,
                member=each.name,
                mine=mine.hex(),
                theirs=each.digest.hex(),
            )

    def _count(self, view: View, now_ms: int) -> Judgement:
        """Returns whether enough of the view answered: a majority of those who know, or all."""
        lacking = [each for each in view.members if not self._counts(each.name)]
        missing = len(view.members) // 2 + 1 - (len(view.members) - len(lacking))
        waited_ms = now_ms - self._began_ms
        is_alone = all(each.name == self._me.name for each in view.members)
        if is_alone and self._silent and waited_ms < ALONE_MS:
            return Judgement(Step.ASK, f"waits for seeds: {', '.join(sorted(self._silent))}")
        if missing <= 0 or all(each.name in self._heard for each in lacking):
            return Judgement(Step.JOIN)
        texts = ", ".join(f"{each.name} ({self._cause(each)})" for each in lacking)
        text = f"waits for {texts} to say how far they have read, {missing} of them will do"
        if self._log.replicas < REPLICAS_MIN:
            address = self._me.address
            text += (
                f", since {waited_ms // 1000} s, as the log is on {self._log.replicas} server(s); "
                "or for an operator's word that the log is whole: "
                f"`groupcert group rejoin --trust-log {address}`"
            )
        elif waited_ms >= ALONE_MS:
            return Judgement(Step.JOIN, f"several servers hold the log: no longer {text}")
        return Judgement(Step.ASK, text)

    def _counts(self, name: str) -> bool:
        heard = self._heard.get(name)
        return name == self._me.name or (heard is not None and heard.vouches)

    def _cause(self, member: ViewMember) -> str:
        if member.name in self._heard:
            return f"{member.address}: it has read nothing itself before"
        return f"{member.address}: {self._silent.get(member.address, 'not asked yet')}"

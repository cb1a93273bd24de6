"""Breaks a cluster while clients write: faults from a seed, then heal, final read and all checks.

The rule it keeps: a run is told by its scenarios, seed and seconds. The dice draw the same faults
again; how far clients have come by then is theirs.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path

from groupcert import Client, MemberFailed
from groupcert.certifier.errors import GroupcertError
from groupcert.v1.group_pb2 import MemberState
from tests.cluster.docker_cluster import EVERYBODY, MEMBERS, DockerCluster
from tests.cluster.faults import Fault, heal_all
from tests.cluster.log_kinds import LogKind
from tests.cluster.operators import rejoin
from tests.cluster.scenarios import SCENARIOS, SMALL_DISK, All
from tests.commands import CommandFailed
from tests.laboratory.check import check_history, report
from tests.laboratory.driver import WorkloadRun
from tests.laboratory.findings import Finding
from tests.laboratory.group_clients import Members
from tests.laboratory.history import History
from tests.laboratory.plans import workloads_of
from tests.laboratory.summary import Summary, summary_of

SETTINGS: dict[str, object] = {
    "certification_log": "/var/lib/groupcert/certification-log",
    "stable_set_period_ms": 200,
    "suspicion_timeout_ms": 2_000,
    "member_expel_timeout_ms": 1_000,
    "autorejoin_tries": 1_000,
    "autorejoin_interval_ms": 1_000,
}
"""Members of the nemesis' clusters put a silent one out soon, and never give up to come back."""
SMALL_DISK_BYTES = 256 << 20
TIMEOUTS_MS = (20_000, 20_000, 3_000)
"""Clients in turn: some give up early, and leave outcomes unknown."""
PAUSE_SECONDS = (0.5, 2.0)
"""Between two faults, or after the group is whole again."""
CLIENTS = 6
COMMITS = 30
"""Acknowledged before the first fault, and after the last."""
HEAL_SECONDS_MAX = 240.0
POLL_SECONDS = 0.2
SAVED = Path(__file__).resolve().parents[2] / ".build" / "nemesis"


@dataclass
class Run:
    """One run: what was to be done, what was seen, and what is wrong with it."""

    scenarios: Sequence[str]
    seed: int
    seconds: float
    history: History
    log: LogKind
    findings: list[Finding] = field(default_factory=list)
    heal_seconds: float = 0.0
    failure: str = ""
    """Why it did not come to its end."""
    saved: Path | None = None

    @property
    def name(self) -> str:
        """For its rows and its files."""
        return run_name(self.scenarios, self.seed, self.log)

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong with it."""
        return bool(self.findings or self.failure)

    @property
    def summary(self) -> Summary:
        """How it went."""
        return summary_of(self.history, self.findings)

    def __str__(self) -> str:
        again = f"--seed {self.seed} --scenario {','.join(self.scenarios)} --seconds {self.seconds}"
        again += f" --log {self.log.value}"
        texts = [f"scenario      {', '.join(self.scenarios)}", f"log           {self.log.value}"]
        texts += [report(self.history, self.findings)]
        texts.append(f"whole again   {self.heal_seconds:.1f} s after the last fault's end\n")
        if self.failure:
            texts.append(f"failed        {self.failure}\n")
        if self.is_wrong:
            texts += [
                f"once more     python -m tests.cluster {again}\n",
                f"check again   python -m tests.laboratory.check {self.saved}\n",
            ]
        return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)


def run_name(scenarios: Sequence[str], seed: int, log: LogKind = LogKind.NATS) -> str:
    """`kill-member-1`, `kill-member+4-1` for five scenarios in turn, or `kill-member-etcd-1`."""
    more = f"+{len(scenarios) - 1}" if len(scenarios) > 1 else ""
    on_log = "" if log is LogKind.NATS else f"-{log.value}"
    return f"{scenarios[0]}{more}{on_log}-{seed}"


def run_nemesis(
    cluster: DockerCluster,
    scenarios: Sequence[str],
    *,
    seed: int,
    seconds: float,
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """Breaks a cluster in these ways in turn, each at least once, for about so many seconds.

    A cluster may have had runs before, of other names.
    """
    SAVED.mkdir(parents=True, exist_ok=True)
    name = run_name(scenarios, seed, cluster.log)
    timeouts = count()

    def connect(addresses: Sequence[str]) -> Client:
        timeout_ms = TIMEOUTS_MS[next(timeouts) % len(TIMEOUTS_MS)]
        return Client(addresses, timeout_ms=timeout_ms)

    members = Members(cluster.addresses, connect)
    workloads = WorkloadRun(
        members.session, seed=seed, workloads=workloads_of(name), clients=CLIENTS
    )
    run = Run(scenarios, seed, seconds, workloads.history, cluster.log)

    def note(what: str) -> None:
        workloads.note_fault(what)
        say(what)

    try:
        with workloads:
            workloads.wait_for_commits(COMMITS, seconds_max=HEAL_SECONDS_MAX)
            _break(cluster, run, note)
            began = time.monotonic()
            heal_all(cluster)
            make_whole(cluster, note)
            run.heal_seconds = time.monotonic() - began
            workloads.wait_for_commits(COMMITS, seconds_max=HEAL_SECONDS_MAX)
        workloads.history.finals = members.finals(workloads.history)
        run.findings = check_history(workloads.history)
    except (AssertionError, CommandFailed, GroupcertError, MemberFailed) as error:
        run.failure = f"{type(error).__name__}: {error}"
        run.findings = check_history(workloads.history)
        for name in EVERYBODY:
            (SAVED / f"{run.name}-{name}.log").write_text(cluster.output(name, lines=10_000))
    if run.is_wrong:
        run.saved = _save(run)
    return run


def make_whole(cluster: DockerCluster, note: Callable[[str], None]) -> None:
    """Returns when all members are ONLINE. One that ended by itself is started again, as the
    compose file has it; one that has left is asked back.

    Raises AssertionError: it takes too long, or a member is fenced.
    """
    deadline = time.monotonic() + HEAL_SECONDS_MAX
    while True:
        states = {name: _bring_up(cluster, name, note) for name in MEMBERS}
        if all(states.values()):
            cluster.wait_online()
            return
        assert time.monotonic() < deadline, (
            f"not whole after {HEAL_SECONDS_MAX:.0f} s: {states}\n"
            + "\n".join(f"--- {name}\n{cluster.output(name, lines=20)}" for name in EVERYBODY)
        )
        time.sleep(POLL_SECONDS)


def described(fault: Fault) -> str:
    """A fault in words: its kind, and all of it but its cluster."""
    if isinstance(fault, All):
        return " & ".join(map(described, fault.faults))
    values = [
        getattr(fault, each.name)
        for each in fields(fault)  # type: ignore[arg-type]  # every fault is a dataclass
        if each.repr and each.name != "cluster"
    ]
    texts = ("+".join(each) if isinstance(each, (list, tuple)) else str(each) for each in values)
    return " ".join([type(fault).__name__, *filter(None, texts)])


def new_cluster(
    folder: Path, image: str, *, clock_steps: bool = False, log: LogKind = LogKind.NATS
) -> DockerCluster:
    """A cluster that every scenario can break."""
    return DockerCluster(
        folder,
        image,
        settings=SETTINGS,
        clock_steps=clock_steps,
        small_disks={SMALL_DISK: SMALL_DISK_BYTES},
        log=log,
    )


def _break(cluster: DockerCluster, run: Run, note: Callable[[str], None]) -> None:
    """Injects and heals one fault after the other, until the time is up."""
    dice = random.Random(f"{run.name}")
    ends = time.monotonic() + run.seconds
    for index in count():
        if index >= len(run.scenarios) and time.monotonic() > ends:
            return
        scenario = SCENARIOS[run.scenarios[index % len(run.scenarios)]]
        chance = random.Random(dice.getrandbits(64))
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        seconds = chance.uniform(scenario.seconds_min, scenario.seconds_max)
        waits = chance.random() < 0.5
        fault = scenario.draw(cluster, chance)
        try:
            note(f"begin {described(fault)}")
            fault.inject()
            time.sleep(seconds)
        finally:
            fault.heal()
        note(f"end {described(fault)}")
        if waits:
            make_whole(cluster, note)


def _bring_up(cluster: DockerCluster, name: str, note: Callable[[str], None]) -> bool:
    """Whether a member is ONLINE; does for it what has to be done from outside."""
    if cluster.state(name) == "exited":
        code = cluster.inspect(name)["State"]["ExitCode"]
        note(f"{name} had ended with {code}: {cluster.output(name, lines=1).strip()[-300:]}")
        cluster.start_containers(name)
        return False
    status = cluster.status(name)
    if status is None:
        return False
    match status.observer.state:
        case MemberState.MEMBER_STATE_FENCED:
            raise AssertionError(f"{name} is fenced: {status.observer.reason}")
        case MemberState.MEMBER_STATE_LEFT:
            note(f"{name} had left: {status.observer.reason}")
            rejoin(cluster, name)
        case MemberState.MEMBER_STATE_ONLINE:
            return True
    return False


def _save(run: Run) -> Path:
    path = SAVED / f"{run.name}.jsonl"
    run.history.save(path)
    return path

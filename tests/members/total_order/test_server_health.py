"""A log server is lost when nothing has spoken for it for a while; what is said of it flickers."""

from groupcert.members.total_order.server_health import (
    LOST_MS,
    UNHEARD_MS,
    LogHealth,
    LogServers,
    LogServerState,
    ServerAnswer,
)

CURRENT, BEHIND = LogServerState.CURRENT, LogServerState.BEHIND
SILENT, UNKNOWN = LogServerState.SILENT, LogServerState.UNKNOWN
ALL_WELL = [ServerAnswer(name, is_current=True) for name in ("n1", "n2", "n3")]


def states(health: LogHealth) -> dict[str, LogServerState]:
    return {each.name: each.state for each in health.servers}


def without(number: int, lag: int = 0, heard_ms: int | None = 0) -> list[ServerAnswer]:
    """An answer of servers of which one is not current."""
    lost = ServerAnswer(f"n{number}", is_current=False, lag=lag, heard_ms=heard_ms)
    return [lost if each.name == lost.name else each for each in ALL_WELL]


def test_before_the_first_answer_nothing_is_known() -> None:
    servers = LogServers(1_000)
    assert servers.health(1_500) == LogHealth(leaderless_ms=500)


def test_servers_that_are_well() -> None:
    servers = LogServers(0)
    servers.answered(100, "n1", ALL_WELL)
    health = servers.health(600, acknowledged_ms=40)
    assert (health.leader, health.leaderless_ms, health.acknowledged_ms) == ("n1", 0, 40)
    assert states(health) == dict.fromkeys(("n1", "n2", "n3"), CURRENT)


def test_a_server_that_lacks_a_message_for_a_moment_is_current_all_the_same() -> None:
    servers = LogServers(0)
    servers.answered(0, "n1", ALL_WELL)
    servers.answered(1_000, "n1", without(2, lag=1))
    (server,) = (each for each in servers.health(1_000).servers if each.name == "n2")
    assert (server.state, server.is_current, server.lag) == (CURRENT, False, 1)
    servers.answered(1_500, "n1", ALL_WELL)
    servers.answered(3_000, "n1", without(2, lag=1))
    assert states(servers.health(3_000))["n2"] is CURRENT


def test_one_that_lacks_some_of_the_log_for_longer_is_behind_or_silent() -> None:
    for heard_ms, state in ((300, BEHIND), (UNHEARD_MS, SILENT), (None, SILENT)):
        servers = LogServers(0)
        servers.answered(0, "n1", ALL_WELL)
        for now_ms in range(500, LOST_MS + 1, 500):
            servers.answered(now_ms, "n1", without(3, lag=7, heard_ms=heard_ms))
        assert states(servers.health(LOST_MS)) == {"n1": CURRENT, "n2": CURRENT, "n3": state}


def test_one_that_is_offline_is_silent_though_it_was_heard_of() -> None:
    servers = LogServers(0)
    offline = ServerAnswer("n2", is_current=False, heard_ms=10, is_offline=True)
    servers.answered(0, "n1", [ALL_WELL[0], offline])
    servers.answered(LOST_MS, "n1", [ALL_WELL[0], offline])
    assert states(servers.health(LOST_MS))["n2"] is SILENT


def test_a_leader_is_believed_for_a_moment_then_it_is_lost() -> None:
    servers = LogServers(0)
    servers.answered(0, "n1", ALL_WELL)
    servers.answered(500, "", ALL_WELL)
    assert servers.health(LOST_MS - 1).leader == "n1"
    servers.answered(LOST_MS, "", ALL_WELL)
    health = servers.health(LOST_MS)
    assert (health.leader, health.leaderless_ms) == ("", LOST_MS)
    servers.answered(LOST_MS + 100, "n2", ALL_WELL)
    assert servers.health(LOST_MS + 100).leader == "n2"


def test_who_leads_no_majority_does_not_lead() -> None:
    """It is cut off, and goes on saying that it leads until it notices."""
    servers = LogServers(0)
    servers.answered(0, "n1", ALL_WELL)
    alone = [ALL_WELL[0], *(each._replace(is_current=False) for each in ALL_WELL[1:])]
    for now_ms in range(500, LOST_MS + 1, 500):
        servers.answered(now_ms, "n1", alone)
    assert servers.health(LOST_MS).leader == ""


def test_of_servers_that_do_not_answer_nothing_is_known_but_why() -> None:
    servers = LogServers(0)
    servers.answered(0, "n1", ALL_WELL)
    servers.failed("no route to host")
    health = servers.health(LOST_MS)
    assert set(states(health).values()) == {UNKNOWN}
    assert (health.leader, health.problem) == ("", "no route to host")
    servers.answered(LOST_MS + 1, "n1", ALL_WELL)
    assert servers.health(LOST_MS + 1).problem == ""


def test_a_server_that_was_taken_out_of_the_log_is_no_longer_named() -> None:
    servers = LogServers(0)
    servers.answered(0, "n1", ALL_WELL)
    servers.answered(10, "n1", ALL_WELL[:2])
    assert set(states(servers.health(10))) == {"n1", "n2"}

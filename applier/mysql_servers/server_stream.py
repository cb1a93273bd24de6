"""The binary log of a live MySQL or MariaDB server, as the server sends it to a replica.

An event is returned whole, and verified where its log has checksums, or not at all. Nothing is read
ahead of the caller but what one call of the operating system gives. The server names what it sends
first by GTIDs: `open` asks for all that is not executed, and says why the server cannot serve it.

Source: MySQL 8.4 source documentation of COM_REGISTER_SLAVE and COM_BINLOG_DUMP_GTID; MariaDB
Knowledge Base, "Replication Protocol": "Slave registration", COM_BINLOG_DUMP, "Fake ROTATE_EVENT".
"""

import re
import select
import socket
import ssl
import zlib
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pymysql
from pymysql.constants import COMMAND

from ...certifier.errors import GroupcertError, InvalidSetting, TransactionTooLarge
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ..errors import InvalidBinaryLog, PurgedAtSource, ReplicaAhead
from ..mysql_logs.events import (
    CHECKSUM_BYTES,
    EVENT_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    Event,
    EventType,
    FormatDescription,
    checksum_matches,
    described_checksum_bytes,
    format_description,
    is_as_written,
    new_event,
)
from ..mysql_logs.gtid_set_encoding import encoded
from .server_url import ServerUrl
from .source_errors import SourceLost, SourceRefused

HEARTBEAT_SECONDS = 2.0
"""Seconds after which a server that has nothing to send says so."""
HEARTBEATS_MISSED_MAX = 3
START_SECONDS = 60.0
"""Seconds in which a server finds the place to begin at; it says nothing meanwhile."""
WRITE_SECONDS = 3_600
"""Seconds that the server waits for a replica that does not read."""
_BLOCK_BYTES = 1 << 18
_BODY = 1 + HEADER_BYTES
"""Where the body of an event begins in its packet."""
_CHUNK_BYTES_MAX = (1 << 24) - 1
_LENGTH = Struct("<I")
_FLAG_ARTIFICIAL = 0x20
_FORMAT = EventType.FORMAT_DESCRIPTION.value
_HEARTBEATS = frozenset((EventType.HEARTBEAT, EventType.HEARTBEAT_V2))
_DESCRIBING = frozenset((_FORMAT, EventType.ROTATE))
"""Events that tell of those after them."""
_FOUND = {
    *_HEARTBEATS,
    EventType.GTID,
    EventType.GTID_TAGGED,
    EventType.ANONYMOUS_GTID,
    EventType.MARIADB_GTID,
}
"""Events that come once the server has found the place to begin at."""
_REGISTER_SLAVE = 0x15
_BINLOG_DUMP_GTID = 0x1E
_THROUGH_GTID = 0x04
_CANNOT_SERVE = 1236
_HOST_CHARACTERS_MAX = 60
_UNKNOWN_GTID = re.compile(r"GTID (\d+-\d+-\d+),? (?:which is not in|requested by)")
_MARIADB_SOURCE = re.compile(r"\d+-\d+")
_SETTINGS = "log_bin", "binlog_format", "gtid_mode", "server_id", "version"


class ServerStream:
    """Events of one server, from `open` to `close`; `hang_up` is for any thread.

    `is_mariadb`: of the server. `server_id`: of the replica. `format`, `log_file`: of the events
    that come next, and the name of the file that they are in. `executed`: what the server had
    executed when it was asked last; of MariaDB the newest of each domain.
    """

    def __init__(
        self,
        url: ServerUrl,
        replica: str,
        *,
        server_id: int = 0,
        event_bytes_max: int = EVENT_BYTES_MAX,
        heartbeat_seconds: float = 0,
    ) -> None:
        """Prepares a stream for the replica of this name; nothing is connected before `open`.

        Args:
            server_id: of the replica, 1 to 2^32 - 1; 0: a number of its own, made of its name.
            event_bytes_max: the largest event that is taken.
            heartbeat_seconds: how long the server may be silent; after three times as long it is
                given up. 0: `HEARTBEAT_SECONDS`.
        """
        self.is_mariadb = False
        self.format = FormatDescription("", 0, b"")
        self.log_file = ""
        self.executed = GtidSet()
        self._url = url
        self._replica = replica
        self.server_id = server_id or zlib.crc32(replica.encode()) | 1 << 31
        self._event_bytes_max = event_bytes_max
        self._heartbeat_seconds = heartbeat_seconds or HEARTBEAT_SECONDS
        self._path = str(url)
        self._offset = 0
        self._begin = ""
        self._is_found = False
        self._packets: _Packets | None = None
        self._connections: list[Any] = []

    def open(self, executed: GtidSet) -> None:
        """Connects, and asks for all that is not in `executed`.

        Raises:
            SourceRefused, InvalidSetting: the server is not set up for it, or does not let it in.
            PurgedAtSource, ReplicaAhead: it has no longer, or not yet, what the replica needs.
            SourceLost: it does not answer.
        """
        self._is_found = False
        self.executed = GtidSet()
        connection = self._connect()
        variables = self._variables(connection)
        self.is_mariadb = "mariadb" in variables["version"].lower()
        self._check(connection, variables)
        self._check_kind(executed)
        self.newest()
        if self.is_mariadb:
            self._check_domains(executed)
            self._begin = _mariadb_state(executed)
            registration = _mariadb_registration(self._begin)
            dump = b"\4\0\0\0\0\0" + self.server_id.to_bytes(4, "little")
            command = COMMAND.COM_BINLOG_DUMP
        else:
            self._check_executed(connection, executed)
            self._begin = str(executed)
            registration = _mysql_registration(self._replica, self.server_id)
            gtids = encoded(executed)
            dump = _THROUGH_GTID.to_bytes(2, "little") + self.server_id.to_bytes(4, "little")
            dump += bytes(4) + (4).to_bytes(8, "little")
            dump += len(gtids).to_bytes(4, "little") + gtids
            command = _BINLOG_DUMP_GTID
        period_ns = int(self._heartbeat_seconds * 1e9)
        self._query(
            connection,
            f"SET @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns}, "
            "@master_binlog_checksum = @@global.binlog_checksum, "
            f"@source_binlog_checksum = @@global.binlog_checksum, {registration}",
        )
        self._query(connection, f"SET SESSION net_write_timeout = {WRITE_SECONDS}")
        self._send(connection, _REGISTER_SLAVE, self._registration(), has_answer=True)
        self._send(connection, command, dump, has_answer=False)
        connection._sock.settimeout(START_SECONDS)
        self._packets = _Packets(connection._sock, self._event_bytes_max)

    def __iter__(self) -> Iterator[Event]:
        """Yields the events, heartbeats and others that are in no file among them; these have a
        size of 0.

        Raises:
            SourceLost: the server hangs up, or is silent for too long.
            PurgedAtSource, ReplicaAhead, SourceRefused: as for `open`.
            InvalidBinaryLog: an event is damaged, or the server cannot read its own log.
            TransactionTooLarge: an event is larger than the limit.
        """
        assert self._packets is not None, "not open"
        while True:
            try:
                packet = self._packets.next()
            except OSError as error:
                raise SourceLost(source=str(self._url), cause=str(error) or "silence") from error
            if packet[0] == 0xFF:
                raise self._refusal(packet)
            if packet[0] or len(packet) <= HEADER_BYTES:
                raise SourceLost(source=str(self._url), cause="it ended the stream")
            yield self._event(packet)

    @property
    def is_encrypted(self) -> bool:
        """True if the server is reached over TLS."""
        return any(isinstance(each._sock, ssl.SSLSocket) for each in self._connections)

    @property
    def has_more(self) -> bool:
        """True if the next event does not have to be waited for, or not for long."""
        return self._packets is not None and self._packets.has_more()

    def newest(self) -> GtidSet:
        """Returns the GTIDs executed by now; of MariaDB the newest of each domain. It takes another
        connection, and a round trip.

        Raises:
            SourceLost: the server does not answer, or has less than before.
        """
        if len(self._connections) < 2:
            self._connect()
        # A MariaDB that was set up as a replica may have logged nothing yet.
        value = "@@gtid_binlog_pos, @@gtid_slave_pos" if self.is_mariadb else "@@gtid_executed"
        [texts] = self._query(self._connections[1], f"SELECT {value}")
        found = mariadb_gtids(",".join(texts)) if self.is_mariadb else GtidSet.parse(*texts)
        if not includes(found, self.executed):
            # It goes on to send the files that it has removed, without an error.
            raise SourceLost(source=str(self._url), cause="its log was emptied")
        self.executed = found
        return found

    def hang_up(self) -> None:
        """Ends the connections: the iteration raises SourceLost."""
        for connection in self._connections:
            if connection.open:
                with suppress(OSError):
                    # Of the plain socket: a TLS one would wait for the other end to agree.
                    socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections:
            if connection.open:
                connection.close()
        self._connections.clear()
        self._packets = None

    def _connect(self) -> Any:
        connection = self._url.connect()
        self._connections.append(connection)
        return connection

    def _query(self, connection: Any, statement: str) -> tuple[tuple[Any, ...], ...]:
        """Runs a statement; returns its rows."""
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return tuple(cursor.fetchall())
        except (pymysql.err.MySQLError, OSError, AttributeError) as error:
            # A connection that `hang_up` has ended may lack what the driver looks for.
            raise self._url.failure(error) from error

    def _variables(self, connection: Any) -> dict[str, str]:
        names = ",".join(f"'{name}'" for name in _SETTINGS)
        rows = self._query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        return {str(name).lower(): str(value) for name, value in rows}

    def _check(self, connection: Any, variables: dict[str, str]) -> None:
        """Raises InvalidSetting for the first setting that does not allow replicas."""
        expected = {"log_bin": "ON", "binlog_format": "ROW"}
        if not self.is_mariadb:
            expected["gtid_mode"] = "ON"
        for name, value in expected.items():
            # Newer servers have no other format than ROW, and no such setting.
            if (found := variables.get(name, value)).upper() != value:
                raise InvalidSetting(
                    name=f"{name} of source {self._url}",
                    value=found,
                    expected=f"{value}: set {name}={value} in the server's option file, and start "
                    "it again",
                )
        taken = {int(variables["server_id"]): f"the source {self._url}"}
        with suppress(SourceRefused, SourceLost):
            listed = "SHOW SLAVE HOSTS" if self.is_mariadb else "SHOW REPLICAS"
            for number, host, *_ in self._query(connection, listed):
                if host != self._host:
                    taken.setdefault(int(number), f"replica {host or 'without a name'}")
        if owner := taken.get(self.server_id):
            raise InvalidSetting(
                name="server_id", value=self.server_id, expected=f"another one: {owner} has it"
            )

    @property
    def _host(self) -> str:
        """Name under which the server lists this replica."""
        return f"groupcert-{self._replica}"[:_HOST_CHARACTERS_MAX]

    def _check_kind(self, executed: GtidSet) -> None:
        """Raises ReplicaAhead if something was executed that no server of this kind names so."""
        kind = self.is_mariadb
        others = GtidSet()
        for source in executed.sources():
            if bool(_MARIADB_SOURCE.fullmatch(source)) != kind:
                for first, last in executed.intervals(source):
                    others.add_interval(source, first, last)
        if others:
            raise ReplicaAhead(source=str(self._url), extra=str(others))

    def _check_executed(self, connection: Any, executed: GtidSet) -> None:
        if extra := executed - self.executed:
            raise ReplicaAhead(source=str(self._url), extra=str(extra))
        ((purged,),) = self._query(connection, "SELECT @@global.gtid_purged")
        if missing := GtidSet.parse(purged) - executed:
            raise PurgedAtSource(source=str(self._url), missing=str(missing))

    def _check_domains(self, executed: GtidSet) -> None:
        newest = domain_numbers(self.executed)
        for domain, gtid in mariadb_position(executed).items():
            if gtid.number > newest.get(domain, 0):
                extra = f"{gtid.source}-{gtid.number}"
                raise ReplicaAhead(source=str(self._url), extra=extra)

    def _registration(self) -> bytes:
        host = self._host.encode()[:_HOST_CHARACTERS_MAX]
        # No user, password, port, rank and source.
        return self.server_id.to_bytes(4, "little") + bytes([len(host)]) + host + bytes(12)

    def _send(self, connection: Any, command: int, body: bytes, *, has_answer: bool) -> None:
        try:
            connection._execute_command(command, body)
            if has_answer:
                connection._read_packet()
        except (pymysql.err.MySQLError, OSError) as error:
            raise self._url.failure(error) from error

    def _event(self, packet: bytes) -> Event:
        """Returns the event of a packet, whose first byte is no part of it."""
        timestamp, kind, server_id, size_bytes, end, flags = HEADER.unpack_from(packet, 1)
        is_in_file = end and not flags & _FLAG_ARTIFICIAL and kind not in _HEARTBEATS
        checksum_bytes = self.format.checksum_bytes
        if is_in_file and kind != _FORMAT:
            is_whole = not checksum_bytes or is_as_written(memoryview(packet)[1:])
        else:
            checksum_bytes, is_whole = _unusual_checksum(packet, kind)
        offset = max(0, end - size_bytes) if is_in_file else self._offset
        size = size_bytes if is_in_file else 0
        body = packet[_BODY : len(packet) - checksum_bytes]
        event = new_event((self._path, offset, kind, flags, timestamp, server_id, size, body))
        if size_bytes != len(packet) - 1:
            problem = f"an event of {size_bytes} bytes in a packet of {len(packet) - 1}"
            raise event.invalid(problem, "packets of one event each")
        if not is_whole:
            raise event.invalid("the checksum of the event does not match", "what the server wrote")
        if is_in_file:
            self._offset = end
        if not self._is_found or kind in _DESCRIBING:
            self._note(event)
        return event

    def _note(self, event: Event) -> None:
        """Keeps what an event says of those after it."""
        assert self._packets is not None, "an event without a connection"
        if event.type == EventType.FORMAT_DESCRIPTION:
            self.format = format_description(event)
        elif not self.format.server_version and event.type != EventType.ROTATE:
            raise event.invalid(f"the first event is of type {event.type}", "a format description")
        elif event.type == EventType.ROTATE:
            self._offset = int.from_bytes(event.body[:8], "little")
            self.log_file = event.body[8:].decode("utf-8", "replace")
            self._path = f"{self._url}/{self.log_file}"
        elif not self._is_found and event.type in _FOUND:
            self._is_found = True
            self._packets.wait_at_most(HEARTBEATS_MISSED_MAX * self._heartbeat_seconds)

    def _refusal(self, packet: bytes) -> GroupcertError:
        """Returns the error for one that the server sent in place of an event."""
        number = int.from_bytes(packet[1:3], "little")
        text = packet[3:].decode("utf-8", "replace")
        text = text[6:] if text.startswith("#") else text
        source = str(self._url)
        if number != _CANNOT_SERVE:
            return self._url.failure(pymysql.err.OperationalError(number, text))
        lowered = text.lower()
        if "purged" in lowered:
            return PurgedAtSource(
                source=source, missing=f"its log after {self._begin or 'nothing'}"
            )
        if found := _UNKNOWN_GTID.search(text):
            return ReplicaAhead(source=source, extra=found[1])
        if "more gtids than" in lowered:
            return ReplicaAhead(source=source, extra=text)
        if "same server_uuid" in lowered or "same server_id" in lowered:
            next_step = "give each of its replicas a name and a server_id of its own"
            return SourceRefused(source=source, problem=text, next_step=next_step)
        if "max_allowed_packet" in lowered:
            next_step = "raise max_allowed_packet and replica_max_allowed_packet there"
            return SourceRefused(source=source, problem=text, next_step=next_step)
        return InvalidBinaryLog(
            path=self._path,
            offset=self._offset,
            problem=f"the server cannot send it ({text})",
            expected="a log that its server can read",
        )


class _Packets:
    """The packets of a connection; those of 16 MiB are joined with what follows them."""

    def __init__(self, sock: socket.socket, event_bytes_max: int) -> None:
        self._socket = sock
        self._event_bytes_max = event_bytes_max
        self._held = b""
        self._read = 0
        """Bytes at the beginning of `held` that were returned."""

    def next(self) -> bytes:
        """Returns the next packet. Raises OSError, TransactionTooLarge."""
        packet = self._chunk()
        if len(packet) < _CHUNK_BYTES_MAX:
            return packet
        self._check_size(packet)
        parts = [packet]
        while len(parts[-1]) == _CHUNK_BYTES_MAX:
            parts.append(self._chunk())
        return b"".join(parts)

    def has_more(self) -> bool:
        """Returns whether any bytes have come that were not returned."""
        if len(self._held) > self._read:
            return True
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def wait_at_most(self, seconds: float) -> None:
        """Sets how long `next` waits for a byte."""
        self._socket.settimeout(seconds)

    def _chunk(self) -> bytes:
        if len(self._held) - self._read < _LENGTH.size:
            self._receive(_LENGTH.size)
        # Three bytes of length, and the packet's number.
        begin = self._read + _LENGTH.size
        end = begin + (_LENGTH.unpack_from(self._held, self._read)[0] & _CHUNK_BYTES_MAX)
        if end > len(self._held):
            self._receive(end - self._read)
            begin, end = _LENGTH.size, end - begin + _LENGTH.size
        self._read = end
        return self._held[begin:end]

    def _receive(self, count: int) -> None:
        """Receives until so many bytes are held that were not returned."""
        blocks = [self._held[self._read :]]
        missing = count - len(blocks[0])
        while missing > 0:
            block = self._socket.recv(_BLOCK_BYTES)
            if not block:
                raise ConnectionError("it hung up")
            blocks.append(block)
            missing -= len(block)
        self._held, self._read = b"".join(blocks), 0

    def _check_size(self, first: bytes) -> None:
        size_bytes = int.from_bytes(first[10:14], "little")
        if size_bytes > self._event_bytes_max:
            advice = "raise transaction_bytes_max, or split such transactions at the source"
            raise TransactionTooLarge(
                bytes=size_bytes, bytes_max=self._event_bytes_max, advice=advice
            )


def _unusual_checksum(packet: bytes, kind: int) -> tuple[int, bool]:
    """Returns the bytes of the checksum of a format description, or of an event that is in no file,
    and whether the event is as its server wrote it, as far as that can be known.
    """
    has_checksum = checksum_matches(packet[1:_BODY], packet[_BODY:])
    if kind == EventType.FORMAT_DESCRIPTION:
        checksum_bytes = described_checksum_bytes(packet[_BODY:])
        # A server without checksums changes this event for its replicas and renews none.
        is_checked = bool(checksum_bytes and packet[-CHECKSUM_BYTES - 1])
        return checksum_bytes, has_checksum or not is_checked
    # They have one by what the server thinks of the file before or after.
    return CHECKSUM_BYTES * has_checksum, True


def mariadb_gtids(text: str) -> GtidSet:
    """Returns the set of GTIDs as MariaDB lists them, such as `0-1-100,1-1-7`."""
    gtids = GtidSet()
    for gtid in filter(None, text.replace(" ", "").split(",")):
        source, _, number = gtid.rpartition("-")
        gtids.add_number(source, int(number))
    return gtids


def domain_numbers(gtids: GtidSet) -> dict[int, int]:
    """Returns the largest number of each domain in a set of MariaDB's GTIDs."""
    numbers: dict[int, int] = {}
    for source in gtids.sources():
        domain = int(source.partition("-")[0])
        numbers[domain] = max(numbers.get(domain, 0), gtids.intervals(source)[-1][1])
    return numbers


def includes(newer: GtidSet, older: GtidSet) -> bool:
    """Returns whether a server has all of `older` that has executed `newer`. Of MariaDB's GTIDs the
    newest of each domain says it, whatever server it began at.

    >>> includes(mariadb_gtids("0-2-9,1-1-3"), mariadb_gtids("0-1-8"))
    True
    """
    if not any(map(_MARIADB_SOURCE.fullmatch, older.sources())):
        return older <= newer
    numbers = domain_numbers(newer)
    return all(numbers.get(each, 0) >= number for each, number in domain_numbers(older).items())


def mariadb_position(executed: GtidSet) -> dict[int, Gtid]:
    """Returns for each domain the newest GTID up to which everything of it is executed, at whatever
    server it began; a domain of which the first is missing is left out.

    >>> executed = mariadb_gtids("0-1-1,0-2-2,0-1-4,7-1-1")
    >>> [f"{gtid.source}-{gtid.number}" for gtid in mariadb_position(executed).values()]
    ['0-2-2', '7-1-1']
    """
    intervals: dict[int, list[tuple[int, int, str]]] = {}
    for source in executed.sources():
        found = intervals.setdefault(int(source.partition("-")[0]), [])
        found += [(first, last, source) for first, last in executed.intervals(source)]
    position: dict[int, Gtid] = {}
    for domain, found in sorted(intervals.items()):
        newest = Gtid("", 0)
        for first, last, source in sorted(found):
            if first > newest.number + 1:
                break
            if last > newest.number:
                newest = Gtid(source, last)
        if newest.number:
            position[domain] = newest
    return position


def _mariadb_state(executed: GtidSet) -> str:
    position = mariadb_position(executed).values()
    return ",".join(f"{gtid.source}-{gtid.number}" for gtid in position)


def _mariadb_registration(state: str) -> str:
    return (
        f"@mariadb_slave_capability = 4, @slave_connect_state = '{state}', "
        "@slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0"
    )


def _mysql_registration(replica: str, server_id: int) -> str:
    # By this name the server finds a connection that an earlier process has left.
    uuid = uuid5(NAMESPACE_URL, f"groupcert:{replica}/{server_id}")
    return f"@slave_uuid = '{uuid}', @replica_uuid = '{uuid}'"

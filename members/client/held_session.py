"""Holds a client's session at one member, whose end closes the snapshots opened in it.

The rule it keeps: a session is requested once a connection, and again once it has ended; at a
member without sessions, the lease alone ends snapshots.
"""

import threading

import grpc

from groupcert.v1.store_pb2 import HoldSessionRequest, HoldSessionResponse
from groupcert.v1.store_pb2_grpc import StoreServiceStub


class HeldSession:
    """The call that holds the session."""

    def __init__(self, store: StoreServiceStub) -> None:
        self._store = store
        self._call: grpc.CallIterator[HoldSessionResponse] | None = None
        self._id = 0
        self._is_known = True
        """False once the member has answered that it has no sessions."""

    def id(self, timeout_s: float) -> int:
        """Returns the session's id; 0: the member did not give one."""
        if not self._is_known or (self._call is not None and self._call.is_active()):
            return self._id
        self.end()
        call = self._store.HoldSession(HoldSessionRequest())
        timer = threading.Timer(timeout_s, call.cancel)
        timer.start()
        try:
            self._id = next(iter(call)).session_id
        except (grpc.RpcError, StopIteration):  # The opening of the snapshot raises it.
            self._is_known = call.code() is not grpc.StatusCode.UNIMPLEMENTED
        else:
            self._call = call
        finally:
            timer.cancel()
        return self._id

    def end(self) -> None:
        """Ends the session and its snapshots; the next request begins another one."""
        if self._call is not None:
            self._call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out
        self._call, self._id = None, 0

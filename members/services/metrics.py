"""Metrics for Prometheus, of a status: the fields that have the option `metric` of metric.proto.

The rule it keeps: names are `groupcert_<area>_<thing>_<unit|total>`, in base units; labels come
from closed sets. members/services/README.md has the tables, which are made of the same options.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from wsgiref.types import WSGIApplication

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from groupcert.v1.group_pb2 import GroupStatus
from groupcert.v1.metric_pb2 import Metric, metric
from groupcert.v1.postgresql_pb2 import PostgresqlStatus

from ..wire.status_documents import plain
from .group_problems import ProblemKind, problems_of


class Measurement(NamedTuple):
    """One metric; with `label`, a number for each value of that."""

    name: str
    text: str
    value: float | Mapping[str, float]
    label: str = ""
    is_counter: bool = False


def family_of(measurement: Measurement) -> Family:
    """Returns a metric as Prometheus' library has it."""
    name, text, value, label, is_counter = measurement
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    family = kind(name, text, labels=[label] if label else [])
    for labelled, number in value.items() if isinstance(value, Mapping) else [(label, value)]:
        family.add_metric([labelled] if label else [], number)
    return family


class PlainCollector(Collector):
    """The metrics that a function names: those of a status, for example."""

    def __init__(self, observe: Callable[[], Iterable[Measurement]]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Family]:
        """Yields the metrics as they are now."""
        yield from map(family_of, self._observe())


class StatusCollector(PlainCollector):
    """The metrics of a status; none while there is none."""

    def __init__(self, observe: Callable[[], Message | None]) -> None:
        super().__init__(lambda: measurements(observe()))


def measurements(status: Message | None) -> Iterator[Measurement]:
    """Yields the metrics of a status: a member's, an applier's or a member's; none of None."""
    if status is None:
        return
    yield from _of_fields(status.DESCRIPTOR, [status])
    if isinstance(status, GroupStatus):
        yield from _of_group(status)


def _of_group(group: GroupStatus) -> Iterator[Measurement]:
    """Yields the metrics of a group that are no field's."""
    found = Counter(problem.kind for problem in problems_of(group))
    # One member cannot see the kind left out.
    kinds = (kind for kind in ProblemKind if kind is not ProblemKind.MEMBER_UNREACHABLE)
    counts = {kind.value: found[kind] for kind in kinds}
    text = "what `groupcert status` exits with 1 for, as this member sees it"
    yield Measurement("groupcert_problems", text, counts, "kind")
    writes = group.primary in ("", group.observer.name)
    text = "whether the group's mode lets this member write"
    yield Measurement("groupcert_member_takes_transactions", text, writes)


def _of_fields(kind: Any, messages: Sequence[Message]) -> Iterator[Measurement]:
    """Yields the metrics of messages of one kind, and of the messages in them."""
    for field in kind.fields:
        told = field.GetOptions().Extensions[metric]
        if told.name:
            numbers = _numbers(field, told, messages)
            name = f"groupcert_{told.name}"
            yield Measurement(name, told.text, numbers, told.label, told.is_counter)
        if field.message_type is not None:
            values = [getattr(each, field.name) for each in messages]
            inner = [each for one in values for each in one] if field.is_repeated else values
            # A member without a server has no numbers of one, not even zeros.
            if field.message_type != PostgresqlStatus.DESCRIPTOR or any(
                each.HasField(field.name) for each in messages
            ):
                yield from _of_fields(field.message_type, inner)


def _numbers(field: Any, told: Metric, messages: Sequence[Message]) -> float | Mapping[str, float]:
    """Returns the number of a metric, or the numbers by its label."""
    values = [getattr(each, field.name) for each in messages]
    if not told.label:
        return sum(_number(field, told, value) for value in values)
    numbers: dict[str, float] = defaultdict(float)
    for message, value in zip(messages, values, strict=True):
        if field.enum_type is not None:
            for state in field.enum_type.values[1:]:
                numbers[str(plain(field, state.number))] += state.number == value
        elif isinstance(value, Mapping):
            numbers.update(value)
        elif field.is_repeated:
            numbers |= {str(getattr(each, told.label)): each.count for each in value}
        elif isinstance(value, Message):
            numbers |= {each.name: getattr(value, each.name) for each in value.DESCRIPTOR.fields}
        else:
            numbers[str(getattr(message, told.label))] += _number(field, told, value)
    return numbers


def _number(field: Any, told: Metric, value: Any) -> float:
    if told.HasField("equals"):
        return plain(field, value) == told.equals
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, (int, float)):
        return value / 1e3 if field.name.endswith("_ms") else value
    return len(value)


def metrics_application(*collectors: Collector) -> WSGIApplication:
    """Returns a WSGI application that serves the collectors' metrics to Prometheus."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return make_wsgi_app(registry)

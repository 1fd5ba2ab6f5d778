"""The schema of the machine board: its Redis keys, and its records, which are checked when read.

All keys are in one hash slot of Redis Cluster, so that scripts can use them together.

| key | type | holds |
|---|---|---|
| `edl:{edl:machines}:alive` | zset, expires | machine -> deadline (ms, Redis time) |
| `edl:{edl:machines}:machine:<id>` | hash, expires | incarnation, report (JSON), joined |
| `edl:{edl:machines}:orders` | hash, expires | machine -> its order (JSON) |
| `edl:{edl:machines}:deployments` | hash, expires | service -> deployment (JSON); `=write` |
| `edl:{edl:machines}:leader` | hash, expires | the manager that places: holder, token, until_ms |
| `edl:{edl:machines}:facts` | stream, expires | makes Redis refuse agents of older versions |

Agents write the first two and read the third; the others are only for managers. `=write` is the id
of the latest write (`store.records.Once`).
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, Self, TypeVar, get_args

from ...proto.dataclass_json import from_plain
from ...runtime.errors import UsageError, WireError
from ...scheduler.autoscale import AutoscaleConfig
from ..registry.schema import check_service
from ..store.records import LeaseSet, check_member, is_name, load_facts

_Record = TypeVar("_Record")

_PREFIX: Final = "edl:{edl:machines}:"
#: The lease set of machines; leases end at their deadlines.
MACHINES: Final = LeaseSet(f"{_PREFIX}alive", f"{_PREFIX}machine:")
#: Older agents register under this key.
FORMER_FACTS: Final = f"{_PREFIX}facts"
ORDERS: Final = f"{_PREFIX}orders"
DEPLOYMENTS: Final = f"{_PREFIX}deployments"
LEADER: Final = f"{_PREFIX}leader"


def check_machine(machine_id: str) -> str:
    """Return `machine_id`. Raises UsageError if it is invalid."""
    hint = "; give another one with --machine NAME"
    return check_member("the name of a machine", machine_id, hint)


# --- checks of deployments
#
# A deployment is carried out on machines of other owners. So options that name a function, program,
# file or socket of the machine (`--preprocess module:function`, `--canary`, `--engine`, `--listen`)
# are not allowed: only the machine's own agent can set them.

#: The allowed protocols of fsspec: a fetch reads from one location and has no other effect. A chain
#: (`zip://...::https://...`) may unpack archives or store files elsewhere, and some protocols run
#: commands on other machines.
PROTOCOLS: Final = (
    "file", "http", "https", "s3", "gs", "gcs", "az", "abfs", "abfss", "oss", "hdfs", "webhdfs",
    "bos", "hf",
)  # fmt: skip
_CONTENT_ID: Final = re.compile(r"[0-9a-f]{64}")
_MAX_URL_LENGTH: Final = 2000


def check_url(url: str) -> str:
    """Return `url`, the URL of a model. Raises UsageError if it is malformed or not allowed."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in PROTOCOLS:
        raise UsageError(
            f"the URL of a model must begin with one of {'://, '.join(PROTOCOLS)}://, as in "
            f"s3://bucket/model or file:///models/resnet, not {_masked(url)!r}"
        )
    if not rest.strip("/") or not url.isprintable() or " " in url or len(url) > _MAX_URL_LENGTH:
        raise UsageError(
            f"{_masked(url)!r} is not the URL of a model: it needs a path, %20 in place of blanks, "
            f"and at most {_MAX_URL_LENGTH} characters"
        )
    if "::" in url:
        raise UsageError(f"{_masked(url)!r} chains protocols: use the URL of the model itself")
    if scheme in ("http", "https", "webhdfs") and "@" in rest.partition("/")[0]:
        raise UsageError(
            f"the URL {_masked(url)!r} contains a user or password, which everybody who reads the "
            "deployment can see: give it to the machines instead (docs/how-to/autoscaling.md)"
        )
    return url


def is_content_id(content_id: str) -> bool:
    """Return whether a text is a content id as `edl teacher fingerprint` prints it."""
    return _CONTENT_ID.fullmatch(content_id) is not None


def check_content_id(content_id: str) -> str:
    """Return `content_id`. Raises UsageError if it is invalid."""
    if not is_content_id(content_id):
        raise UsageError(
            "the content of a model must be 64 hexadecimal digits, as 'edl teacher fingerprint "
            f"MODEL' prints them, not {content_id[:80]!r}"
        )
    return content_id


def _masked(url: str) -> str:
    """Return a URL for messages: without user and password, and at most 160 characters."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"[:160]


_COUNT: Final = r"[1-9][0-9]{0,5}"
_DECIMAL: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
#: NAME:DATATYPE:DIMS
_TENSOR: Final = r"[A-Za-z0-9_.\-/]{1,128}:[A-Z0-9]{2,8}:-?[0-9]{1,9}(,-?[0-9]{1,9}){0,15}"

#: Name of an option -> pattern of its values. A value of `preprocess` has no colon, so it can only
#: be a built-in step, and not a function of the machine (`module:function`).
ALLOWED: Final[dict[str, str]] = {
    "backend": r"auto|paddle|onnx|torch|paced",
    "batch-delay": _DECIMAL,
    "batch-max": r"[0-9]{1,6}",
    "batch-preferred": rf"{_COUNT}(,{_COUNT}){{0,15}}",
    "deterministic": r"true",
    "input": _TENSOR,
    "micro-batch": rf"auto|{_COUNT}",
    "output": _TENSOR,
    "precision": r"fp32|bf16",
    "preprocess": r"[a-z][a-z0-9]{0,31}",
    "rate": _DECIMAL,
    "slots": _COUNT,
    "threads": _COUNT,
}
#: Options that may be repeated.
REPEATED: Final = frozenset({"input", "output", "preprocess"})
#: Options that are keys of a flag with another name: `rate=1600` becomes `--backend=rate=1600`.
_FLAGS: Final = {
    "batch-delay": "--batch=delay",
    "batch-max": "--batch=max",
    "batch-preferred": "--batch=preferred",
    "rate": "--backend=rate",
}
_MAX_OPTIONS: Final = 64


def check_options(options: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if an option is not in `ALLOWED` or its value is invalid."""
    if len(options) > _MAX_OPTIONS:
        raise UsageError(f"a deployment has at most {_MAX_OPTIONS} options, not {len(options)}")
    seen: set[str] = set()
    for name, value in options:
        pattern = ALLOWED.get(name)
        if pattern is None:
            matches = difflib.get_close_matches(name, ALLOWED, n=1)
            hint = f"; did you mean {matches[0]}?" if matches else "."
            raise UsageError(
                f"a deployment cannot set {name[:80]!r}{hint} It may set {', '.join(ALLOWED)}: the "
                "others are set by the machine's own agent"
            )
        if not re.fullmatch(pattern, value):
            raise UsageError(f"option {name} of a deployment cannot be {value[:80]!r}")
        if name in seen and name not in REPEATED:
            raise UsageError(f"option {name} of a deployment is given twice")
        seen.add(name)


def parse_options(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse options NAME=VALUE or --NAME=VALUE of a command line. Raises UsageError."""
    parsed = []
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        if not equals:
            raise UsageError(f"an option of a deployment must be NAME=VALUE, not {text[:80]!r}")
        parsed.append((name, value))
    options = tuple(parsed)
    check_options(options)
    return options


def arguments(options: Sequence[tuple[str, str]]) -> list[str]:
    """Return the options as arguments of `edl teacher serve`."""
    return [
        f"--{name}" if name == "deterministic" else f"{_FLAGS.get(name, f'--{name}')}={value}"
        for name, value in options
    ]


#: State of a machine. yielded: its owner uses it; failing: it cannot carry out its order, and tries
#: again.
State = Literal["idle", "fetching", "starting", "serving", "draining", "yielded", "failing"]
STATES: Final = get_args(State)

_MOST_TEACHERS: Final = 100_000
#: Maximum number of characters of a text in a report.
_MAX_TEXT: Final = 600


@dataclass(frozen=True, slots=True)
class Deployment:
    """The model that machines serve for a service, and how many teachers it should have.

    Attributes:
        service: name of the service.
        model_url: URL of fsspec from which agents fetch the model, a file or a folder
            (`https://...`, `s3://...`, `file:///...`), without credentials.
        content_id: content id of the model with its preprocessing, as `edl teacher fingerprint`
            prints it; machines serve nothing else.
        options: further options of `edl teacher serve` as (name, value), only those of
            `ALLOWED`; only names of `REPEATED` may come more than once.
        min: least number of teachers. A service that has had no student for the coordinator's
            `idle-to-zero` seconds has none.
        max: greatest number of teachers.
        priority: higher priorities get machines first.
        price_per_hour: price of one teacher, in the user's currency; 0: the coordinator's.
        freeze_s: shortest time between two changes of the number of teachers, in seconds.
        cost_ceiling_per_hour: highest price of all its teachers, in the same currency; None: the
            coordinator's.
        withdrawn: the service gives all its machines back; a day later the record is deleted.
        since_ms: when it was deployed or withdrawn, by the store's clock.
    """

    service: str
    model_url: str
    content_id: str
    options: tuple[tuple[str, str], ...] = ()
    min: int = 1
    max: int = 1
    priority: int = 0
    price_per_hour: float = 0.0
    freeze_s: float = 30.0
    cost_ceiling_per_hour: float | None = None
    withdrawn: bool = False
    since_ms: int = 0

    def __post_init__(self) -> None:
        check_service(self.service)
        check_url(self.model_url)
        check_content_id(self.content_id)
        check_options(self.options)
        if not 0 <= self.min <= self.max <= _MOST_TEACHERS:
            raise UsageError(
                f"a service has 0 to {_MOST_TEACHERS} teachers, at least `min` and at most `max`, "
                f"not {self.min} to {self.max}"
            )
        if not -1000 <= self.priority <= 1000:
            raise UsageError(f"a priority is -1000 to 1000, not {self.priority}")
        if _finite(self.price_per_hour) is None or self.price_per_hour < 0:
            raise UsageError(f"a price is 0 or more per hour, not {self.price_per_hour}")
        if not 0 <= self.freeze_s <= 86_400:
            raise UsageError(f"a freeze window is 0 to 86400 seconds, not {self.freeze_s}")
        self._check_ceiling()

    def _check_ceiling(self) -> None:
        ceiling, min_cost = self.cost_ceiling_per_hour, self.min * self.price_per_hour
        if ceiling is None:
            return
        if _finite(ceiling) is None or ceiling < 0:
            raise UsageError(f"a cost ceiling is 0 or more per hour, not {ceiling}")
        if not self.price_per_hour:
            raise UsageError("a cost ceiling needs `price`, the cost of a teacher")
        if min_cost > ceiling * (1 + 1e-9):
            raise UsageError(
                f"the least number of teachers, {self.min}, costs {min_cost:g} an hour, more than "
                f"the ceiling of {ceiling:g}"
            )

    def autoscale_config(self, defaults: AutoscaleConfig) -> AutoscaleConfig:
        """Return the default settings of autoscaling, overridden by those of this deployment."""
        ceiling = self.cost_ceiling_per_hour
        return replace(
            defaults,
            min=self.min,
            max=self.max,
            freeze_s=self.freeze_s,
            price_per_teacher_hour=self.price_per_hour or defaults.price_per_teacher_hour,
            cost_ceiling_per_hour=defaults.cost_ceiling_per_hour if ceiling is None else ceiling,
        )

    @property
    def withdrawal(self) -> Self:
        """Return a copy that is withdrawn."""
        return replace(self, withdrawn=True)


@dataclass(frozen=True, slots=True)
class MachineOrder:
    """What a machine has to do until the next order.

    Attributes:
        number: grows with each order to this machine; 0: it has had no order.
        deployment: what it serves; None: nothing.
        why: the reason, as text.
    """

    number: int = 0
    deployment: Deployment | None = None
    why: str = ""

    @property
    def service(self) -> str:
        """The service that it serves; empty: none."""
        return "" if self.deployment is None else self.deployment.service


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a machine, as its agent reports it.

    Attributes:
        host: host name of the machine.
        devices: devices of its teachers, as `edl teacher serve --devices` names them.
        memory_bytes: memory of the machine; 0: unknown.
        version: version of this package on the machine.
        state: one of `STATES`.
        service: service of its current or next teacher; empty: none.
        content_id: model content of that teacher.
        teacher_id: id of that teacher in the registry.
        order: number of the order that it carries out.
        load: CPU cores that processes other than its teacher keep busy.
        until_s: how many seconds its owner will still use it; 0: unknown.
        why: what it waits for, or what went wrong, as text; empty: neither.
        blocked: `retry_key` of each deployment that recently failed on this machine. The machine
            gets no order for it until its pause is over.
        troubles: what went wrong with each deployment of `blocked`, in the same order, as text.
        cached: content ids of models in its cache.
        leaving: it takes no further orders, because its agent ends or its owner uses it.
    """

    host: str = ""
    devices: tuple[str, ...] = ()
    memory_bytes: int = 0
    version: str = ""
    state: State = "idle"
    service: str = ""
    content_id: str = ""
    teacher_id: str = ""
    order: int = 0
    load: float = 0.0
    until_s: float = 0.0
    why: str = ""
    blocked: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    leaving: bool = False

    def trouble_with(self, deployment: Deployment) -> str:
        """Return what recently went wrong with a deployment, as text; empty: nothing."""
        troubles = dict(zip(self.blocked, self.troubles, strict=False))
        return troubles.get(retry_key(deployment), "")

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse the fields; invalid ones are ignored, and long ones cut off."""
        values = value if isinstance(value, Mapping) else {}
        defaults = cls()
        valid: dict[str, Any] = {}
        for name in (known.name for known in fields(cls)):
            given, default = values.get(name), getattr(defaults, name)
            if isinstance(default, tuple):
                if isinstance(given, list | tuple) and all(isinstance(g, str) for g in given):
                    valid[name] = tuple(g[:_MAX_TEXT] for g in given[:256])
            elif isinstance(default, float):
                if (number := _finite(given)) is not None:
                    valid[name] = number
            elif type(given) is type(default) and not _is_too_large(given):
                valid[name] = given[:_MAX_TEXT] if isinstance(given, str) else given
        if valid.get("state") not in STATES:
            valid.pop("state", None)
        if not is_name(valid.get("service", "")):
            valid.pop("service", None)
        return cls(**valid)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with a lease.

    Attributes:
        machine_id: its name in the mesh.
        incarnation: grows with each start of its agent.
        joined: number of its registration, not a time; it grows with each machine that joins.
        report: its latest report.
        order: its latest order.
        expires_in_s: seconds until its lease expires without a heartbeat.
    """

    machine_id: str
    incarnation: int
    joined: int
    report: Report
    order: MachineOrder
    expires_in_s: float


def retry_key(deployment: Deployment) -> str:
    """Return a text that identifies a deployment for retries: its content, URL and options."""
    options = " ".join(f"{name}={value}" for name, value in deployment.options)
    return f"{deployment.content_id} {deployment.model_url} {options}"[:_MAX_TEXT]


def json_of(record: Deployment | MachineOrder | Report) -> str:
    """Return a record as JSON."""
    return json.dumps(asdict(record), separators=(",", ":"), allow_nan=False)


def deployment_from(text: str) -> Deployment | None:
    """Parse a deployment from the text of `json_of`; None if it is invalid."""
    return _parse(Deployment, text)


def order_from(text: str | None) -> MachineOrder:
    """Parse an order from the text of `json_of`; number 0 if it is missing or invalid."""
    return _parse(MachineOrder, text or "") or MachineOrder()


def _parse(kind: type[_Record], text: str) -> _Record | None:
    try:
        return from_plain(kind, load_facts(text), defaults=True)
    except (WireError, UsageError):
        return None


def _finite(value: object) -> float | None:
    """Return a number as a float; None: it is no number, or not finite as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the floats
        return None
    return number if math.isfinite(number) else None


def _is_too_large(value: object) -> bool:
    """Return whether a value is an integer beyond the signed 64 bits of Redis and messages."""
    return isinstance(value, int) and abs(value) >= 1 << 63

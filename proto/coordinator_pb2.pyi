from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StudentReport(_message.Message):
    __slots__ = ("protocol_version", "service", "student_id", "incarnation", "want", "min", "priority", "needed", "t_s_seconds", "t_t_seconds", "volume_bytes", "upper_bytes", "lower_bytes", "starved_seconds", "blocked_seconds", "source_wait_seconds", "batches_delivered", "samples_delivered", "samples_per_second", "resends", "teachers", "term", "counter", "state", "host", "unreachable", "data_epoch", "content_id", "stragglers", "hedges", "ejections", "ejected", "ejected_for", "disputed", "cut_off", "half_open", "unavailable")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    STUDENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    T_S_SECONDS_FIELD_NUMBER: _ClassVar[int]
    T_T_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VOLUME_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPPER_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARVED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_DELIVERED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DELIVERED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RESENDS_FIELD_NUMBER: _ClassVar[int]
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    DATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    STRAGGLERS_FIELD_NUMBER: _ClassVar[int]
    HEDGES_FIELD_NUMBER: _ClassVar[int]
    EJECTIONS_FIELD_NUMBER: _ClassVar[int]
    EJECTED_FIELD_NUMBER: _ClassVar[int]
    EJECTED_FOR_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_FIELD_NUMBER: _ClassVar[int]
    CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    HALF_OPEN_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    service: str
    student_id: str
    incarnation: int
    want: int
    min: int
    priority: int
    needed: int
    t_s_seconds: float
    t_t_seconds: float
    volume_bytes: int
    upper_bytes: int
    lower_bytes: int
    starved_seconds: float
    blocked_seconds: float
    source_wait_seconds: float
    batches_delivered: int
    samples_delivered: int
    samples_per_second: float
    resends: int
    teachers: _containers.RepeatedScalarFieldContainer[str]
    term: int
    counter: int
    state: str
    host: str
    unreachable: int
    data_epoch: int
    content_id: str
    stragglers: _containers.RepeatedScalarFieldContainer[str]
    hedges: int
    ejections: int
    ejected: _containers.RepeatedScalarFieldContainer[str]
    ejected_for: _containers.RepeatedScalarFieldContainer[str]
    disputed: _containers.RepeatedScalarFieldContainer[str]
    cut_off: int
    half_open: _containers.RepeatedScalarFieldContainer[str]
    unavailable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., service: _Optional[str] = ..., student_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., want: _Optional[int] = ..., min: _Optional[int] = ..., priority: _Optional[int] = ..., needed: _Optional[int] = ..., t_s_seconds: _Optional[float] = ..., t_t_seconds: _Optional[float] = ..., volume_bytes: _Optional[int] = ..., upper_bytes: _Optional[int] = ..., lower_bytes: _Optional[int] = ..., starved_seconds: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., source_wait_seconds: _Optional[float] = ..., batches_delivered: _Optional[int] = ..., samples_delivered: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., resends: _Optional[int] = ..., teachers: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ..., counter: _Optional[int] = ..., state: _Optional[str] = ..., host: _Optional[str] = ..., unreachable: _Optional[int] = ..., data_epoch: _Optional[int] = ..., content_id: _Optional[str] = ..., stragglers: _Optional[_Iterable[str]] = ..., hedges: _Optional[int] = ..., ejections: _Optional[int] = ..., ejected: _Optional[_Iterable[str]] = ..., ejected_for: _Optional[_Iterable[str]] = ..., disputed: _Optional[_Iterable[str]] = ..., cut_off: _Optional[int] = ..., half_open: _Optional[_Iterable[str]] = ..., unavailable: _Optional[_Iterable[str]] = ...) -> None: ...

class Teacher(_message.Message):
    __slots__ = ("teacher_id", "incarnation", "address", "protocol", "content_id", "numerics_id", "verified", "device", "state", "slots", "t_t_seconds", "in_flight", "model", "host", "samples_per_second", "lease_remaining_s", "lanes", "admission", "voucher", "inputs", "output_kinds")
    TEACHER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    T_T_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    VOUCHER_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_KINDS_FIELD_NUMBER: _ClassVar[int]
    teacher_id: str
    incarnation: int
    address: str
    protocol: str
    content_id: str
    numerics_id: str
    verified: str
    device: str
    state: str
    slots: int
    t_t_seconds: float
    in_flight: int
    model: str
    host: str
    samples_per_second: float
    lease_remaining_s: float
    lanes: int
    admission: str
    voucher: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    output_kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, teacher_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., protocol: _Optional[str] = ..., content_id: _Optional[str] = ..., numerics_id: _Optional[str] = ..., verified: _Optional[str] = ..., device: _Optional[str] = ..., state: _Optional[str] = ..., slots: _Optional[int] = ..., t_t_seconds: _Optional[float] = ..., in_flight: _Optional[int] = ..., model: _Optional[str] = ..., host: _Optional[str] = ..., samples_per_second: _Optional[float] = ..., lease_remaining_s: _Optional[float] = ..., lanes: _Optional[int] = ..., admission: _Optional[str] = ..., voucher: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., output_kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("protocol_version", "term", "counter", "teachers", "lost", "live_teachers", "reason", "content_id", "next_content_id", "data_epoch")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LIVE_TEACHERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    term: int
    counter: int
    teachers: _containers.RepeatedCompositeFieldContainer[Teacher]
    lost: _containers.RepeatedScalarFieldContainer[str]
    live_teachers: int
    reason: str
    content_id: str
    next_content_id: str
    data_epoch: int
    def __init__(self, protocol_version: _Optional[int] = ..., term: _Optional[int] = ..., counter: _Optional[int] = ..., teachers: _Optional[_Iterable[_Union[Teacher, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ..., live_teachers: _Optional[int] = ..., reason: _Optional[str] = ..., content_id: _Optional[str] = ..., next_content_id: _Optional[str] = ..., data_epoch: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("service", "max_members", "own_only")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OWN_ONLY_FIELD_NUMBER: _ClassVar[int]
    service: str
    max_members: int
    own_only: bool
    def __init__(self, service: _Optional[str] = ..., max_members: _Optional[int] = ..., own_only: _Optional[bool] = ...) -> None: ...

class MeshStatus(_message.Message):
    __slots__ = ("services", "managers", "redis_time_ms")
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    MANAGERS_FIELD_NUMBER: _ClassVar[int]
    REDIS_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[ServiceStatus]
    managers: _containers.RepeatedScalarFieldContainer[str]
    redis_time_ms: int
    def __init__(self, services: _Optional[_Iterable[_Union[ServiceStatus, _Mapping]]] = ..., managers: _Optional[_Iterable[str]] = ..., redis_time_ms: _Optional[int] = ...) -> None: ...

class ServiceStatus(_message.Message):
    __slots__ = ("name", "teachers", "students", "term", "counter", "teacher_count", "student_count", "teacher_states", "student_states", "wanted", "assigned", "samples_per_second", "starved_seconds", "blocked_seconds", "source_wait_seconds", "leader", "content_id", "next_content_id", "upgrade_at", "content_teachers", "content_students", "desired_teachers", "desired_reason", "desired_since_ms")
    class TeacherStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StudentStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ContentTeachersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ContentStudentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    STUDENTS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    TEACHER_COUNT_FIELD_NUMBER: _ClassVar[int]
    STUDENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEACHER_STATES_FIELD_NUMBER: _ClassVar[int]
    STUDENT_STATES_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STARVED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_AT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TEACHERS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_STUDENTS_FIELD_NUMBER: _ClassVar[int]
    DESIRED_TEACHERS_FIELD_NUMBER: _ClassVar[int]
    DESIRED_REASON_FIELD_NUMBER: _ClassVar[int]
    DESIRED_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    teachers: _containers.RepeatedCompositeFieldContainer[Teacher]
    students: _containers.RepeatedCompositeFieldContainer[StudentStatus]
    term: int
    counter: int
    teacher_count: int
    student_count: int
    teacher_states: _containers.ScalarMap[str, int]
    student_states: _containers.ScalarMap[str, int]
    wanted: int
    assigned: int
    samples_per_second: float
    starved_seconds: float
    blocked_seconds: float
    source_wait_seconds: float
    leader: str
    content_id: str
    next_content_id: str
    upgrade_at: str
    content_teachers: _containers.ScalarMap[str, int]
    content_students: _containers.ScalarMap[str, int]
    desired_teachers: int
    desired_reason: str
    desired_since_ms: int
    def __init__(self, name: _Optional[str] = ..., teachers: _Optional[_Iterable[_Union[Teacher, _Mapping]]] = ..., students: _Optional[_Iterable[_Union[StudentStatus, _Mapping]]] = ..., term: _Optional[int] = ..., counter: _Optional[int] = ..., teacher_count: _Optional[int] = ..., student_count: _Optional[int] = ..., teacher_states: _Optional[_Mapping[str, int]] = ..., student_states: _Optional[_Mapping[str, int]] = ..., wanted: _Optional[int] = ..., assigned: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., starved_seconds: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., source_wait_seconds: _Optional[float] = ..., leader: _Optional[str] = ..., content_id: _Optional[str] = ..., next_content_id: _Optional[str] = ..., upgrade_at: _Optional[str] = ..., content_teachers: _Optional[_Mapping[str, int]] = ..., content_students: _Optional[_Mapping[str, int]] = ..., desired_teachers: _Optional[int] = ..., desired_reason: _Optional[str] = ..., desired_since_ms: _Optional[int] = ...) -> None: ...

class StudentStatus(_message.Message):
    __slots__ = ("report", "assigned", "lease_remaining_s", "reason")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    report: StudentReport
    assigned: _containers.RepeatedScalarFieldContainer[str]
    lease_remaining_s: float
    reason: str
    def __init__(self, report: _Optional[_Union[StudentReport, _Mapping]] = ..., assigned: _Optional[_Iterable[str]] = ..., lease_remaining_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("service", "teacher_id", "host")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    TEACHER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    service: str
    teacher_id: str
    host: str
    def __init__(self, service: _Optional[str] = ..., teacher_id: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("teachers",)
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    teachers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, teachers: _Optional[_Iterable[str]] = ...) -> None: ...

class UpgradeRequest(_message.Message):
    __slots__ = ("service", "content_id", "at")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    service: str
    content_id: str
    at: str
    def __init__(self, service: _Optional[str] = ..., content_id: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class UpgradeReply(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: str
    def __init__(self, summary: _Optional[str] = ...) -> None: ...

class DeployRequest(_message.Message):
    __slots__ = ("service", "model_url", "content_id", "options", "min", "max", "priority", "price_per_hour", "freeze_seconds", "withdraw", "cost_ceiling_per_hour", "scale")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_URL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    FREEZE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    COST_CEILING_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    service: str
    model_url: str
    content_id: str
    options: _containers.RepeatedScalarFieldContainer[str]
    min: int
    max: int
    priority: int
    price_per_hour: float
    freeze_seconds: float
    withdraw: bool
    cost_ceiling_per_hour: float
    scale: bool
    def __init__(self, service: _Optional[str] = ..., model_url: _Optional[str] = ..., content_id: _Optional[str] = ..., options: _Optional[_Iterable[str]] = ..., min: _Optional[int] = ..., max: _Optional[int] = ..., priority: _Optional[int] = ..., price_per_hour: _Optional[float] = ..., freeze_seconds: _Optional[float] = ..., withdraw: _Optional[bool] = ..., cost_ceiling_per_hour: _Optional[float] = ..., scale: _Optional[bool] = ...) -> None: ...

class DeployReply(_message.Message):
    __slots__ = ("summary",)
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    summary: str
    def __init__(self, summary: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("service", "last", "follow")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    service: str
    last: int
    follow: bool
    def __init__(self, service: _Optional[str] = ..., last: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("service", "id", "time_ms", "kind", "subject", "text", "before", "after")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    service: str
    id: str
    time_ms: int
    kind: str
    subject: str
    text: str
    before: _containers.RepeatedScalarFieldContainer[str]
    after: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, service: _Optional[str] = ..., id: _Optional[str] = ..., time_ms: _Optional[int] = ..., kind: _Optional[str] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., before: _Optional[_Iterable[str]] = ..., after: _Optional[_Iterable[str]] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StudentReport(_message.Message):
    __slots__ = ("protocol_version", "service", "student_id", "incarnation", "want", "min", "priority", "needed", "t_s_seconds", "t_t_seconds", "volume_bytes", "upper_bytes", "lower_bytes", "starved_seconds", "blocked_seconds", "source_wait_seconds", "batches_delivered", "samples_delivered", "samples_per_second", "resends", "teachers", "term", "counter", "state", "host")
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
    def __init__(self, protocol_version: _Optional[int] = ..., service: _Optional[str] = ..., student_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., want: _Optional[int] = ..., min: _Optional[int] = ..., priority: _Optional[int] = ..., needed: _Optional[int] = ..., t_s_seconds: _Optional[float] = ..., t_t_seconds: _Optional[float] = ..., volume_bytes: _Optional[int] = ..., upper_bytes: _Optional[int] = ..., lower_bytes: _Optional[int] = ..., starved_seconds: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., source_wait_seconds: _Optional[float] = ..., batches_delivered: _Optional[int] = ..., samples_delivered: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., resends: _Optional[int] = ..., teachers: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ..., counter: _Optional[int] = ..., state: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class Teacher(_message.Message):
    __slots__ = ("teacher_id", "incarnation", "address", "protocol", "content_id", "numerics_id", "verified", "device", "state", "slots", "t_t_seconds", "in_flight", "model", "host", "samples_per_second", "lease_remaining_s")
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
    def __init__(self, teacher_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., protocol: _Optional[str] = ..., content_id: _Optional[str] = ..., numerics_id: _Optional[str] = ..., verified: _Optional[str] = ..., device: _Optional[str] = ..., state: _Optional[str] = ..., slots: _Optional[int] = ..., t_t_seconds: _Optional[float] = ..., in_flight: _Optional[int] = ..., model: _Optional[str] = ..., host: _Optional[str] = ..., samples_per_second: _Optional[float] = ..., lease_remaining_s: _Optional[float] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("protocol_version", "term", "counter", "teachers", "lost", "live_teachers", "reason")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LIVE_TEACHERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    term: int
    counter: int
    teachers: _containers.RepeatedCompositeFieldContainer[Teacher]
    lost: _containers.RepeatedScalarFieldContainer[str]
    live_teachers: int
    reason: str
    def __init__(self, protocol_version: _Optional[int] = ..., term: _Optional[int] = ..., counter: _Optional[int] = ..., teachers: _Optional[_Iterable[_Union[Teacher, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ..., live_teachers: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("name", "teachers", "students", "term", "counter")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEACHERS_FIELD_NUMBER: _ClassVar[int]
    STUDENTS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    teachers: _containers.RepeatedCompositeFieldContainer[Teacher]
    students: _containers.RepeatedCompositeFieldContainer[StudentStatus]
    term: int
    counter: int
    def __init__(self, name: _Optional[str] = ..., teachers: _Optional[_Iterable[_Union[Teacher, _Mapping]]] = ..., students: _Optional[_Iterable[_Union[StudentStatus, _Mapping]]] = ..., term: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class StudentStatus(_message.Message):
    __slots__ = ("report", "assigned", "lease_remaining_s")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    report: StudentReport
    assigned: _containers.RepeatedScalarFieldContainer[str]
    lease_remaining_s: float
    def __init__(self, report: _Optional[_Union[StudentReport, _Mapping]] = ..., assigned: _Optional[_Iterable[str]] = ..., lease_remaining_s: _Optional[float] = ...) -> None: ...

"""Every error that the mesh raises, in one tree; leaves say who has to act.

```
EdlError
├── UsageError            the caller gave something that cannot work       exit code 2
│   ├── ModelError          a model that is missing, unreadable or has no outputs
│   │   └── ContentMismatch   a model is not the one that was declared
│   ├── JobError            a job file that cannot be used, or a function of it that fails
│   ├── BatchError          a batch that the reader cannot carry
│   ├── CheckpointMismatch  a checkpoint of another model or optimizer
│   ├── ManifestRefused     Kubernetes does not take an object: its schema, a rule
│   └── ObjectMissing       Kubernetes has no such object
├── UnavailableError      something outside is not reachable now           exit code 69
│   ├── RegistryUnavailable Redis does not answer, or refuses to work
│   │   └── StartCancelled    the process was told to end while it waited for Redis
│   ├── CoordinatorUnavailable  no service manager answers
│   ├── AddressInUse        another process listens there
│   ├── StoreUnavailable    a label store cannot be read or written now
│   ├── CheckpointUnavailable  checkpoints cannot be read or written now
│   ├── ModelUnavailable    a model cannot be fetched now
│   ├── NoTeacherAvailable  no teacher came within the stated time
│   ├── MemoryRefused       the system gives no more shared memory
│   ├── KubernetesUnavailable  the API server of Kubernetes does not answer
│   └── PeerLost            another rank of the same world is gone           exit code 75
├── WireError             a message that breaks its protocol               exit code 76
│   └── VersionMismatch     the peer speaks another version
├── AccessError           who calls may not do this                        exit code 77
│   ├── Unauthenticated     no credential, or one that is not known
│   └── Forbidden           a known one, for something else
├── TeacherError          a teacher did not give a usable answer
│   ├── TeacherLost         its connection ended
│   │   └── DeadlineExceeded  the time that there was for an answer is over
│   ├── RetryableError      it failed this time; ask again, here or elsewhere
│   │   ├── RateLimited       too much at once: ask again later, and less
│   │   ├── DeviceOutOfMemory  its device had too little memory for a run
│   │   └── PredictorCrashed  its model's process died while it computed the request
│   ├── WrongInstance       another incarnation answered
│   ├── BadAnswer           the answer fails its checks (shape, dtype, finite)
│   └── RequestRefused      it will never answer this request
├── LeaseSuperseded       a newer incarnation holds the name
├── GenerationSuperseded  a world of ranks that is not the current one speaks
├── StoreDamaged          the file of a label store is broken               exit code 65
├── CheckpointDamaged     a checkpoint is broken                            exit code 65
├── ObjectChanged         somebody has changed an object of Kubernetes since it was read
│   └── ObjectExists        there is one of this name already
├── PoisonBatch           a batch that teachers of other batches refuse
├── EngineLost            the reader's engine process keeps dying
└── ProcessFailed         a child process did not start or did not become ready
```

Messages are one sentence of what is wrong and, where it helps, one of what to do. Vendor errors
(`redis.*`, `grpc.RpcError`) are translated where they arise and never leave their module.
"""


class EdlError(Exception):
    """Base of all; `exit_code` is what a command line ends with when it ends by this error."""

    exit_code = 1


class UsageError(EdlError):
    """The caller gave something that cannot work."""

    exit_code = 2


class ModelError(UsageError):
    """A model that is missing, unreadable, or has no outputs."""


class ContentMismatch(ModelError):
    """A model is not the one that was declared: its content is another."""


class JobError(UsageError):
    """A job file that cannot be used, or a function of it that fails."""


class BatchError(UsageError):
    """A batch that the reader cannot carry."""


class CheckpointMismatch(UsageError):
    """A checkpoint holds another model or optimizer than those that it is loaded into."""


class ManifestRefused(UsageError):
    """Kubernetes does not take an object: its schema, a rule, or a webhook refuses it."""


class ObjectMissing(UsageError):
    """Kubernetes has no object of this name.

    Attributes:
        unknown_kind: it does not even know its kind: our definitions are not installed.
    """

    def __init__(self, message: str = "", unknown_kind: bool = False) -> None:
        super().__init__(message)
        self.unknown_kind = unknown_kind


class UnavailableError(EdlError):
    """Something outside this process cannot be reached now."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h


class RegistryUnavailable(UnavailableError):
    """Redis does not answer, or refuses to work.

    Attributes:
        timed_out: no answer or no connection in time: the same call may succeed soon. A refused
            connection is no timeout.
        refusal: why a Redis that answers refuses to work, such as "read_only" or
            "out_of_memory"; empty: it does not answer, or the reason is another one.
    """

    def __init__(self, message: str = "", timed_out: bool = False, refusal: str = "") -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.refusal = refusal


class StartCancelled(RegistryUnavailable):
    """A process that waited for Redis at its start was told to end."""


class CoordinatorUnavailable(UnavailableError):
    """No service manager answers."""


class AddressInUse(UnavailableError):
    """Another process listens on the wanted address."""


class StoreUnavailable(UnavailableError):
    """A label store cannot be read or written now: no room, a disk that refuses, other users.

    Attributes:
        full: there is no room, in its budget or on the disk.
    """

    def __init__(self, message: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class CheckpointUnavailable(UnavailableError):
    """Checkpoints cannot be read or written now: no room, a disk or a server that refuses.

    Attributes:
        full: there is no room.
    """

    def __init__(self, message: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ModelUnavailable(UnavailableError):
    """A model cannot be fetched from where it lies now."""


class NoTeacherAvailable(UnavailableError):
    """No teacher came within the stated time."""


class MemoryRefused(UnavailableError):
    """The system gives no more shared memory."""


class KubernetesUnavailable(UnavailableError):
    """The API server of Kubernetes does not answer, or fails."""


class PeerLost(UnavailableError):
    """Another rank of the same world is gone: this one goes too, and a new world begins."""

    exit_code = 75  # EX_TEMPFAIL


class WireError(EdlError):
    """A message that breaks its protocol."""

    exit_code = 76  # EX_PROTOCOL


class VersionMismatch(WireError):
    """The peer speaks another version of the protocol."""


class AccessError(EdlError):
    """Who calls may not do this."""

    exit_code = 77  # EX_NOPERM


class Unauthenticated(AccessError):
    """No credential came, or one that the server does not know."""


class Forbidden(AccessError):
    """The credential is known and is for something else: another role, another student."""


class TeacherError(EdlError):
    """A teacher did not give a usable answer."""


class TeacherLost(TeacherError):
    """The connection to the teacher ended, or it did not answer in time."""


class DeadlineExceeded(TeacherLost):
    """The time that there was for an answer is over."""


class RetryableError(TeacherError):
    """The teacher failed this time; the same request may succeed here or elsewhere."""


class RateLimited(RetryableError):
    """Too much at once from one peer; the same request may succeed later.

    Attributes:
        retry_after_s: seconds until there will likely be room; None where nobody can say.
    """

    def __init__(self, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeviceOutOfMemory(RetryableError):
    """The device had too little memory for a run; a run of fewer rows may succeed."""


class PredictorCrashed(RetryableError):
    """The process that runs the model died while it computed the request."""


class WrongInstance(TeacherError):
    """Another incarnation than the expected one answered."""


class BadAnswer(TeacherError):
    """The answer fails its checks: names, shape, dtype, finiteness.

    Attributes:
        output: the output that fails; empty where it is not one alone, or is not known.
    """

    def __init__(self, message: str = "", output: str = "") -> None:
        super().__init__(message)
        self.output = output


class RequestRefused(TeacherError):
    """The teacher will never answer this request: the request itself is wrong."""


class InputsOverwritten(TeacherError):
    """The memory of a request's batch was used again before it was sent: the batch is over."""


class LeaseSuperseded(EdlError):
    """A newer incarnation holds the same name; the older one has to end."""


class GenerationSuperseded(EdlError):
    """Another generation of a job's ranks is the current one; those of this one have to end."""


class StoreDamaged(EdlError):
    """The file of a label store is broken; what is lost is labels that teachers can make again."""

    exit_code = 65  # EX_DATAERR


class CheckpointDamaged(EdlError):
    """A checkpoint is broken: a file is missing, shorter, or fails its checksum."""

    exit_code = 65  # EX_DATAERR


class ObjectChanged(EdlError):
    """Somebody has changed an object of Kubernetes since it was read: read it again."""


class ObjectExists(ObjectChanged):
    """Kubernetes has an object of this name already."""


class PoisonBatch(EdlError):
    """A batch that every teacher refuses."""


class EngineLost(EdlError):
    """The reader's engine process keeps dying."""


class ProcessFailed(EdlError):
    """A child process did not start, or ended before it was ready."""

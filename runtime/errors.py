"""All errors that the mesh raises, in one tree.

```
EdlError
├── UsageError            invalid input of the caller                      exit code 2
│   ├── ModelError          a model is missing or unreadable, or has no outputs
│   │   └── ContentMismatch   a model is not the declared one
│   ├── JobError            a job file is invalid, or a function in it fails
│   ├── BatchError          the reader cannot transfer a batch
│   ├── CheckpointMismatch  a checkpoint holds another model or optimizer
│   ├── ManifestRefused     Kubernetes refuses an object: its schema, a rule
│   └── ObjectMissing       Kubernetes has no such object
├── UnavailableError      something outside cannot be reached now          exit code 69
│   ├── RegistryUnavailable Redis does not answer, or refuses to work
│   │   └── StartCancelled    the process was told to end while it waited for Redis at its start
│   ├── CoordinatorUnavailable  no service manager answers
│   ├── AddressInUse        another process listens on the address
│   ├── StoreUnavailable    a label store cannot be read or written now
│   ├── CheckpointUnavailable  checkpoints cannot be read or written now
│   ├── ModelUnavailable    a model cannot be fetched now
│   ├── NoTeacherAvailable  no teacher came within the stated time
│   ├── MemoryRefused       the system provides no more shared memory
│   ├── KubernetesUnavailable  the API server of Kubernetes does not answer
│   └── PeerLost            another rank of the same world has ended         exit code 75
├── WireError             a message violates its protocol                  exit code 76
│   └── VersionMismatch     the peer speaks another version
├── AccessError           the caller may not do this                       exit code 77
│   ├── Unauthenticated     no credential, or an unknown one
│   └── Forbidden           the credential does not permit the call
├── TeacherError          a teacher did not give a usable answer
│   ├── TeacherLost         the connection ended, or the teacher does not answer
│   │   └── DeadlineExceeded  no answer before the deadline
│   ├── RetryableError      a failure of this attempt; another one may succeed, here or elsewhere
│   │   ├── RateLimited       too many requests: try again later
│   │   ├── DeviceOutOfMemory  the device had too little memory for a run
│   │   └── PredictorCrashed  the process of the model died while it computed the request
│   ├── WrongInstance       another incarnation answered
│   ├── BadAnswer           the answer fails its checks (shape, dtype, finite)
│   ├── RequestRefused      the teacher will never answer this request
│   └── InputsOverwritten   the memory of a batch was reused before the request was sent
├── LeaseSuperseded       a newer incarnation holds the name
├── GenerationSuperseded  another generation of a job's ranks is the current one
├── StoreDamaged          the file of a label store is broken              exit code 65
├── CheckpointDamaged     a checkpoint is broken                           exit code 65
├── ObjectChanged         a Kubernetes object has changed since it was read
│   └── ObjectExists        Kubernetes has an object of this name already
├── PoisonBatch           all teachers refuse a batch
├── EngineLost            the reader's engine process keeps dying
└── ProcessFailed         a child process did not start or did not become ready
```

A message says in one sentence what is wrong and, if useful, in another what to do. Errors of
libraries (`redis.*`, `grpc.RpcError`) are translated in the module that calls the library.
"""


class EdlError(Exception):
    """Base class of all errors; `exit_code` is that of a command that fails with this error."""

    exit_code = 1


class UsageError(EdlError):
    """Input of the caller is invalid: an argument, a setting or a file."""

    exit_code = 2


class ModelError(UsageError):
    """A model is missing or unreadable, or has no outputs."""


class ContentMismatch(ModelError):
    """A model is not the declared one: its content differs."""


class JobError(UsageError):
    """A job file is invalid, or a function in it fails."""


class BatchError(UsageError):
    """The reader cannot transfer a batch, for example because of its dtypes."""


class CheckpointMismatch(UsageError):
    """A checkpoint belongs to another model or optimizer than the ones that load it."""


class ManifestRefused(UsageError):
    """Kubernetes refuses an object because of its schema, a rule, or a webhook."""


class ObjectMissing(UsageError):
    """Kubernetes has no object of this name.

    Attributes:
        unknown_kind: the kind itself is unknown: our definitions are not installed.
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
        refusal: why Redis answers but refuses to work, such as "read_only" or "out_of_memory";
            empty if it does not answer, or for another reason.
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
    """A label store cannot be read or written now: it is full, in use, or the disk fails.

    Attributes:
        full: its budget or the disk is full.
    """

    def __init__(self, message: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class CheckpointUnavailable(UnavailableError):
    """Checkpoints cannot be read or written now: the disk is full, or the disk or server fails.

    Attributes:
        full: the disk is full.
    """

    def __init__(self, message: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ModelUnavailable(UnavailableError):
    """A model cannot be fetched from its location now."""


class NoTeacherAvailable(UnavailableError):
    """No teacher came within the stated time."""


class MemoryRefused(UnavailableError):
    """The system provides no more shared memory."""


class KubernetesUnavailable(UnavailableError):
    """The API server of Kubernetes does not answer, or fails."""


class PeerLost(UnavailableError):
    """Another rank of the same world has ended: this rank ends too, and a new world begins."""

    exit_code = 75  # EX_TEMPFAIL


class WireError(EdlError):
    """A message violates its protocol."""

    exit_code = 76  # EX_PROTOCOL


class VersionMismatch(WireError):
    """The peer speaks another version of the protocol."""


class AccessError(EdlError):
    """The caller may not do this."""

    exit_code = 77  # EX_NOPERM


class Unauthenticated(AccessError):
    """The credential is missing, or unknown to the server."""


class Forbidden(AccessError):
    """The credential is known but does not permit the call: another role, another student."""


class TeacherError(EdlError):
    """A teacher did not give a usable answer."""


class TeacherLost(TeacherError):
    """The connection to the teacher ended, or it did not answer in time."""


class DeadlineExceeded(TeacherLost):
    """No answer came before the deadline."""


class RetryableError(TeacherError):
    """The teacher failed this time; the same request may succeed here or elsewhere."""


class RateLimited(RetryableError):
    """One peer sends too many requests; the same request may succeed later.

    Attributes:
        retry_after_s: seconds after which a retry will likely succeed; None if unknown.
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
        output: the output that fails; empty if there are several, or it is unknown.
    """

    def __init__(self, message: str = "", output: str = "") -> None:
        super().__init__(message)
        self.output = output


class RequestRefused(TeacherError):
    """The teacher will never answer this request: the request itself is wrong."""


class InputsOverwritten(TeacherError):
    """The memory of a batch was reused before the request was sent: the batch is obsolete."""


class LeaseSuperseded(EdlError):
    """A newer incarnation holds the same name; the older one must end."""


class GenerationSuperseded(EdlError):
    """Another generation of a job's ranks is the current one; ranks of this one must end."""


class StoreDamaged(EdlError):
    """The file of a label store is broken; teachers can compute the lost labels again."""

    exit_code = 65  # EX_DATAERR


class CheckpointDamaged(EdlError):
    """A checkpoint is broken: a file is missing, shorter, or fails its checksum."""

    exit_code = 65  # EX_DATAERR


class ObjectChanged(EdlError):
    """A Kubernetes object has changed since it was read: read it again."""


class ObjectExists(ObjectChanged):
    """Kubernetes has an object of this name already."""


class PoisonBatch(EdlError):
    """All teachers refuse a batch."""


class EngineLost(EdlError):
    """The reader's engine process keeps dying."""


class ProcessFailed(EdlError):
    """A child process did not start, or ended before it was ready."""

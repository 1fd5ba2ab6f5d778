"""The errors of the package, in one tree below `EdlError`; a few modules have further subclasses.

A message states in one sentence what is wrong and, if useful, in another what to do. In the
docstring of an error that users see, the paragraph "Remedy:" states what they can do about the
error; the table of docs/reference/errors.md is generated from these docstrings. Errors of libraries
(`redis.*`, `grpc.RpcError`) are translated in the module that calls the library.
"""


class EdlError(Exception):
    """Base class of all errors; a command that fails with an error exits with its `exit_code`."""

    exit_code = 1


class UsageError(EdlError):
    """Input of the caller is invalid: an argument, a setting or a file.

    Remedy: Correct the argument, option or file that the message names.
    """

    exit_code = 2


class ModelError(UsageError):
    """A model is missing, unreadable or unusable, or fails its self-test.

    Remedy: Pass a model in one of the supported formats with all its files, and install the
    framework that the message names. `edl teacher fingerprint MODEL` repeats the check.
    """


class ContentMismatch(ModelError):
    """A model is not the declared one: its content differs.

    Remedy: Serve the declared model, or declare the new one by `edl upgrade`.
    """


class JobError(UsageError):
    """A job file is invalid, or a function in it fails.

    Remedy: Correct the function at the file and line that the message names; `--dry-run` checks
    again.
    """


class BatchError(UsageError):
    """The reader cannot send a batch, for example because of its dtypes.

    Remedy: Change the loader, or select fields by `feeds`, so that each input is one numeric
    array.
    """


class CheckpointMismatch(UsageError):
    """A checkpoint belongs to another model or optimizer than the ones that load it.

    Remedy: Load the checkpoint with the job file that saved it, or save to another location.
    """


class ManifestRefused(UsageError):
    """Kubernetes refuses an object because of its schema, a rule, or a webhook.

    Remedy: Correct the field that the message names; `kubectl explain` lists the fields.
    """


class KubernetesObjectMissing(UsageError):
    """Kubernetes has no object of this name.

    Remedy: Check the name and namespace. If the kind is unknown, install the definitions from
    `deploy/operator/crds/`.

    Attributes:
        unknown_kind: whether the kind itself is unknown, because our definitions are not installed.
    """

    def __init__(self, message: str = "", unknown_kind: bool = False) -> None:
        super().__init__(message)
        self.unknown_kind = unknown_kind


class UnavailableError(EdlError):
    """Something that this process needs is not available now."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h


class RedisUnavailable(UnavailableError):
    """Redis does not answer, or refuses to work.

    Remedy: Check that Redis runs, that the URL and its password are right, and that it has
    memory; `edl doctor` checks all of this. Members register again by themselves.

    Attributes:
        timed_out: whether an answer or a connection did not come in time; the same call may
            succeed soon. A refused connection is no timeout.
        refusal: why Redis answers but refuses to work, such as "read_only" or "out_of_memory";
            empty if Redis does not answer, or refuses for a reason that has no such name.
    """

    def __init__(self, message: str = "", timed_out: bool = False, refusal: str = "") -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.refusal = refusal


class StartCancelled(RedisUnavailable):
    """A process was asked to stop while it waited for Redis at its start."""


class CoordinatorUnavailable(UnavailableError):
    """No service manager answers.

    Remedy: Start `edl coordinator serve`, or check the network to it. Training continues with
    the teachers that it has.
    """


class AddressInUse(UnavailableError):
    """Another process listens on the wanted address, or too few ports are free.

    Remedy: Choose another port, or 0 for any free one. If too few are free, end programs that hold
    ports.
    """


class LabelStoreUnavailable(UnavailableError):
    """A label store cannot be read or written now: it is full, in use, or the disk fails.

    Remedy: Free disk space, or choose a larger `max_bytes`, or another disk. Training continues
    without the store.

    Attributes:
        full: whether the disk or the store's budget is full.
    """

    def __init__(self, message: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class CheckpointUnavailable(UnavailableError):
    """Checkpoints cannot be read or written now: the disk is full, or the disk or server fails.

    Remedy: Free disk space or restore the connection to the server; saving is retried.

    Attributes:
        full: whether the disk is full.
    """

    def __init__(self, message: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ModelUnavailable(UnavailableError):
    """A model cannot be fetched from its location, or stored in the local cache, now.

    Remedy: Check the location of the model and the network; the agent tries again.
    """


class NoTeacherAvailable(UnavailableError):
    """No teacher came within the stated time.

    Remedy: Start teachers of this service (`edl get teachers` shows which there are), raise
    `Timeouts.wait_s` (with `no_teacher="fail"`: `Timeouts.no_teacher_s`), or continue without
    soft labels by `no_teacher="hard_only"`.
    """


class LabelTimeout(UnavailableError, TimeoutError):
    """A call to a `TeacherPool` got no labels before its deadline.

    Remedy: The message says what the call waited for. Add teachers, or raise the timeout of the
    call.
    """


class MemoryRefused(UnavailableError):
    """The system provides no more shared memory.

    Remedy: Raise the memory limit of the process or container, or lower `upper_bytes` and
    `Limits.buffer_bytes`.
    """


class KubernetesUnavailable(UnavailableError):
    """The API server of Kubernetes does not answer, or reports a failure of its own.

    Remedy: Check the cluster, `KUBECONFIG` and the credentials in it; the call may be repeated.

    Attributes:
        answered: whether the API server answered with status 500, for example because a webhook did
            not answer it; other requests may succeed.
    """

    def __init__(self, message: str = "", answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class PeerLost(UnavailableError):
    """Another rank of the same world has ended: this rank ends too, and a new world begins."""

    exit_code = 75  # EX_TEMPFAIL


class WireError(EdlError):
    """A message violates its protocol.

    Remedy: Check that the address belongs to the expected server, and that both ends have
    releases that work together.
    """

    exit_code = 76  # EX_PROTOCOL


class VersionMismatch(WireError):
    """The peer speaks another version of the protocol.

    Remedy: Install releases with the same protocol version at both ends.
    """


class AccessError(EdlError):
    """The caller may not do this."""

    exit_code = 77  # EX_NOPERM


class Unauthenticated(AccessError):
    """The credential is missing, or unknown to the server.

    Remedy: Pass a valid token or certificate: `EDL_TOKEN_FILE`, `EDL_TLS_CERT`, or a context.
    """


class Forbidden(AccessError):
    """The credential is known, but its role, student or job does not permit the call.

    Remedy: Use a credential of the role, student or job that the message names.
    """


class TeacherError(EdlError):
    """A teacher did not give a usable answer."""


class TeacherLost(TeacherError):
    """The connection to the teacher ended, or it did not answer in time.

    Remedy: Nothing, if other teachers remain: the reader sends the batch to one of them.
    """


class DeadlineExceeded(TeacherLost):
    """No answer came before the deadline."""


class RetryableError(TeacherError):
    """The server failed this time; the same request may succeed later, or at another server."""


class RateLimited(RetryableError):
    """A limit of the server, for one peer or for all, is reached; the request may succeed later.

    Remedy: If a teacher refuses, raise its `--slots`, add teachers, or lower `Limits.window_max`.
    If a service manager refuses, send fewer requests with one credential.

    Attributes:
        retry_after_s: seconds after which a retry will likely succeed; None if unknown.
    """

    def __init__(self, message: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeviceOutOfMemory(RetryableError):
    """The device had too little memory for a run; a run of fewer rows may succeed.

    Remedy: Nothing for now: the teacher reduces its micro-batch, unless it is `--deterministic`.
    Before its next start, lower `--micro-batch`.
    """


class PredictorCrashed(RetryableError):
    """The process that runs the model died while it computed the request, or lacked a resource.

    In the second case an example then ran well, so the request is to blame.
    """


class WrongInstance(TeacherError):
    """A teacher answered, but it is not the incarnation to which the request was sent."""


class BadAnswer(TeacherError):
    """The answer fails its checks: names, shape, dtype, finiteness.

    Remedy: Check the model of the teacher that the message names; the reader ejects it.

    Attributes:
        output: the output that fails; empty if there are several, or it is unknown.
    """

    def __init__(self, message: str = "", output: str = "") -> None:
        super().__init__(message)
        self.output = output


class RequestRefused(TeacherError):
    """The teacher will never answer this request: the request itself is wrong.

    Remedy: Correct the names, shapes or dtypes that the message names, or the teacher's
    declaration.
    """


class InputsOverwritten(TeacherError):
    """The memory of a batch was reused before the request was sent: the batch is obsolete."""


class LeaseSuperseded(EdlError):
    """This process has lost its lease: another process has taken over its name or its leadership.

    Remedy: Give each member its own name. If the other process is a restart of this member, do
    nothing.
    """


class GenerationSuperseded(EdlError):
    """The generation of these ranks of a job is no longer the current one: they must end."""


class StoreDamaged(EdlError):
    """The file of a label store is damaged.

    Remedy: Delete the file; teachers label its samples again.
    """

    exit_code = 65  # EX_DATAERR


class CheckpointDamaged(EdlError):
    """A checkpoint is damaged: a file is missing or too short, or fails its checksum.

    Remedy: Use an older checkpoint: `edl checkpoint list PLACE --verify` shows which are intact.
    """

    exit_code = 65  # EX_DATAERR


class KubernetesObjectChanged(EdlError):
    """A Kubernetes object has changed since it was read: read it again."""


class KubernetesObjectExists(KubernetesObjectChanged):
    """Kubernetes has an object of this name already."""


class PoisonBatch(EdlError):
    """Three teachers, or all if there are fewer, refuse a batch or crash on it.

    If there are fewer, a teacher that has labelled other batches and crashes on this one gets it
    again, until its third crash.

    Remedy: The message names the batch and the reasons of the teachers: correct these samples,
    or the model's preprocessing.
    """


class EngineLost(EdlError):
    """The reader's engine process keeps dying.

    Remedy: Read the engine's last output in the message; a memory limit is the most frequent
    cause.
    """


class ProcessFailed(EdlError):
    """A child process or thread did not start or end in time, or ended too early.

    Remedy: Read the child's last output in the message.
    """

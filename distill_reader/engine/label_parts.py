"""From the outputs of an answer to the labels of a batch, whatever form they came in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...errors import BadAnswer, UsageError
from ...proto.arena import Array
from ...proto.clients import Answer
from ...proto.form_arrays import check_parts, decode, encode, kind_by_values
from ...proto.forms import Form, Parameter
from ..label_forms import LabelForms


def output_names(answer: Answer, forms: LabelForms) -> tuple[str, ...]:
    """The outputs of an answer by the model's own names: those of `topk` came as three each."""
    names = list(answer.outputs)
    for name in answer.outputs:
        whole = name.removesuffix(".values")
        form = forms.of(whole)
        if whole == name or form is None or not form.k:
            continue
        if all(part in names for part in form.parts(whole)):
            names[names.index(name)] = whole
            names = [other for other in names if other not in form.parts(whole)]
    return tuple(names)


def received(answer: Answer, name: str, form: Form | None) -> dict[str, Array]:
    """The arrays that came for the output `name`, in its form or by its own name.

    Raises:
        BadAnswer: the answer lacks it.
    """
    for parts in (() if form is None else form.parts(name), (name,)):
        if parts and all(part in answer.outputs for part in parts):
            return {part: answer.outputs[part] for part in parts}
    raise BadAnswer(f"the answer lacks {name!r}, it has {list(answer.outputs)}")


def in_form(
    answer: Answer, name: str, form: Form | None
) -> tuple[dict[str, Array], Mapping[str, Parameter]]:
    """The arrays of the output `name` in its form, and what is said of them.

    A server that has ignored the form that was asked for, as foreign ones do, is helped out here:
    so labels do not depend on who made them.

    Raises:
        BadAnswer: the answer lacks it, or says another form of its parts.
        RequestRefused: the output cannot have this form.
    """
    arrays = received(answer, name, form)
    said = answer.output_parameters.get(next(iter(arrays)), {})
    if form is None or _is_in(form, said):
        return arrays, said
    if name not in arrays:
        raise BadAnswer(f"output {name!r} came in parts, and they do not say {form}")
    array = arrays[name]
    encoded = encode(name, array, form, kind_by_values(array, form))  # it says nothing of kinds
    return encoded, form.parameters(array.shape[-1])


def labels_of(
    answer: Answer, name: str, form: Form | None, *, expand: bool
) -> Iterator[tuple[str, Array]]:
    """The labels that the training loop gets for one output.

    Args:
        answer: its arrays must have been checked one by one.
        name: of the output.
        form: what was asked for; None: the output as it is.
        expand: dense float32, whatever travelled; else what travelled.

    Raises:
        WireError: the parts of the output contradict each other.
        RequestRefused: the output cannot have this form.
    """
    arrays, said = in_form(answer, name, form)
    if form is None:
        yield from arrays.items()
        return
    if expand:
        yield name, decode(name, arrays, form, said)
    elif form.k:
        yield from zip(form.parts(name), check_parts(name, arrays, form, said), strict=True)
    else:
        yield from arrays.items()


def _is_in(form: Form, said: Mapping[str, Parameter]) -> bool:
    try:
        return Form.named_by(said) == form
    except UsageError:  # a foreign server has a parameter of this name, for something else
        return False

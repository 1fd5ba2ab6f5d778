"""What may stand in a template that no server has looked at."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "node", "teacher", "-1", "1e999", "5Gi"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "resources", "requests", "limits", "cpu", "env", "restartPolicy"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
#: Of the `spec` of a template of a pod.
POD_SPECS = st.dictionaries(
    st.sampled_from(
        ("containers", "initContainers", "overhead", "resources", "tolerations", "volumes")
    ),
    JUNK,
    max_size=2,
)

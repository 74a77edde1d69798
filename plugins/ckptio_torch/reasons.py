"""Why some of torch's classes and functions are not read, in words for a message."""

from __future__ import annotations

from ckptio_torch.dtypes import OTHER_DTYPES

__all__ = ["LAZY", "REASONS", "reason"]

LAZY = "torch.resolve_conj"
REASONS = {
    LAZY: "a tensor whose elements are yet to be conjugated or negated (resolve_conj, resolve_neg)",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no data",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a subclass",
    "torch._tensor._rebuild_from_type_v2": "a tensor with attributes or of a subclass",
    "torch._utils._rebuild_parameter_with_state": "a parameter with attributes",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another backend, stored as a numpy array",
    "torch.distributed.tensor.DTensor": "a distributed tensor",
    **{f"torch.{name}": "an element type that ckptio does not know" for name in OTHER_DTYPES},
}


def reason(name: str) -> str:
    """Return what is known of a global that is not read, in words."""
    return REASONS.get(name, "not on the list of what is read")

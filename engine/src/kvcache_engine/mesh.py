"""The device mesh: one axis, `tensor`, over which heads and MLP columns are split.

It knows nothing about models or pools; it answers how one axis of an array is laid out.
"""

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kvcache_engine.errors import ShardingError

TENSOR_AXIS = "tensor"


def make_mesh(tensor: int) -> Mesh | None:
    """A mesh of the first `tensor` devices, or None for one device.

    Raises ShardingError when there are fewer devices, or `tensor` is not positive.
    """
    devices = jax.devices()
    if tensor < 1 or tensor > len(devices):
        raise ShardingError(
            f"tensor parallel size {tensor} needs {max(tensor, 1)} devices; JAX sees {len(devices)} ({devices[0].platform})"
        )
    if tensor == 1:
        return None
    return jax.make_mesh((tensor,), (TENSOR_AXIS,), axis_types=(AxisType.Auto,), devices=devices[:tensor])


def mesh_size(mesh: Mesh | None) -> int:
    """Devices along the axis `tensor`."""
    return 1 if mesh is None else int(mesh.shape[TENSOR_AXIS])


def split_axis(mesh: Mesh | None, axis: int | None) -> NamedSharding | None:
    """Split `axis` of an array over the mesh; `axis` None puts the whole array on every device. None without a mesh."""
    if mesh is None:
        return None
    names = () if axis is None else (*[None] * axis, TENSOR_AXIS)
    return NamedSharding(mesh, PartitionSpec(*names))


def heads_are_split(mesh: Mesh | None, kv_heads: int) -> bool:
    """Whether key and value heads are split (True) or replicated (False) over the mesh.

    Raises ShardingError when the heads neither divide among the devices nor the devices among the heads: some devices would
    then hold more heads than others.
    """
    size = mesh_size(mesh)
    if size == 1:
        return False
    if kv_heads % size == 0:
        return True
    if size % kv_heads == 0:
        return False
    raise ShardingError(
        f"{kv_heads} kv heads cannot be laid out on {size} devices: use a divisor of {kv_heads} or a multiple of it"
    )

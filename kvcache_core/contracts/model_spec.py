"""What a host says about its model: the identity that goes into storage keys, and the components it brings pools for."""

from dataclasses import dataclass
from typing import Literal

ModelClass = Literal["full_attention", "swa", "hybrid_recurrent"]


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """One component of a model: `window` in tokens, own position included, for sliding windows; `state_shape` for states."""

    name: str
    window: int | None = None
    state_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """`model_id` and `model_version` separate stored pages: after a weights update, pass a new version."""

    model_id: str
    model_version: str
    model_class: ModelClass
    components: tuple[ComponentSpec, ...] = (ComponentSpec("full"),)

    def component(self, name: str) -> ComponentSpec:
        """Raises KeyError when the model has no such component."""
        for spec in self.components:
            if spec.name == name:
                return spec
        raise KeyError(name)

"""The sizes and constants of one decoder. It does not know which file they came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvcache_core.contracts.model_spec import ComponentSpec, ModelClass
from kvcache_engine.errors import UnsupportedModelError
from kvcache_engine.model.mixer import Mixer, PageMixer, StateMixer
from kvcache_engine.model.mlp import Mlp

Architecture = Literal["llama", "qwen3", "gemma3", "mimo_v2_flash", "kimi_linear"]
_COMPONENTS = ("full", "swa", "recurrent")


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer: a mixer, then an MLP, each behind a norm. `post_norms`: each result is normalised too before it is added to the
    residual stream (Gemma 3). Equal layers share their programs."""

    mixer: Mixer[Any]
    mlp: Mlp
    post_norms: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: an embedding, a residual stream of `width` channels through `layers`, a norm, an output matrix.

    `tied`: the output matrix is the embedding. `embed_scale`: what embeddings are multiplied by on their way in.
    `context_length` in tokens. Frozen and hashable, so programs can be compiled for it.
    """

    architecture: Architecture
    layers: tuple[LayerConfig, ...]
    width: int
    vocab_size: int
    context_length: int
    norm_eps: float
    tied: bool
    embed_scale: float = 1.0

    def __post_init__(self) -> None:
        """Raises UnsupportedModelError when layers of one component cannot share its pool."""
        for name in self.components:
            kinds = {_memory_of(self.layers[i].mixer) for i in self.layers_of(name)}
            if len(kinds) > 1:
                raise UnsupportedModelError(
                    f"the layers of component {name!r} differ in what they keep: {sorted(kinds, key=repr)}"
                )

    @property
    def components(self) -> tuple[str, ...]:
        """Which pools the model needs, in a fixed order."""
        used = {layer.mixer.component for layer in self.layers}
        return tuple(name for name in _COMPONENTS if name in used)

    @property
    def model_class(self) -> ModelClass:
        used = self.components
        return "hybrid_recurrent" if "recurrent" in used else "swa" if "swa" in used else "full_attention"

    def layers_of(self, component: str) -> tuple[int, ...]:
        """The numbers of the layers that keep something in the pool of `component`."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.mixer.component == component)

    def page_mixers(self) -> Mapping[str, PageMixer]:
        """By component with pages: a mixer that has the window, rotation and page shape of all its layers."""
        mixers = {layer.mixer.component: layer.mixer for layer in self.layers}
        return {name: mixer for name in self.components if isinstance(mixer := mixers[name], PageMixer)}

    def state_mixers(self) -> Mapping[str, StateMixer]:
        """By component with states: a mixer that has the state shape of all its layers."""
        mixers = {layer.mixer.component: layer.mixer for layer in self.layers}
        return {name: mixer for name in self.components if isinstance(mixer := mixers[name], StateMixer)}

    def component_specs(self) -> tuple[ComponentSpec, ...]:
        """The components as the cache's builder wants to know them."""
        pages, states = self.page_mixers(), self.state_mixers()
        return tuple(
            ComponentSpec(name, window=pages[name].reach())
            if name in pages
            else ComponentSpec(name, state_shape=states[name].state_shape())
            for name in self.components
        )


def _memory_of(mixer: Mixer[Any]) -> tuple[object, ...]:
    """What the layers of a component must have in common: views and pools are made once for all of them."""
    shared: tuple[object, ...] = (mixer.unit_shapes(1),)
    if isinstance(mixer, PageMixer):
        shared += (mixer.reach(), tuple(mixer.inv_freq().tolist()))
    return shared

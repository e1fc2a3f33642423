"""SafetensorsFolder: one file or several, other float types, and what is wrong with a folder."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvcache_conformance.tiny_models import tiny_qwen3, tiny_tensors, write_model_folder
from kvcache_engine.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from kvcache_engine.model.loaded import load_model
from kvcache_engine.model.softmax_attention import SoftmaxAttention
from kvcache_engine.weights.safetensors_file import SafetensorsFolder


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_model_folder(tiny_qwen3(), tmp_path / "tiny")


def edit_json(path: Path, **changes) -> None:
    """Fields set to None are removed."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: field for key, field in value.items() if field is not None}))


def edit_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_parameters_as_the_model_applies_them(folder) -> None:
    tensors, model = tiny_tensors(tiny_qwen3()), load_model(folder)
    assert model.model_id == "tiny"
    np.testing.assert_array_equal(model.params.embed, tensors["model.embed_tokens.weight"])
    np.testing.assert_array_equal(model.params.layers[1]["down"], tensors["model.layers.1.mlp.down_proj.weight"].T)
    np.testing.assert_array_equal(model.params.layers[0]["q_norm"], tensors["model.layers.0.self_attn.q_norm.weight"])
    np.testing.assert_array_equal(model.params.output, tensors["lm_head.weight"].T)


def test_several_files_with_an_index(tmp_path, folder) -> None:
    sharded = SafetensorsFolder(write_model_folder(tiny_qwen3(), tmp_path / "sharded", shards=3))
    whole = SafetensorsFolder(folder)
    for name, layer in [("embed", None), ("output", None), ("q", 0), ("down", 1)]:
        np.testing.assert_array_equal(sharded.fetch(name, layer), whole.fetch(name, layer))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_widened(folder, dtype) -> None:
    def narrow(tensors) -> None:
        tensors |= {name: tensor.astype(jnp.dtype(dtype)) for name, tensor in tensors.items()}

    before = SafetensorsFolder(folder).fetch("gate", 0)
    edit_tensors(folder, narrow)
    after = SafetensorsFolder(folder).fetch("gate", 0)
    assert after.dtype == np.float32
    np.testing.assert_array_equal(after, before.astype(jnp.dtype(dtype)).astype(np.float32))


def test_parameters_in_another_dtype(folder) -> None:
    assert load_model(folder, dtype=jnp.bfloat16).params.layers[0]["q"].dtype == jnp.bfloat16


def test_the_version_changes_with_the_weights_and_the_config(folder) -> None:
    first = load_model(folder).model_version
    assert load_model(folder).model_version == first
    edit_json(folder / "config.json", rope_theta=10000.0)
    second = load_model(folder).model_version
    edit_tensors(folder, lambda tensors: tensors["model.norm.weight"].__setitem__(0, 0.5))
    assert len({first, second, load_model(folder).model_version}) == 3


def test_end_tokens_come_from_all_files_that_name_them(folder) -> None:
    assert load_model(folder).tokenizer.end_ids == frozenset()
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    edit_json(folder / "config.json", eos_token_id=7)
    edit_json(folder / "tokenizer_config.json", eos_token={"content": "!"})
    assert load_model(folder).tokenizer.end_ids == frozenset({3, 5, 7, ord("!")})


def test_a_template_file_beside_the_weights_wins(folder) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    tokenizer = load_model(folder).tokenizer
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "hi"}])) == "[hi]"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM'; this engine computes LlamaForCausalLM"),
        ({"architectures": None}, "architecture None"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling = {'rope_type': 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_scaling = {'rope_type': 'yarn'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_models_that_compute_differently(folder, changes, message) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(folder)


def test_the_newer_place_of_the_rotary_base(folder) -> None:
    edit_json(folder / "config.json", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 123.0})
    [layer] = set(SafetensorsFolder(folder).config.layers)
    assert isinstance(layer.mixer, SoftmaxAttention)
    assert layer.mixer.rope_base == 123.0


@pytest.mark.parametrize("changes", [{"hidden_size": None}, {"num_hidden_layers": -1}, {"vocab_size": "many"}])
def test_sizes_missing_or_senseless(folder, changes) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ModelFileError, match=f"{next(iter(changes))} should be a positive number"):
        load_model(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
def test_truncated_weights(folder, kept) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: truncated or corrupt safetensors file"):
        load_model(folder)


def test_missing_tensor_and_wrong_shape_and_values(folder) -> None:
    edit_tensors(folder, lambda tensors: tensors["model.norm.weight"].__setitem__(0, np.inf))
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight holds values that are not finite"):
        load_model(folder)
    edit_tensors(folder, lambda tensors: tensors.__setitem__("model.norm.weight", np.ones(63, np.float32)))
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight has shape \(63,\); the model's sizes ask for \(64,\)"):
        load_model(folder)
    edit_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelFileError, match=r"missing tensors: model\.norm\.weight"):
        load_model(folder)


def test_integers_are_not_weights(folder) -> None:
    edit_tensors(folder, lambda tensors: tensors.__setitem__("model.norm.weight", np.ones(64, np.int8)))
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight is stored as I8"):
        load_model(folder)


def test_files_missing(tmp_path, folder) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no \.safetensors file"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"config\.json: missing"):
        load_model(folder)
    sharded = write_model_folder(tiny_qwen3(), tmp_path / "sharded", shards=2)
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.safetensors: named in the index, but missing"):
        load_model(sharded)


def test_an_index_cannot_name_files_elsewhere(tmp_path) -> None:
    sharded = write_model_folder(tiny_qwen3(), tmp_path / "sharded", shards=2)
    edit_json(sharded / "model.safetensors.index.json", weight_map={"a": "../../secret.safetensors"})
    with pytest.raises(ModelFileError, match="is not a file name in this folder"):
        load_model(sharded)


def test_broken_json_and_tokenizer(folder) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: not a tokenizer"):
        load_model(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: missing"):
        load_model(folder)
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(ModelFileError, match=r"config\.json: not a JSON object"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"config\.json: not a JSON file"):
        load_model(folder)

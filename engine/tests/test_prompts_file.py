"""Prompts files: a malformed line is named with its number and harms no other."""

import json

import pytest

from kvcache_engine.errors import RequestError
from kvcache_engine.prompts_file import read_prompts


@pytest.fixture
def read(tmp_path):
    def _read(*lines):
        path = tmp_path / "prompts.jsonl"
        raw = [
            line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode() for line in lines
        ]
        path.write_bytes(b"\n".join(raw))
        return read_prompts(path)

    return _read


USER = {"role": "user", "content": "hello"}
ASSISTANT = {"role": "assistant", "content": "hi"}


def test_every_form(read):
    lines = read(
        {"id": "text", "prompt": "hello", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 4, "stop": "x"},
        "",
        {"id": "ids", "prompt": [1, 2, 3], "stop": ["a", "b"], "extra_key": ["lora", "tenant"]},
        {"id": "chat", "messages": [{"role": "system", "content": "s"}, USER, ASSISTANT, USER, USER], "extra_key": "lora"},
    )
    assert [(line.line, line.id, line.error) for line in lines] == [(1, "text", None), (3, "ids", None), (4, "chat", None)]
    text, ids, chat = (line.item for line in lines)
    assert text.stop_texts() == ("x",)
    assert text.extra_key_parts() == ()
    assert ids.prompt == [1, 2, 3]
    assert ids.extra_key_parts() == (b"lora", b"tenant")
    assert chat.open_turns() == [3, 4]  # the first user message has its answer
    assert chat.extra_key_parts() == (b"lora",)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"id": "a", "prompt": ', "not JSON"),
        ({"id": "a", "prompt": float("nan")}, "prompt: Input should be"),
        ("[1]", "object is expected, not list"),
        ('{"id": "a", "id": "b", "prompt": "x"}', "'id' stands twice"),
        ({"prompt": "x"}, "id: Field required"),
        ({"id": "", "prompt": "x"}, "id"),
        ({"id": "a"}, "exactly one of"),
        ({"id": "a", "prompt": "x", "messages": [USER]}, "exactly one of"),
        ({"id": "a", "prompt": "x", "max_token": 3}, "max_token: Extra inputs"),
        ({"id": "a", "prompt": [1, -2]}, "prompt"),
        ({"id": "a", "prompt": [1.0]}, "prompt"),
        ({"id": "a", "prompt": [True]}, "prompt"),
        ({"id": "a", "messages": []}, "no user message is left"),
        ({"id": "a", "messages": [USER, ASSISTANT]}, "no user message is left"),
        ({"id": "a", "messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"id": "a", "prompt": "x", "temperature": -1}, "temperature"),
        ({"id": "a", "prompt": "x", "top_p": 0}, "top_p"),
        ({"id": "a", "prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"id": "a", "prompt": "x", "stop": ""}, "stop"),
        ({"id": "a", "prompt": "x", "seed": -1}, "seed"),
        ({"id": "a", "prompt": "x", "max_tokens": "5"}, "max_tokens"),
        ({"id": "a", "prompt": "x", "max_tokens": True}, "max_tokens"),
        ('{"id": "a", "prompt": "\\ud800"}', "half a surrogate"),
        ('{"id": "a", "prompt": "x", "extra_key": "\\udfff"}', "half a surrogate"),
        ('{"id": "a", "prompt": [' + "9" * 5000 + "]}", "digits"),
        ("[" * 100_000, "recursion"),
        (b'{"id": "a", "prompt": "\xff"}', "not UTF-8"),
    ],
)
def test_a_malformed_line_is_named_and_the_others_are_read(read, line, text):
    good, bad, also_good = read({"id": "good", "prompt": "x"}, line, {"id": "also", "prompt": "y"})
    assert good.error is None
    assert also_good.error is None
    assert bad.item is None
    assert ":2:" in bad.error
    assert text in bad.error
    assert bad.id == ("a" if isinstance(line, dict) and line.get("id") else "line 2")


def test_an_id_used_twice_names_the_first_line(read):
    _, second = read({"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"})
    assert "used before, on line 1" in second.error


def test_files_that_hold_nothing(tmp_path, read):
    with pytest.raises(RequestError, match="cannot read the prompts file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(RequestError, match="holds no request"):
        read("", "  ")
    with pytest.raises(RequestError, match="cannot read"):
        read_prompts(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_line(read):
    [line] = read(b'\xef\xbb\xbf{"id": "a", "prompt": "x"}')
    assert line.error is None


def test_names_of_turns_are_names_too(read):
    first, second = read({"id": "a", "messages": [USER, USER]}, {"id": "a#2", "prompt": "x"})
    assert first.error is None
    assert "id 'a#2' was used before, on line 1" in second.error

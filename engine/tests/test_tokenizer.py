"""Text streams and chat templates, on a tokenizer whose tokens are bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache_engine.chat_template import ChatTemplate
from kvcache_engine.errors import ChatTemplateError
from kvcache_engine.model.loaded import load_model

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(qwen3_folder):
    return load_model(qwen3_folder).tokenizer


def pieces_of(tokenizer, ids) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(i) for i in ids), stream.finish()]


@given(text=st.text(max_size=30))
def test_text_survives(tokenizer, text) -> None:
    ids = tokenizer.encode(text)
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert "".join(pieces_of(tokenizer, ids)) == text


@given(data=st.binary(max_size=30))
def test_a_stream_says_what_decode_says(tokenizer, data) -> None:
    """Also for bytes that are no UTF-8."""
    assert "".join(pieces_of(tokenizer, data)) == tokenizer.decode(list(data))


def test_a_character_is_held_back_until_its_last_byte(tokenizer) -> None:
    assert pieces_of(tokenizer, "aé☕🚀".encode()) == ["a", "", "é", "", "", "☕", "", "", "", "🚀", ""]


def test_a_character_cut_off_at_the_end_is_marked(tokenizer) -> None:
    assert pieces_of(tokenizer, "a☕".encode()[:-1]) == ["a", "", "", "\ufffd"]


@pytest.mark.real_model
def test_streams_of_real_tokens(smollm2, smollm2_golden) -> None:
    for item in smollm2_golden["items"]:
        for ids in (item["ids"], item["greedy_24"]):
            assert "".join(pieces_of(smollm2.tokenizer, ids)) == smollm2.tokenizer.decode(ids), item["name"]


def test_a_conversation_through_the_template(tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "user: hi\nassistant:"


def test_a_model_without_template(qwen3_folder, tmp_path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(qwen3_folder / name)
    with pytest.raises(ChatTemplateError, match="no chat template: give a `prompt`"):
        load_model(tmp_path).tokenizer.encode_chat(USER)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "fails on these messages"),
        # What an untrusted template must not reach.
        ("{{ ''.__class__.__mro__ }}", "refuses these messages: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "refuses these messages"),
    ],
)
def test_a_template_that_refuses(source, message) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render(USER)


def test_a_template_that_is_none() -> None:
    with pytest.raises(ChatTemplateError, match="cannot be read"):
        ChatTemplate("{% for %}")


def test_what_templates_may_use() -> None:
    source = "{{ bos_token }}{% for m in messages %}\n  {%- if loop.first %}{% continue %}{% endif %}{{ m | tojson }}{% endfor %}"
    messages = [*USER, {"role": "user", "content": "<é>"}]
    assert ChatTemplate(source, bos_token="<s>").render(messages) == '<s>{"role": "user", "content": "<é>"}'

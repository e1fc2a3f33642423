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


@given(text=st.text(max_size=30))
def test_text_survives(tokenizer, text) -> None:
    ids = tokenizer.encode(text)
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text


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

"""Names of objects are a bijection (FAULTS K6): from a model id, a page size and a key, and back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_object.names import Named, Names

KEY = 32 * "0f"
SAFE = re.compile(r"[A-Za-z0-9._!-]{1,102}")

model_ids = st.one_of(
    st.text(st.characters(), max_size=80),
    st.text("./\\!%~ _-aA0", max_size=80),
    st.builds(lambda text, n: text * n, st.text(".a/", min_size=1, max_size=3), st.integers(1, 80)),
)


@given(model_ids, st.integers(1, 65536), st.sampled_from(["", "kv/", "a/b.c/"]))
def test_a_name_leads_back(model_id, page_size, prefix):
    name = Names(prefix, StorageScope(model_id, page_size)).of(KEY)
    assert Names(prefix, StorageScope("other", 1)).parse(name) == Named(model_id, page_size, KEY)
    assert name.startswith(prefix)
    for segment in name[len(prefix) :].split("/"):
        assert SAFE.fullmatch(segment)
        assert not segment.startswith(".")


@given(model_ids, model_ids, st.integers(1, 99), st.integers(1, 99))
def test_two_scopes_share_no_name(one, other, small, large):
    first, second = Names("", StorageScope(one, small)).of(KEY), Names("", StorageScope(other, large)).of(KEY)
    assert (first == second) == ((one, small) == (other, large))


@pytest.mark.parametrize(
    "name",
    [
        "kv/",
        "kv/.kvcache-store.json",
        f"kv/model/16/0f/{KEY[:-1]}",
        f"kv/model/16/0f/{KEY.upper()}",
        f"kv/model/16/ff/{KEY}",
        f"kv/model/016/0f/{KEY}",
        f"kv/model/0/0f/{KEY}",
        f"kv/model/x/0f/{KEY}",
        f"kv/16/0f/{KEY}",
        f"kv/my model/16/0f/{KEY}",
        f"kv/my!2fmodel/16/0f/{KEY}",
        f"kv/my!6Dodel/16/0f/{KEY}",
        f"kv/my/model/16/0f/{KEY}",
        f"kv//model/16/0f/{KEY}",
        f"kv/.model/16/0f/{KEY}",
        f"kv/model/16/0f/{KEY}/part",
        f"other/model/16/0f/{KEY}",
    ],
)
def test_other_objects_are_no_pages(name):
    assert Names("kv/", StorageScope("model", 16)).parse(name) is None


@pytest.mark.parametrize("key", ["", "../../etc", KEY[:-1], KEY + "0", KEY.upper(), KEY + "\n"])
def test_what_is_no_key_has_no_name(key):
    with pytest.raises(ValueError, match="is not a key"):
        Names("", StorageScope("model", 16)).of(key)


def test_a_model_id_that_fits_into_no_name_is_refused():
    assert len(Names("", StorageScope(900 * "x", 16)).of(KEY)) <= 1024
    with pytest.raises(ValueError, match="too long"):
        Names("", StorageScope(400 * "/", 16))

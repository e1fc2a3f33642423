"""`kvcache storage check`: the start-up self-test by hand."""

import json


def test_check_does_the_self_test(store, kvcache):
    status, out, _ = kvcache("check")
    assert status == 0
    assert out.splitlines()[-1] == "storage 'file' works"
    assert "exists, before" in out and " ms" in out
    assert store.left() == set()
    report = json.loads(kvcache("check", "--json")[1])
    assert report["works"] and len(report["steps"]) == 8


def test_check_fails_with_the_reason_and_the_place(store, kvcache):
    """C5: a root that cannot be a folder."""
    store.root.write_text("a file")
    status, out, err = kvcache("check")
    assert (status, out) == (1, "")
    assert str(store.root) in err
    place = store.config.read_text(encoding="utf-8").splitlines()[1].index(str(store.root)) + 1
    assert f"{store.config}:2:{place}: hicache.storage.path: " in err
    assert kvcache("check", f"--hicache-storage-path={store.root}")[2].startswith(
        "--hicache-storage-path: hicache.storage.path: "
    )
    assert json.loads(kvcache("check", "--json")[1])["works"] is False

"""Which directories and files the adapter is loaded from: nobody else may have put it there."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fr import _fr, adapter

OTHER_UID = 54321


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """FR_CACHE_DIR with a built library in it, and no other place."""
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    built = place / "adapter-x.so"
    built.write_bytes(Path(_fr.__file__).read_bytes())  # some library that is whole
    built.chmod(0o644)
    monkeypatch.setattr(adapter, "_places", lambda: [place])
    monkeypatch.setattr(adapter, "_tag", lambda torch: "x")
    monkeypatch.setattr(adapter, "_packaged", lambda torch: None)
    return place


def as_other(path, follow=True):
    if os.getuid() != 0:
        pytest.skip("needs root to make another user's file")
    os.chown(path, OTHER_UID, OTHER_UID, follow_symlinks=follow)


def test_what_is_there_and_ones_own_is_used(cache):
    assert adapter.build(SimpleNamespace()) == cache / "adapter-x.so"


def test_a_read_only_directory_is_used(cache, monkeypatch):
    """An image with a built adapter, another user: nothing is built anew."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert adapter.build(SimpleNamespace()) == cache / "adapter-x.so"


def test_a_library_of_another_user_is_not_loaded(cache):
    as_other(cache / "adapter-x.so")
    with pytest.raises(adapter.AdapterError, match="belongs to another user"):
        adapter.build(SimpleNamespace())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write_to(cache, mode):
    if os.getuid() == 0:
        os.chown(cache, 0, OTHER_UID)
    cache.chmod(mode)
    with pytest.raises(adapter.AdapterError, match="can be written to by other users"):
        adapter.build(SimpleNamespace())


def test_a_sticky_directory_is_passed_through_but_not_built_in(cache):
    cache.chmod(0o1777)
    assert adapter.build(SimpleNamespace()) == cache / "adapter-x.so"
    (cache / "adapter-x.so").unlink()
    with pytest.raises(adapter.AdapterError, match="can be written to by other users"):
        adapter.build(SimpleNamespace())


def test_a_library_that_others_can_write_to(cache):
    (cache / "adapter-x.so").chmod(0o666)
    with pytest.raises(adapter.AdapterError, match="can be written to by other users"):
        adapter.build(SimpleNamespace())


def test_a_link_of_another_user_on_the_way(cache, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(cache)
    monkeypatch.setattr(adapter, "_places", lambda: [link])
    assert adapter.build(SimpleNamespace()) == link / "adapter-x.so"  # one's own link
    as_other(link, follow=False)
    with pytest.raises(adapter.AdapterError, match="belongs to another user"):
        adapter.build(SimpleNamespace())


def test_a_parent_that_others_can_write_to(cache, tmp_path, monkeypatch):
    cache.parent.chmod(0o777)
    assert "can be written to" in adapter._distrust(cache)
    cache.parent.chmod(0o1777)  # sticky: others cannot replace what is not theirs
    assert adapter._distrust(cache) is None


def test_a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many symbolic links" in adapter._distrust(tmp_path / "a")


def test_no_temporary_directory(monkeypatch):
    def none():
        raise FileNotFoundError(2, "no usable temporary directory")

    monkeypatch.setattr(adapter.tempfile, "gettempdir", none)
    assert [type(p) for p in adapter._places()] == [type(Path())]

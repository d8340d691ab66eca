"""The builders of the other tests: what they call valid and equal is so for protobuf."""

from cache.strategies import scrambled_caches
from hypothesis import given, settings

from onnx_ai_rt.reference.paged_cache import parse, validate


@settings(max_examples=60, deadline=None)
@given(scrambled_caches())
def test_scrambled_bytes_are_the_same_cache(built):
    cache, data = built
    read = parse(data)
    read.DiscardUnknownFields()
    assert read.SerializeToString(deterministic=True) == cache.SerializeToString(deterministic=True)  # NaN != NaN
    blocks = validate(parse(data))
    assert [b.length for b in blocks] == [b.length for b in cache.blocks]
    for block in blocks:
        assert block.key.decode().shape == (*block.key.shape[:2], block.length, block.key.shape[3])
        assert block.value.decode().shape == (*block.value.shape[:2], block.length, block.value.shape[3])

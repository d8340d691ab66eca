"""Which caches the reference takes, and what it says about the others."""

import pytest
from cache import wire_writer as w
from cache.defects import DEFECTS, base, broken, missing_words

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.paged_cache import CacheError, parse, validate


def test_base_is_valid():
    blocks = validate(base())
    assert [(b.start, b.length, b.key.format.name, b.value.format.name) for b in blocks] == [
        (0, 4, "FLOAT", "FLOAT"),
        (4, 3, "INT4", "UINT8"),
        (7, 1, "INT8", "BFLOAT16"),
    ]


def test_empty_cache():
    assert validate(parse(b"")) == []


@pytest.mark.parametrize("defect", DEFECTS, ids=[d.name for d in DEFECTS])
def test_defects(defect):
    cache = PagedCacheProto.FromString(broken(defect).SerializeToString())
    with pytest.raises(CacheError) as error:
        validate(cache, "Op: input cache")
    message = str(error.value)
    assert message.startswith("Op: input cache, block ")
    assert "\n" not in message
    assert missing_words(message, defect.words) == []


def test_bytes_that_are_no_message():
    with pytest.raises(CacheError, match="Op: input cache: expected a serialized PagedCacheProto"):
        parse(b"\x0a\x05abc", "Op: input cache")


def test_storage_type_from_the_size():
    zero = w.tensor(w.INT4, (), b"\1")
    payload = w.data(1, w.data(2, w.tensor(w.FLOAT, (), w.floats(0.5))) + w.data(3, zero) + w.number(6, 1))
    shape = b"".join(w.data(1, w.number(1, d)) for d in (1, 1, 1, 4))
    payload += w.data(3, w.data(1, w.number(1, 1) + w.data(2, shape))) + w.data(4, b"\x21\xf8")
    value = w.tensor(w.FLOAT, (1, 1, 1, 1), w.floats(1))
    (block,) = validate(parse(w.block(0, 1, w.data(4, payload), w.data(5, value))))
    assert block.key.format.name == "INT4"
    assert block.key.decode().tolist() == [[[[0.0, 0.5, -4.5, -1.0]]]]

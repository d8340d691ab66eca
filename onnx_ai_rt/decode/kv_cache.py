"""The caches of all layers of a model that decodes token by token."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx

from onnx_ai_rt._arguments import byte_array, choice, described, file_path, integer, items
from onnx_ai_rt.cache import PagedCache, Statistics
from onnx_ai_rt.cache.pages import format_bytes
from onnx_ai_rt.decode.arguments import layer_names, new_pages
from onnx_ai_rt.decode.files import read_caches, write_caches
from onnx_ai_rt.decode.layer import LayerBuffer
from onnx_ai_rt.decode.policy import ReformatPolicy
from onnx_ai_rt.decode.storage import Bytes
from onnx_ai_rt.reference.paged_cache import CacheError
from onnx_ai_rt.reference.quantize import FORMATS, scale_for
from onnx_ai_rt.rewrite.paged_model import CacheNames, PagedModel, read_cache_names

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


@dataclass(frozen=True)
class KVCacheStatistics(Statistics):
    """Totals over all layers; `tokens` counts those of one layer."""

    layers: int
    pages: int
    """Of all layers."""
    formats: dict[tuple[str, str], int]
    """How many pages have which formats of key and value."""
    allocated: int
    """Bytes of the buffers; those that were never written take no memory."""


class PagedKVCache:
    """Growing caches, one a layer, for a model that takes them as inputs and gives new pages as outputs.

    >>> paged = onnx_ai_rt.to_paged(onnx.load("decoder.onnx"))
    >>> session = onnxruntime.InferenceSession(paged.model.SerializeToString(), options)
    >>> cache = PagedKVCache.for_model(session)
    >>> logits = cache.run(session, {"input_ids": ids})["logits"]      # and so on, token by token

    A step copies the new tokens' bytes and nothing old. One-token pages, which decoding makes, are merged at the end of
    a buffer into pages of `block_size` tokens, by way of smaller ones: each token is moved twice.
    """

    def __init__(
        self,
        layers: int | Sequence[CacheNames],
        *,
        block_size: int = 64,
        policy: ReformatPolicy | None = None,
    ) -> None:
        """Empty caches.

        Args:
            layers: how many; their inputs and outputs are then named ``cache_0``, ``appended_0`` and so on, as
                `onnx_ai_rt.to_paged` does. Or the names.
            block_size: the most tokens of a merged page.
            policy: gives old pages other formats while the cache grows; it can be changed at any time.

        Raises:
            TypeError, ValueError: for something else, and for no layers.
        """
        self.names = layer_names(layers)
        self.block_size = integer(block_size, "PagedKVCache: block_size", 1)
        self.policy = policy
        self._layers = [LayerBuffer(self.block_size) for _ in self.names]

    @classmethod
    def for_model(cls, model: onnx.ModelProto | PagedModel | InferenceSession, **options: Any) -> PagedKVCache:
        """Empty caches for a model that `onnx_ai_rt.to_paged` made, by the names in its metadata.

        Args:
            model: the model, or a session of it.
            options: those of the constructor.

        Raises:
            ValueError: the model was made by something else.
            TypeError: for what is no model.
        """
        if isinstance(model, PagedModel):
            return cls(model.caches, **options)
        if isinstance(model, onnx.ModelProto):
            metadata = {entry.key: entry.value for entry in model.metadata_props}
        elif hasattr(model, "get_modelmeta"):
            metadata = dict(model.get_modelmeta().custom_metadata_map)
        else:
            raise TypeError(f"PagedKVCache.for_model: expected a model or a session, got {described(model)}")
        return cls(read_cache_names(metadata), **options)

    @property
    def policy(self) -> ReformatPolicy | None:
        """What gives old pages other formats; None: nothing does."""
        return self._policy

    @policy.setter
    def policy(self, policy: ReformatPolicy | None) -> None:
        if policy is not None and not isinstance(policy, ReformatPolicy):
            raise TypeError(f"PagedKVCache: policy: expected a ReformatPolicy or None, got {described(policy)}")
        self._policy = policy

    @property
    def tokens(self) -> int:
        """Number of tokens in the cache of each layer."""
        return self._layers[0].tokens if self._layers else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the serialized caches of all layers."""
        return sum(layer.nbytes for layer in self._layers)

    @property
    def statistics(self) -> KVCacheStatistics:
        """Totals: tokens, bytes, bits per value, ratio to float, pages by format."""
        parts, formats = [], dict[tuple[str, str], int]()
        for layer in self._layers:
            cache = PagedCache(layer.view())
            parts.append(cache.statistics)
            for page in cache.pages:
                key = (page.key.format_name, page.value.format_name)
                formats[key] = formats.get(key, 0) + 1
        return KVCacheStatistics(
            tokens=self.tokens,
            values=sum(part.values for part in parts),
            nbytes=self.nbytes,
            payload_bytes=sum(part.payload_bytes for part in parts),
            layers=len(self._layers),
            pages=sum(formats.values()),
            formats=formats,
            allocated=sum(layer.allocated for layer in self._layers),
        )

    def layer(self, index: int) -> PagedCache:
        """A copy of one layer's cache, to look at or to convert."""
        at, count = integer(index, "PagedKVCache.layer"), len(self._layers)
        if not -count <= at < count:
            raise ValueError(f"PagedKVCache.layer: expected an index from 0 to {count - 1}, got {at}")
        return PagedCache(self._layers[at].view().copy())

    def inputs(self) -> dict[str, Bytes]:
        """What a session takes: the serialized cache of each layer by input name, read-only, without a copy.

        The arrays are valid until the next change of the cache.
        """
        return {names.past: layer.view() for names, layer in zip(self.names, self._layers, strict=True)}

    def append(self, new: Sequence[Bytes] | Mapping[str, Bytes]) -> None:
        """Puts new pages behind the others in every layer.

        Args:
            new: serialized new blocks (the outputs ``appended``): one array a layer, in order, or by output name (other
                names are ignored).

        Raises:
            TypeError: for something else than bytes.
            CacheError: for bytes that are no valid pages, do not begin where the cache ends, have another batch, other
                heads or widths than it, or other numbers of tokens in other layers; and for values that the policy's
                formats cannot hold. The tokens are as before then, after any other error too.
        """
        arrays = new_pages(new, self.names)
        pages = [
            layer.check(array, f"PagedKVCache: {names.appended or f'layer {i}'}")
            for i, (names, layer, array) in enumerate(zip(self.names, self._layers, arrays, strict=True))
        ]
        counts = {part.tokens for part in pages}
        if len(counts) > 1:
            raise CacheError(f"PagedKVCache: expected as many new tokens in every layer, got {sorted(counts)}")
        tokens = self.tokens
        try:
            for layer, part in zip(self._layers, pages, strict=True):
                layer.append(part)
            if self.policy is not None:
                converted = [layer.convert_old(self.policy) for layer in self._layers]
                for layer, (end, old) in zip(self._layers, converted, strict=True):
                    layer.replace_old(end, old)
        except BaseException:
            for layer in self._layers:
                layer.truncate(tokens)
            raise

    def replace(self, caches: Sequence[PagedCache | Bytes]) -> None:
        """Puts other caches, one a layer, in the place of what is there: of another run, or converted by other means.

        Args:
            caches: they are copied.

        Raises:
            CacheError: for bytes that are no valid cache, or other numbers of tokens in other layers. Nothing has
                changed then.
        """
        given = items(caches, "PagedKVCache.replace", "a list of one cache a layer")
        if len(given) != len(self._layers):
            raise ValueError(f"PagedKVCache.replace: expected {len(self._layers)} caches, got {len(given)}")
        self._set_layers(
            [cache.to_array() if isinstance(cache, PagedCache) else cache for cache in given], "PagedKVCache"
        )

    def _set_layers(self, arrays: Sequence[Bytes], place: str) -> None:
        places = [f"{place}, layer {i}" for i in range(len(arrays))]
        layers = [
            LayerBuffer(self.block_size, byte_array(array, where), where)
            for array, where in zip(arrays, places, strict=True)
        ]
        tokens = [layer.tokens for layer in layers]
        if len(set(tokens)) > 1:
            raise CacheError(f"{place}: expected as many tokens in every layer, got {tokens}")
        self._layers = layers

    def run(self, session: InferenceSession, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a session on these caches and appends what it gives.

        Args:
            session: of a model with these caches' inputs and outputs ``appended``.
            feeds: the other inputs by name.

        Returns:
            the other outputs by name.

        Raises:
            TypeError: for what is no session, or feeds that are not by name.
            ValueError: for a model that gives no new pages.
        """
        if not (hasattr(session, "run") and hasattr(session, "get_outputs")):
            raise TypeError(f"PagedKVCache.run: expected a session, got {described(session)}")
        if not isinstance(feeds, Mapping):
            raise TypeError(f"PagedKVCache.run: feeds: expected arrays by input name, got {described(feeds)}")
        appended = [names.appended for names in self.names]
        if "" in appended:
            raise ValueError("PagedKVCache.run: expected a model with outputs 'appended', got one with 'present' alone")
        caches = {*appended, *(names.present for names in self.names)}
        others = [output.name for output in session.get_outputs() if output.name not in caches]
        results = session.run([*others, *appended], {**feeds, **self.inputs()})
        self.append(results[len(others) :])
        return dict(zip(others, results, strict=False))

    def truncate(self, tokens: int) -> None:
        """Keeps the first `tokens` tokens; where there are no more, nothing happens.

        Pages that are all behind go. A page that the cut goes through keeps its bytes and gets a shorter length: its
        rows behind are unused, and go when the page is merged with newer ones.
        """
        tokens = integer(tokens, "PagedKVCache.truncate: tokens", 0)
        for layer in self._layers:
            layer.truncate(tokens)

    def fork(self) -> PagedKVCache:
        """A second cache with the same past, free of cost until one of the two changes: that one copies its bytes."""
        other = PagedKVCache(self.names, block_size=self.block_size, policy=self.policy)
        other._layers = [layer.fork() for layer in self._layers]
        return other

    def reformat(self, key_format: str, value_format: str, *, older_than: int = 0) -> None:
        """Converts old pages now; see `ReformatPolicy` for what it takes and how scales are chosen.

        Args:
            key_format: of the pages from now on.
            value_format: likewise.
            older_than: only pages that end at least so many tokens back; 0: all.

        Raises:
            CacheError: for values that no result can hold. Nothing has changed then.
        """
        choice(key_format, "PagedKVCache.reformat: key_format", FORMATS)
        choice(value_format, "PagedKVCache.reformat: value_format", FORMATS)
        older_than = integer(older_than, "PagedKVCache.reformat: older_than", 0)
        ends = [layer.old_pages(older_than) for layer in self._layers]
        converted = [
            layer.convert_first(end, key_format, value_format) for layer, end in zip(self._layers, ends, strict=True)
        ]
        for layer, end, pages in zip(self._layers, ends, converted, strict=True):
            layer.replace_first(end, pages)

    def scales(self, key_format: str, value_format: str) -> dict[str, list[float] | list[int]]:
        """Scales and zero points that cover what each layer holds, for a model that appends quantized pages.

        >>> quantized = to_paged(model, key_format="INT8", value_format="INT4", **cache.scales("INT8", "INT4"))

        Args:
            key_format: an affine format; for a dense one there is nothing to choose.
            value_format: likewise.

        Returns:
            arguments of `onnx_ai_rt.to_paged`: ``key_scale``, ``key_zero_point`` and the same of values, with one
            number a layer. Values beyond what the cache holds now will be saturated.
        """
        result: dict[str, list[float] | list[int]] = {}
        for at, (side, name) in enumerate((("key", key_format), ("value", value_format))):
            choice(name, f"PagedKVCache.scales: {side}_format", FORMATS)
            if not FORMATS[name].is_affine:
                continue
            chosen = []
            for layer in self._layers:
                low = high = 0.0
                for page in PagedCache(layer.view()).pages:
                    rows = page.to_dense()[at]
                    low, high = min(low, float(rows.min(initial=0))), max(high, float(rows.max(initial=0)))
                chosen.append(scale_for(low, high, FORMATS[name]))
            result[f"{side}_scale"] = [scale for scale, _ in chosen]
            result[f"{side}_zero_point"] = [zero_point for _, zero_point in chosen]
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file with all layers: at every moment its old content or the new one is there. Raises OSError."""
        write_caches(
            file_path(path, "PagedKVCache.save"), self.names, self.block_size, [layer.view() for layer in self._layers]
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, policy: ReformatPolicy | None = None) -> PagedKVCache:
        """Reads a file that `save` wrote.

        Raises:
            OSError: as for any file.
            CacheError: naming the file, for one that is something else or not valid.
        """
        name = file_path(path, "PagedKVCache.load")
        names, block_size, arrays = read_caches(name)
        cache = cls(names, block_size=block_size, policy=policy)
        cache._set_layers(arrays, name)
        return cache

    def __len__(self) -> int:
        """Number of tokens."""
        return self.tokens

    def __repr__(self) -> str:
        statistics = self.statistics
        if not statistics.tokens:
            return f"PagedKVCache({len(self._layers)} layers, empty)"
        pages = ", ".join(f"{count} {key}/{value}" for (key, value), count in statistics.formats.items())
        return (
            f"PagedKVCache({len(self._layers)} layers, {self.tokens} tokens; {statistics.pages} pages: {pages}; "
            f"{format_bytes(self.nbytes)}, {statistics.bits_per_value:.2f} bits a value, "
            f"{statistics.float_ratio:.2f} times smaller than float)"
        )

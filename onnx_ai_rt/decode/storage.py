"""Bytes that grow, and may be shared until somebody writes."""

from __future__ import annotations

from weakref import WeakSet

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_SMALLEST = 4096


class _Block:
    """Allocated bytes, and who uses them."""

    def __init__(self, array: Bytes) -> None:
        self.array = array
        self.users: WeakSet[Storage] = WeakSet()


class Storage:
    """A growing array of bytes: appending costs O(1) a byte, amortised; a fork shares until either side writes."""

    def __init__(self, data: Bytes | None = None) -> None:
        self.size = 0
        self._use(_Block(np.empty(0, np.uint8)))
        if data is not None:
            self.replace(0, 0, data)

    def _use(self, block: _Block) -> None:
        self._block = block
        block.users.add(self)

    @property
    def allocated(self) -> int:
        """Bytes that are allocated, the unused ones at the end included."""
        return self._block.array.size

    @property
    def is_shared(self) -> bool:
        return len(self._block.users) > 1

    def view(self) -> Bytes:
        """The bytes, read-only, without a copy; their content is valid until the next change."""
        view = self._block.array[: self.size]
        view.flags.writeable = False
        return view

    def fork(self) -> Storage:
        """A copy that costs nothing until one of the two is changed."""
        other = Storage()
        other._block.users.discard(other)
        other._use(self._block)
        other.size = self.size
        return other

    def writable(self, size: int) -> Bytes:
        """The allocated bytes, at least `size` of them and nobody else's; the first `self.size` keep their content."""
        array = self._block.array
        if size > array.size or self.is_shared:
            allocate = max(size, array.size)
            if size > array.size:
                allocate = max(size, array.size + array.size // 2, _SMALLEST)
            grown = np.empty(allocate, np.uint8)  # the operating system gives pages when they are written
            grown[: self.size] = array[: self.size]
            self._block.users.discard(self)
            self._use(_Block(grown))
        return self._block.array

    def replace(self, begin: int, end: int, data: Bytes) -> None:
        """Puts `data` in the place of ``[begin, end)``; what is behind moves."""
        size = self.size + data.size - (end - begin)
        array = self.writable(size)
        if end < self.size and data.size != end - begin:
            array[begin + data.size : size] = array[end : self.size]  # numpy minds that they overlap
        array[begin : begin + data.size] = data
        self.size = size

    def shrink(self, size: int) -> None:
        """Drops what is behind the first `size` bytes, and memory where most of it is not used any more."""
        self.size = size
        if self.allocated > 4 * size + _SMALLEST and not self.is_shared:
            smaller = np.empty(size + size // 2, np.uint8)
            smaller[:size] = self._block.array[:size]
            self._block.array = smaller

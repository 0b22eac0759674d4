"""What one node has imported at a moment of the trace: a handle belongs to the open file of the card that it was made by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from zc_perception.verify.evidence.kernel_event import KernelEvent


@dataclass(eq=False)
class Import:
    """One of an image, which may lie in several buffers.

    :ivar begin_ns: of its event.
    :ivar image: its buffers' inodes; of one from before the recording, those of the first frame that was submitted by it.
    :ivar earlier: whether it was made before the recording began.
    :ivar left: buffers that were not given back.
    :ivar released_ns: when the last one was; 0: never.
    :ivar submits: jobs that read it.
    :ivar frames: by image, frames of the window that were submitted by it.
    """

    begin_ns: int
    image: set[int]
    earlier: bool = False
    left: set[int] = field(default_factory=set)
    released_ns: int = 0
    submits: int = 0
    frames: Counter[frozenset[int]] = field(default_factory=Counter)

    def alive_at(self, time_ns: int) -> bool:
        """Whether it was there."""
        return (self.earlier or self.begin_ns < time_ns) and (not self.released_ns or self.released_ns >= time_ns)


class ImportTable:
    """A node's imports, in the order of the trace.

    :ivar imports: those that were recorded.
    :ivar earlier: those that are known by their submits alone.
    :ivar clearings: when it had several images, and gave back all that it had at once; with these, and all that it had used so far.
    :ivar last: what the thread that imported last did last, if that was this import: its job may be still to come.
    """

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.earlier: list[Import] = []
        self.clearings: list[tuple[int, frozenset[frozenset[int]], frozenset[frozenset[int]]]] = []
        self.last: Import | None = None
        self._last_tid = 0
        self._of_handle: dict[int, list[Import]] = {}
        self._growing: dict[int, tuple[int, Import]] = {}  # by thread
        self._alive: set[Import] = set()
        self._used: set[frozenset[int]] = set()
        self._given_back: set[frozenset[int]] = set()  # since the last import or submit

    def begin(self, event: KernelEvent) -> None:
        """An import, or another buffer of the image that the same thread imports."""
        handle = event.number('handle')
        known, growing = self._growing.get(event.tid, (-1, None))
        if growing is None or known != handle or event.inode in growing.image:
            growing = Import(event.time_ns, set())
            self.imports.append(growing)
            self._of_handle.setdefault(handle, []).append(growing)
            self._alive.add(growing)
            self._growing[event.tid] = handle, growing
        growing.image.add(event.inode)
        growing.left.add(event.inode)
        self.last, self._last_tid = growing, event.tid
        self._given_back.clear()

    def submit(self, event: KernelEvent, inodes: Sequence[int]) -> Import:
        """The import that a job reads.

        :param inodes: of its frame; none: unknown.
        """
        self._growing.pop(event.tid, None)
        self._given_back.clear()
        self.last = None
        made = self._of_handle.setdefault(event.number('handle'), [])
        if not made:
            made.append(Import(0, set(inodes), earlier=True, left=set(inodes)))
            self.earlier.append(made[0])
            self._alive.add(made[0])
        found = made[-1]
        if found.earlier and not found.image:
            found.image, found.left = set(inodes), set(inodes)
        found.submits += 1
        if inodes:
            self._used.add(frozenset(inodes))
        return found

    def holds(self, event: KernelEvent, *, recorded: bool = False) -> bool:
        """Whether a release can be one of this node's.

        :param recorded: whether only imports count that were seen.
        """
        imports = self._of_handle.get(event.number('handle'), ())
        return any(event.inode in one.left and not (recorded and one.earlier) for one in imports)

    def release(self, event: KernelEvent) -> None:
        """One buffer. In the order of the driver's threads the next import by this handle may come first: the oldest one ends."""
        self._growing.pop(event.tid, None)
        if event.tid == self._last_tid:
            self.last = None
        found = next((one for one in self._of_handle.get(event.number('handle'), ()) if event.inode in one.left), None)
        if found is None:
            return
        found.left.discard(event.inode)
        if found.left:
            return
        found.released_ns = event.time_ns
        self._alive.discard(found)
        self._given_back.add(frozenset(found.image))
        if not self._alive and len(self._given_back) > 1:
            self.clearings.append((event.time_ns, frozenset(self._given_back), frozenset(self._used)))

    def cleared_ns(self, since_ns: int) -> int:
        """When it first gave everything back that it imported once more; 0: never. The card was opened anew, or the same frames came by a
        new link: a cache that gives back what it is done with never had all of it at once."""
        last_ns = {frozenset(one.image): one.begin_ns for one in self.imports}
        for time_ns, given_back, used in self.clearings:
            if time_ns >= since_ns and all(image in given_back or last_ns.get(image, 0) < time_ns for image in used):
                return time_ns
        return 0

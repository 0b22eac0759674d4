"""How often a node had to import, and how often it did: each new image once while it has a cache, each frame while it has none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zc_perception.npu.import_cache import ENTRIES
from zc_perception.observe.frame_log_layout import FrameRecord, RecordKind
from zc_perception.verify.import_table import Import, ImportTable
from zc_perception.verify.observation import NodeView, Observation

_SLACK_NS = 1_000_000
_NEVER = (1, 0)
_TRIED = 64


@dataclass(frozen=True)
class ImportNeed:
    """Of one node.

    :ivar shared: frames without an import of their own, while it had no cache.
    :ivar surplus: imports that its cache did not need.
    :ivar unused: imports that no job read, while it had no cache.
    :ivar new_buffers: buffers that its cache imported for the first time.
    """

    shared: int
    surplus: int
    unused: int
    new_buffers: int


def weigh(
    node: NodeView, table: ImportTable, shared: Sequence[int], seen: Observation, images: Collection[frozenset[int]],
    attached: Collection[int],
) -> ImportNeed:  # fmt: skip
    """Judge a node's imports of the window.

    :param shared: when frames were submitted that had no import of their own.
    :param images: of all nodes' frames; imports of other buffers don't count.
    :param attached: buffers that the card had of this node when the window began, as far as attachments tell.
    """
    inodes = frozenset().union(*images)
    of_window = [one for one in table.imports if seen.within(one.begin_ns) and not one.image.isdisjoint(inodes)]
    needs = [
        _weigh(node, table, of_window, shared, seen, images, attached if on_ns <= seen.start_ns else (), on_ns, off_ns)
        for on_ns, off_ns in _cached_while(node, shared, of_window, seen)
    ]
    return min(needs, key=lambda need: need.surplus + need.unused)


def _weigh(
    node: NodeView, table: ImportTable, of_window: Sequence[Import], shared: Sequence[int], seen: Observation,
    images: Collection[frozenset[int]], attached: Collection[int], on_ns: int, off_ns: int,
) -> ImportNeed:  # fmt: skip
    cached = [one for one in of_window if on_ns <= one.begin_ns <= off_ns]
    needed = [one for one in _needed(cached, table, max(on_ns, seen.start_ns), attached) if one.image in images]
    # A cache that finds itself too small imports again what it threw out, once each.
    own = {frozenset(record.inodes) for record in node.records if record.submitted_ns}
    surplus = max(0, len(cached) - len(needed) - max(0, len(own) - ENTRIES))
    unread = [one for one in of_window if not on_ns <= one.begin_ns <= off_ns and not one.submits and one is not table.last]
    unread = _without_refused(unread, node)
    given_back = sum(one.released_ns > 0 for one in unread)
    trials = node.grown('trial_imports')
    return ImportNeed(
        sum(not on_ns <= time_ns <= off_ns for time_ns in shared), max(0, surplus - trials),
        len(unread) - min(given_back, max(0, trials - surplus)), sum(len(one.image) for one in needed),
    )  # fmt: skip


def _cached_while(node: NodeView, shared: Sequence[int], of_window: Sequence[Import], seen: Observation) -> list[tuple[int, int]]:
    """From when to when the node had a cache. Where it was turned on or off in the window, as long as its frames shared imports, or back
    to or up to one of the imports that no job read: which of these it was for is not known."""
    if bool(node.before.get('import_cache', node.cached)) == node.cached:
        return [(0, seen.end_ns) if node.cached else _NEVER]
    unread = [one.begin_ns for one in of_window if not one.submits]
    if node.cached:
        on_ns = min(shared, default=seen.end_ns)
        return [(time_ns, seen.end_ns) for time_ns in (on_ns, *[one for one in unread if one < on_ns][:_TRIED])]
    off_ns = max(shared, default=0)
    return [(0, time_ns) for time_ns in (off_ns, *[one for one in unread if one > off_ns][-_TRIED:])]


def _needed(cached: Sequence[Import], table: ImportTable, since_ns: int, attached: Collection[int]) -> list[Import]:
    """The first import of each image that the node did not have, and the first one after it gave everything back, if it did."""
    cleared_ns = table.cleared_ns(since_ns)
    made = {(frozenset(one.image), False) for one in (*table.earlier, *table.imports) if one.alive_at(since_ns)}
    needed = []
    for one in cached:
        key = frozenset(one.image), 0 < cleared_ns < one.begin_ns
        if key not in made and (key[1] or not one.image <= set(attached)):
            needed.append(one)
        made.add(key)
    return needed


def _without_refused(unread: Sequence[Import], node: NodeView) -> list[Import]:
    """Without those of frames that failed before the card had their job: it refused the job, not the import."""
    left = list(unread)
    for record in node.records:
        if record.kind == RecordKind.FAILED and not record.submitted_ns:
            own = [one for one in left if one.image == set(record.inodes) and _is_of(one, record)]
            if own:
                left.remove(max(own, key=lambda one: one.begin_ns))
    return left


def _is_of(one: Import, record: FrameRecord) -> bool:
    return record.published_ns - _SLACK_NS <= one.begin_ns <= record.done_ns + _SLACK_NS

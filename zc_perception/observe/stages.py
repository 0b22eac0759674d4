"""How long each stage of a frame took, from the record that the inference node's frame log has of it.

The stages of one frame follow each other without overlap, so their sum is the whole way. They begin and end where the record has a
time. In the trace of :mod:`~zc_perception.observe.timeline` one more span, ``deliver``, overlaps with them: the camera's thread gives
the frame to all consumers, and the first of them works on it meanwhile.
"""

from __future__ import annotations

import itertools

from zc_perception.observe.frame_log import FrameRecord

WHOLE = 'whole'
#: Of one frame, in order: its name, and what it lies between.
STAGES = (
    ('capture', 'the camera has it → published'),
    ('link', 'published → taken by the inference node'),
    ('import', 'taken → the device has the job'),
    ('infer', 'the device has the job → its fence is seen'),
    ('queue', 'the fence is seen → its turn comes'),
    ('decode', 'its turn comes → the boxes are there'),
    ('publish', 'the boxes are there → detections are sent'),
)


def is_whole(record: FrameRecord) -> bool:
    """Whether its way is known from the camera to the sent detections."""
    return bool(record.captured_ns and record.sent_ns)


def stages_us(record: FrameRecord) -> dict[str, float]:
    """Return the time of each stage of one processed frame, and of the whole way.

    If the node doesn't know a time, that stage is 0 and the next one is longer.
    """
    times = [
        record.captured_ns, record.published_ns, record.received_ns, record.submitted_ns, record.signalled_ns, record.done_ns,
        record.decoded_ns, record.sent_ns,
    ]  # fmt: skip
    for number in range(1, len(times)):
        # A fence may be seen by a thread that is late to note that it was submitted.
        times[number] = max(times[number], times[number - 1])
    found = {
        name: (end - begin) / 1e3
        for (name, _), (begin, end) in zip(STAGES, itertools.pairwise(times), strict=True)
    }
    return {**found, WHOLE: (times[-1] - times[0]) / 1e3}

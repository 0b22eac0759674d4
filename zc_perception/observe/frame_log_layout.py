"""What lies where in a frame log: the memory that a node writes and any other process may read. Little-endian, nothing but fixed sizes.

===========  =======  ================================================================================================
bytes        size     what
===========  =======  ================================================================================================
0            4 KiB    header: :data:`HEADER`, and words of 8 bytes that are written whole: records written, time of the end
4 KiB        28 KiB   facts: u64 generation (odd while they are written), u32 bytes, u32 CRC-32, UTF-8 JSON
32 KiB       768 KiB  ring of :data:`CAPACITY` records of :data:`RECORD_SIZE` bytes; record *n* (from 1) at (*n* - 1) mod capacity
===========  =======  ================================================================================================

A record is written with its number first and last, then the count of records. A reader takes a record that has its number at both ends
and that the writer, as the count says afterwards, is still :data:`MARGIN` records away from overwriting. No checksum: its code and tables
have left the CPU's caches by the next frame, which makes it the dearest part of a record. Only a standard library is needed to read one.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

#: Of the memfd, and so in ``/proc/PID/fd``: ``/memfd:zc_frame_log (deleted)``.
NAME = 'zc_frame_log'
MAGIC = b'ZCFL'
VERSION = 1
CAPACITY = 4096
RECORD_SIZE = 192
MAX_BUFFERS = 4
#: A CPU may order what it reads and writes anew, but never across so many records.
MARGIN = 32

#: magic, version, record size, capacity
HEADER = struct.Struct('<4sIII')
#: Index of the 8-byte word that counts the records written; the last thing that is written of each record.
WORD_WRITTEN = 2
#: CLOCK_MONOTONIC ns when the node closed the log; 0: it hasn't.
WORD_ENDED = 3
#: CLOCK_MONOTONIC ns when the log was made, pid (in its own namespace), role, node; at byte :data:`WRITER_OFFSET`.
WRITER = struct.Struct('<QI4x16s256s')
WRITER_OFFSET = 32

FACTS_OFFSET = 4096
FACTS_WORD = FACTS_OFFSET // 8
#: bytes, CRC-32; after the generation
FACTS_SIZES = struct.Struct('<II')
FACTS_TEXT = FACTS_OFFSET + 16
RING_OFFSET = 32 * 1024
FACTS_ROOM = RING_OFFSET - FACTS_TEXT
SIZE = RING_OFFSET + CAPACITY * RECORD_SIZE

#: number, kind, num_buffers | sequence, generation, buffer_uid | stamp, captured, published, received, submitted, signalled, done, decoded,
#: sent, capture cost | inodes, st_dev | device handle, detections, device seqno, thread, nothing | number again
RECORD = struct.Struct('<QIIQQQqqqqqqqqqqQQQQQIIQI4xQ')


class RecordKind(IntEnum):
    """What became of the frame in this node."""

    PUBLISHED = 1
    PROCESSED = 2
    FAILED = 3


class FrameRecord(NamedTuple):
    """One frame that one node was done with.

    Times are CLOCK_MONOTONIC in ns, the same in every process of the machine; 0: not applicable or unknown.

    :ivar number: from 1, in this log.
    :ivar generation: of the slot.
    :ivar buffer_uid: the slot's buffers.
    :ivar stamp_ns: the frame's header stamp, ROS clock.
    :ivar captured_ns: the camera had it.
    :ivar published_ns: it was given to its consumers.
    :ivar received_ns: the consumer took it.
    :ivar submitted_ns: the device has the job.
    :ivar signalled_ns: the consumer's thread saw the job's fence.
    :ivar done_ns: its turn came: decoding began; of a failed one, the moment of the failure.
    :ivar decoded_ns: the boxes are there.
    :ivar sent_ns: detections are sent; in the capture node, everybody has the frame.
    :ivar capture_cost_ns: the camera's own work.
    :ivar inodes: of its buffers, 1 to 4.
    :ivar st_dev: of these inodes.
    :ivar device_handle: the device's import; 0: none.
    :ivar device_seqno: the device's job number; 0: unknown.
    :ivar detections: found in it.
    :ivar thread_id: the kernel's, of the writer (in its own namespace).
    """

    number: int
    kind: RecordKind
    sequence: int
    generation: int
    buffer_uid: int
    stamp_ns: int
    captured_ns: int
    published_ns: int
    received_ns: int
    submitted_ns: int
    signalled_ns: int
    done_ns: int
    decoded_ns: int
    sent_ns: int
    capture_cost_ns: int
    inodes: tuple[int, ...]
    st_dev: int
    device_handle: int
    detections: int
    device_seqno: int
    thread_id: int

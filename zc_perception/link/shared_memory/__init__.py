"""
Rung 2: frames for other processes of the host, by descriptor over a Unix socket.

No ROS in here.

Read ``docs/wire.md`` first: it is the protocol. :mod:`~zc_perception.link.shared_memory.protocol`
has its numbers, :mod:`~zc_perception.link.shared_memory.wire` packs and parses its messages. Then
read :mod:`~zc_perception.link.shared_memory.server` with
:mod:`~zc_perception.link.shared_memory.connection`, the producer's end, and
:mod:`~zc_perception.link.shared_memory.client` with
:mod:`~zc_perception.link.shared_memory.remote_slots`, the consumer's end.
"""

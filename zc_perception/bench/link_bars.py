"""``zc_bench link --check``."""

from __future__ import annotations

from collections.abc import Callable

from zc_perception.bench.bars import FULL_HD, UHD_4K, UHD_8K, VGA, Bar, Key, Rows

UNTHROTTLED = 0.0
SIZES = {'VGA': VGA, '1080p': FULL_HD, '4K': UHD_4K, '8K': UHD_8K}
# What copies a camera's frame at least once.
COPYING_PEERS = ('zenoh_shared_memory', 'cyclonedds', 'iceoryx2_copy')
IN_PLACE = 'iceoryx2_in_place'
SHARED_MEMORY = 'link/shared_memory'
LINKS = ('shared_memory', 'in_process_mailbox', 'in_process_executor')


def _key(variant: str, rate_hz: float) -> Key:
    return 'link', variant, *FULL_HD, rate_hz


def _ratio(variant: str, rate_hz: float, reference: str) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(_key(variant, rate_hz))
        return None if row is None else row.ratio_to.get(reference)

    return figure


def _added(variant: str, rate_hz: float, reference: str) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(_key(variant, rate_hz))
        return None if row is None else row.added_us.get(reference)

    return figure


def _growth(variant: str) -> Callable[[Rows], float | None]:
    """A frame of 54 times the pixels."""

    def figure(rows: Rows) -> float | None:
        small, large = (rows.get(('link', variant, *size, UNTHROTTLED)) for size in (VGA, UHD_8K))
        if small is None or large is None or not small.median_us or large.median_us is None:
            return None
        return large.median_us / small.median_us

    return figure


def _speed(rate_hz: float, tuned: float, default: float) -> list[Bar]:
    when = f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'
    return [
        Bar(
            f'1080p {when}: shared_memory below {name} rclpy Image, times',
            _ratio(f'rclpy_image_{name}', rate_hz, 'link/shared_memory'),
            times,
            '×',
            at_least=True,
            involved=(_key(f'rclpy_image_{name}', rate_hz), _key('shared_memory', rate_hz)),
        )
        for name, times in (('tuned', tuned), ('default', default))
    ]


def _floor(variant: str, floor: str, rate_hz: float, *, added_us: float = 0.0, times: float = 0.0) -> Bar:
    when = f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'
    involved = (_key(variant, rate_hz),)
    if added_us:
        text = f'1080p {when}: {variant} above the floor {floor}'
        return Bar(text, _added(variant, rate_hz, f'floor/{floor}'), added_us, ' µs', involved=involved)
    return Bar(f'1080p {when}: {variant} to the floor {floor}', _ratio(variant, rate_hz, f'floor/{floor}'), times, '×', involved=involved)


def _below_peer(peer: str, size: str) -> Bar:
    key: Key = ('link', peer, *SIZES[size], UNTHROTTLED)

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None else row.ratio_to.get(SHARED_MEMORY)

    involved = (key, ('link', 'shared_memory', *SIZES[size], UNTHROTTLED))
    return Bar(f'{size} unthrottled: shared_memory below {peer}, times', figure, 5, '×', at_least=True, involved=involved)


def _above_in_place(size: str) -> Bar:
    key: Key = ('link', IN_PLACE, *SIZES[size], UNTHROTTLED)

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None or SHARED_MEMORY not in row.added_us else -row.added_us[SHARED_MEMORY]

    return Bar(f'{size} unthrottled: shared_memory above {IN_PLACE}', figure, 25, ' µs', involved=(key,))


def _cpu_below(plain: str) -> Bar:
    key = _key(plain, UNTHROTTLED)

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None else row.cpu_ratio_to.get(SHARED_MEMORY)

    return Bar(f'1080p unthrottled: CPU per frame of shared_memory below {plain}, times', figure, 50, '×', at_least=True, involved=(key,))


LINK_BARS = (
    _floor('shared_memory', 'fd_socket', UNTHROTTLED, added_us=25),
    *_speed(UNTHROTTLED, 100, 150),
    _floor('shared_memory', 'fd_socket', 30.0, times=2),
    *_speed(30.0, 40, 200),
    _floor('in_process_mailbox', 'simple_queue', UNTHROTTLED, added_us=15),
    _floor('in_process_mailbox', 'simple_queue', 30.0, times=2),
    _floor('in_process_executor', 'guard', UNTHROTTLED, times=2),
    _floor('in_process_executor', 'guard', 30.0, times=2),
    *(
        Bar(
            f'unthrottled: 8K to VGA, {variant}', _growth(variant), 1.15, '×',
            involved=(('link', variant, *VGA, UNTHROTTLED), ('link', variant, *UHD_8K, UNTHROTTLED)),
        )
        for variant in LINKS
    ),
    *(_below_peer(peer, size) for peer in COPYING_PEERS for size in SIZES),
    *(_above_in_place(size) for size in SIZES),
    *(_cpu_below(plain) for plain in ('rclpy_image_tuned', 'rclpy_image_default')),
)  # fmt: skip

"""The promised figures of links: met exactly, missed by a little, or not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zc_perception.bench.link import LINK_BARS
from zc_perception.bench.rows import Row
from zc_perception.bench.subcommand import FULL_HD, UHD_4K, UHD_8K, VGA, check_bars

SIZES = (VGA, FULL_HD, UHD_4K, UHD_8K)
COPYING = ('zenoh_shared_memory', 'cyclonedds', 'iceoryx2_copy')
BARS = 13 + len(COPYING) * len(SIZES) + len(SIZES) + 2
LINKS = ('shared_memory', 'in_process_mailbox', 'in_process_executor')
Key = tuple[str, tuple[int, int], float]


def row(variant: str, size: tuple[int, int], rate_hz: float, median_us: float | None = 100.0, **tables: dict[str, float]) -> Row:
    return Row('link', variant, *size, rate_hz, median_us, median_us, 1.0, 7, **tables)


def just_met() -> dict[Key, Row]:
    """Every bar met, exactly."""
    shared, mailbox, executor = LINKS
    rows = [
        row(shared, FULL_HD, 0.0, added_us={'floor/fd_socket': 25.0}, ratio_to={'floor/fd_socket': 9.0}),
        row(shared, FULL_HD, 30.0, ratio_to={'floor/fd_socket': 2.0}, added_us={'floor/fd_socket': 99.0}),
        row('rclpy_image_tuned', FULL_HD, 0.0, ratio_to={'link/shared_memory': 100.0}, cpu_ratio_to={'link/shared_memory': 50.0}),
        row('rclpy_image_default', FULL_HD, 0.0, ratio_to={'link/shared_memory': 150.0}, cpu_ratio_to={'link/shared_memory': 50.0}),
        row('rclpy_image_tuned', FULL_HD, 30.0, ratio_to={'link/shared_memory': 40.0}),
        row('rclpy_image_default', FULL_HD, 30.0, ratio_to={'link/shared_memory': 200.0}),
        row(mailbox, FULL_HD, 0.0, added_us={'floor/simple_queue': 15.0}, ratio_to={'floor/simple_queue': 9.0}),
        row(mailbox, FULL_HD, 30.0, ratio_to={'floor/simple_queue': 2.0}, added_us={'floor/simple_queue': 99.0}),
        row(executor, FULL_HD, 0.0, ratio_to={'floor/guard': 2.0}),
        row(executor, FULL_HD, 30.0, ratio_to={'floor/guard': 2.0}),
        *(row(link, VGA, 0.0, 100.0) for link in LINKS),
        *(row(link, UHD_8K, 0.0, 115.0) for link in LINKS),
        *(row(peer, size, 0.0, ratio_to={'link/shared_memory': 5.0}) for peer in COPYING for size in SIZES),
        *(row('iceoryx2_in_place', size, 0.0, added_us={'link/shared_memory': -25.0}) for size in SIZES),
    ]
    return {(r.variant, (r.width, r.height), r.rate_hz): r for r in rows}


def failing(rows: dict[Key, Row]) -> list[str]:
    return [str(verdict) for verdict in check_bars(list(rows.values()), LINK_BARS) if not verdict.passed]


def test_bars_that_are_just_met_pass() -> None:
    assert failing(just_met()) == []
    assert len(LINK_BARS) == BARS and len({bar.text + str(bar.limit) for bar in LINK_BARS}) == BARS


@pytest.mark.parametrize(
    ('key', 'table', 'reference', 'value'),
    [
        (('shared_memory', FULL_HD, 0.0), 'added_us', 'floor/fd_socket', 25.1),
        (('shared_memory', FULL_HD, 30.0), 'ratio_to', 'floor/fd_socket', 2.01),
        (('rclpy_image_tuned', FULL_HD, 0.0), 'ratio_to', 'link/shared_memory', 99.9),
        (('rclpy_image_default', FULL_HD, 0.0), 'ratio_to', 'link/shared_memory', 149.9),
        (('rclpy_image_tuned', FULL_HD, 30.0), 'ratio_to', 'link/shared_memory', 39.9),
        (('rclpy_image_default', FULL_HD, 30.0), 'ratio_to', 'link/shared_memory', 199.9),
        (('in_process_mailbox', FULL_HD, 0.0), 'added_us', 'floor/simple_queue', 15.1),
        (('in_process_mailbox', FULL_HD, 30.0), 'ratio_to', 'floor/simple_queue', 2.01),
        (('in_process_executor', FULL_HD, 0.0), 'ratio_to', 'floor/guard', 2.01),
        (('in_process_executor', FULL_HD, 30.0), 'ratio_to', 'floor/guard', 2.01),
        *(((peer, size, 0.0), 'ratio_to', 'link/shared_memory', 4.99) for peer in COPYING for size in SIZES),
    ],
)
def test_a_bar_that_is_just_missed_fails_alone(key: Key, table: str, reference: str, value: float) -> None:
    rows = just_met()
    rows[key] = replace(rows[key], **{table: {reference: value}})
    (failure,) = failing(rows)
    assert failure.startswith('FAIL') and f'{value:.2f}' in failure


@pytest.mark.parametrize('size', SIZES)
def test_a_frame_that_was_born_in_place_may_be_so_much_quicker(size: tuple[int, int]) -> None:
    rows = just_met()
    key = ('iceoryx2_in_place', size, 0.0)
    rows[key] = replace(rows[key], added_us={'link/shared_memory': -25.1})
    (failure,) = failing(rows)
    assert 'iceoryx2_in_place' in failure and '25.10 µs' in failure
    rows[key] = replace(rows[key], added_us={'link/shared_memory': 3.0})
    assert failing(rows) == [], 'or slower'


@pytest.mark.parametrize('plain', ['rclpy_image_tuned', 'rclpy_image_default'])
def test_a_frame_that_costs_too_much_cpu_time_fails(plain: str) -> None:
    rows = just_met()
    key = (plain, FULL_HD, 0.0)
    rows[key] = replace(rows[key], cpu_ratio_to={'link/shared_memory': 49.9})
    (failure,) = failing(rows)
    assert plain in failure and 'CPU' in failure


@pytest.mark.parametrize('link', LINKS)
def test_a_link_that_grows_with_the_picture_fails(link: str) -> None:
    rows = just_met()
    rows[link, UHD_8K, 0.0] = replace(rows[link, UHD_8K, 0.0], median_us=116.0)
    (failure,) = failing(rows)
    assert link in failure and '1.16×' in failure


def test_without_rows_nothing_is_passed() -> None:
    verdicts = check_bars([], LINK_BARS)
    assert [(v.measured, v.passed) for v in verdicts] == [('not measured', False)] * BARS


@pytest.mark.parametrize('key', sorted(just_met()))
def test_each_row_is_needed(key: Key) -> None:
    rows = just_met()
    del rows[key]
    failures = failing(rows)
    # Plain messages of 1080p, unthrottled, have a bar for their latency and one for their CPU time.
    assert len(failures) == (2 if key[0].startswith('rclpy') and key[2] == 0.0 else 1)
    assert all('not measured' in failure for failure in failures)


def test_a_link_on_which_nothing_arrived_is_not_measured() -> None:
    rows = just_met()
    rows['shared_memory', UHD_8K, 0.0] = replace(rows['shared_memory', UHD_8K, 0.0], median_us=None)
    rows['shared_memory', FULL_HD, 30.0] = replace(rows['shared_memory', FULL_HD, 30.0], ratio_to={})
    assert len(failing(rows)) == 2 and all('not measured' in failure for failure in failing(rows))


def test_lost_frames_are_said_beside_the_figure() -> None:
    rows = just_met()
    rows['rclpy_image_default', FULL_HD, 30.0] = replace(rows['rclpy_image_default', FULL_HD, 30.0], lost_per_cent=12.5)
    said = [str(verdict) for verdict in check_bars(list(rows.values()), LINK_BARS) if 'lost' in str(verdict)]
    assert len(said) == 1 and 'rclpy_image_default lost 12.5 % of its frames' in said[0]

"""``zc_bench link``: its options."""

from __future__ import annotations

import argparse
import functools

from zc_perception.bench.bars import FULL_HD, UHD_4K, UHD_8K, VGA
from zc_perception.bench.command import Command, Measured, Say, check_counts
from zc_perception.bench.link import LINKS, PLAIN, LinkPlan, link_rows, measure_links
from zc_perception.bench.link_bars import LINK_BARS
from zc_perception.bench.link_peers.variants import PEERS
from zc_perception.errors import ConfigError

SIZES = {'vga': VGA, '1080p': FULL_HD, '4k': UHD_4K, '8k': UHD_8K}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=list(SIZES), help='picture sizes (default: all)')
    parser.add_argument('--rates', nargs='+', type=float, default=[30.0, 0.0], metavar='HZ', help='0: unthrottled (default: 30 0)')
    every = [*LINKS, *PLAIN, *PEERS]
    parser.add_argument('--variants', nargs='+', choices=every, default=every, metavar='NAME', help=f'of {", ".join(every)} (default: all)')
    parser.add_argument(
        '--read', nargs='+', choices=(*SIZES, 'none'), default=['1080p'],
        help='of the sizes, those at which links and their best rivals are measured with a consumer that reads every pixel too; '
        'unthrottled (default: 1080p)',
    )  # fmt: skip
    parser.add_argument('--seconds', type=float, default=1.5, help='of each series at a rate; at least 20 frames (default: 1.5)')
    parser.add_argument('--frames', type=int, default=300, help='of each unthrottled series; fewer of large messages (default: 300)')
    parser.add_argument('--all-cpus', action='store_true', help='do not keep unthrottled series without copies on one CPU')


def _plan(options: argparse.Namespace) -> LinkPlan:
    """
    :raises ConfigError: a number that makes no sense.
    """
    check_counts(options, seconds=3600, frames=1_000_000)
    for rate in options.rates:
        # A worker is silent during a series.
        if not (rate == 0 or 0.1 <= rate <= 1000):
            raise ConfigError(f'--rates {rate:g}: each is 0 (unthrottled) or 0.1 to 1000 Hz')
    return LinkPlan(
        [SIZES[size] for size in dict.fromkeys(options.sizes)],
        [abs(rate) for rate in dict.fromkeys(options.rates)],
        list(dict.fromkeys(options.variants)),
        options.repetitions,
        options.seconds,
        options.frames,
        [SIZES[size] for size in options.read if size != 'none'],
        one_cpu=not options.all_cpus,
    )


def _measure(plan: LinkPlan, say: Say) -> Measured:
    result = measure_links(plan, say)
    return Measured(link_rows(result.book.rounds()), result.facts)


LINK = Command(
    'link',
    'what handing over a frame costs',
    _add_options,
    lambda options: functools.partial(_measure, _plan(options)),
    LINK_BARS,
    ('rclpy', 'cv2'),
)

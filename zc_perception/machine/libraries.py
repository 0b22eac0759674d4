"""Which file a loaded library is."""

from __future__ import annotations

import ctypes
import os


def file_of(library: ctypes.CDLL | str) -> str:
    """The file that the loader took: its name often ends in the version."""
    wanted = library if isinstance(library, str) else library._name
    base = os.path.basename(wanted or '').split('.so')[0]
    with open('/proc/self/maps', encoding='utf-8', errors='replace') as maps:
        for line in maps:
            path = line.rstrip('\n').partition('/')
            if path[1] and os.path.basename(path[2]).startswith(f'{base}.so'):
                return os.path.realpath('/' + path[2])
    return ''

"""The two files that ``zc_demo`` writes. Needs no ROS: the folder is checked before anything starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zc_perception.errors import ConfigError
from zc_perception.whole_file import check_writable, write_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUMMARY, PICTURE = 'summary.json', 'detections.png'


def check_folder(folder: Path) -> None:
    """Make the folder for the results, and make sure that they can be written there.

    :raises ConfigError: they can't.
    """
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise ConfigError(f"--out '{folder}' is not a folder; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        for name in (SUMMARY, PICTURE):
            check_writable(folder / name)
    except OSError as error:
        raise ConfigError(f"--out '{folder}' can't be written: {error.strerror}; name another folder") from error


def write_results(folder: Path, summary: dict[str, Any], picture: NDArray[np.uint8] | None, why_no_picture: str) -> str:
    """Write the results; what to tell of it.

    :raises OSError: they can't be written.
    """
    write_whole(folder / SUMMARY, json.dumps(summary, indent=2) + '\n')
    if picture is not None:
        import cv2

        write_whole(folder / PICTURE, cv2.imencode('.png', picture)[1].tobytes())
        return f'wrote {folder / SUMMARY} and {folder / PICTURE}'
    older = f'; the {PICTURE} that is there is of an earlier run' if (folder / PICTURE).exists() else ''
    return f'wrote {folder / SUMMARY}, no {PICTURE}: {why_no_picture}{older}'

"""Entry points of ``component_container`` and ``component_container_mt``, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

from zc_perception.nodes.early_end import end_quietly


def component_container() -> int:
    """``component_container``."""
    end_quietly()
    from zc_perception.nodes.container import program

    return program.run('component_container', multi_threaded=False)


def component_container_mt() -> int:
    """``component_container_mt``."""
    end_quietly()
    from zc_perception.nodes.container import program

    return program.run('component_container_mt', multi_threaded=True)

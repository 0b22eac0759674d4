"""A module that was written as a program."""

raise SystemExit('no display')

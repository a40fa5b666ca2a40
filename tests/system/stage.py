"""Moved to testbed.stage; this name goes once nothing imports it."""

from testbed.stage import *  # noqa: F403

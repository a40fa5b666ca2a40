"""The only doors to the outside's time and luck: clock, ids, chance and failpoints.

Everything that two processes compare is database time, not this clock: see docs/decisions/0002-two-clocks.md.
"""

from stratus.effects.batch import Batcher
from stratus.effects.chance import Chance
from stratus.effects.clock import Clock
from stratus.effects.failpoints import Failpoints
from stratus.effects.ids import Ids
from stratus.effects.loop import Loop, LoopHealth
from stratus.effects.shield import finished

__all__ = ["Batcher", "Chance", "Clock", "Failpoints", "Ids", "Loop", "LoopHealth", "finished"]

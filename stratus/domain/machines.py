"""All machines, for whoever derives something from each of them."""

from __future__ import annotations

from typing import Any

from stratus.domain.approval import APPROVAL
from stratus.domain.group import GROUP
from stratus.domain.inbox import INBOX
from stratus.domain.machine import Machine
from stratus.domain.outbox import OUTBOX
from stratus.domain.run import RUN
from stratus.domain.tool_call import TOOL_CALL
from stratus.domain.turn import TURN

# Those whose state is a column.
MACHINES: tuple[Machine[Any, Any], ...] = (INBOX, RUN, TOOL_CALL, APPROVAL, OUTBOX, GROUP)
ALL_MACHINES: tuple[Machine[Any, Any], ...] = (*MACHINES, TURN)

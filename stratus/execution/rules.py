"""What an agent's policy says of a call: whether it exists, whether a person has to allow it and who may, whether another agent does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from stratus.agents.model import ToolSpec
from stratus.agents.tools import Tool
from stratus.domain.agent import AgentDefinition
from stratus.domain.approval import Approvers
from stratus.domain.delegation import CHILDREN_MAX, DEPTH_MAX, NAME, Task, description, read_task
from stratus.domain.refusal import Refusal, TooDeep, TooManyChildren, UnknownTool
from stratus.domain.values import ToolCallPart
from stratus.store.approval import NewApproval
from stratus.store.run import ClaimedRun


class AgentRules:
    """The rules of one agent for one run: the approver's seam as well as the allowlist's."""

    def __init__(self, agent: AgentDefinition, tools: Mapping[str, Tool], claimed: ClaimedRun) -> None:
        self._agent = agent
        self._tools = tools
        self._claimed = claimed
        self._may_delegate = bool(agent.delegates) and any(fnmatchcase(NAME, one) for one in agent.tools)
        self._delegations: dict[str, int] = {}

    def number(self, calls: Sequence[tuple[str, str]]) -> None:
        """Take note of the run's calls so far, by id and name in order: how often it has delegated is counted from them."""
        self._delegations = {call_id: n for n, (call_id, _) in enumerate(one for one in calls if one[1] == NAME)}

    def specs(self) -> list[ToolSpec]:
        """The tools as the model is told of them."""
        specs = [tool.spec for tool in self._tools.values()]
        if self._may_delegate:
            parameters = Task.model_json_schema()
            specs.append(ToolSpec(NAME, description(self._agent.delegates), parameters, "idempotent"))
        return specs

    def refusal(self, call: ToolCallPart) -> Refusal | None:
        """See Rules."""
        if not self.delegates(call):
            return None if call.name in self._tools else UnknownTool(call.name)
        task = read_task(call.args, self._agent.delegates)
        if isinstance(task, Refusal):
            return task
        if self._claimed.depth >= DEPTH_MAX:
            return TooDeep(DEPTH_MAX)
        if self._delegations.get(call.call_id, 0) >= CHILDREN_MAX:
            return TooManyChildren(CHILDREN_MAX)
        return None

    def gated(self, call: ToolCallPart) -> bool:
        """See Rules."""
        return any(fnmatchcase(self._policy_name(call), pattern) for pattern in self._agent.approve)

    def delegates(self, call: ToolCallPart) -> bool:
        """See Rules."""
        return self._may_delegate and call.name == NAME

    def task(self, call: ToolCallPart) -> Task:
        """The task of a call that is not refused."""
        task = read_task(call.args, self._agent.delegates)
        assert isinstance(task, Task)
        return task

    def terms(self, call: ToolCallPart) -> NewApproval:
        """On what terms a gated call is asked about."""
        asker = self._claimed.principal_id
        approvers = Approvers(principals=[] if asker is None else [asker])
        return NewApproval(call.call_id, approvers, self._agent.approval_window_seconds)

    def _policy_name(self, call: ToolCallPart) -> str:
        tool = self._tools.get(call.name)
        return call.name if tool is None else tool.spec.policy_name

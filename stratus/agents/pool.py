"""Resolves an agent's model at each dispatch and shares models between agents that resolve to the same one."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from importlib.util import find_spec

from stratus.agents.admission import Admission
from stratus.agents.demo import DemoModel
from stratus.agents.model import Model, ModelError
from stratus.agents.providers import Connections, ProviderModel, Resolved, WireName
from stratus.domain.agent import AgentDefinition
from stratus.effects import Chance, Clock

CONCURRENCY = 64
_MAX_MODELS = 64
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_KEY = "not-needed"  # the SDKs insist on one; a local server without accounts ignores it
_HOMES = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
_PROVIDERS: Mapping[str, tuple[str, WireName]] = {
    "anthropic": ("anthropic", "anthropic"),
    "openai": ("openai", "openai-responses"),
    "openai-chat": ("openai", "openai-chat"),
    "openai-responses": ("openai", "openai-responses"),
    "openai-compatible": ("openai", "openai-chat"),
}


class ModelPool:
    """Models by agent definition. `environment` is where keys (ANTHROPIC_API_KEY, OPENAI_API_KEY) and
    ANTHROPIC_BASE_URL, OPENAI_BASE_URL come from.

    `openai:` speaks the Responses API to OpenAI itself, which reasons across turns only there, and Chat Completions to
    any other address, because that is what compatible servers have; `openai-chat:` and `openai-responses:` say it
    outright. A key goes only where it belongs: an agent's own `base_url` gets the key that its `api_key_env` names, and
    none otherwise.

    `admission` bounds the requests in flight, `chance` spreads repeats; both are this replica's own.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        *,
        concurrency: int = CONCURRENCY,
        chance: Chance | None = None,
    ) -> None:
        self.admission = Admission(concurrency)
        self.chance = chance or Chance()
        self._environment = environment
        self._demo = DemoModel(clock or Clock())
        self._connections = Connections()
        self._models: OrderedDict[Resolved, ProviderModel] = OrderedDict()

    def get(self, definition: AgentDefinition) -> Model:
        """The model to use now. No I/O. Raises ModelError (`auth`, `not_found`) that says what is missing."""
        provider, _, name = definition.model.partition(":")
        if provider == "demo":
            return self._demo
        resolved = self._resolve(definition, provider, name)
        model = self._models.get(resolved)
        if model is None:
            model = self._models[resolved] = ProviderModel(resolved, definition.model, self._connections)
            if len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)  # holds no connection of its own, so a turn in flight is not disturbed
        self._models.move_to_end(resolved)
        return model

    def available(self) -> list[str]:
        """Providers that would work without more settings; `demo` always does."""
        installed = find_spec("pydantic_ai") is not None
        return ["demo", *(name for name in _HOMES if installed and self._environment.get(f"{name.upper()}_API_KEY"))]

    @staticmethod
    def capabilities() -> list[str]:
        """What this installation can serve, whatever its keys, as AgentDefinition.needs names it: other providers' libraries are an extra."""
        installed = find_spec("pydantic_ai") is not None
        return [f"provider:{name}" for name in ["demo", *(_PROVIDERS if installed else ())]]

    async def close(self) -> None:
        """End all connections. Call it when no turn is in flight."""
        self._models.clear()
        await self._connections.close()

    def _resolve(self, definition: AgentDefinition, provider: str, name: str) -> Resolved:
        if provider not in _PROVIDERS:
            known = ", ".join(["demo", *_PROVIDERS])
            raise ModelError(
                "not_found", f"There is no provider {provider!r} for {definition.model}; known are {known}."
            )
        family, wire = _PROVIDERS[provider]
        other = definition.base_url or self._environment.get(f"{family.upper()}_BASE_URL")
        if provider == "openai-compatible" and not other:
            raise ModelError("not_found", f"{definition.model} needs a `base_url` in the agent file.")
        if provider == "openai" and other and other.rstrip("/") != _HOMES["openai"]:
            wire = "openai-chat"
        return Resolved(wire, name, other or _HOMES[family], self._key(definition, family))

    def _key(self, definition: AgentDefinition, family: str) -> str:
        variable = definition.api_key_env
        if variable is None:
            if definition.base_url is not None:
                return _NO_KEY
            variable = f"{family.upper()}_API_KEY"
        if not _VARIABLE.fullmatch(variable):  # may be a key, so it is not repeated
            raise ModelError("auth", f"`api_key_env` for {definition.model} has to be the name of a variable.")
        if variable.startswith("STRATUS_"):
            raise ModelError("auth", f"{variable} is a setting of Stratus and not a key for {definition.model}.")
        key = self._environment.get(variable, "").strip()
        if not key:
            raise ModelError("auth", f"No API key for {definition.model}: an operator has to set {variable}.")
        return key

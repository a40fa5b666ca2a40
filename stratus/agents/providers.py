"""Models of real providers, through pydantic-ai's lower layer, which is imported in a thread when a model is first
used.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic_core import to_json

from stratus.agents.convert import from_provider, stop_of, to_provider, usage_of
from stratus.agents.failures import failure, provider_errors
from stratus.agents.model import (
    Alive,
    ModelDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolSpec,
)

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import Model as ProviderApi
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.profiles import ModelProfile

WireName = Literal["anthropic", "openai-chat", "openai-responses"]
_MODULES: dict[WireName, str] = {
    "anthropic": "pydantic_ai.models.anthropic",
    "openai-chat": "pydantic_ai.models.openai",
    "openai-responses": "pydantic_ai.models.openai",
}
# Silence is the watchdog's to judge, by the agent's own idle limit; this only frees a connection that nobody watches.
_READ_SECONDS = 900.0
_CONNECT_SECONDS = 10.0
_CONNECTIONS = 512


@dataclass(frozen=True)
class Resolved:
    """Everything that makes two models the same: which wire, which name, where, and with whose key."""

    wire: WireName
    name: str
    base_url: str
    api_key: str = field(repr=False)


class Connections:
    """One HTTP client for all models of a pool. It keeps no cookies and takes nothing from the environment: an agent's
    key is all that identifies it.
    """

    def __init__(self) -> None:
        self.making = asyncio.Lock()
        self._client: httpx2.AsyncClient | None = None

    def client(self) -> httpx2.AsyncClient:
        """The client, made at first use."""
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(
                trust_env=False,
                follow_redirects=False,  # a key and a conversation go where an operator said, and nowhere else
                timeout=httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=_CONNECTIONS),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            )
        return self._client

    async def close(self) -> None:
        """End all connections; a later use opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class ProviderModel:
    """A Model of a real provider. `shown` is its name as people write it."""

    def __init__(self, resolved: Resolved, shown: str, connections: Connections) -> None:
        self._resolved = resolved
        self._shown = shown
        self._connections = connections
        self._api: ProviderApi | None = None

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """See Model.stream."""
        api = await self._ready()
        from pydantic_ai import direct

        async with AsyncExitStack() as stack:
            with provider_errors(self._shown):
                opened = direct.model_request_stream(
                    api,
                    to_provider(request.system, request.messages, blank_text=self._resolved.wire != "anthropic"),
                    model_settings=self._settings(request),
                    model_request_parameters=_parameters(request.tools),
                    instrument=False,
                )
                response = await stack.enter_async_context(opened)
            yield await stack.enter_async_context(aclosing(self._events(response)))

    async def _ready(self) -> ProviderApi:
        """The SDK's client, made at first use, in a thread: that loads modules and prices, for as long as seconds."""
        async with self._connections.making:
            if self._api is None:
                self._api = await asyncio.to_thread(self._prepared)
            return self._api

    def _prepared(self) -> ProviderApi:
        try:
            for module in (_MODULES[self._resolved.wire], "pydantic_ai.direct"):
                importlib.import_module(module)
        except ImportError as error:
            raise ModelError(
                "rejected", f"{self._shown} needs an extra that is not installed: `pip install stratus[models]`."
            ) from error
        with provider_errors(self._shown):
            return self._made()

    def _made(self) -> ProviderApi:
        made = self._resolved
        client: dict[str, Any] = {
            "api_key": made.api_key,
            "base_url": made.base_url,
            "http_client": self._connections.client(),
        }
        if made.wire == "anthropic":
            from anthropic import AsyncAnthropic
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return AnthropicModel(made.name, provider=AnthropicProvider(anthropic_client=AsyncAnthropic(**client)))
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(openai_client=AsyncOpenAI(**client))
        if made.wire == "openai-chat":
            # Without this a stream that breaks off in good order is taken for a whole answer.
            strict = {"openai_chat_streaming_requires_finish_reason": True}
            return OpenAIChatModel(made.name, provider=provider, profile=cast("ModelProfile", strict))
        return OpenAIResponsesModel(made.name, provider=provider)

    def _settings(self, request: ModelRequest) -> Any:
        # Without the provider's copy (`openai_store`) a conversation replays from our own, however old it is.
        ours = {"openai_store": False} if self._resolved.wire == "openai-responses" else {}
        return {**ours, **request.settings, "max_retries": 0}  # retries have one owner, the turn

    async def _events(self, response: StreamedResponse) -> AsyncGenerator[ModelEvent, None]:
        names: dict[int, str] = {}
        try:
            with provider_errors(self._shown):
                async with aclosing(_iterator(response)) as events:
                    async for event in events:
                        yield _shown_event(event, names)
                made = response.get()
                if made.state != "complete" or not _ended(made):
                    raise failure("bad_response", self._shown)  # the stream ended in good order but before its end
                message = from_provider(made)
        except ModelError as error:
            error.usage = usage_of(response.get())
            raise
        yield ModelDone(message, usage_of(made), stop_of(made, message))


def _ended(response: ModelResponse) -> bool:
    """Whether the provider gave a reason for stopping; one that pydantic-ai does not know is in the details."""
    return response.finish_reason is not None or bool((response.provider_details or {}).get("finish_reason"))


def _parameters(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                parameters_json_schema=dict(tool.parameters),
                description=tool.description,
                strict=False,
            )
            for tool in tools
        ]
    )


async def _iterator(response: StreamedResponse) -> AsyncGenerator[ModelResponseStreamEvent, None]:
    async for event in response:
        yield event


def _shown_event(event: ModelResponseStreamEvent, names: dict[int, str]) -> ModelEvent:
    """What a watcher sees of pydantic-ai's event; the start of a part carries its first piece."""
    if event.event_kind == "part_start":
        part = event.part
        if part.part_kind == "tool-call":
            names[event.index] = part.tool_name
            return ToolCallDelta(event.index, part.tool_name, _text_of(part.args))
        return _delta(event.index, part.part_kind, getattr(part, "content", None))
    if event.event_kind == "part_delta":
        delta = event.delta
        if delta.part_delta_kind == "tool_call":
            return ToolCallDelta(event.index, names.get(event.index, ""), _text_of(delta.args_delta))
        return _delta(event.index, delta.part_delta_kind, getattr(delta, "content_delta", None))
    return Alive()


def _text_of(args: Any) -> str:
    return args if isinstance(args, str) else "" if args is None else to_json(args).decode()


def _delta(index: int, kind: str, text: Any) -> ModelEvent:
    if kind == "text" and isinstance(text, str) and text:
        return TextDelta(index, text)
    return ThinkingDelta(index, text) if kind == "thinking" and isinstance(text, str) and text else Alive()

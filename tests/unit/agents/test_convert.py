"""Conversion at the provider seam: what the wires' tests do not reach."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pydantic_ai.messages import CompactionPart, ModelResponse
from pydantic_ai.messages import TextPart as ApiTextPart
from pydantic_ai.messages import ToolCallPart as ApiToolCallPart
from pydantic_ai.usage import RequestUsage

from stratus.agents.convert import from_provider, stop_of, to_provider, usage_of
from stratus.domain.values import FilePart, Message, TextPart, ToolCallPart, ToolResultPart, Usage


def test_a_part_that_the_domain_does_not_know_is_kept_whole() -> None:
    response = ModelResponse(
        parts=[
            CompactionPart(content="summary", provider_name="anthropic", provider_details={"signature": "s"}),
            ApiTextPart("hello"),
        ],
        provider_name="anthropic",
    )
    stored = Message.model_validate_json(from_provider(response).model_dump_json())
    [replayed] = to_provider("", [stored])
    assert list(replayed.parts) == list(response.parts)
    assert stored.text() == "hello"


def test_what_belongs_to_the_whole_response_is_kept() -> None:
    response = ModelResponse(
        parts=[ApiTextPart("hello")],
        model_name="gpt-x",
        provider_name="openai",
        provider_url="http://x/v1/",
        provider_details={"container_id": "c"},
        provider_response_id="resp_1",
        canonical_system="openai",
        finish_reason="stop",
    )
    [replayed] = to_provider("", [Message.model_validate_json(from_provider(response).model_dump_json())])
    assert isinstance(replayed, ModelResponse)
    assert replace(replayed, timestamp=response.timestamp) == response


def test_a_part_from_a_later_version_is_passed_over() -> None:
    parts = [{"kind": "hologram", "data": 1}, {"kind": "text", "text": "hello"}]
    for role in ("assistant", "user"):
        [replayed] = to_provider("", [Message.model_validate({"role": role, "parts": parts})])
        assert len(replayed.parts) == 1


def test_a_file_that_an_assistant_sent_is_not_sent_back() -> None:
    message = Message(
        role="assistant", parts=[TextPart(text="here"), FilePart(name="a", mime="image/png", data="AA==")]
    )
    [replayed] = to_provider("", [message])
    assert list(replayed.parts) == [ApiTextPart("here")]


def test_the_soul_goes_with_the_last_request() -> None:
    user = Message(role="user", parts=[TextPart(text="hi")])
    first, _, last = to_provider("soul", [user, Message(role="assistant", parts=[TextPart(text="yes")]), user])
    assert (getattr(first, "instructions", None), getattr(last, "instructions", None)) == (None, "soul")


def test_a_long_text_file_is_cut_visibly() -> None:
    file = FilePart(name="log.txt", mime="text/plain", data="QUFB" * 100_000)
    [request] = to_provider("", [Message(role="user", parts=[file])])
    content = str(getattr(request.parts[0], "content", ""))
    assert content.startswith("[file log.txt]\nAAAA")
    assert content.endswith("\n[cut: 300000 characters, the first 100000 are shown]")


def test_unreported_tokens_are_not_zero() -> None:
    assert usage_of(ModelResponse(parts=[])) == Usage(requests=1, unreported=1, unpriced=1)
    reported = ModelResponse(parts=[], usage=RequestUsage(input_tokens=3, output_tokens=0))
    assert usage_of(reported) == Usage(input_tokens=3, output_tokens=0, requests=1, unpriced=1)


@pytest.mark.parametrize(
    ("model", "cost"), [("gpt-4o", "0.0021"), ("claude-opus-4-1", None), ("a-model-of-our-own", None), (None, None)]
)
def test_a_request_costs_what_its_model_is_listed_at_or_nothing_is_claimed(model: str | None, cost: str | None) -> None:
    used = RequestUsage(input_tokens=400, output_tokens=120, cache_read_tokens=80)
    response = ModelResponse(parts=[], model_name=model, provider_name="openai", provider_url="http://x", usage=used)
    usage = usage_of(response)
    assert (usage.cost, usage.unpriced) == (cost, int(cost is None))
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (400, 80, None)


def test_a_call_id_that_a_wire_would_refuse_is_replaced_in_the_call_and_in_its_result() -> None:
    odd = ["call_1~2", "x" * 41, "fine-1"]
    said = Message(role="assistant", parts=[ToolCallPart(call_id=call_id, name="n") for call_id in odd])
    told = Message(role="tool", parts=[ToolResultPart(call_id=call_id, name="n", content="r") for call_id in odd])
    call, result = to_provider("", [said, told])
    ids = [part.tool_call_id for part in call.parts if isinstance(part, ApiToolCallPart)]
    assert [getattr(part, "tool_call_id", None) for part in result.parts] == ids
    assert len(set(ids)) == 3 and ids[2] == "fine-1"
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,40}", call_id) for call_id in ids)


def test_a_call_is_a_call_whatever_the_server_says() -> None:
    calls = Message(role="assistant", parts=[ToolCallPart(call_id="c", name="n")])
    assert stop_of(ModelResponse(parts=[], finish_reason="stop"), calls) == "tool_use"
    assert stop_of(ModelResponse(parts=[], finish_reason="length"), calls) == "length"
    silent = Message(role="assistant", parts=[])
    assert stop_of(ModelResponse(parts=[], finish_reason="stop"), silent) == "end"
    assert stop_of(ModelResponse(parts=[], finish_reason="content_filter"), silent) == "refusal"
    assert stop_of(ModelResponse(parts=[], finish_reason="error"), silent) == "other"

"""The body of a message: what clients may send, and the run input that it becomes."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from stratus.channel.text import clean
from stratus.domain.agent import AGENT_ID_PATTERN, BusyPolicy
from stratus.domain.values import FilePart, Part, RunInput, TextPart

_TITLE_MAX = 80


def _base64(data: str) -> str:
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        raise ValueError("is not base64") from None
    return data


_Clean = Annotated[str, AfterValidator(clean)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileBody(_Body):
    """A file, its octets in base64."""

    kind: Literal["file"] = "file"
    name: _Clean = Field(default="", max_length=255)
    mime: str = Field(default="application/octet-stream", max_length=255, pattern=r"^[\w.+-]+/[\w.+-]+$")
    data: Annotated[str, AfterValidator(_base64)]


class TextBody(_Body):
    """A piece of text."""

    kind: Literal["text"]
    text: _Clean


class MessageBody(_Body):
    """A message: `text` or `parts`, with attachments. `agent` may be left out for a session that exists; `busy` is the agent's unless given."""

    agent: str | None = Field(default=None, pattern=AGENT_ID_PATTERN)
    text: _Clean = ""
    parts: Sequence[Annotated[TextBody | FileBody, Field(discriminator="kind")]] = ()
    attachments: Sequence[FileBody] = ()
    busy: BusyPolicy | None = None

    @model_validator(mode="after")
    def _says_something(self) -> MessageBody:
        if self.text and self.parts:
            raise ValueError("give either text or parts")
        if not (self.text.strip() or self.parts or self.attachments):
            raise ValueError("a message needs text, parts or attachments")
        return self

    def fingerprint(self) -> bytes:
        """SHA-256 of the body in a canonical form, for telling a repeat from another message under the same key."""
        return hashlib.sha256(
            orjson.dumps(self.model_dump(mode="json", exclude_defaults=True), option=orjson.OPT_SORT_KEYS)
        ).digest()

    def title(self) -> str:
        """What a new session is called until somebody renames it."""
        return " ".join(self.run_input().text.split())[:_TITLE_MAX]

    def run_input(self) -> RunInput:
        """What the run is asked. The text comes first; further text parts keep their place among the files."""
        if not self.parts:
            return RunInput(text=self.text, parts=[_file(one) for one in self.attachments])
        text = self.parts[0].text if isinstance(self.parts[0], TextBody) else ""
        rest = self.parts[1:] if isinstance(self.parts[0], TextBody) else self.parts
        return RunInput(text=text, parts=[*map(_part, rest), *map(_file, self.attachments)])


def _part(body: TextBody | FileBody) -> Part:
    return TextPart(text=body.text) if isinstance(body, TextBody) else _file(body)


def _file(body: FileBody) -> FilePart:
    return FilePart(name=body.name, mime=body.mime, data=body.data)

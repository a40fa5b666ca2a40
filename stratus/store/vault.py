"""Credentials at rest: each row's are sealed for that row alone, by the first key, and opened by whichever key sealed them."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import orjson

from stratus.domain.errors import BadSetting, Broken
from stratus.effects import Ids

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_LENGTH_MIN = 32
_VERSION = b"\x01"
_KEY_ID_OCTETS = 4
# 96 bits: https://nvlpubs.nist.gov/nistpubs/Legacy/SP/nistspecialpublication800-38d.pdf, 8.2.2. One nonce a seal is far below its 2**32 limit.
_NONCE_OCTETS = 12
_HEADER_OCTETS = len(_VERSION) + _KEY_ID_OCTETS


class CredentialsUnreadable(Broken):
    """No key that we have opens this row's credentials: another key sealed them, they are another row's, or they are damaged."""

    code = "credentials_unreadable"


class Vault:
    """Seals with AES-256-GCM. `keys` are strings of 32 characters or more, from which the real keys are derived (HKDF-SHA256, RFC 5869).

    Raises BadSetting for no key or a short one.
    """

    def __init__(self, keys: Sequence[str], ids: Ids | None = None) -> None:
        if not keys or any(len(key) < KEY_LENGTH_MIN for key in keys):
            raise BadSetting(f"STRATUS_SECRET_KEY needs at least one key of {KEY_LENGTH_MIN} characters or more")
        self._ids = ids or Ids()
        derived = [_derive(key) for key in keys]
        self._first = _key_id(derived[0])
        self._ciphers: dict[bytes, AESGCM] = {_key_id(key): _cipher(key) for key in derived}

    def seal(self, public_id: UUID, credentials: Mapping[str, str]) -> bytes:
        """Encrypt the credentials of the channel `public_id`."""
        header = _VERSION + self._first
        nonce = urlsafe_b64decode(self._ids.secret(_NONCE_OCTETS))
        plain = orjson.dumps(dict(credentials))
        return header + nonce + self._ciphers[self._first].encrypt(nonce, plain, _bound_to(header, public_id))

    def current(self, sealed: bytes) -> bool:
        """Whether the first key sealed it: the others are not needed for it."""
        return sealed.startswith(_VERSION + self._first)

    def open(self, public_id: UUID, sealed: bytes) -> dict[str, str]:
        """Decrypt them. Raises CredentialsUnreadable."""
        from cryptography.exceptions import InvalidTag

        header, body = sealed[:_HEADER_OCTETS], sealed[_HEADER_OCTETS:]
        cipher = self._ciphers.get(header[len(_VERSION) :])
        if not header.startswith(_VERSION) or cipher is None:
            raise CredentialsUnreadable("the credentials were sealed with a key that STRATUS_SECRET_KEY does not list")
        try:
            plain = cipher.decrypt(body[:_NONCE_OCTETS], body[_NONCE_OCTETS:], _bound_to(header, public_id))
        except (InvalidTag, ValueError) as error:
            raise CredentialsUnreadable("the credentials are damaged or belong to another channel") from error
        return {str(name): str(value) for name, value in orjson.loads(plain).items()}


def _bound_to(header: bytes, public_id: UUID) -> bytes:
    return header + public_id.bytes + b"credentials"


def _derive(key: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"stratus credentials 1").derive(key.encode())


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"stratus key id 1" + key).digest()[:_KEY_ID_OCTETS]

"""Credentials at rest open for their own row with a key that is listed, and for nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratus.domain.errors import BadSetting
from stratus.store.vault import CredentialsUnreadable, Vault

ROW, OTHER_ROW = UUID(int=1), UUID(int=2)
OLD, NEW = "o" * 32, "n" * 32
CREDENTIALS = {"token": "1:sécret", "secret": ""}


def test_what_was_sealed_opens() -> None:
    vault = Vault([NEW])
    sealed = vault.seal(ROW, CREDENTIALS)
    assert vault.open(ROW, sealed) == CREDENTIALS
    assert b"cret" not in sealed


def test_the_first_key_seals_and_all_open() -> None:
    old = Vault([OLD]).seal(ROW, CREDENTIALS)
    both = Vault([NEW, OLD])
    assert both.open(ROW, old) == CREDENTIALS
    new = both.seal(ROW, CREDENTIALS)
    assert Vault([NEW]).open(ROW, new) == CREDENTIALS
    with pytest.raises(CredentialsUnreadable, match="STRATUS_SECRET_KEY"):
        Vault([OLD]).open(ROW, new)


def test_each_seal_is_another() -> None:
    vault = Vault([NEW])
    assert len({vault.seal(ROW, CREDENTIALS) for _ in range(20)}) == 20


def test_another_row_does_not_open_it() -> None:
    vault = Vault([NEW])
    with pytest.raises(CredentialsUnreadable, match="another channel"):
        vault.open(OTHER_ROW, vault.seal(ROW, CREDENTIALS))


def test_every_cut_and_every_changed_byte_is_found() -> None:
    vault = Vault([NEW])
    sealed = vault.seal(ROW, CREDENTIALS)
    damaged = [sealed[:length] for length in range(len(sealed))]
    damaged += [sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :] for i in range(len(sealed))]
    for one in damaged:
        with pytest.raises(CredentialsUnreadable):
            vault.open(ROW, one)


@pytest.mark.parametrize("keys", [[], ["short"], [NEW, "short"]])
def test_no_key_and_short_keys_are_refused(keys: list[str]) -> None:
    with pytest.raises(BadSetting, match="STRATUS_SECRET_KEY"):
        Vault(keys)


def test_it_does_not_show_its_keys() -> None:
    assert NEW not in repr(Vault([NEW])) + repr(vars(Vault([NEW])))

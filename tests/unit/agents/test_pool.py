"""The pool: which wire, address and key an agent resolves to, who shares a model, and what is missing is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratus.agents.demo import DemoModel
from stratus.agents.model import Model, ModelError
from stratus.agents.pool import ModelPool
from stratus.agents.providers import ProviderModel, Resolved
from stratus.domain.agent import AgentDefinition

KEYS = {"ANTHROPIC_API_KEY": "key-a", "OPENAI_API_KEY": "key-o", "TEAM_KEY": "key-t"}


def agent(model: str, base_url: str | None = None, api_key_env: str | None = None) -> AgentDefinition:
    return AgentDefinition(id="a", model=model, base_url=base_url, api_key_env=api_key_env)


def resolved(model: Model) -> Resolved:
    assert isinstance(model, ProviderModel)
    return model._resolved


@pytest.mark.parametrize(
    ("definition", "environment", "expected"),
    [
        (agent("anthropic:m"), {}, Resolved("anthropic", "m", "https://api.anthropic.com", "key-a")),
        (agent("anthropic:m"), {"ANTHROPIC_BASE_URL": "http://x"}, Resolved("anthropic", "m", "http://x", "key-a")),
        (agent("openai:m:1"), {}, Resolved("openai-responses", "m:1", "https://api.openai.com/v1", "key-o")),
        (
            agent("openai:m"),
            {"OPENAI_BASE_URL": "https://api.openai.com/v1/"},
            Resolved("openai-responses", "m", "https://api.openai.com/v1/", "key-o"),
        ),
        (agent("openai:m"), {"OPENAI_BASE_URL": "http://x/v1"}, Resolved("openai-chat", "m", "http://x/v1", "key-o")),
        (agent("openai-chat:m"), {}, Resolved("openai-chat", "m", "https://api.openai.com/v1", "key-o")),
        (
            agent("openai-responses:m", "http://x/v1", "TEAM_KEY"),
            {"OPENAI_BASE_URL": "http://y/v1"},
            Resolved("openai-responses", "m", "http://x/v1", "key-t"),
        ),
        (agent("openai:m", "http://x/v1"), {}, Resolved("openai-chat", "m", "http://x/v1", "not-needed")),
        (agent("openai-compatible:m", "http://x/v1"), {}, Resolved("openai-chat", "m", "http://x/v1", "not-needed")),
        (agent("anthropic:m", None, "TEAM_KEY"), {}, Resolved("anthropic", "m", "https://api.anthropic.com", "key-t")),
    ],
)
def test_resolves(definition: AgentDefinition, environment: dict[str, str], expected: Resolved) -> None:
    assert resolved(ModelPool({**KEYS, **environment}).get(definition)) == expected


def test_a_key_never_goes_to_another_address_by_accident() -> None:
    assert "key-" not in resolved(ModelPool(KEYS).get(agent("openai:m", "http://elsewhere/v1"))).api_key


def test_an_empty_name_of_a_key_is_not_taken_for_the_providers_own() -> None:
    with pytest.raises(ModelError):
        ModelPool(KEYS).get(agent("openai:m", "http://elsewhere/v1", ""))


def test_agents_share_a_model_only_if_all_is_the_same() -> None:
    pool = ModelPool(KEYS)
    one = pool.get(agent("anthropic:m"))
    assert pool.get(agent("anthropic:m")) is one
    others = [
        pool.get(agent("anthropic:n")),
        pool.get(agent("anthropic:m", None, "TEAM_KEY")),
        pool.get(agent("anthropic:m", "http://x")),
    ]
    assert len({id(model) for model in [one, *others]}) == 4


def test_a_changed_environment_counts_at_the_next_dispatch() -> None:
    environment = dict(KEYS)
    pool = ModelPool(environment)
    pool.get(agent("anthropic:m"))
    environment["ANTHROPIC_API_KEY"] = "key-b"
    assert resolved(pool.get(agent("anthropic:m"))).api_key == "key-b"


def test_the_pool_is_bounded_and_drops_what_was_used_longest_ago() -> None:
    pool = ModelPool(KEYS)
    first = pool.get(agent("anthropic:m0"))
    second = pool.get(agent("anthropic:m1"))
    for number in range(2, 65):
        pool.get(agent("anthropic:m0"))
        pool.get(agent(f"anthropic:m{number}"))
    assert pool.get(agent("anthropic:m0")) is first
    assert pool.get(agent("anthropic:m1")) is not second


@pytest.mark.parametrize(
    ("definition", "code", "said"),
    [
        (agent("anthropic:m"), "auth", "ANTHROPIC_API_KEY"),
        (agent("openai:m"), "auth", "OPENAI_API_KEY"),
        (agent("openai:m", "http://x/v1", "MY_KEY"), "auth", "MY_KEY"),
        (agent("anthropic:m", "http://x", "STRATUS_SECRET_KEY"), "auth", "STRATUS_SECRET_KEY is a setting of Stratus"),
        (agent("martian:m"), "not_found", "no provider 'martian'"),
        (agent("openai-compatible:m"), "not_found", "base_url"),
    ],
)
def test_says_what_is_missing(definition: AgentDefinition, code: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        ModelPool({"STRATUS_SECRET_KEY": "s"}).get(definition)
    assert (caught.value.code, caught.value.retryable) == (code, False)
    assert said in str(caught.value)


@pytest.mark.parametrize("written", ["sk-ant-REALKEY", "REALKEY with space", ""])
def test_what_may_be_a_key_in_place_of_a_name_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(ModelError) as caught:
        ModelPool({written: "x"}).get(agent("anthropic:m", None, written))
    assert caught.value.code == "auth"
    assert "REALKEY" not in str(caught.value)


def test_a_key_is_in_no_repr() -> None:
    assert "key-a" not in repr(resolved(ModelPool(KEYS).get(agent("anthropic:m"))))


@pytest.mark.parametrize("model", ["demo", "demo:anything"])
def test_demo_needs_nothing(model: str) -> None:
    assert isinstance(ModelPool({}).get(agent(model)), DemoModel)


def test_available_names_what_has_a_key() -> None:
    assert ModelPool({}).available() == ["demo"]
    assert ModelPool(KEYS).available() == ["demo", "anthropic", "openai"]


async def test_closing_twice_is_fine() -> None:
    pool = ModelPool(KEYS)
    await pool.close()
    await pool.close()


def test_demo_and_resolving_import_no_sdk() -> None:
    code = (
        "import sys\n"
        "from stratus.agents.pool import ModelPool\n"
        "from stratus.domain.agent import AgentDefinition\n"
        "pool = ModelPool({'ANTHROPIC_API_KEY': 'k'})\n"
        "pool.get(AgentDefinition(id='a', model='demo')), pool.get(AgentDefinition(id='a', model='anthropic:m')), pool.available()\n"
        "print([name for name in ('pydantic_ai', 'anthropic', 'openai', 'httpx2') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

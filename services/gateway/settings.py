"""The gateway's settings: ADASD_GATEWAY_*."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from adasd.core.messages import MAX_ROUNDS
from adasd.rpc.options import MAX_VOCABULARY, MessageLimits
from adasd.rpc.tls import ClientTls, ServerTls
from adasd.state.connection import StoreSettings
from services.environment import NESTED
from services.gateway.admission import PromptLimits
from services.gateway.body import Bodies
from services.gateway.keys import KeyRing, Principal
from services.gateway.remote_options import RemoteOptions
from services.gateway.replicas import HealthOptions
from services.gateway.rules import Rules
from services.gateway.schema import MAX_CANDIDATES
from services.gateway.security import LOOPBACK_HOSTS
from services.tracing import TracingSettings


class GatewaySettings(BaseSettings):
    """drafter, verifier: addresses or `dns:///name:port`, several separated by commas.

    tokenizer: model folder with tokenizer and template. chat_template: a Jinja file instead of the folder's.
    tool_parser: name of the format that the model writes calls in, if not as the template does.

    model_name, model_aliases (separated by commas): what clients call the model; the folder's name by default.
    stopping, acceptance, max_candidates, copying: rules of requests that name none.
    cost_profile: JSON file of a `CostProfile`, against which `marginal` weighs candidates of seeded requests; by
    default the nominal one. shared_cores: drafter and verifier compute on the same ones.
    rounds_at_once: for one message, without candidates or of a drafter beside the verifier; none finds out what
    messages cost.
    default_max_tokens: as the rules; none is the rest of the context. max_requests: chat requests in hand at a time.
    max_vocabulary: that of the services.
    grace_seconds: what running answers get after SIGTERM. probe_seconds: between two looks at the services.
    keys (lines separated by commas), keys_file: as `services.gateway.keys` has them; with neither anybody may ask.
    key_rate (a minute), key_concurrency: of keys that name none. cors_origins, hosts (names the gateway may
    be called by; without keys on a loopback address its own, else any): separated by commas.
    max_body_bytes, body_seconds, tokenizer_threads: of `Bodies`. max_messages, max_message_characters: `PromptLimits`.
    resume_wait: how long a client who comes back waits for a record that is behind what he has.
    The other times, in seconds, are those of `RemoteOptions` and `HealthOptions`. store: `StoreSettings`.
    tls: towards the services. https: towards clients, whose keys travel with every request; plain HTTP without it.
    tracing: where spans go; none by default.
    """

    model_config = SettingsConfigDict(
        env_prefix="ADASD_GATEWAY_",
        env_nested_delimiter=NESTED,
        env_parse_none_str="none",
        frozen=True,
        protected_namespaces=(),
    )

    drafter: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    redis_url: SecretStr
    tokenizer: Path
    chat_template: Path | None = None
    tool_parser: Literal["hermes", "mistral", "llama"] | None = None
    model_name: str | None = None
    model_aliases: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    stopping: str = "marginal"
    acceptance: str = "adasd-anchored"
    max_candidates: int | None = Field(default=None, ge=1, le=MAX_CANDIDATES)
    copying: bool = True
    cost_profile: Path | None = None
    shared_cores: bool = False
    rounds_at_once: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    default_max_tokens: int | None = Field(default=None, ge=1)
    max_body_bytes: int = Field(default=4 * 2**20, ge=1)
    body_seconds: float = Field(default=30.0, gt=0)
    tokenizer_threads: int = Field(default=2, ge=1)
    max_messages: int = Field(default=2048, ge=1)
    max_message_characters: int = Field(default=2**20, ge=1)
    max_requests: int = Field(default=256, ge=1)
    keys: SecretStr | None = None
    keys_file: Path | None = None
    key_rate: int | None = Field(default=None, ge=1)
    key_concurrency: int | None = Field(default=None, ge=1)
    metrics_need_key: bool = False
    cors_origins: str = ""
    hosts: str = ""
    max_vocabulary: int = Field(default=MAX_VOCABULARY, ge=1)
    verify_deadline: float = Field(default=60.0, gt=0)
    verify_attempt: float = Field(default=30.0, gt=0)
    verifier_retry: float = Field(default=10.0, ge=0)
    draft_deadline: float = Field(default=2.0, gt=0)
    drafter_wait: float = Field(default=10.0, ge=0)
    drafter_backoff: float = Field(default=0.5, ge=0)
    drafter_prefill: bool = True
    info_deadline: float = Field(default=5.0, gt=0)
    breaker_failures: int = Field(default=3, ge=1)
    breaker_seconds: float = Field(default=1.0, ge=0)
    retry_ratio: float = Field(default=0.2, ge=0)
    retry_reserve: int = Field(default=100, ge=1)
    resolve_seconds: float = Field(default=5.0, gt=0)
    grace_seconds: float = Field(default=20.0, ge=0)
    probe_seconds: float = Field(default=1.0, gt=0)
    resume_wait: float = Field(default=30.0, ge=0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    store: StoreSettings = StoreSettings()
    tls: ClientTls = ClientTls()
    https: ServerTls = ServerTls()
    tracing: TracingSettings = TracingSettings()

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may call the model, its own name first."""
        return (self.model_name or self.tokenizer.resolve().name, *_split(self.model_aliases))

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Empty for any."""
        if self.hosts or (self.keys, self.keys_file) != (None, None) or not is_loopback(self.host):
            return tuple(host.lower() for host in _split(self.hosts))
        return (*LOOPBACK_HOSTS, self.host)

    @property
    def origins(self) -> tuple[str, ...]:
        return _split(self.cors_origins)

    @property
    def rules(self) -> Rules:
        return Rules(self.stopping, self.acceptance, self.max_candidates, self.copying)

    @property
    def prompt_limits(self) -> PromptLimits:
        return PromptLimits(self.max_messages, self.max_message_characters)

    @property
    def key_ring(self) -> KeyRing:
        """Raises InvalidRequest naming the line at fault."""
        listed = None if self.keys is None else self.keys.get_secret_value()
        return KeyRing(listed, self.keys_file, Principal("", self.key_rate, self.key_concurrency))

    @property
    def bodies(self) -> Bodies:
        threads = ThreadPoolExecutor(self.tokenizer_threads, thread_name_prefix="text")
        return Bodies(self.max_body_bytes, self.body_seconds, threads)

    @property
    def remote(self) -> RemoteOptions:
        return RemoteOptions(
            drafter=_split(self.drafter),
            verifier=_split(self.verifier),
            limits=MessageLimits(self.max_vocabulary, MAX_CANDIDATES),
            health=HealthOptions(
                self.breaker_failures,
                self.breaker_seconds,
                self.retry_ratio,
                self.retry_reserve,
                self.resolve_seconds,
            ),
            verify_deadline=self.verify_deadline,
            verify_attempt=self.verify_attempt,
            verifier_retry=self.verifier_retry,
            draft_deadline=self.draft_deadline,
            drafter_wait=self.drafter_wait,
            drafter_backoff=self.drafter_backoff,
            drafter_prefill=self.drafter_prefill,
            info_deadline=self.info_deadline,
            tls=self.tls,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; names other than localhost are not looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(listed: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in listed.split(",") if entry.strip())

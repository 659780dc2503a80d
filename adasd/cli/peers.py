"""What a user would pick instead, on the same model: transformers in this process, and servers of OpenAI's API."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from adasd.bench.answers import Reply
from adasd.bench.driver import Ask, HttpChat, Messages, drawn
from adasd.bench.schedule import Load
from adasd.cli.processes import Child, free_port
from adasd.core.errors import InvalidRequest, ServiceUnavailable
from adasd.runtime.pair import DemoPair

PEERS = ("transformers", "serve", "llama.cpp")
LOAD_SECONDS = 300.0
TEMPLATE_TOKENS = 256
"""Room in a context for what a chat template adds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of every variant alike. max_tokens: drawn for every answer; `generate` and the services end there.

    context: tokens that a prompt and its answer may take.
    """

    max_tokens: range
    temperature: float
    context: int
    streams: int

    @property
    def sampling(self) -> dict[str, Any]:
        """As options of transformers' `generate`: the plain distribution at this temperature."""
        greedy = {"do_sample": False}
        return (
            {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
            if self.temperature
            else greedy
        )

    @property
    def request(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "temperature": self.temperature}


def asked(max_tokens: range, temperature: float, loads: Sequence[Load], contexts: Sequence[int | None]) -> Asked:
    longest = max(context or 2048 for context in contexts)
    streams = max(load.streams or 1 for load in loads)
    return Asked(max_tokens, temperature, longest + max_tokens[-1] + TEMPLATE_TOKENS, streams)


def parse_peers(text: str) -> tuple[str, ...]:
    """Peers of a list with commas; `none` is none. Raises InvalidRequest."""
    names = () if text == "none" else tuple(text.split(","))
    if unknown := [name for name in names if name not in PEERS]:
        raise InvalidRequest(f"no peer {unknown[0]!r}: give none, or some of {', '.join(PEERS)}", "peers")
    return names


def start_peers(
    names: Sequence[str], pair: DemoPair, asked: Asked, logs: Path, stack: ExitStack, say: Callable[[str], None]
) -> dict[str, Ask]:
    """Peers by the names of their variants; `say` is told what is not installed. They end with `stack`."""
    asks: dict[str, Ask] = {}
    for name in names:
        try:
            if name == "transformers":
                asks |= in_process(pair, asked)
            else:
                server = (serve if name == "serve" else llama_cpp)(pair, asked)
                asks[server.name] = stack.enter_context(server.started(logs))
        except ServiceUnavailable as error:
            say(f"left out: {error}")
    return asks


@dataclass(frozen=True, slots=True)
class Server:
    """A program that serves OpenAI's chat API.

    command: {port} stands for its port. ready: a path that answers 200 from then on.
    request: what its requests have besides messages and seed.
    """

    name: str
    command: Sequence[str]
    ready: str
    request: Mapping[str, Any]

    @contextmanager
    def started(self, logs: Path) -> Iterator[Ask]:
        """Runs it. Raises ServiceUnavailable with its log's end if it does not come up."""
        port = str(free_port())
        command = [part.replace("{port}", port) for part in self.command]
        child = Child(self.name, command, logs / f"{self.name.split()[0]}.log", {"HF_HUB_OFFLINE": "1"})
        with ExitStack() as stack:
            stack.callback(child.stop)
            child.start()
            client = stack.enter_context(http_client(f"http://127.0.0.1:{port}"))
            self._wait(child, client)
            yield HttpChat(client, self.request)

    def _wait(self, child: Child, client: httpx.Client) -> None:
        deadline = time.monotonic() + LOAD_SECONDS
        while not self._answers(client):
            if child.exit_code is not None:
                raise ServiceUnavailable(f"{self.name} ended with {child.exit_code}:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"{self.name} is not ready after {LOAD_SECONDS:.0f} s")
            time.sleep(0.2)

    def _answers(self, client: httpx.Client) -> bool:
        try:
            return client.get(self.ready).status_code == 200
        except httpx.TransportError:
            return False


def http_client(url: str) -> httpx.Client:
    """For as many streams at a time as anybody likes."""
    return httpx.Client(base_url=url, timeout=httpx.Timeout(10, read=600), limits=httpx.Limits())


def serve(pair: DemoPair, asked: Asked) -> Server:
    """`transformers serve` on the target. Raises ServiceUnavailable if it cannot run here."""
    try:
        from transformers.utils.import_utils import is_serve_available
    except ImportError:
        raise ServiceUnavailable(
            "transformers serve: this transformers has none; not installed: transformers>=5"
        ) from None
    if not is_serve_available():
        raise ServiceUnavailable("transformers serve: not installed: pip install 'transformers[serving]'")
    file = pair.target / "generation_config.json"
    stored: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    config = {name: value for name, value in stored.items() if not name.startswith("_")} | asked.sampling
    options = ("--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32")
    return Server(
        "transformers serve",
        (sys.executable, "-m", "transformers.cli.transformers", "serve", str(pair.target), *options),
        "/health",
        {**asked.request, "model": str(pair.target), "generation_config": json.dumps(config), "stream_options": None},
    )


def llama_cpp(_: DemoPair, asked: Asked) -> Server:
    """llama.cpp's server on the GGUF file that the target was made from: quantised weights, so a yardstick only.

    Raises ServiceUnavailable if neither its program nor its Python package is here.
    """
    from adasd.runtime.gguf_source import find_gguf

    file = find_gguf()
    request = {**asked.request, "model": file.stem, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    address = ("--host", "127.0.0.1", "--port", "{port}")
    name = f"llama.cpp ({file.stem})"
    if program := shutil.which("llama-server"):
        room = ("--parallel", str(asked.streams), "--ctx-size", str(asked.streams * asked.context))
        command = [program, "--model", str(file), *address, *room]
        return Server(name, command, "/health", {**request, "cache_prompt": False})
    if find_spec("llama_cpp"):
        command = [sys.executable, "-m", "llama_cpp.server", "--model", str(file), *address]
        return Server(name, [*command, "--n_ctx", str(asked.context)], "/v1/models", request)
    raise ServiceUnavailable(
        "llama.cpp: not installed: put its llama-server on the PATH, or pip install 'llama-cpp-python[server]'"
    )


ALONE, ASSISTED = "transformers, target alone", "transformers, assisted generation"
IN_PROCESS = frozenset((ALONE, ASSISTED))
"""They answer one request at a time."""


def in_process(pair: DemoPair, asked: Asked) -> dict[str, Ask]:
    """transformers' `generate` with and without `assistant_model`, in this process."""
    generate = _Generate(pair, asked)
    return {ALONE: generate, ASSISTED: lambda messages, seed: generate(messages, seed, assisted=True)}


class _Arrivals:
    """A streamer for `generate`: when tokens came. The prompt is the first thing it is given."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


class _Generate:
    def __init__(self, pair: DemoPair, asked: Asked) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from adasd.runtime.student import load_student

        self._torch = torch
        self._asked = asked
        self._tokenizer = AutoTokenizer.from_pretrained(pair.target)
        self._target: Any = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
        self._draft = load_student(pair.draft, pair.target)

    def __call__(self, messages: Messages, seed: int, assisted: bool = False) -> Reply:
        begin, arrivals = time.perf_counter(), _Arrivals()
        inputs: Any = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        limit = drawn(self._asked.max_tokens, seed)
        options = {"max_new_tokens": limit, "streamer": arrivals, **self._asked.sampling}
        options |= {"assistant_model": self._draft} if assisted else {}
        self._torch.manual_seed(seed)
        with self._torch.inference_mode():
            output = self._target.generate(**inputs, **options)
        prompt = inputs["input_ids"].shape[1]
        times = tuple(at - begin for at in arrivals.times[1:])
        return Reply(tokens=output.shape[1] - prompt, arrivals=times, prompt_tokens=prompt)

"""Sessions over sockets, in real time: agents of a test that ask by a vendor's SDK."""

import asyncio
import ssl
from typing import Any

import openai

from recipe.async_dapo.config.extensions import of_copy

from .world import HttpAgent, Life, check_rows, new_group, shown, texts

THOUGHT_AND_CALL = 'hm</think>I add. <tool_call>{"name": "add",  "arguments": {"a":1,"b":2}}</tool_call>'
ADDED = f"[{THOUGHT_AND_CALL}<|im_end|>]\n<|im_start|>t\n3<|im_end|>\n<|im_start|>a\n[3<|im_end|>]"  # a row


NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # addresses have no TLS: those of the system are not loaded
NESTED = '{"a": ' + "[" * 500 + "]" * 500 + "}"


def openai_client(address: str, key: str, **options: Any) -> openai.AsyncOpenAI:
    own = openai.DefaultAsyncHttpxClient(verify=NO_CERTIFICATES)
    return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, http_client=own, **options)


async def by_chat(client: Any, messages: list[Any], **more: Any) -> Any:
    return (await client.chat.completions.create(model="policy", messages=messages, **more)).choices[0].message


def play(agent: HttpAgent | None, *, n: int = 1, limit_s: float = 300, **options: Any) -> Any:
    """One round of a group; returns (outcome, group, life)."""

    async def main() -> Any:
        life, group = Life(agent, n=n, http=True, **options), new_group(n)
        try:
            outcome = await asyncio.wait_for(life.round(group), limit_s)
        finally:
            await life.end()
            server = await of_copy("agent_server").at(options.get("host", "127.0.0.1"))
            await server.stop()
            assert not server._sessions, "a key is still valid"
            if "command" in options:
                from recipe.async_dapo.extensions.agent_programs.agent_host import AgentHost

                await AgentHost.of("commands").stop()
        return outcome, group, life

    return asyncio.run(main())


def rows(agent: HttpAgent, *says: str, **options: Any) -> list[str]:
    """Of one session that ends well."""
    outcome, group, _ = play(agent, says=texts(*says), **options)
    assert not outcome.reason, outcome.cause
    check_rows(group, texts(*says))
    return shown(group)

"""A tool server that takes money: each request is a line of the ledger before it is answered. Some kill it.

python till_server.py SOCKET LEDGER    ends with its standard input
"""

import asyncio
import json
import os
import sys


def answer_to(length: int) -> str:
    """Another problem."""
    return f"{length % 100:02d}+4*{1 + length % 9:02d}"


def write_line(file: str, **fields: object) -> None:
    """Whole, whoever else writes."""
    ledger = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, (json.dumps(fields) + "\n").encode())
    os.close(ledger)


async def serve(socket: str, ledger: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        answer, is_fatal = answer_to(request["length"]), request["length"] % 4 == 1
        write_line(ledger, call=request["call"], answer=answer, died=is_fatal)
        if is_fatal:
            os._exit(1)
        writer.write(answer.encode())
        writer.close()

    server = await asyncio.start_unix_server(handle, socket)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))

"""The same agent as a program: it knows its environment only, and needs no SDK."""

import json
import os
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

with open("sample.json") as file:
    sample = json.load(file)
messages = list(sample["raw_prompt"])
assert not [name for name in os.environ if name.startswith(("RAY_", "HF_", "WANDB_"))], "the worker's secrets"
for _ in range(3):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    try:
        reply = json.load(urlopen(Request(url, body, headers), timeout=600))
    except HTTPError as error:
        reply = json.load(error)
    if "error" in reply:  # there may be no status
        assert reply["error"]["code"] == "context_length_exceeded", reply
        break
    messages += [reply["choices"][0]["message"], {"role": "user", "content": "Check it."}]
right = float(sample["session_id"] // 2 % 2)
sys.stdout.write(json.dumps({"reward": right, "acc": right}) + "\n")

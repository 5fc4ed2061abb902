"""What `helm test` runs: one real chat call, plain and streamed. Arguments: URL, model, seconds; API_KEY if needed."""

import json
import os
import ssl
import sys
import urllib.request

url, model, timeout_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
headers = {"Content-Type": "application/json"}
if os.environ.get("API_KEY"):
    headers["Authorization"] = f"Bearer {os.environ['API_KEY']}"
# The certificate is for the name that clients use, not for the Service's.
trust = ssl.create_default_context()
trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE


def chat(*, stream: bool) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": stream,
    }
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s, context=trust) as answer:
        return answer.read().decode()


plain = json.loads(chat(stream=False))
text = plain["choices"][0]["message"]["content"]
assert text, "the answer is empty"
assert plain["usage"]["completion_tokens"] > 0, "no token was counted"

events = [line[6:] for line in chat(stream=True).splitlines() if line.startswith("data: ")]
assert events[-1] == "[DONE]", f"the stream did not end well: {events[-1]}"
deltas = [choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]]
assert "".join(deltas), "the stream is empty"
print(f"{model} answers: {text}")

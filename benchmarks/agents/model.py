"""A real model behind an OpenAI-compatible endpoint, with or without the skill."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from dataclasses import dataclass
from typing import Any

from bench import MOST_CALLS, Answer, Desk, given
from cases import HEALTHY, UNKNOWN, Case

from stepscope.agent.skill import skill_files
from stepscope.agent.tool import tools

_TASK = (
    "Why is the step of this program slow, and what mean step would the first repair give? "
    'Capture: {capture}. End with one line of JSON: {{"verdict": CAUSE_ID or "healthy" or '
    '"unknown", "predicted_over_present_step": NUMBER or null, "unreliable": true or false}}. '
    "Cause ids: {causes}. You may call tools {calls} times."
)
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers.

    Attributes:
        url: base of the API, up to and with ``/v1``.
        model: its name.
        key: sent as bearer; may be empty.
    """

    url: str
    model: str
    key: str

    @classmethod
    def offered(cls) -> Endpoint | None:
        """What the environment offers; None where it offers none."""
        url = os.environ.get("STEPSCOPE_EVAL_URL", "")
        model = os.environ.get("STEPSCOPE_EVAL_MODEL", "")
        key = os.environ.get("STEPSCOPE_EVAL_KEY", "")
        return cls(url.rstrip("/"), model, key) if url and model else None

    def next_message(self, messages: list[dict[str, Any]], last: bool) -> dict[str, Any]:
        """The model's next message."""
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": 0}
        if not last:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.schema(),
                    },
                }
                for tool in tools().values()
            ]
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message


def asked(case: Case, desk: Desk, endpoint: Endpoint, *, skill: bool) -> Answer:
    """What a model answers, after at most so many calls of tools."""
    files = skill_files()
    rules = [files["SKILL.md"], files["references/reading.md"]] if skill else []
    from stepscope.api.terms import terms

    task = _TASK.format(
        capture=json.dumps(given(case)),
        causes=", ".join(m.id for m in terms() if m.kind in ("cause", "lever")),
        calls=MOST_CALLS,
    )
    messages: list[dict[str, Any]] = [{"role": "system", "content": text} for text in rules]
    messages.append({"role": "user", "content": task})
    while True:
        message = endpoint.next_message(messages, len(desk.calls) >= MOST_CALLS)
        messages.append(message)
        wanted = message.get("tool_calls") or []
        if not wanted:
            return concluded(str(message.get("content") or ""))
        for call in wanted:
            name, text = call["function"]["name"], call["function"]["arguments"]
            try:
                arguments = json.loads(text or "{}")
            except json.JSONDecodeError:
                arguments = {"unreadable": text}
            found = desk.call(name, **arguments)
            content = json.dumps(found)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def concluded(text: str) -> Answer:
    """The answer in the last JSON object of a text; ``unknown`` where there is none."""
    for match in reversed(re.findall(r"\{[^{}]*\}", text)):
        try:
            found = json.loads(match)
        except json.JSONDecodeError:
            continue
        if "verdict" in found:
            verdict = {"gpu_bound_healthy": HEALTHY, "insufficient_data": UNKNOWN}.get(
                found["verdict"], str(found["verdict"])
            )
            ratio = found.get("predicted_over_present_step")
            known = isinstance(ratio, int | float) and not isinstance(ratio, bool) and ratio > 0
            unreliable = found.get("unreliable") is True
            return Answer(verdict, float(ratio) if known else None, unreliable=unreliable)
    return Answer(UNKNOWN)

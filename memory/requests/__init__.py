"""Requests to forget in plain words: recognised, resolved to a plan, never stored.

listener = Listener(RuleResolver(key), key)
heard = listener.hear(turn, view)
"""

from memory.requests.echoes import Forgotten
from memory.requests.errors import InventedTarget, ResolverFailed
from memory.requests.listener import Heard, Listener
from memory.requests.llm import ChatEndpoint, LLMResolver
from memory.requests.plan import (
    Ambiguous,
    Due,
    Event,
    ForgetPlan,
    Kind,
    RecordView,
    Remembered,
    Resolver,
)
from memory.requests.rules import RuleResolver, current_ids
from memory.requests.view import PlainView
from memory.requests.wish import Act, Part, Wish, recognise

__all__ = [
    "Act",
    "Ambiguous",
    "ChatEndpoint",
    "Due",
    "Event",
    "ForgetPlan",
    "Forgotten",
    "Heard",
    "InventedTarget",
    "Kind",
    "LLMResolver",
    "Listener",
    "Part",
    "PlainView",
    "RecordView",
    "Remembered",
    "Resolver",
    "ResolverFailed",
    "RuleResolver",
    "Wish",
    "current_ids",
    "recognise",
]

"""Layouts of public data sets become the same messages; what is none is refused with the list of those known."""

import pytest

from chatting import said
from tokenfeed.errors import ArgumentError, FormatError
from tokenfeed.text import Chat
from tokenfeed.text.chat.layouts import find_layout, read_conversations

QUESTION, ANSWER = said("user", "Why?"), said("assistant", "Because.")
SYSTEM = said("system", "Be brief.")


@pytest.mark.parametrize(
    ("layout", "fields", "messages", "first"),
    [
        ("messages", {"messages": [QUESTION, ANSWER]}, [QUESTION, ANSWER], 0),
        ("messages", {"messages": [QUESTION, ANSWER], "system": "Be brief."}, [SYSTEM, QUESTION, ANSWER], 1),
        ("messages", {"messages": [SYSTEM, QUESTION, ANSWER], "system": "Else."}, [SYSTEM, QUESTION, ANSWER], 0),
        (
            "conversations",
            {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]},
            [QUESTION, ANSWER],
            0,
        ),
        ("conversations", {"conversations": [QUESTION, ANSWER]}, [QUESTION, ANSWER], 0),
        ("prompt-completion", {"prompt": "Why?", "completion": "Because."}, [QUESTION, ANSWER], 1),
        ("prompt-completion", {"prompt": [SYSTEM, QUESTION], "completion": [ANSWER]}, [SYSTEM, QUESTION, ANSWER], 2),
        ("instruction", {"instruction": "Why?", "input": "", "output": "Because."}, [QUESTION, ANSWER], 1),
        (
            "instruction",
            {"instruction": "Why?", "input": "It rains.", "output": "Because."},
            [said("user", "Why?\n\nIt rains."), ANSWER],
            1,
        ),
    ],
)
def test_one_conversation(layout, fields, messages, first):
    assert find_layout(fields, "here") == layout
    (made,) = read_conversations(layout, fields)
    assert (made.messages, made.first) == (messages, first)


@pytest.mark.parametrize(
    "fields",
    [
        {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, said("assistant", "No.")]},
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [said("assistant", "No.")]},
        {"prompt": "Why?", "chosen": [QUESTION, ANSWER], "rejected": [QUESTION, said("assistant", "No.")]},
        {"chosen": "\n\nHuman: Why?\n\nAssistant: Because.", "rejected": "\n\nHuman: Why?\n\nAssistant: No."},
    ],
)
def test_pairs(fields):
    """Their prompt is what both have in common."""
    assert find_layout(fields, "here") == "pairs"
    chosen, rejected = read_conversations("pairs", fields)
    assert (chosen.messages, chosen.first) == ([QUESTION, ANSWER], 1)
    assert (rejected.messages, rejected.first) == ([QUESTION, said("assistant", "No.")], 1)
    assert read_conversations("chosen", fields) == [chosen]


def test_tools_and_calls():
    tools = [{"type": "function", "function": {"name": "add"}}]
    (made,) = read_conversations("messages", {"messages": [QUESTION], "tools": '[{"name": "add"}]'})
    assert made.tools == [{"name": "add"}]
    turns = [
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "2"},
    ]
    (made,) = read_conversations("conversations", {"conversations": turns, "tools": tools})
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert made.messages == [said("assistant", "", tool_calls=[call]), said("tool", "2")]
    assert made.tools == tools


@pytest.mark.parametrize(
    ("layout", "fields", "message"),
    [
        ("messages", {"messages": 7}, "'messages' is int; expected a list"),
        ("messages", {"messages": "[", "x": 1}, "'messages' is a text that is not JSON"),
        ("messages", {"messages": ["Why?"]}, "message 0 of 'messages' is str; expected an object"),
        ("messages", {"messages": []}, "the conversation has no messages"),
        ("messages", {"messages": [{"role": 7}]}, "the role of message 0 of 'messages' is '7'"),
        ("messages", {"text": "Why?"}, "there is no 'messages', which layout 'messages' needs; the fields are text"),
        (
            "conversations",
            {"conversations": [{"from": "nobody"}]},
            "is from 'nobody'; expected role and content, or from",
        ),
        ("conversations", {"conversations": [{"from": "function_call", "value": "add"}]}, "not JSON with name"),
        ("instruction", {"instruction": 1, "output": "x"}, "must be texts"),
        ("pairs", {"chosen": "a", "rejected": "b"}, "there is no 'prompt'; expected one"),
        ("messages", {"messages": [QUESTION], "tools": "{"}, "'tools' is a text that is not JSON"),
    ],
)
def test_what_is_no_conversation(layout, fields, message):
    with pytest.raises(FormatError, match=message):
        read_conversations(layout, fields)


def test_layouts_that_are_not_known():
    with pytest.raises(
        FormatError, match=r"here: the fields text, url are of no layout that is known: messages \(mess"
    ):
        find_layout({"text": "a", "url": "b"}, "here")
    with pytest.raises(ArgumentError, match="layout is 'sharegpt'; it must be one of messages, conversations"):
        Chat(layout="sharegpt")
    with pytest.raises(ArgumentError, match="train_on names no role"):
        Chat(train_on=())
